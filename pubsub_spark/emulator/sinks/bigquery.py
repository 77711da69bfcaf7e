"""The destination of BigQuery subscriptions: rows of an existing table, in DuckDB files or behind a REST endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pubsub_spark.emulator.sinks import bigquery_rows
from pubsub_spark.emulator.sinks.bigquery_rows import Columns, Row
from pubsub_spark.emulator.sinks.destination import TopicSchema
from pubsub_spark.emulator.sinks.export_batch import Limits, OpenBatch

_LIMITS = Limits(seconds=0.1, messages=1000, bytes=5_000_000)  # suits one insertAll


class Table(Protocol):
    def columns(self) -> Columns:
        """Return the types of its columns. Raise DestinationError if the table cannot be written."""

    def insert(self, rows: Sequence[Row]) -> Sequence[int]:
        """Insert rows and return the indexes of the refused ones."""


class BigQuery:
    limits = _LIMITS

    def __init__(self, table: Table, config: Any) -> None:
        self._table = table
        self._config = config

    def check(self) -> None:
        self._table.columns()

    def write(self, batch: OpenBatch, subscription: str, schema: TopicSchema | None) -> Sequence[int]:
        read = bigquery_rows.reader(self._config, self._table.columns(), schema)
        rows: list[Row] = []
        places: list[int] = []
        misfits: list[int] = []
        for index, lease in enumerate(batch.leases):
            try:
                rows.append(read(lease.message, subscription))
                places.append(index)
            except Exception:  # any error of a decoder: the message is not a row
                misfits.append(index)
        misfits += [places[refused] for refused in (self._table.insert(rows) if rows else ())]
        return misfits


def parts(table: str) -> tuple[str, str, str]:
    """Return project, dataset and table of `project.dataset.table` or `project:dataset.table`."""
    front, name = table.rsplit(".", 1)
    cut = max(front.rfind("."), front.rfind(":"))
    return front[:cut], front[cut + 1 :], name

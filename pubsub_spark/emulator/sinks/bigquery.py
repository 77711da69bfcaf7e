"""The destination of BigQuery subscriptions: rows of a table that exists, in DuckDB files or behind a REST endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pubsub_spark.emulator.sinks import bigquery_rows
from pubsub_spark.emulator.sinks.bigquery_rows import Columns, Row
from pubsub_spark.emulator.sinks.destination import TopicSchema
from pubsub_spark.emulator.sinks.export_batch import Limits, OpenBatch

_LIMITS = Limits(seconds=0.1, messages=1000, bytes=5_000_000)  # what one insertAll takes well


class Table(Protocol):
    """A table of BigQuery, wherever it is."""

    def columns(self) -> Columns:
        """The types of its columns; DestinationError where it is not there, or may not be written."""

    def insert(self, rows: Sequence[Row]) -> Sequence[int]:
        """Insert rows; the indexes of those that it does not take."""


class BigQuery:
    """The table of a BigQueryConfig."""

    limits = _LIMITS

    def __init__(self, table: Table, config: Any) -> None:
        self._table = table
        self._config = config

    def check(self) -> None:
        """Raise DestinationError where the table is missing."""
        self._table.columns()

    def write(self, batch: OpenBatch, subscription: str, schema: TopicSchema | None) -> Sequence[int]:
        """Insert a row for each message; the indexes of those that are no row of the table."""
        read = bigquery_rows.reader(self._config, self._table.columns(), schema)
        rows: list[Row] = []
        places: list[int] = []
        misfits: list[int] = []
        for index, lease in enumerate(batch.leases):
            try:
                rows.append(read(lease.message, subscription))
                places.append(index)
            except Exception:  # of whatever reads it: it is no row
                misfits.append(index)
        misfits += [places[refused] for refused in (self._table.insert(rows) if rows else ())]
        return misfits


def parts(table: str) -> tuple[str, str, str]:
    """Project, dataset and table of `project.dataset.table` or `project:dataset.table`."""
    front, name = table.rsplit(".", 1)
    cut = max(front.rfind("."), front.rfind(":"))
    return front[:cut], front[cut + 1 :], name

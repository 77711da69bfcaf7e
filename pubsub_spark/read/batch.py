"""`spark.read`: a peek at a subscription. At most `maxMessages`, given back after reading, never acknowledged.

One task pulls and nacks, because a batch read has nothing that would tell it when to acknowledge. The messages come
again to whoever reads next; on a subscription with a dead-letter policy the peek counts as a delivery attempt. A
stream that ends for good midway is an error, not fewer rows.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from ..backend import Backend
from ..codec.envelope import Received
from ..options import ReadOptions
from . import acks, subscription
from .pull import Flow, pull
from .rows import Rows
from .task import lease

_NACK_TIMEOUT = 10.0


class PubSubBatchReader(DataSourceReader):
    """Peeks at one subscription."""

    def __init__(self, options: ReadOptions, backend: Backend, rows: Rows) -> None:
        self._options = options
        self._backend = backend
        self._rows = rows

    def partitions(self) -> Sequence[InputPartition]:
        """One, so that `maxMessages` is one limit."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """The rows of up to `maxMessages` messages that are waiting."""
        options = self._options
        flow = Flow(
            options.subscription,
            client_id=uuid.uuid4().hex,
            deadline=lease(options),
            max_messages=options.max_messages,
            max_bytes=options.max_bytes_per_trigger,
        )
        with self._backend.connect() as connection:
            subscription.prepare(connection.admin, options, is_new=False)
            received: list[Received] = []
            pulled = pull(connection, flow, options.max_fetch_period, options.idle_timeout, received.append)
            ack_ids = (got.receipts.column("ack_id") for got in received)
            acks.send(connection, options.subscription, ack_ids, 0, time.monotonic() + _NACK_TIMEOUT)
        if pulled.failure is not None:
            raise pulled.failure
        yield from self._rows.of(got.messages for got in received)

"""Spark's writer classes, for `df.write` and for `df.writeStream`.

    driver      PubSubBatchWriter(...)   makes the write plan, raises every problem with the columns, is pickled
    each task   write(batches)           publishes the rows of a partition -> PublishCommitMessage
    driver      commit(messages)         logs the sum of the tasks' metrics

The guarantee is at-least-once: a task ends well only when every message has its id, and a task that is attempted again
publishes all of its rows again. `idAttribute` assigns each message an id that is the same in every attempt.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row, datasource
from pyspark.sql.types import StructType

from .. import logs
from ..backend import Backend
from ..errors import OptionsError
from ..options import WriteOptions
from .data_writer import PartitionId, write_partition
from .metrics import WriteMetrics, add_to_accumulator
from .plan import WritePlan, plan_batch_write, plan_stream_write

_log = logging.getLogger(__name__)

# The local properties that Spark's micro-batch execution sets for its tasks (the same in 4.0 and 4.3).
_QUERY_ID_PROPERTY = "sql.streaming.queryId"
_BATCH_ID_PROPERTY = "streaming.sql.batchId"

# 4.0 has no Arrow writer for streams: there `write` gets rows.
_STREAMS_ARROW = hasattr(datasource, "DataSourceStreamArrowWriter")
_StreamWriter: Any = datasource.DataSourceStreamArrowWriter if _STREAMS_ARROW else datasource.DataSourceStreamWriter
_ARROW_BATCH_ROWS = 10_000


@dataclass
class PublishCommitMessage(datasource.WriterCommitMessage):
    partition: int
    attempt: int
    batch_id: int | None
    metrics: WriteMetrics


class PubSubBatchWriter(datasource.DataSourceArrowWriter):
    """The writer of `df.write.format("pubsub")`. `accumulator_id` is that of a `WriteSummary`, if there is one."""

    accumulator_id: int | None = None

    def __init__(self, options: WriteOptions, backend: Backend, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionsError(
                ['`mode("overwrite")` is not supported, because a topic keeps its messages. Use `mode("append")`']
            )
        self._plan = plan_batch_write(options, backend, schema)
        self._write_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishCommitMessage:
        context = _context()
        # Not Spark's query id: two writes in one `foreachBatch` share it.
        partition = PartitionId(context.partitionId(), f"{self._write_id}/{context.partitionId()}")
        return _write(self._plan, iterator, partition, None, self.accumulator_id)

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        _log_commit(self._plan, "", messages)

    def abort(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        """Log the number of messages that were published before the write failed. They cannot be taken back."""
        logs.to_stderr(self._plan.options.log_level)
        _log.warning("the write failed. Tasks that ended well had published %s", _sum(messages))


class PubSubStreamWriter(_StreamWriter):  # type: ignore[misc]
    """The writer of `df.writeStream.format("pubsub")`, append mode. `accumulator_id` as above."""

    accumulator_id: int | None = None

    def __init__(self, options: WriteOptions, backend: Backend, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionsError(
                [
                    '`outputMode("complete")` is not supported, because a topic keeps its messages. '
                    'Use `outputMode("append")`, or write each result from `foreachBatch`'
                ]
            )
        self._schema = schema
        self._plan = plan_stream_write(options, backend, schema)

    def write(self, iterator: Iterator[pa.RecordBatch] | Iterator[Row]) -> PublishCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID_PROPERTY), context.getLocalProperty(_BATCH_ID_PROPERTY)
        partition = PartitionId(context.partitionId(), f"{query}/{batch}/{context.partitionId()}")
        batches = iterator if _STREAMS_ARROW else rows_to_arrow(iterator, self._schema)
        return _write(self._plan, batches, partition, int(batch) if batch else None, self.accumulator_id)

    def commit(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:
        _log_commit(self._plan, f"batch {batchId} ", messages)

    def abort(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:
        logs.to_stderr(self._plan.options.log_level)
        _log.warning("batch %d failed. Tasks that ended well had published %s", batchId, _sum(messages))


def _write(
    plan: WritePlan,
    batches: Iterable[pa.RecordBatch],
    partition: PartitionId,
    batch_id: int | None,
    accumulator_id: int | None,
) -> PublishCommitMessage:
    logs.to_stderr(plan.options.log_level)
    metrics = write_partition(plan, batches, partition)
    if accumulator_id is not None:
        add_to_accumulator(accumulator_id, metrics)
    return PublishCommitMessage(partition.partition, _context().attemptNumber(), batch_id, metrics)


def _log_commit(plan: WritePlan, prefix: str, messages: Iterable[datasource.WriterCommitMessage | None]) -> None:
    logs.to_stderr(plan.options.log_level)
    target, metrics = plan.options.topic or "the topics of the rows", _sum(messages)
    _log.info("%spublished to %s: %s", prefix, target, metrics)
    if metrics.dropped:
        _log.warning(
            "%d rows are over a limit of Pub/Sub and were not published to %s, because `onOversize` is `drop`. Set it "
            "to `deadletter` to keep them, or to `error` to see which they are",
            metrics.dropped,
            target,
        )


def _sum(messages: Iterable[datasource.WriterCommitMessage | None]) -> WriteMetrics:
    return sum((message.metrics for message in messages if isinstance(message, PublishCommitMessage)), WriteMetrics())


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls write() in a task"
    return context


def rows_to_arrow(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Spark 4.0 passes rows to a stream's writer."""
    from pyspark.sql.conversion import LocalDataToArrowConversion

    while chunk := list(islice(rows, _ARROW_BATCH_ROWS)):
        yield from LocalDataToArrowConversion.convert(chunk, schema, False).to_batches()

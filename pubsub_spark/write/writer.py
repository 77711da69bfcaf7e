"""Spark's writers: what is decided on the driver, what happens in a task, what is said at the end.

    driver      PubSubWriter(...)      columns and schema looked at, every problem with them said; pickled
    each task   write(batches)         columns to messages, checked, cut, sent, confirmed -> Written
    driver      commit(messages)       the sums, in the log

The guarantee is at-least-once: a task ends well only when every message has its id, and a task that is tried again
sends all of its rows again. `idAttribute` gives each message a name that does not change from try to try.

Spark makes a stream's writer twice a micro-batch, once to plan it and once to commit it.
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
from . import plan
from .metrics import WriteMetrics, add_to_accumulator
from .task import Job, Part

_log = logging.getLogger(__name__)

# What Spark's micro-batch execution tells its tasks (the same in 4.0 and 4.3).
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

# 4.0 has no Arrow writer for streams: there `write` gets rows.
_STREAMS_ARROW = hasattr(datasource, "DataSourceStreamArrowWriter")
_StreamWriter: Any = datasource.DataSourceStreamArrowWriter if _STREAMS_ARROW else datasource.DataSourceStreamWriter
_ROWS_AT_ONCE = 10_000


@dataclass
class Written(datasource.WriterCommitMessage):
    """What a task has published: every message of it has its id."""

    partition: int
    attempt: int
    batch: int | None
    metrics: WriteMetrics


class PubSubWriter(datasource.DataSourceArrowWriter):
    """`df.write.format("pubsub")`. `accumulator_id` is that of a `WriteSummary`, if there is one."""

    accumulator_id: int | None = None

    def __init__(self, options: WriteOptions, backend: Backend, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionsError(
                ['`mode("overwrite")` cannot be done: a topic keeps what was published to it; use `mode("append")`']
            )
        self._job = plan.batch_write(options, backend, schema)
        self._write = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of a task."""
        context = _context()
        # Not Spark's query id: two writes in one `foreachBatch` share it.
        part = Part(context.partitionId(), f"{self._write}/{context.partitionId()}")
        return _published(self._job, iterator, part, None, self.accumulator_id)

    def commit(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        """Say what was published."""
        logs.to_stderr()
        _log.info("published to %s: %s", self._job.options.topic or "the topics of the rows", _sum(messages))

    def abort(self, messages: list[datasource.WriterCommitMessage | None]) -> None:
        """Say what was published before the write failed; it cannot be taken back."""
        logs.to_stderr()
        _log.warning("the write failed; tasks that ended well had published %s", _sum(messages))


class PubSubStreamWriter(_StreamWriter):  # type: ignore[misc]
    """`df.writeStream.format("pubsub")`, append mode. `accumulator_id` as above."""

    accumulator_id: int | None = None

    def __init__(self, options: WriteOptions, backend: Backend, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionsError(
                [
                    '`outputMode("complete")` cannot be done: a topic keeps what was published to it; '
                    'use `outputMode("append")`, or write each result from `foreachBatch`'
                ]
            )
        self._schema = schema
        self._job = plan.stream_write(options, backend, schema)

    def write(self, iterator: Iterator[pa.RecordBatch] | Iterator[Row]) -> Written:
        """Publish the rows of a task."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        part = Part(context.partitionId(), f"{query}/{batch}/{context.partitionId()}")
        batches = iterator if _STREAMS_ARROW else _arrow(iterator, self._schema)
        return _published(self._job, batches, part, int(batch) if batch else None, self.accumulator_id)

    def commit(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:
        """Say what the micro-batch has published."""
        logs.to_stderr()
        _log.info("batch %d published to %s: %s", batchId, self._job.options.topic, _sum(messages))

    def abort(self, messages: list[datasource.WriterCommitMessage | None], batchId: int) -> None:
        """Say what was published before the micro-batch failed; it cannot be taken back."""
        logs.to_stderr()
        _log.warning("batch %d failed; tasks that ended well had published %s", batchId, _sum(messages))


def _published(
    job: Job, batches: Iterable[pa.RecordBatch], part: Part, batch: int | None, accumulator_id: int | None
) -> Written:
    metrics = job.run(batches, part)
    if accumulator_id is not None:
        add_to_accumulator(accumulator_id, metrics)
    return Written(part.partition, _context().attemptNumber(), batch, metrics)


def _sum(messages: Iterable[datasource.WriterCommitMessage | None]) -> WriteMetrics:
    return sum((message.metrics for message in messages if isinstance(message, Written)), WriteMetrics())


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls write() in a task"
    return context


def _arrow(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches, for Spark 4.0, which gives a stream's writer nothing else."""
    from pyspark.sql.conversion import LocalDataToArrowConversion

    while chunk := list(islice(rows, _ROWS_AT_ONCE)):
        yield from LocalDataToArrowConversion.convert(chunk, schema, False).to_batches()

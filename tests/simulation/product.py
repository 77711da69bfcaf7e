"""What the simulator uses of the code under test. Nothing else of `read/` is imported by it, but `Runtime`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from pubsub_spark.errors import MissingFile
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.driver.query_driver import QueryDriver
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.runtime import Runtime
from pubsub_spark.read.task import partition_pull, partition_reader

__all__ = ["Budget", "MissingFile", "Offset", "begin", "driver", "read"]


def begin() -> None:
    """Forget what this process has kept of the last history."""
    partition_pull._excluded.clear()
    partition_reader._check_token_once.cache_clear()


def driver(
    options: ReadOptions,
    backend: Any,
    store: Any,
    fetch_partitions: int,
    is_stopping: Callable[[], bool],
    may_be_asked_once: bool,
    buffered: int,
    runtime: Runtime,
) -> QueryDriver:
    """Return the driver of one start of a query. buffered: the most messages that its stream buffers."""
    return QueryDriver(
        options,
        backend,
        store,
        fetch_partitions,
        is_stopping=is_stopping,
        may_be_asked_once=may_be_asked_once,
        runtime=runtime,
        max_buffered=buffered,
    )


def read(partition: Any, options: ReadOptions, backend: Any, runtime: Runtime) -> Iterator[pa.RecordBatch]:
    """Read a partition in a task."""
    return partition_reader.read(partition, options, backend, runtime)

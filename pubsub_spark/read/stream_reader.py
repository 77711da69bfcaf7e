"""`spark.readStream`: the calls of DataSourceStreamReader, from dictionaries to `QueryDriver` and back.

A reader lives in three processes: a driver-side worker calls everything but `read`, a planner pickles `read`, and tasks
run it. So the constructor only remembers values, and the query driver is made on the first call that needs it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from .. import logs
from ..backend import Backend, GcpBackend
from ..options import ReadOptions
from .driver.planner import Budget
from .offset import Offset
from .rows import Rows
from .staging.schemas import StagedSchemas
from .staging.store import default_location, open_store
from .task import partition_reader
from .task.partitions import DriverPartition, PullPartition, StagedPartition

if TYPE_CHECKING:
    from .driver.query_driver import QueryDriver

try:  # Spark 4.2 and later
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The interface that Spark 4.0 and 4.1 do not have."""

    ReadLimit = ReadMaxRows = ReadMaxBytes = ReadAllAvailable = None  # type: ignore[assignment, misc]

_MAX_FIRST_PARTITIONS = 8  # of the first pulled batch, before a task has told how many Spark runs at once


class SigtermHandler(AbstractContextManager[None]):
    """The handler of SIGTERM, Spark's way to end this process: it raises SystemExit, so that `stop` is called.

    Within a call of Spark (`with handler`) it waits for the end of the call: raised in the middle, it could leave a
    lock held that `stop` needs.
    """

    def __init__(self) -> None:
        self.received = False
        self._in_call = False

    def install(self) -> None:
        """Handle SIGTERM in this process, unless it has another handler."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)

    def ignore(self) -> None:
        """Ignore later signals, so that `stop` is not interrupted."""
        self.received = True

    def _handle(self, *_: object) -> None:
        if not self.received:
            self.received = True
            self._exit_between_calls()

    def _exit_between_calls(self) -> None:
        if self.received and not self._in_call:
            sys.exit(0)

    def __enter__(self) -> None:
        self._exit_between_calls()
        self._in_call = True

    def __exit__(self, *_: object) -> None:
        self._in_call = False
        self._exit_between_calls()


_sigterm = SigtermHandler()


class PubSubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream.format("pubsub")`, for one subscription."""

    def __init__(self, options: ReadOptions, backend: Backend, rows: Rows) -> None:
        self._options = options
        self._backend = backend
        self._rows = rows
        self._driver: QueryDriver | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a new checkpoint, the same in each call."""
        with _sigterm:
            return self._running().initial_offset().to_json()

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch, or `start`, the end of the last committed one (None before Spark 4.2)."""
        at = None if start is None else Offset.from_json(start)
        with _sigterm:
            if is_once(limit):
                self._running().prepare_for_once()
            return self._running().latest_offset(at, budget(self._options, limit)).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the batch that ends at `end`, the same in each call."""
        with _sigterm:
            return self._running().partitions(Offset.from_json(start), Offset.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition. Runs in a task."""
        assert isinstance(partition, DriverPartition | PullPartition | StagedPartition), (
            "Spark passes the partitions of partitions()"
        )
        logs.to_stderr(self._options.log_level)
        messages = partition_reader.read(partition, self._options, self._backend)
        schemas = StagedSchemas(partition.staging, partition.batch, partition.reader)
        return self._rows.of(messages, partial(partition_reader.count_malformed, partition), schemas)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: Spark calls this late or never, and `latestOffset` is the commit signal."""

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query once it has read the messages published until now."""
        with _sigterm:
            self._running().prepare_for_available_now()

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the metrics of this source for `query.lastProgress`."""
        with _sigterm:
            return self._running().metrics()

    def stop(self) -> None:
        """Acknowledge committed batches, nack buffered messages, close.

        PySpark calls this after Spark's SIGTERM, and also if Spark's process has died.
        """
        is_asked = _sigterm.received
        _sigterm.ignore()
        if self._driver is not None:
            self._driver.close(is_asked)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_driver": None}

    def _running(self) -> QueryDriver:
        if self._driver is None:
            from .driver.query_driver import QueryDriver  # tasks need none
            from .driver.start import Start

            options = self._options
            logs.to_stderr(options.log_level)
            _sigterm.install()
            credentials = self._backend.credentials_json if isinstance(self._backend, GcpBackend) else None
            metrics = options.metrics_location
            start = Start(
                options,
                self._backend,
                open_store(options.staging_location or default_location(), credentials, options.fail_after),
                reader=self._rows.topic_schema,
                metrics_store=open_store(metrics, credentials, fail_after=0.0, mode=0o644) if metrics else None,
            )
            tasks = options.num_fetch_partitions or min(os.cpu_count() or 1, _MAX_FIRST_PARTITIONS)
            self._driver = QueryDriver(start, tasks, lambda: _sigterm.received, may_be_asked_once=ReadLimit is None)
        return self._driver


def is_once(limit: Any) -> bool:
    """Return whether a read limit is that of `Trigger.Once`: Spark will not ask again."""
    return ReadAllAvailable is not None and isinstance(limit, ReadAllAvailable)


def budget(options: ReadOptions, limit: Any) -> Budget:
    """Return the most messages and bytes of a batch: those of the options, or fewer by Spark's read limit."""
    messages, volume = options.max_messages_per_trigger, options.max_bytes_per_trigger
    if ReadMaxRows is not None and isinstance(limit, ReadMaxRows):
        messages = min(messages, limit.max_rows)
    if ReadMaxBytes is not None and isinstance(limit, ReadMaxBytes):
        volume = min(volume, limit.max_bytes)
    return Budget(messages, volume)

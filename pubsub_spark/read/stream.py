"""Spark's face of a stream: the calls of DataSourceStreamReader, from dictionaries to `Session` and back.

A reader lives in three processes (DESIGN section 2): a driver-side worker calls everything but `read`, a planner
pickles `read`, and tasks run it. So the constructor only remembers values; the session is made on the first call that
needs it and never pickled.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from .. import logs
from ..backend import Backend
from ..options import ReadOptions
from . import task
from .offset import Offset
from .plan import Budget, DoorPart, PullPart, StagedPart
from .rows import Rows
from .session import Session
from .staging import default_location

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
        """Spark 4.0 and 4.1 ask no Python source for it."""

    ReadLimit = ReadMaxRows = ReadMaxBytes = ReadAllAvailable = None  # type: ignore[assignment, misc]

_MOST_DEFAULT_PARTITIONS = 8


class Sigterm(AbstractContextManager[None]):
    """Spark's SIGTERM runs `stop`, because it ends this process by no other means.

    It becomes SystemExit, between two calls of Spark at once, and within one at its end: raised in the middle of it,
    it could leave a lock held that `stop` needs.
    """

    def __init__(self) -> None:
        self.come = False  # a call that waits for long should end
        self._busy = False

    def listen(self) -> None:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._take)

    def ignore(self) -> None:
        self.come = True

    def _take(self, *_: object) -> None:
        if not self.come:
            self.come = True
            self._end()

    def _end(self) -> None:
        if self.come and not self._busy:
            sys.exit(0)

    def __enter__(self) -> None:
        self._end()
        self._busy = True

    def __exit__(self, *_: object) -> None:
        self._busy = False
        self._end()


_sigterm = Sigterm()


class PubSubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one subscription; see DESIGN section 3 for the protocol."""

    def __init__(self, options: ReadOptions, backend: Backend, rows: Rows) -> None:
        self._options = options
        self._backend = backend
        self._rows = rows
        self._session: Session | None = None

    def initialOffset(self) -> dict[str, Any]:
        """The offset of a new checkpoint; the same however often it is asked."""
        with _sigterm:
            return self._running().initial().to_json()

    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Spark has committed all up to `start` (4.2 and later tell it); the end of the next batch, or `start`."""
        at = None if start is None else Offset.from_json(start)
        with _sigterm:
            if ReadAllAvailable is not None and isinstance(limit, ReadAllAvailable):  # Trigger.Once does not ask again
                self._running().finish_with_what_is_there()
            return self._running().latest(at, self._budget(limit)).to_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """The parts of the batch that ends at `end`; the same however often it is asked."""
        with _sigterm:
            return self._running().plan(Offset.from_json(start), Offset.from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, as Arrow record batches. Runs in a task."""
        assert isinstance(partition, DoorPart | PullPart | StagedPart), "Spark hands back what partitions() gave it"
        messages = task.read(partition, self._options, self._backend)
        return self._rows.of(messages, partial(task.count_malformed, partition))

    def commit(self, end: Mapping[str, Any]) -> None:
        """Nothing: Spark calls this late or never; `latestOffset` is the commit signal."""

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on only what has been published already is waited for."""
        with _sigterm:
            self._running().finish_with_what_is_there()

    def getDefaultReadLimit(self) -> Any:
        """At most `maxMessagesPerTrigger` rows a batch."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Counts of this source for `query.lastProgress`."""
        with _sigterm:
            return self._running().metrics()

    def stop(self) -> None:
        """Acknowledge what is committed, give back what waits at the door, close."""
        _sigterm.ignore()
        if self._session is not None:
            self._session.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_session": None}

    def _running(self) -> Session:
        if self._session is None:
            logs.to_stderr()
            _sigterm.listen()
            options = self._options
            self._session = Session(
                options,
                self._backend,
                options.staging_location or default_location(),
                options.num_fetch_partitions or min(os.cpu_count() or 1, _MOST_DEFAULT_PARTITIONS),
                lambda: _sigterm.come,
            )
        return self._session

    def _budget(self, limit: Any) -> Budget:
        messages, volume = self._options.max_messages_per_trigger, self._options.max_bytes_per_trigger
        if ReadMaxRows is not None and isinstance(limit, ReadMaxRows):
            messages = min(messages, limit.max_rows)
        if ReadMaxBytes is not None and isinstance(limit, ReadMaxBytes):
            volume = min(volume, limit.max_bytes)
        return Budget(messages, volume)

"""Spark's micro-batch engine in sixty lines: offset log, batch, commit log, and crashes wherever one likes.

It calls a source as Spark does (docs/design.md): with `passes_start` as 4.2 and later, without it as 4.0 and 4.1. Tasks
get pickled partitions. The sink writes a batch under its number. `crash` ends a session as `kill -9` does: nothing is
nacked or acknowledged.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pubsub_spark.backend import EmulatorBackend
from pubsub_spark.emulator import Emulator
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.driver.query_driver import QueryDriver
from pubsub_spark.read.driver.run import Run
from pubsub_spark.read.driver.start import Start
from pubsub_spark.read.driver.times import DRIVER_TIMES, DriverTimes
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.runtime import Runtime
from pubsub_spark.read.staging.schemas import ReaderSchema
from pubsub_spark.read.staging.store import open_store
from pubsub_spark.read.task import partition_reader
from pubsub_spark.read.task.partition_pull import TASK_TIMES, TaskTimes
from pubsub_spark.read.task.partitions import Partition

_EXTENSION_BOUND_SECONDS = 10.0  # of real time, for extensions that take milliseconds


def until(condition: Callable[[], Any], otherwise: str, bound: float = 60.0) -> None:
    """Wait up to `bound` seconds for a condition. If it does not become true, raise AssertionError with `otherwise`."""
    end = time.monotonic() + bound
    while not condition():
        assert time.monotonic() < end, otherwise
        threading.Event().wait(0.005)


class MovedClock(Runtime):
    """The operating system's runtime, with a clock for leases that a test moves."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.boottime = clock  # type: ignore[method-assign]


class _Thread(threading.Thread):
    """A thread whose `join` waits for less time."""

    speed = 1.0

    def join(self, timeout: float | None = None) -> None:
        super().join(None if timeout is None else timeout / self.speed)


class _Condition(threading.Condition):
    """A condition whose waits, those of `wait_for` among them, are shorter."""

    def __init__(self, lock: Any, speed: float) -> None:
        super().__init__(lock)
        self._speed = speed

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None if timeout is None else timeout / self._speed)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        # `wait_for` of the standard library measures real time and calls `wait`, which divides again.
        end = None if timeout is None else time.monotonic() + timeout / self._speed
        while not (result := predicate()) and (end is None or end > time.monotonic()):
            super().wait(None if end is None else end - time.monotonic())
        return result


class _Event(threading.Event):
    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(None if timeout is None else timeout / self._speed)


class _Queue(queue.Queue[Any]):
    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        return super().get(block, None if timeout is None else timeout / self._speed)


class EngineRuntime(Runtime):
    """The operating system's runtime, with clocks that a test moves, and waits that it shortens (`Engine.speed`)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._speed = engine.speed
        began = time.monotonic()  # read first: after a pause in between, `wall` is ahead of the service's clock
        self._wall = time.time() - began * self._speed  # at the zero of `monotonic`

    def monotonic(self) -> float:
        return time.monotonic() * self._speed

    def boottime(self) -> float:
        return self._engine.clock()

    def wall(self) -> float:
        return self._wall + self.monotonic() + self._engine.slept

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / self._speed)

    def start(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = _Thread(target=target, name=name, daemon=True)
        thread.speed = self._speed
        thread.start()
        return thread

    def condition(self, lock: Any = None) -> threading.Condition:
        return _Condition(lock, self._speed)

    def event(self) -> threading.Event:
        return _Event(self._speed)

    def queue(self) -> queue.Queue[Any]:
        return _Queue(self._speed)


class CrashError(Exception):
    """The engine was killed in the middle of a batch."""


@dataclass
class Engine:
    """One query: its checkpoint, its sink, and the session that runs, if any."""

    emulator: Emulator
    options: ReadOptions
    location: str
    partitions: int = 2
    budget: Budget = Budget(1000, 10**6)
    passes_start: bool = True  # whether latestOffset gets the committed offset
    offsets: list[Offset] = field(default_factory=list)
    committed: int = 0
    written: dict[int, list[str]] = field(default_factory=dict)
    evaluations: dict[int, list[list[str]]] = field(default_factory=dict)
    orphans: list[Partition] = field(default_factory=list)  # unread partitions of the last crashed batch
    slept: float = 0.0  # seconds that the clocks were moved
    speed: float = 1.0  # of the clocks: at 60, a wait of a minute takes a second
    times: DriverTimes = DRIVER_TIMES
    task_times: TaskTimes = TASK_TIMES
    is_stopping: bool = False  # whether SIGTERM was received
    partitions_of: dict[int, list[Partition]] = field(default_factory=dict)  # of each batch, at its last evaluation
    session: QueryDriver | None = None
    reader: ReaderSchema | None = None
    reports: list[dict[str, Any]] = field(default_factory=list)  # the metrics after each latestOffset, as Spark asks

    @property
    def backend(self) -> EmulatorBackend:
        assert self.options.endpoint is not None
        return EmulatorBackend(self.options.endpoint, 5.0)

    @property
    def opened(self) -> Run:
        """The open objects of the query driver: connection, staging, ledger, driver stream."""
        assert self.session is not None and self.session.active is not None, "the first trigger opens it"
        return self.session.active.run

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics that `lastProgress` would show."""
        found = None if self.session is None else self.session.metrics()
        return found or {}

    def start(self) -> None:
        """Start a new process on the old checkpoint."""
        assert self.session is None
        self.is_stopping = False
        store, runtime = open_store(self.location), EngineRuntime(self)
        start = Start(self.options, self.backend, store, runtime, self.reader, self.times)
        self.session = QueryDriver(
            start, self.partitions, lambda: self.is_stopping, may_be_asked_once=not self.passes_start
        )
        if not self.passes_start and self.offsets:  # AcceptsLatestSeenOffset: the last in the log, committed or not
            assert [] == self.session.partitions(self.offsets[-1], self.offsets[-1])

    def clock(self) -> float:
        return time.monotonic() * self.speed + self.slept

    def sleep(self, seconds: float) -> None:
        """Move the clocks of the service and of the query, as while its machine is suspended."""
        self.slept += seconds
        self.emulator.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clocks of the service and of the session, and wait until due leases are extended."""
        self.sleep(seconds)
        if self.session is not None and self.session.active is not None:
            run = self.session.active.run
            until(lambda: not self._due(run, seconds), "due leases are extended", _EXTENSION_BOUND_SECONDS)

    def _due(self, run: Run, seconds: float) -> bool:
        """Whether a lease, of buffered messages or of a staged part, is to be extended."""
        now = self.clock()
        with run.changed:
            leases = {n: {p.number: p.lease for p in run.ledger.parts_of(n)} for n in run.ledger.uncommitted}
            committed = [part.lease for n in run.ledger.undeleted for part in run.ledger.parts_of(n)]
        is_listed = seconds < 15 or all(run.staging.parts(n).keys() <= parts.keys() for n, parts in leases.items())
        staged = [lease for parts in leases.values() for lease in parts.values()]
        return not is_listed or any(lease.is_due(now) for lease in (*staged, *committed)) or bool(run.stream.due(now))

    def trigger(
        self,
        actions: int = 1,
        crash_after: int | None = None,
        lasts: float = 0.0,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """Run one trigger. Whether there was a batch.

        crash_after: number of its partitions that are read before the process dies. lasts: seconds that the sink takes.
        meanwhile: called when the batch is planned and no partition is read.
        """
        session = self.session
        assert session is not None
        if self.committed == len(self.offsets):
            start = self.offsets[-1] if self.offsets else session.initial_offset()
            end = session.latest_offset(start if self.passes_start else None, self.budget)
            self.reports.append(self.metrics)
            if end == start and self.offsets:
                return False
            self.offsets.append(Offset.from_json(end.to_json()))
        number = len(self.offsets) - 1
        start = self.offsets[-2] if number else session.initial_offset()
        for _ in range(actions):
            partitions = self.partitions_of[number] = session.partitions(start, self.offsets[-1])
            if crash_after is not None:
                self.read(partitions[:crash_after])
                self.orphans = partitions[crash_after:]
                self.crash()
                raise CrashError
            meanwhile()
            self.evaluations.setdefault(number, []).append(self.read(partitions))
        if lasts:
            self.advance(lasts)
        self.written[number] = self.evaluations[number][-1]
        self.committed += 1
        return True

    def read(self, partitions: Iterable[Partition]) -> list[str]:
        """The payloads of partitions, each read in a task of its own."""
        texts: list[str] = []
        for partition in partitions:
            copy: Partition = pickle.loads(pickle.dumps(partition))
            for batch in partition_reader.read(copy, self.options, self.backend, EngineRuntime(self), self.task_times):
                texts += [data.decode() for data in batch.column("data").to_pylist()]
        self.streams_are_gone()
        return texts

    def stop(self) -> None:
        """End the session as SIGTERM does."""
        assert self.session is not None
        self.session.close()
        self.session = None
        self.streams_are_gone()

    def crash(self) -> None:
        """End the session as kill -9 does: threads end where they are, the connection breaks."""
        assert self.session is not None
        active, self.session = self.session.active, None
        if active is not None:
            active.run.connection.close()
            active.worker.end(_EXTENSION_BOUND_SECONDS)
            active.extender.end(_EXTENSION_BOUND_SECONDS)
            with suppress(ValueError):  # the channel was closed while the stream was opened again
                active.run.stream.close()
            self.streams_are_gone()

    def streams_are_gone(self) -> None:
        """Wait until the service has noticed that clients are gone. It leases messages to them until then."""
        expected = self.session is not None and self.session.active is not None
        while self.emulator.streams() > expected:
            threading.Event().wait(0.001)

    @property
    def rows(self) -> list[str]:
        """The payloads of all committed batches, in their order."""
        return [text for number in range(self.committed) for text in self.written[number]]

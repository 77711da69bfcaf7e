"""Spark's micro-batch engine in sixty lines: offset log, batch, commit log, and crashes wherever one likes.

What Spark does to a source, in its order (DESIGN section 2): `tells` is how 4.2 and later do it, without it is 4.0 and
4.1. Tasks get pickled parts, as in life; the sink writes a batch under its number. `crash` ends a session as `kill -9`
does: nothing is given back or acknowledged.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pubsub_spark.backend import EmulatorBackend
from pubsub_spark.emulator import Emulator
from pubsub_spark.options import ReadOptions
from pubsub_spark.read import task
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.plan import Budget, Part
from pubsub_spark.read.session import Session

_LOOKED_AFTER = 10.0  # seconds of the world's clock, for what takes a blink


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
    tells: bool = True  # latestOffset is told what is committed
    offsets: list[Offset] = field(default_factory=list)
    committed: int = 0
    written: dict[int, list[str]] = field(default_factory=dict)
    evaluations: dict[int, list[list[str]]] = field(default_factory=dict)
    orphans: list[Part] = field(default_factory=list)  # parts of the last crashed batch that nobody has read
    slept: float = 0.0  # seconds by which the clocks were moved
    session: Session | None = None

    @property
    def backend(self) -> EmulatorBackend:
        assert self.options.endpoint is not None
        return EmulatorBackend(self.options.endpoint, 5.0)

    @property
    def opened(self) -> Any:
        """What the session has open: connection, staging, leases, door, keeper."""
        assert self.session is not None and self.session._opened is not None, "the first trigger opens it"
        return self.session._opened

    @property
    def metrics(self) -> dict[str, Any]:
        """What `lastProgress` would show."""
        found = None if self.session is None else self.session.metrics()
        return found or {}

    def start(self) -> None:
        """A new process on the old checkpoint."""
        assert self.session is None
        self.session = Session(self.options, self.backend, self.location, self.partitions, clock=self.clock)
        if not self.tells and self.offsets:  # AcceptsLatestSeenOffset: the last in the log, committed or not
            assert [] == self.session.plan(self.offsets[-1], self.offsets[-1])

    def clock(self) -> float:
        return time.monotonic() + self.slept

    def advance(self, seconds: float) -> None:
        """Time passes, for the service and for the session, who looks after what is due by then."""
        self.slept += seconds
        self.emulator.advance(seconds)
        opened = self.session._opened if self.session is not None else None
        end = time.monotonic() + _LOOKED_AFTER
        while opened is not None and self._due(opened):
            assert time.monotonic() < end, "the keeper looks after what is due"
            threading.Event().wait(0.002)

    def _due(self, opened: Any) -> bool:
        """Whether a lease, at the door or of a staged part, is to be extended."""
        now = self.clock()
        with opened.keeper.lock:
            watched = dict(opened.leases._batches)
        parts = (owner.part(part) for batch, owner in watched.items() for part in opened.staging.parts(batch))
        return any(lease.due(now) for lease in parts) or bool(opened.door.due(now))

    def trigger(self, actions: int = 1, crash_after: int | None = None, lasts: float = 0.0) -> bool:
        """One trigger; whether there was a batch.

        crash_after: parts of it that are read before the process dies. lasts: seconds that the sink takes.
        """
        session = self.session
        assert session is not None
        if self.committed == len(self.offsets):
            start = self.offsets[-1] if self.offsets else session.initial()
            end = session.latest(start if self.tells else None, self.budget)
            if end == start and self.offsets:
                return False
            self.offsets.append(Offset.from_json(end.to_json()))
        number = len(self.offsets) - 1
        start = self.offsets[-2] if number else session.initial()
        for _ in range(actions):
            parts = session.plan(start, self.offsets[-1])
            if crash_after is not None:
                self.read(parts[:crash_after])
                self.orphans = parts[crash_after:]
                self.crash()
                raise CrashError
            self.evaluations.setdefault(number, []).append(self.read(parts))
        if lasts:
            self.advance(lasts)
        self.written[number] = self.evaluations[number][-1]
        self.committed += 1
        return True

    def read(self, parts: Iterable[Part]) -> list[str]:
        """The payloads of parts, each read in a task of its own."""
        texts: list[str] = []
        for part in parts:
            copy: Part = pickle.loads(pickle.dumps(part))
            for batch in task.read(copy, self.options, self.backend):
                texts += [data.decode() for data in batch.column("data").to_pylist()]
        self.streams_are_gone()
        return texts

    def stop(self) -> None:
        """SIGTERM."""
        assert self.session is not None
        self.session.close()
        self.session = None
        self.streams_are_gone()

    def crash(self) -> None:
        """kill -9: threads end where they are, the service sees the connection go."""
        assert self.session is not None
        opened, self.session = self.session._opened, None
        if opened is not None:
            with opened.keeper._wake:
                opened.keeper._stopping = True
                opened.keeper._wake.notify_all()
            opened.keeper._thread.join()
            opened.connection.close()
            opened.door._stream.close()
            self.streams_are_gone()

    def streams_are_gone(self) -> None:
        """The service notices in its own time that a client is gone; what it sends until then is leased to nobody."""
        door = self.session is not None and self.session._opened is not None
        while self.emulator.streams() > door:
            threading.Event().wait(0.001)

    @property
    def rows(self) -> list[str]:
        """The payloads of all committed batches, in their order."""
        return [text for number in range(self.committed) for text in self.written[number]]

"""A run of a query on the fake service, with a lease clock that the test sets and a store that it watches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pubsub_spark.read.driver.ack_worker import AckWorker
from pubsub_spark.read.driver.batches import readable_parts
from pubsub_spark.read.driver.in_doubt import InDoubt
from pubsub_spark.read.driver.lease_extender import LeaseExtender
from pubsub_spark.read.driver.ledger import MAX_KEPT_BYTES, AckLedger
from pubsub_spark.read.driver.run import Run
from pubsub_spark.read.driver.times import AckTimes, ExtensionTimes
from pubsub_spark.read.pull.driver_stream import DriverStream
from pubsub_spark.read.pull.lease import LEASE_SECONDS, STREAM_LEASE_SECONDS
from pubsub_spark.read.pull.streaming_pull import StreamSettings
from pubsub_spark.read.runtime import Runtime
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.ids import merged
from tests.unit.read import service
from tests.unit.read.service import AT_ONCE, SUBSCRIPTION, Service, ids
from tests.unit.read.store import WatchedStore

LONG = 30.0  # seconds that a test never waits in full
DUE = STREAM_LEASE_SECONDS / 4  # when a lease of a new batch is to be extended, and its parts are to be listed
DUE_AGAIN = LEASE_SECONDS / 4
ACK_TIMES = AckTimes(tick=0.01, retry=0.0)
EXTENSION_TIMES = ExtensionTimes(tick=0.01)


class LeaseClock(Runtime):
    """The operating system's runtime, with a lease clock that stands still until a test sets it.

    refused: names of threads that cannot be started next.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.refused: list[str] = []

    def start(self, target: Callable[[], None], name: str) -> Any:
        if name in self.refused:
            self.refused.remove(name)
            raise RuntimeError("can't start new thread")
        return super().start(target, name)

    def boottime(self) -> float:
        return self.now


@dataclass
class Running:
    """A run with its open objects. before: see `WatchedStore`."""

    folder: Path
    service: Any = field(default_factory=Service)
    max_kept_bytes: int = MAX_KEPT_BYTES
    before: Callable[[str, str], Any] = lambda *_: None
    workers: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.runtime = LeaseClock()
        store = WatchedStore(str(self.folder), lambda call, path: self.before(call, path))
        self.staging = Staging(store, SUBSCRIPTION, uuid.uuid4().hex, epoch=1)
        self.ledger = AckLedger(STREAM_LEASE_SECONDS, InDoubt("in-doubt/1-"), self.max_kept_bytes)
        settings = StreamSettings(SUBSCRIPTION, "stream-0", int(STREAM_LEASE_SECONDS), 1000, 10**6)
        self.stream = DriverStream(self.service, settings, AT_ONCE, self.runtime)
        changed = self.runtime.condition()
        self.run = Run(self.service, self.staging, self.ledger, self.stream, changed, self.runtime)

    def acknowledging(self, times: AckTimes = ACK_TIMES) -> AckWorker:
        """Start the ack worker."""
        self.workers.append(AckWorker(self.run, times))
        worker: AckWorker = self.workers[-1]
        return worker

    def extending(self, times: ExtensionTimes = EXTENSION_TIMES) -> LeaseExtender:
        """Start the lease extender."""
        self.workers.append(LeaseExtender(self.run, times))
        extender: LeaseExtender = self.workers[-1]
        return extender

    def end(self) -> None:
        """End the threads."""
        for worker in self.workers:
            worker.end(LONG)
        self.stream.close()

    def advance(self, seconds: float) -> None:
        """Move the lease clock."""
        with self.run.changed:
            self.runtime.now += seconds
            self.run.changed.notify_all()

    def stage(self, batch: int, number: int, *texts: str, dropped: Iterable[str] = (), key: str = "") -> None:
        """Plan a batch, and stage one of its parts as a task does."""
        with self.run.changed:
            self.ledger.plan(batch, self.run.now())
        self.staging.create(f"{batch}/part-{number}", service.part(texts, dropped=dropped, key=key))

    def commit(self, *batches: int) -> None:
        """Record the commit of batches, all at once."""
        parts = {batch: readable_parts(self.staging, batch) for batch in batches}
        with self.run.changed:
            for batch in batches:
                self.ledger.commit(batch, parts[batch])
            self.run.changed.notify_all()

    def arrive(self, texts: str, published: float = 1000.0) -> None:
        """Let messages arrive in the driver stream, and buffer them."""
        self.until(lambda: bool(self.service.calls))
        expected = self.stream.message_count + len(texts)
        self.service.calls[-1].say(service.response(texts, published))
        while self.stream.message_count < expected:
            self.stream.poll(LONG)

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for the effect of a thread."""
        end = self.runtime.monotonic() + LONG
        with self.run.changed:
            while not condition():
                assert self.runtime.monotonic() < end, "it does not happen"
                self.run.changed.wait(0.005)

    def until_due_later(self, batch: int) -> None:
        """Wait until the answer to the extension of each part, or that there was none, is recorded."""
        self.until(lambda: all(part.extend_at > self.runtime.now for part in self.ledger.parts_of(batch)))

    def are_in_doubt(self, *texts: str) -> bool:
        """Return whether these ids are in doubt, and no others."""
        with self.run.changed:
            digests = merged([each.ids.digests for each in self.ledger.in_doubt.runs])
        return digests.tolist() == merged([ids(*texts)]).tolist()

    def leases(self) -> dict[tuple[int, int], float]:
        """Return the end of the lease of each known part, by batch and number. A lease that has expired has none."""
        with self.run.changed:
            batches = (*self.ledger.uncommitted, *self.ledger.undeleted)
            parts = [part for batch in batches for part in self.ledger.parts_of(batch)]
            return {(part.batch, part.number): part.lease.end for part in parts if not part.lease.expired}

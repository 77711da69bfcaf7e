"""An ack worker with all that it works on, for tests that set its clock and its service."""

from dataclasses import dataclass, field
from typing import Any

from pubsub_spark.read.ack_worker import AckWorker
from pubsub_spark.read.deduplication import Deduplication
from pubsub_spark.read.lease_extender import LeaseExtender
from pubsub_spark.read.leases import Leases
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.ids import merged
from pubsub_spark.read.pull.driver_stream import DriverStream
from pubsub_spark.read.pull.streaming_pull import StreamSettings
from tests.engine import MovedClock
from tests.unit.read import service
from tests.unit.read.service import SUBSCRIPTION, Service, ids

LONG = 30.0


@dataclass
class Driver:
    """An ack worker with all that it works on, and a clock that the test sets."""

    staging: Staging
    service: Service = field(default_factory=Service)
    leases: Leases = field(default_factory=Leases)
    now: float = 0.0

    def start(self) -> None:
        connection: Any = self.service
        self.stream = DriverStream(
            connection, StreamSettings(SUBSCRIPTION, "stream-0", 60, 1000, 10**6), runtime=MovedClock(self.clock)
        )
        self.deduplication = Deduplication(self.staging, self.leases, self.clock)
        self.extender = LeaseExtender(connection, self.staging, self.leases, self.stream, self.clock)
        self.worker = AckWorker(connection, self.staging, self.leases, self.stream, self.deduplication, self.extender)

    def clock(self) -> float:
        return self.now

    def stage(self, batch: int, part: int, *texts: str) -> None:
        """Plan a batch, and stage one of its parts."""
        with self.leases.lock:
            self.leases.plan(batch, self.now)
        self.staging.create(f"{batch}/part-{part}", service.part(texts))

    def is_recent(self, *texts: str) -> bool:
        """Whether these ids are the recent ids, and all of them."""
        recent = [each.digests for each in self.deduplication.ids_to_exclude(0.0)]
        return merged(recent).tolist() == merged([ids(*texts)]).tolist()

    def until(self, condition: Any) -> None:
        """Wait for what the worker does."""
        with self.worker._changed:
            while not condition():
                self.worker._changed.wait(0.005)

    def until_extended(self, requests: int) -> None:
        """Wait until so many requests have been sent, and the leases have what became of them: time may go on then."""
        self.until(lambda: len(self.service.modified) == requests and not self.leases.due(self.now))

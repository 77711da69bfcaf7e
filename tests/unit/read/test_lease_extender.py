"""The lease extender while the staging area stalls: leases are extended without it, and kept receipts are bounded."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from pubsub_spark.read import lease_extender
from pubsub_spark.read.leases import LEASE_SECONDS, TRACK_AFTER_SECONDS
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.leases import TRACK_AFTER_SECONDS
from pubsub_spark.read.pull.lease import LEASE_SECONDS
from tests.unit.read.acking_driver import LONG, Driver


@dataclass
class StallingStore:
    """A store whose reads of some batches do not return before `over`."""

    stalled: set[int] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)
    reads: list[int] = field(default_factory=list)  # the batches of all reads

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("parts", "footer"):
            monkeypatch.setattr(Staging, name, self._waiting(getattr(Staging, name)))

    def _waiting(self, call: Any) -> Any:
        def wait_and_call(staging: Staging, batch: int, *arguments: Any) -> Any:
            self.reads.append(batch)
            if batch in self.stalled:
                assert self.over.wait(LONG)
            return call(staging, batch, *arguments)

        return wait_and_call


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[StallingStore]:
    made = StallingStore()
    made.patch(monkeypatch)
    yield made
    made.over.set()


def test_stalled_read_holds_up_its_own_batch_alone(driver: Driver, store: StallingStore):
    """The others are extended in time; when the store answers, that one is, too."""
    for batch, text in enumerate("abc", 1):
        driver.stage(batch, 0, text)
    store.stalled = {1}
    driver.now = TRACK_AFTER_SECONDS
    driver.until(lambda: len(driver.service.modified) == 2)
    assert [["ack-b"], ["ack-c"]] == sorted(ids for _, ids in driver.service.modified)

    store.over.set()
    driver.until(lambda: len(driver.service.modified) == 3)


def test_leases_go_on_without_the_store(driver: Driver, store: StallingStore):
    """Receipts that were read once are extended from memory: a store that stalls for an hour costs no lease."""
    for batch, text in enumerate("abc", 1):
        driver.stage(batch, 0, text)
    driver.worker.commit(1)
    assert driver.worker.flush(LONG)
    driver.now = TRACK_AFTER_SECONDS
    driver.until_extended(2)
    store.stalled = {1, 2, 3}
    for extension in range(1, 25):
        driver.now = TRACK_AFTER_SECONDS + extension * LEASE_SECONDS / 4
        driver.until_extended(2 * (extension + 1))

    assert not driver.leases.is_expired(2, 0, driver.now) and not driver.leases.is_expired(3, 0, driver.now)


def test_part_of_the_driver_is_extended_without_the_store(driver: Driver, store: StallingStore):
    """The driver has the ack ids of what it stages itself."""
    store.stalled = {1}
    driver.stage(1, 0, "a")
    with driver.leases.lock:
        driver.leases.track(1, 0)
    driver.extender.keep(1, 0, [pa.array(["ack-a"])])
    driver.now = TRACK_AFTER_SECONDS

    driver.until(lambda: [(int(LEASE_SECONDS), ["ack-a"])] == driver.service.modified)


def test_kept_receipts_are_bounded(driver: Driver, store: StallingStore, monkeypatch: pytest.MonkeyPatch):
    """Where there is no room, receipts are read for each extension, and all of them are extended."""
    monkeypatch.setattr(lease_extender, "_MAX_KEPT_BYTES", 20)
    driver.stage(1, 0, "a")
    driver.stage(2, 0, "b", "c", "d")
    for extension in range(3):
        driver.now = TRACK_AFTER_SECONDS + extension * LEASE_SECONDS / 4
        driver.until_extended(2 * (extension + 1))

    assert 3 == driver.service.modified.count((int(LEASE_SECONDS), ["ack-b", "ack-c", "ack-d"]))
    assert [(1, 0)] == list(driver.extender._kept)

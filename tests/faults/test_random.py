"""A query through faults in the order of a seed: all arrives, once, or the query fails with our error.

`Engine` plays Spark, with the emulator behind a proxy. While a trigger runs, one fault of FAULTS begins and ends.
Between triggers the query crashes, is stopped, or time passes. A query that fails must report an error of ours, and is
started again on its checkpoint. `make soak` does the same with Spark, processes and an object store.
"""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.errors import PubSubError, StagingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.pull.lease import STREAM_LEASE_SECONDS
from pubsub_spark.read.staging import store as staging_store
from tests.conftest import Names
from tests.engine import CrashError, Engine
from tests.faults.proxy import Proxy

SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.production) for seed in range(6, 20))]
STEPS = 14
LEASE_IS_EXPIRED = 601.0  # seconds, longer than any lease
BOUND = 60.0  # seconds of a trigger, and until all messages arrive when faults are over and leases have expired
SLOW_LINK_BYTES_PER_SECOND = 125_000  # 1 Mbit/s
_OUR_THREADS = ("pull ", "ack worker", "lease extender")
_SOCKETS_MORE = 4  # than before: a connection of the emulator's own may end later


class Store:
    """The object store of the staging area, whose calls can be refused, stalled, or find the disk full."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._error: OSError | None = None
        self._flows = threading.Event()
        self.heal()
        for name in ("read", "read_range", "create", "put", "list", "folders", "delete"):
            patch.setattr(staging_store.Store, name, self._through(name, getattr(staging_store.Store, name)))

    def refuse(self) -> None:
        """Fail each call, as a store does whose rights were revoked."""
        self._error = PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def fill(self) -> None:
        """Fail each write, as a full disk does."""
        self._error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stall(self) -> None:
        """Answer no call until `heal`."""
        self._flows.clear()

    def heal(self) -> None:
        """End every fault."""
        self._error = None
        self._flows.set()

    def _through(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(store: staging_store.Store, *arguments: Any) -> Any:
            assert self._flows.wait(BOUND)
            error = self._error
            if error is not None and (name in ("create", "put") or error.errno != errno.ENOSPC):
                raise StagingError(f"The staging area `{store.location}` cannot be used: {error}")
            return call(store, *arguments)

        return asked


class Run:
    """One query on a subscription of its own, and the list of actions on it."""

    def __init__(self, emulator: Emulator, proxy: Proxy, store: Store, names: Names, folder: Path, seed: int) -> None:
        self.emulator, self.proxy, self.store, self.names = emulator, proxy, store, names
        self.chance = random.Random(seed)
        messages = self.chance.choice([7, 50, 1000])
        options = ReadOptions(
            subscription_id=names.subscription,
            endpoint=proxy.endpoint,
            idle_timeout=0.05,
            max_fetch_period=0.2,
            connect_timeout=5.0,
            max_messages_per_trigger=messages,
        )
        self.engine = Engine(emulator, options, str(folder), budget=Budget(messages, 10**8))
        self.published: list[str] = []
        self.failures: list[PubSubError] = []
        self.done: list[str] = []
        self._rest = 400.0  # seconds that the clocks may still advance while the query runs

    # Faults while a trigger runs

    def refuse_service(self) -> None:
        self.proxy.refuse()

    def drop_connections(self) -> None:
        self.proxy.drop()

    def black_hole_service(self) -> None:
        self.proxy.black_hole()

    def half_close_service(self) -> None:
        self.proxy.half_close()

    def delay_service(self) -> None:
        self.proxy.delay(0.1)

    def throttle_service(self) -> None:
        self.proxy.throttle(SLOW_LINK_BYTES_PER_SECOND)

    def end_streams(self) -> None:
        self.emulator.close_streams(self.chance.choice(["UNAVAILABLE", "INTERNAL", "ABORTED"]))

    def refuse_acks(self) -> None:
        self.emulator.fail("Acknowledge", "INTERNAL", count=3)

    def refuse_leases(self) -> None:
        self.emulator.fail("ModifyAckDeadline", "PERMISSION_DENIED", count=2)

    def revoke_rights(self) -> None:
        self.emulator.fail("StreamingPull", "PERMISSION_DENIED", count=2)
        self.emulator.close_streams("PERMISSION_DENIED")

    def expire_credentials(self) -> None:
        self.emulator.fail("StreamingPull", "UNAUTHENTICATED", count=1)
        self.emulator.close_streams("UNAUTHENTICATED")

    def refuse_store(self) -> None:
        self.store.refuse()

    def stall_store(self) -> None:
        self.store.stall()

    def fill_disk(self) -> None:
        self.store.fill()

    # Steps

    def trigger_with_fault(self) -> None:
        """Run one trigger. A fault begins after a moment and ends after another."""
        fault = self.chance.choice(FAULTS)
        self.done[-1] += f" {fault.__name__}"
        begins, lasts = self.chance.uniform(0, 0.1), self.chance.uniform(0.1, 1.2)
        over = threading.Event()

        def breaks() -> None:
            over.wait(begins)
            fault(self)
            time.sleep(lasts)
            self.heal()

        thread = threading.Thread(target=breaks, name="faults")
        thread.start()
        try:
            self.trigger()
        finally:
            thread.join()

    def trigger(self) -> None:
        """Run one trigger, with a new query if the old one has ended."""
        self._guarded(lambda: self.engine.trigger(actions=self.chance.choice([1, 1, 2])))

    def crash_in_a_batch(self) -> None:
        """Send kill -9 after some of the batch's partitions were read."""
        with suppress(CrashError):
            self._guarded(lambda: self.engine.trigger(crash_after=self.chance.randrange(3)))

    def crash(self) -> None:
        if self.engine.session is not None:
            self.engine.crash()

    def stop(self) -> None:
        if self.engine.session is not None:
            self.engine.stop()

    def lose_leases(self) -> None:
        """Kill the query. All that it held is delivered again."""
        self.crash()
        self.emulator.advance(LEASE_IS_EXPIRED)

    def pass_time(self) -> None:
        """Advance the clocks, as while a machine sleeps or a sink takes long."""
        seconds = self.chance.choice([20.0, 50.0, 100.0])
        if self.engine.session is not None and seconds <= self._rest:
            self._rest -= seconds
            self.engine.advance(seconds)

    def publish(self) -> None:
        texts = [f"m{len(self.published) + each}" for each in range(self.chance.choice([1, 5, 300]))]
        self.emulator.publish(self.names.topic, *texts)
        self.published += texts

    def heal(self) -> None:
        """End every fault."""
        self.proxy.heal()
        self.store.heal()
        self.emulator.clear_faults()

    def drain(self) -> None:
        """Trigger, with no more faults, until everything is acknowledged."""
        self.lose_leases()
        end = time.monotonic() + BOUND + STREAM_LEASE_SECONDS
        while self.emulator.backlog(self.names.subscription) or self.engine.committed < len(self.engine.offsets):
            assert time.monotonic() < end, f"not all arrived: {set(self.published) - set(self.engine.rows)}"
            before = len(self.failures)
            self.trigger()
            assert before == len(self.failures), f"failed without a fault: {self.failures[-1]}"
            threading.Event().wait(0.005)
        self.stop()

    def _guarded(self, action: Callable[[], object]) -> None:
        """Run an action of a query. One that fails with an error of ours is stopped, as Spark stops its source."""
        began = time.monotonic()
        try:
            if self.engine.session is None:
                self.engine.start()
            action()
        except PubSubError as error:
            self.failures.append(error)
            self.heal()
            if self.engine.session is not None:
                self.engine.stop()
        assert time.monotonic() - began < BOUND, self.done


FAULTS: list[Callable[[Run], None]] = [
    Run.refuse_service,
    Run.drop_connections,
    Run.black_hole_service,
    Run.half_close_service,
    Run.delay_service,
    Run.throttle_service,
    Run.end_streams,
    Run.refuse_acks,
    Run.refuse_leases,
    Run.revoke_rights,
    Run.expire_credentials,
    Run.refuse_store,
    Run.stall_store,
    Run.fill_disk,
]
_STEPS: list[Callable[[Run], None]] = [
    *(4 * [Run.trigger_with_fault]),
    *(2 * [Run.publish]),
    Run.trigger,
    Run.crash_in_a_batch,
    Run.crash,
    Run.stop,
    Run.lose_leases,
    Run.pass_time,
]


@pytest.fixture
def proxy(emulator: Emulator) -> Iterator[Proxy]:
    with Proxy(emulator.port) as running:
        yield running


def _open_files() -> set[str]:
    """Return the files and sockets that this process has open: paths, and sockets with their numbers."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile, as that of this very loop
            found.add(str(each.readlink()))
    return found


@contextmanager
def _nothing_is_left() -> Iterator[None]:
    """Check afterwards that no thread of ours runs, and no more files and sockets are open than before."""
    before = _open_files()
    yield
    end = time.monotonic() + BOUND
    while len(more := _open_files() - before) > _SOCKETS_MORE and time.monotonic() < end:
        threading.Event().wait(0.05)
    assert len(more) <= _SOCKETS_MORE, more
    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith(_OUR_THREADS)]


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_at_random(
    seed: int, emulator: Emulator, proxy: Proxy, names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Nothing is lost, repeated or left unacknowledged, whatever breaks in any order."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    run = Run(emulator, proxy, Store(monkeypatch), names, tmp_path, seed)
    with _nothing_is_left():
        run.publish()
        for _ in range(STEPS):
            step = run.chance.choice(_STEPS)
            run.done.append(step.__name__)
            step(run)
        run.heal()
        run.drain()

    assert Counter(run.published) == Counter(run.engine.rows), run.done
    for number, seen in run.engine.evaluations.items():
        assert all(rows == seen[0] for rows in seen), f"batch {number} has changed: {run.done}"
    assert [] == [error for error in run.failures if "\n" in str(error)], run.done

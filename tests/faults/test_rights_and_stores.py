"""Losses of a running query: rights, credentials, its staging area, its disk, the time of its machine.

`Engine` plays Spark. Each query fails with one error, or continues. Started again, it has every message once.
"""

from __future__ import annotations

import itertools
import logging
import resource
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.errors import ForbiddenError, PubSubError, ResourceError, StagingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.pull import acks
from pubsub_spark.read.staging import store as store_module
from pubsub_spark.read.staging.store import Store
from pubsub_spark.read.task import partition_reader
from pubsub_spark.read.task.partition_pull import PartitionPull, TaskTimes
from tests import engine
from tests.conftest import Bucket, Names
from tests.engine import Engine, EngineRuntime
from tests.faults.proxy import Proxy
from tests.unit.read.staging.object_store import with_faults

BOUND = 30.0
LEASE_IS_EXPIRED = 601.0  # seconds, longer than any lease
MANY = [f"m{n}" for n in range(3000)]
_ROOM_BYTES = 20_000  # for a file on the full disk. A part of 3,000 messages has 300,000
_STALL_SECONDS = 61.0  # longer than the lease of a pull
_YEAR_SECONDS = 365 * 86400.0


@pytest.fixture
def query(emulator: Emulator, names: Names, tmp_path: Path) -> Iterator[Engine]:
    """Yield a query on a plain subscription. Started."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    options = ReadOptions(
        subscription_id=names.subscription,
        endpoint=emulator.endpoint,
        idle_timeout=0.3,
        max_fetch_period=0.5,
        connect_timeout=10.0,
    )
    engine = Engine(emulator, options, str(tmp_path / "staging"), budget=Budget(10_000, 10**8))
    engine.start()
    yield engine
    if engine.session is not None:
        engine.crash()


def until(condition: Callable[[], Any], otherwise: str, bound: float = BOUND) -> None:
    """Wait for a condition, as long as an outage may take."""
    engine.until(condition, otherwise, bound)


def read(query: Engine, count: int) -> None:
    """Trigger until `count` rows are committed."""
    until(lambda: query.trigger() and len(query.rows) >= count, f"{count} rows, got {len(query.rows)}")


def failure(query: Engine) -> PubSubError:
    """Return the error that ends the query. The query is stopped then, as Spark stops its source."""
    with pytest.raises(PubSubError) as failed:
        until(lambda: query.trigger() and False, "an error")
    assert "\n" not in str(failed.value)
    query.stop()
    return failed.value


def start_again(query: Engine, names: Names, *texts: str) -> None:
    """Start the query on its checkpoint: it ends with these rows, each once, and none unacknowledged."""
    query.emulator.clear_faults()
    if query.session is not None:
        query.crash()
    query.emulator.advance(LEASE_IS_EXPIRED)
    query.start()
    until(lambda: query.trigger() is False and query.emulator.backlog(names.subscription) == 0, "all acknowledged")
    assert Counter(texts) == Counter(query.rows)


@pytest.mark.parametrize(
    ("code", "kind", "phrase"),
    [
        ("PERMISSION_DENIED", ForbiddenError, "Grant the caller `roles/pubsub.subscriber`"),
        ("UNAUTHENTICATED", ResourceError, "does not accept the credentials"),
        ("NOT_FOUND", ResourceError, "does not exist"),
    ],
)
def test_rights_that_end_while_a_query_runs(query: Engine, names: Names, code: Any, kind: Any, phrase: str):
    """A stream that is refused for good fails the query with one error. Unacknowledged messages are redelivered."""
    query.emulator.publish(names.topic, "a")
    read(query, 1)
    query.emulator.fail("StreamingPull", code, count=100)
    query.emulator.close_streams(code)
    query.emulator.publish(names.topic, "b")
    error = failure(query)

    assert isinstance(error, kind)
    assert phrase in str(error)
    start_again(query, names, "a", "b")


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "UNAUTHENTICATED"])
def test_acks_that_are_refused_repeat_no_row(query: Engine, names: Names, code: Any, caplog: pytest.LogCaptureFixture):
    """Refused acks are a WARNING and a metric. The messages are delivered again, dropped and acknowledged."""
    query.emulator.fail("Acknowledge", code, count=1)
    query.emulator.publish(names.topic, "a", "b")
    read(query, 2)
    query.trigger()
    until(lambda: "2 acks of" in caplog.text, "a WARNING")
    assert 2 == query.metrics["failedAcks"]

    query.emulator.advance(70.0)  # the lease of the driver stream
    until(lambda: query.trigger() is False and query.emulator.backlog(names.subscription) == 0, "all acknowledged")
    assert ["a", "b"] == query.rows
    assert [2, 2] == [record.deliveries for record in query.emulator.messages(names.subscription)]


@contextmanager
def full_disk() -> Iterator[None]:
    """Limit files to _ROOM_BYTES: the kernel refuses the rest of a write, as on a disk without room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_ROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_without_room(query: Engine, names: Names):
    """The error of a part that does not fit has the fix, and no half of a part is left to be read."""
    query.emulator.publish(names.topic, "a")
    read(query, 1)
    query.emulator.publish(names.topic, *MANY)
    with full_disk():
        error = failure(query)

    assert isinstance(error, StagingError)
    assert "cannot be used" in str(error)
    assert "with room" in str(error)
    start_again(query, names, "a", *MANY)


def test_staging_area_that_is_lost(query: Engine, names: Names):
    """A folder that is removed under a running query costs duplicates at most, and never a message."""
    query.emulator.publish(names.topic, "a")
    read(query, 1)
    query.emulator.publish(names.topic, *MANY)
    partition_reader.check_token_once.cache_clear()  # a task in another process
    shutil.rmtree(query.location)
    query.emulator.publish(names.topic, "b")
    errors: list[PubSubError] = []

    def arrived() -> bool:
        try:
            if query.session is None:
                query.emulator.advance(LEASE_IS_EXPIRED)
                query.start()
            query.trigger()
        except PubSubError as error:
            errors.append(error)
            query.stop()
        return {"a", "b", *MANY} == set(query.rows)

    until(arrived, "all rows")
    assert len(errors) <= 2, errors
    assert not [error for error in errors if "\n" in str(error)]


def start_on(query: Engine, names: Names, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the query with its staging area in a bucket, and have it read a message."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    query.location = f"{bucket.url}/{names.subscription_id}"
    query.stop()
    query.start()
    query.emulator.publish(names.topic, "a")
    read(query, 1)


def test_store_that_is_out(
    query: Engine, names: Names, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A store that refuses 60 requests in a row, six times as many as obstore repeats itself, only delays a batch."""
    monkeypatch.setattr(store_module, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(store_module, "delays", lambda first: itertools.repeat(0.0))
    with with_faults(bucket.endpoint) as faults:
        start_on(query, names, Bucket(faults.endpoint, bucket.name), monkeypatch)
        faults.statuses.extend([503] * 60)
        query.emulator.publish(names.topic, *MANY)
        read(query, 1 + len(MANY))
        assert [] == faults.statuses
        assert "no answer from the staging area" in caplog.text
        start_again(query, names, "a", *MANY)
        query.stop()


def test_store_that_stalls(query: Engine, names: Names, bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    """A store that does not answer for three seconds only delays a batch."""
    with Proxy(int(bucket.endpoint.rpartition(":")[2])) as proxy:
        start_on(query, names, Bucket(f"http://{proxy.endpoint}", bucket.name), monkeypatch)
        query.emulator.publish(names.topic, *MANY)
        proxy.black_hole()
        timer = threading.Timer(3.0, proxy.heal)
        timer.start()
        began = time.monotonic()
        read(query, 1 + len(MANY))
        timer.join()
        assert time.monotonic() - began >= 2.9
        start_again(query, names, "a", *MANY)
        query.stop()


def test_query_ends_soon_after_its_store_has_failed_it(
    query: Engine, names: Names, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    """The failure reaches Spark when the run has ended."""
    monkeypatch.setattr(store_module, "REQUEST_SECONDS", 0.05)
    monkeypatch.setattr(engine, "open_store", partial(store_module.open_store, fail_after=4.0))
    query.times = replace(query.times, stop=0.5)
    with with_faults(bucket.endpoint) as faults:
        start_on(query, names, Bucket(faults.endpoint, bucket.name), monkeypatch)
        faults.fault_each = 1
        query.emulator.publish(names.topic, "b")
        with pytest.raises(StagingError, match=r"did not answer for \d s"):
            read(query, 2)
        began = time.monotonic()
        with pytest.raises(StagingError, match=r"did not answer for \d s"):
            query.stop()
        assert time.monotonic() - began < 3.5
        faults.fault_each = 0
    query.session = None


def backlogged(query: Engine, names: Names) -> None:
    """Publish MANY, so that the next batch is pulled by tasks."""
    query.trigger()
    query.emulator.publish(names.topic, *MANY)
    stream = query.opened.stream

    def is_full() -> bool:
        stream.poll()
        return stream.is_flow_controlled

    until(is_full, "a full stream")


def test_store_that_stalls_for_longer_than_a_lease(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """While a part is being staged its leases are extended: a later task of the batch does not get its messages."""
    create, extend = Store.create, acks.extend
    extended = threading.Event()

    def stall(store: Store, path: str, buffers: Any) -> bool:
        if path.endswith("/part-1"):
            for _ in range(2):
                query.emulator.advance(_STALL_SECONDS * 2 / 3)
                for _ in range(2):  # the first may have been sent before
                    extended.clear()
                    extended.wait(3.0)
        return create(store, path, buffers)

    def extends(*arguments: Any, **settings: Any) -> Any:
        failed = extend(*arguments, **settings)
        extended.set()
        return failed

    class Soon(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(0.01)

    monkeypatch.setattr(EngineRuntime, "event", lambda _: Soon())
    monkeypatch.setattr(Store, "create", stall)
    backlogged(query, names)
    monkeypatch.setattr(acks, "extend", extends)
    read(query, len(MANY))

    assert Counter(MANY) == Counter(query.rows)


def test_store_that_stalls_before_a_pull(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """A task waited for the store until messages of the batch before were delivered again: it drops them."""
    read_file = Store.read
    stalled: list[str] = []

    def stall(store: Store, path: str) -> Any:
        if path.endswith("/part-1") and query.committed and query.rows and not stalled:
            stalled.append(path)
            query.slept += _STALL_SECONDS
            query.emulator.advance(_STALL_SECONDS)
        return read_file(store, path)

    query.stop()
    query.budget, query.partitions = Budget(1500, 10**8), 1  # Engine's tasks run in turn, Spark's wait together
    query.start()
    backlogged(query, names)
    monkeypatch.setattr(Store, "read", stall)
    query.task_times = TaskTimes(acks=0.5)
    for rpc in ("Acknowledge", "ModifyAckDeadline"):
        query.emulator.fail(rpc, "UNAVAILABLE", count=10_000)
    until(lambda: query.trigger() and stalled, "a stall")
    query.emulator.clear_faults()
    query.advance(_STALL_SECONDS)  # leases whose nacks failed
    read(query, len(MANY))

    assert Counter(MANY) == Counter(query.rows)
    start_again(query, names, *MANY)


def test_machine_that_slept_in_a_pull(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """A task that wakes up when its leases are over nacks its messages and fails. They are redelivered."""
    run = PartitionPull.run

    def sleep(pull: PartitionPull) -> Any:
        pulled = run(pull)
        query.slept += _STALL_SECONDS
        return pulled

    backlogged(query, names)
    with monkeypatch.context() as patch:
        patch.setattr(PartitionPull, "run", sleep)
        with pytest.raises(StagingError, match=r"Part 1 of batch .* longer than its lease of 60 s"):
            query.trigger()
    start_again(query, names, *MANY)


@pytest.mark.parametrize("jump", [_YEAR_SECONDS, -_YEAR_SECONDS])
def test_clock_of_the_day_jumps(
    query: Engine, names: Names, jump: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A clock that is set a year forward or back while a query runs, and at its restart, changes no row."""
    query.emulator.publish(names.topic, "a")
    read(query, 1)
    monkeypatch.setattr(EngineRuntime, "wall", lambda _: time.time() + jump)
    query.emulator.publish(names.topic, "b")
    read(query, 2)
    query.stop()
    query.start()
    query.emulator.publish(names.topic, "c")
    read(query, 3)

    ours = (record for record in caplog.records if record.name.startswith("pubsub_spark"))
    assert not [record for record in ours if record.levelno >= logging.ERROR]
    start_again(query, names, "a", "b", "c")


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_clock_of_leases_jumps(query: Engine, names: Names, seconds: float):
    """A machine that slept for an hour, or whose clock went back, repeats no row: leases that may be over are."""
    query.emulator.publish(names.topic, "a", "b")
    read(query, 2)
    query.slept += seconds  # of the session's clock, not of the service's
    query.emulator.publish(names.topic, "c")
    read(query, 3)

    start_again(query, names, "a", "b", "c")

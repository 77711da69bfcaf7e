"""Reading through outages: the driver's session and the tasks against the emulator, behind a proxy that breaks links.

`Engine` plays Spark. Times are real: each test says how long an outage is, and shortens the limits that it waits for.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.errors import ForbiddenError, ServiceError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.driver.times import AckTimes, DriverTimes
from pubsub_spark.read.pull import acks, health
from pubsub_spark.read.pull.streaming_pull import PullTimes
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store
from pubsub_spark.read.task import partition_reader
from pubsub_spark.read.task.partitions import PullPartition
from tests import engine
from tests.conftest import Names
from tests.engine import Engine
from tests.faults.proxy import Proxy
from tests.unit.read.service import part

BOUND = 30.0
TOKEN_FAILED = "Getting metadata from plugin failed with error: ('invalid_grant: Bad Request', {})"


@pytest.fixture
def proxy(emulator: Emulator) -> Iterator[Proxy]:
    with Proxy(emulator.port) as running:
        yield running


@pytest.fixture
def query(emulator: Emulator, proxy: Proxy, names: Names, tmp_path: Path) -> Iterator[Engine]:
    """Yield a query through the proxy on a plain subscription. Not started."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    options = ReadOptions(
        subscription_id=names.subscription,
        endpoint=proxy.endpoint,
        idle_timeout=0.3,
        max_fetch_period=0.5,
        connect_timeout=20.0,
    )
    engine = Engine(emulator, options, str(tmp_path), budget=Budget(10_000, 10**8))
    yield engine
    proxy.heal()
    if engine.session is not None:
        engine.crash()


def until(condition: Callable[[], Any], otherwise: str, bound: float = BOUND) -> None:
    """Wait for a condition, as long as an outage may take."""
    engine.until(condition, otherwise, bound)


def trigger_on(query: Engine) -> None:
    """Trigger, with messages or without, until an error."""
    until(lambda: query.trigger() and False, "an error")


def available_now(query: Engine) -> None:
    query.start()
    assert query.session is not None
    query.session.prepare_for_available_now()
    while query.trigger():
        pass


@contextmanager
def later(seconds: float, what: Callable[[], object]) -> Iterator[None]:
    timer = threading.Timer(seconds, what)
    timer.start()
    yield
    timer.join()


def test_available_now_waits_for_the_end_of_an_outage(query: Engine, emulator: Emulator, names: Names):
    """Two seconds of UNAVAILABLE, longer than `idleTimeout`, are no idle time."""
    emulator.publish(names.topic, "a", "b")
    emulator.fail("StreamingPull", "UNAVAILABLE", count=1000)
    with later(2.0, emulator.clear_faults):
        available_now(query)

    assert ["a", "b"] == query.rows


@pytest.mark.parametrize("fault", [Proxy.refuse, Proxy.black_hole])
def test_available_now_does_not_end_in_an_outage(query: Engine, proxy: Proxy, names: Names, fault: Any):
    """A link breaks while the query waits for a last message: it waits, and takes messages that arrived meanwhile."""
    query.start()
    assert query.session is not None
    query.trigger()
    until(lambda: query.emulator.streams() == 1, "the stream")  # else it may still begin after its link is broken
    fault(proxy)
    if fault is Proxy.refuse:  # messages that the service has just sent into a broken link are leased for a minute
        until(lambda: query.emulator.streams() == 0, "the end of the stream")
    query.emulator.publish(names.topic, "a")
    query.session.prepare_for_available_now()
    with later(2.5, proxy.heal):
        assert query.trigger()
    while query.trigger():
        pass

    assert ["a"] == query.rows


def test_available_now_fails_after_the_connect_timeout(query: Engine, proxy: Proxy):
    """An outage that does not end is an error with a sentence, and no empty success."""
    query.options = replace(query.options, connect_timeout=2.0)
    query.start()
    assert query.session is not None
    query.trigger()
    query.session.prepare_for_available_now()
    proxy.refuse()
    began = time.monotonic()
    with pytest.raises(
        ServiceError, match=r"did not answer for \d s when asked to pull from Subscription .*UNAVAILABLE"
    ):
        trigger_on(query)
    assert 2.0 <= time.monotonic() - began < 10.0


def test_outage_is_told_at_its_beginning_and_at_its_end(
    query: Engine, proxy: Proxy, names: Names, caplog: pytest.LogCaptureFixture
):
    """One WARNING with the last error, one when the connection is back. Nothing in between."""
    query.times = DriverTimes(pull=PullTimes(warn_after=1.0))
    query.start()
    query.trigger()
    proxy.refuse()
    until(lambda: "no connection" in caplog.text, "a WARNING")
    time.sleep(2.0)
    assert query.trigger() is False
    proxy.heal()
    query.emulator.publish(names.topic, "a")
    until(query.trigger, "the message")
    until(lambda: "again after" in caplog.text, "a WARNING")

    lost, recovered = [record for record in caplog.records if record.name.endswith("driver_stream")]
    assert ("WARNING", "WARNING") == (lost.levelname, recovered.levelname)
    assert lost.getMessage().startswith(f"no connection to `{proxy.endpoint}` for 1 s, so nothing is read from `")
    assert "(last error: UNAVAILABLE: " in lost.getMessage()
    assert recovered.getMessage().startswith(f"connected to `{proxy.endpoint}` again after ")


def test_outage_is_in_the_metrics(query: Engine, proxy: Proxy):
    """Within seconds `connected` is false with the last error. After the outage it is true again."""
    query.start()
    query.trigger()
    until(lambda: query.metrics["connected"], "a connection")
    assert (0, "") == (query.metrics["reopenedStreams"], query.metrics["lastError"])
    proxy.refuse()
    until(lambda: not query.metrics["connected"], "an outage")
    until(lambda: query.metrics["lastError"].startswith("UNAVAILABLE: "), "an error")
    proxy.heal()
    until(lambda: query.metrics["connected"], "a connection")
    assert query.metrics["reopenedStreams"] > 0


@pytest.mark.long
def test_message_is_read_soon_after_a_long_outage(query: Engine, proxy: Proxy, names: Names):
    """gRPC's own pauses grow to two minutes. Ours end within 15 s of the service's return."""
    query.start()
    query.trigger()
    proxy.refuse()
    time.sleep(20.0)
    query.emulator.publish(names.topic, "a")
    proxy.heal()
    healed = time.monotonic()
    until(query.trigger, "the message")

    assert time.monotonic() - healed < 15.0


def test_fail_after(query: Engine, proxy: Proxy):
    """A running query fails when the option requires it."""
    query.options = replace(query.options, fail_after=1.0)
    query.start()
    query.trigger()
    proxy.refuse()
    with pytest.raises(ServiceError, match="did not answer for"):
        trigger_on(query)


def test_credential_failure_ends_the_query(
    query: Engine, emulator: Emulator, monkeypatch: pytest.MonkeyPatch, names: Names
):
    """UNAVAILABLE that hides a revoked grant is tried again a few times, and then named."""
    monkeypatch.setattr(health, "MAX_CREDENTIAL_FAILURES", 3)
    emulator.fail("StreamingPull", "UNAVAILABLE", count=1000, message=TOKEN_FAILED)
    query.start()
    with pytest.raises(ForbiddenError, match=r"^The credentials for `127\.0.*invalid_grant"):
        trigger_on(query)


def test_slow_uplink_only_slows_down(query: Engine, proxy: Proxy, names: Names, monkeypatch: pytest.MonkeyPatch):
    """Acks of 4 s of uplink, with turns of 1 s: each id is sent about once, instead of over and over again.

    A request takes 0.4 s of the uplink, so that it fits in a turn. One of 512 KiB takes 4 s of a turn of 30.
    """
    query.times = DriverTimes(acks=AckTimes(send=1.0))
    monkeypatch.setattr(acks, "MAX_IDS", 250)
    texts = [f"m{n}" for n in range(2500)]
    query.emulator.publish(names.topic, *texts)
    query.start()
    until(lambda: query.trigger() and len(query.rows) == len(texts), "all rows")
    before = proxy.forwarded["up"]
    proxy.throttle(125_000)  # 1 Mbit/s
    query.trigger()
    until(lambda: query.emulator.backlog(names.subscription) == 0, "all acked", 60.0)

    assert len(texts) * 190 * 0.5 < proxy.forwarded["up"] - before < len(texts) * 190 * 1.5


def test_batches_that_wait_for_their_acks_are_bounded(
    query: Engine, emulator: Emulator, names: Names, caplog: pytest.LogCaptureFixture
):
    """While acks fail, only `maxUnacknowledgedBatches` batches are read. One WARNING reports it, another its end."""
    query.speed = 20.0
    query.options = replace(query.options, max_unacknowledged_batches=2)
    emulator.fail("Acknowledge", "UNAVAILABLE", count=10_000)
    query.start()
    query.trigger()
    for text in "abcd":
        emulator.publish(names.topic, text)
        end = time.monotonic() + 1.0
        while time.monotonic() < end and not query.trigger():
            pass
    assert ["a", "b"] == query.rows
    assert 1 == caplog.text.count("committed batches of")
    assert (True, 2) == (query.metrics["intakePaused"], query.metrics["unackedBatches"])

    query.stop()
    assert "stopped with up to 2 acks of committed batches of" in caplog.text
    emulator.clear_faults()
    query.start()
    until(lambda: query.trigger() and len(query.rows) >= 4, "the others")
    assert ["a", "b", "c", "d"] == query.rows


def test_task_that_never_connects_fails(query: Engine, proxy: Proxy, names: Names):
    """A task that never connects stages no part, so that the next attempt may pull. The error names the network."""
    query.options = replace(query.options, connect_timeout=1.0)
    staging = Staging(open_store(query.location), names.subscription, "stream")
    staging.write_token()
    staging.create("1/part-0", part([]))
    partition = PullPartition(staging, 1, 1, 10, 10**6, math.inf)
    proxy.refuse()
    backend = replace(query.backend, connect_timeout=1.0)
    with pytest.raises(ServiceError, match=r"did not answer within 1 s .* executors have no network access \(egress\)"):
        _read(query, partition, backend)
    assert [0] == list(staging.parts(1))

    proxy.heal()
    query.emulator.publish(names.topic, "a")
    assert ["a"] == query.read([partition])


def _read(query: Engine, partition: PullPartition, backend: Any) -> list[Any]:
    return list(partition_reader.read(partition, query.options, backend))

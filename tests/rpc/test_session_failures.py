"""The driver's session if the service fails, refuses, is silent or restarts, and the state after a stop."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.errors import ForbiddenError, MissingError, ResourceError, ServiceError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store
from pubsub_spark.read.task.partitions import PullPartition
from tests.conftest import Names
from tests.engine import Engine, until
from tests.rpc.session import (
    BOUND,
    LEASE,
    MANY,
    acked,
    buffered,
    run_until,
    start_with,
)
from tests.unit.read.service import part


def test_ack_that_fails_for_a_while_is_sent_again(query: Engine, names: Names):
    """An ack that fails with UNAVAILABLE is tried again."""
    query.emulator.publish(names.topic, "a")
    query.emulator.fail("Acknowledge", "UNAVAILABLE", count=3)
    query.start()
    acked(query, 1)

    assert ["a"] == query.rows


@pytest.mark.parametrize("outcome", ["TRANSIENT_FAILURE_UNORDERED_ACK_ID", "PERMANENT_FAILURE_INVALID_ACK_ID"])
def test_exactly_once_delivery_failures(emulator: Emulator, names: Names, query: Engine, outcome: str):
    """Per-id failures: transient ones are sent again. Permanent ones end in a redelivery that is dropped."""
    name = f"{names.subscription}-once"
    emulator.create_subscription(name, names.topic, enable_exactly_once_delivery=True)
    query.options = replace(query.options, subscription_id=name)
    emulator.fail_acks(1, outcome)
    emulator.publish(names.topic, "a")
    query.start()
    run_until(query, 1)
    if outcome.startswith("PERMANENT"):
        until(lambda: not query.trigger() and query.metrics["failedAcks"] == 1, "a failed ack")
        emulator.advance(LEASE)
    acked(query, 1)

    assert ["a"] == query.rows


def test_exactly_once_delivery_failures_of_many(emulator: Emulator, names: Names, query: Engine):
    """The service names each failed id. A whole request of them is an answer instead of a broken connection."""
    name = f"{names.subscription}-once"
    emulator.create_subscription(name, names.topic, enable_exactly_once_delivery=True)
    query.options = replace(query.options, subscription_id=name)
    start_with(query, names, *MANY[:1000])
    query.trigger()
    query.crash()  # the batch is committed, its acks are not sent
    emulator.advance(LEASE)
    query.start()
    emulator.publish(names.topic, "later")
    acked(query, 1001)

    assert Counter([*MANY[:1000], "later"]) == Counter(query.rows)
    assert 1000 == query.metrics["failedAcks"]


@pytest.mark.parametrize(
    ("code", "error"),
    [("NOT_FOUND", MissingError), ("PERMISSION_DENIED", ForbiddenError), ("INVALID_ARGUMENT", ResourceError)],
)
def test_final_status_of_the_stream_ends_the_query(query: Engine, names: Names, code: Any, error: type[Exception]):
    """A final error of the stream fails Spark's next call."""
    query.emulator.fail("StreamingPull", code, count=100)
    query.start()
    with pytest.raises(error):
        run_until(query, 1)


def test_permission_to_look_is_not_needed(query: Engine, names: Names):
    """The role `roles/pubsub.subscriber`, which may pull and not get the subscription, is enough."""
    query.emulator.fail("GetSubscription", "PERMISSION_DENIED")
    query.emulator.publish(names.topic, "a")
    query.start()
    run_until(query, 1)


def test_address_that_does_not_answer(query: Engine):
    """An address that does not answer is an error within `connectTimeout` that names the address."""
    query.options = replace(query.options, endpoint="127.0.0.1:1", connect_timeout=0.5)
    query.start()
    began = time.monotonic()
    with pytest.raises(ServiceError, match=r"`127\.0\.0\.1:1` did not answer"):
        query.trigger()
    assert time.monotonic() - began < BOUND


def test_streams_that_keep_closing(query: Engine, names: Names):
    """A service that closes every stream at once, all the time, still brings each message once to the sink."""
    query.emulator.publish(names.topic, *MANY)
    query.start()
    done = threading.Event()
    closer = threading.Thread(
        target=lambda: [query.emulator.close_streams() for _ in iter(lambda: done.wait(0.05), True)]
    )
    closer.start()
    try:
        run_until(query, len(MANY))
        acked(query, len(MANY))
    finally:
        done.set()
        closer.join()

    assert Counter(MANY) == Counter(query.rows)


def test_hostile_service(query: Engine, names: Names):
    """Shuffled and redelivered by the emulator at will: nothing is missing, everything is acknowledged."""
    query.emulator.chaos(7)
    query.emulator.publish(names.topic, *MANY[:300])
    query.start()
    run_until(query, 300)
    acked(query, 300)

    assert set(MANY[:300]) <= set(query.rows)


def test_task_leaves_nothing_behind(query: Engine, names: Names):
    """After a pull its stream and its thread are gone."""
    query.emulator.publish(names.topic, "a")
    staging = Staging(open_store(query.location), names.subscription, "stream")
    staging.write_token()
    staging.create("1/part-0", part([]))
    assert ["a"] == query.read([PullPartition(staging, 1, 1, 1, 10**6, math.inf)])

    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("pull ")]
    until(lambda: query.emulator.streams() == 0, "the end of the stream")


def test_stop_nacks_buffered_messages(query: Engine, names: Names):
    """Buffered messages are free for the next reader as soon as the query has stopped."""
    start_with(query, names, "a")
    query.stop()

    [record] = query.emulator.messages(names.subscription)
    assert record.ack_deadline is None
    assert not record.acked


def test_stop_does_not_wait_for_a_service_that_is_silent(query: Engine, names: Names):
    """Unanswered acks, then unanswered nacks: one timeout is for both."""
    query.speed = 5.0
    start_with(query, names, "a")
    for rpc in ("Acknowledge", "ModifyAckDeadline"):
        query.emulator.fail(rpc, None, count=2, delay=600)
    for text in ("b", "c"):
        query.trigger()
        query.emulator.publish(names.topic, text)
        buffered(query, 1)
    began = time.monotonic()

    query.stop()
    assert time.monotonic() - began < 2


def test_restart_of_the_service(names: Names, tmp_path: Path, options: ReadOptions):
    """The emulator goes away in the middle of a batch and returns: the query continues by itself."""
    first = Emulator()
    first.start()
    _resources(first, names)
    query = Engine(first, replace(options, endpoint=first.endpoint), str(tmp_path))
    try:
        query.start()
        first.publish(names.topic, "a")
        run_until(query, 1)
        acked(query, 1)
    finally:
        first.stop()
    with Emulator(port=first.port) as second:
        _resources(second, names)
        query.emulator = second
        second.publish(names.topic, "b")
        run_until(query, 2)
        acked(query, 1)
        query.stop()

    assert ["a", "b"] == query.rows


def test_message_of_a_restarted_emulator_is_no_redelivery(names: Names, tmp_path: Path, options: ReadOptions):
    """A restarted emulator assigns new message ids: a message whose ack is in doubt, and a new one, are two."""
    first = Emulator()
    first.start()
    _resources(first, names)
    query = Engine(first, replace(options, endpoint=first.endpoint), str(tmp_path))
    try:
        query.start()
        [before] = first.publish(names.topic, "a")
        first.fail("Acknowledge", "UNAVAILABLE", count=100)
        run_until(query, 1)
        query.crash()
    finally:
        first.stop()
    with Emulator(port=first.port) as second:
        _resources(second, names)
        query.emulator = second
        query.start()
        [after] = second.publish(names.topic, "b")
        run_until(query, 2)
        query.stop()

    assert ["a", "b"] == query.rows
    assert int(before) < int(after)
    assert (17, 17) == (len(before), len(after))


def _resources(emulator: Emulator, names: Names) -> None:
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)

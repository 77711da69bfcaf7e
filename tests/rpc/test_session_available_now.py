"""`availableNow` and `once`: the messages a run reads before it ends, and its report of the rest."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.errors import ServiceError
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store
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


def test_first_offset_of_spark_4_0_waits_for_messages(query: Engine, names: Names):
    """`availableNow` of Spark 4.0 and 4.1 asks once: the answer has the available messages."""
    query.passes_start = False
    query.emulator.publish(names.topic, "a", "b")
    query.start()
    query.trigger()

    assert ["a", "b"] == query.rows


def test_one_batch_of_spark_4_0_says_that_there_is_more(query: Engine, names: Names, caplog: pytest.LogCaptureFixture):
    """A query that was asked for one offset and ended reports that more may remain. One asked again does not."""
    query.passes_start = False
    query.emulator.publish(names.topic, *MANY)
    query.start()
    query.trigger()
    query.stop()
    assert "the query has read one batch" in caplog.text

    caplog.clear()
    query.start()
    run_until(query, len(MANY))
    query.stop()
    assert "the query has read one batch" not in caplog.text


def test_once_waits_until_no_more_comes(query: Engine, names: Names):
    """`once` asks once under every Spark: its batch also has later messages, instead of only the first response."""
    query.emulator.publish(names.topic, "a")
    query.start()
    assert query.session is not None
    query.session.prepare_for_once()
    late = threading.Timer(0.2, query.emulator.publish, (names.topic, "b"))
    late.start()
    query.trigger()
    late.join()

    assert ["a", "b"] == query.rows


def test_once_says_that_there_is_more(query: Engine, names: Names, caplog: pytest.LogCaptureFixture):
    """A backlog is more than one batch, and the query reports it at its end."""
    query.emulator.publish(names.topic, *MANY)
    query.start()
    assert query.session is not None
    query.session.prepare_for_once()
    query.trigger()
    query.stop()

    assert "the query has read one batch" in caplog.text


def test_clock_that_is_behind_is_told(query: Engine, names: Names, caplog: pytest.LogCaptureFixture):
    """Messages with a publish time in the future are left, as all later ones are, and the log has the reason."""
    query.emulator.advance(60)
    query.emulator.publish(names.topic, "a")
    query.start()
    assert query.session is not None
    query.session.prepare_for_available_now()
    query.trigger()
    query.stop()

    assert [] == query.rows
    assert re.search(r"this machine's clock is (59|60) s or more behind Pub/Sub's", caplog.text)


def test_available_now_ends_with_what_was_there(query: Engine, names: Names):
    """Messages published after the start are not waited for, and are nacked at the end."""
    query.emulator.publish(names.topic, *MANY)
    query.start()
    assert query.session is not None
    query.session.prepare_for_available_now()
    while query.trigger():
        pass
    assert Counter(MANY) == Counter(query.rows)
    until(lambda: query.emulator.backlog(names.subscription) == 0, "all acked")

    query.emulator.publish(names.topic, "later")
    assert not query.trigger()
    query.stop()
    last = query.emulator.messages(names.subscription)[-1]
    assert (b"later", None, False) == (last.data, last.ack_deadline, last.acked)


def test_available_now_does_not_use_up_delivery_attempts(query: Engine, names: Names):
    """While another source of the query reads on, later messages stay buffered, and are delivered once."""
    query.start()
    assert query.session is not None
    query.session.prepare_for_available_now()
    query.trigger()
    query.emulator.publish(names.topic, "later")
    buffered(query, 1)
    for _ in range(3):
        assert not query.trigger()

    assert [1] == [m.deliveries for m in query.emulator.messages(names.subscription)]


def test_stop_ends_a_long_wait(query: Engine, names: Names):
    """A stopped `availableNow` query does not wait for more messages."""
    query.options = replace(query.options, idle_timeout=600)
    query.start()
    assert query.session is not None
    query.session.prepare_for_available_now()
    stop = threading.Timer(1.0, lambda: vars(query).update(is_stopping=True))  # within the wait
    began = time.monotonic()
    stop.start()

    query.trigger()
    assert [] == query.rows
    assert time.monotonic() - began < BOUND


def test_available_now_says_that_a_killed_run_holds_messages(
    query: Engine, emulator: Emulator, names: Names, caplog: pytest.LogCaptureFixture
):
    """Messages that the driver stream of a killed run had buffered come later. A WARNING at the end says so, and the
    next run reads them.
    """

    def available_now() -> list[str]:
        caplog.clear()
        _available_now(query)
        return [line for line in caplog.messages if "was killed" in line]

    start_with(query, names, "a", "b")
    query.crash()
    [line] = available_now()
    assert f"messages of `{names.subscription}`" in line and "in up to 1200 s" in line  # with a back-off
    assert [] == query.rows
    assert 1 == len(available_now())  # though the one before has ended well

    emulator.advance(LEASE)
    available_now()
    assert ["a", "b"] == query.rows


def test_run_that_ended_well_is_not_said_to_be_killed(query: Engine, names: Names, caplog: pytest.LogCaptureFixture):
    """Neither a query that was stopped while it was idle nor `availableNow` leaves messages."""
    start_with(query, names, "a")
    acked(query, 1)
    query.stop()
    for _ in range(2):
        query.start()
        assert query.session is not None
        query.session.prepare_for_available_now()
        assert not query.trigger()
        query.stop()

    assert "was killed" not in caplog.text
    assert Staging(open_store(query.location), names.subscription, query.offsets[0].stream).files("unfinished/") == []


def test_available_now_ends_soon_without_acks(query: Engine, names: Names):
    """When acks were waited for in vain, `stop` does not wait for them again."""
    query.emulator.publish(names.topic, "a")
    query.emulator.fail("Acknowledge", "UNAVAILABLE", count=10_000)
    query.start()
    assert query.session is not None
    query.session.prepare_for_available_now()
    while query.trigger():
        pass
    began = time.monotonic()
    query.stop()

    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    ("key", "count", "most"), [("", 100, 10), ("key", 3000, 100_000)], ids=["small batches", "one key"]
)
def test_available_now_waits_for_acks_that_hold_back_messages(
    query: Engine, names: Names, key: str, count: int, most: int
):
    """A full stream brings nothing until its messages are acknowledged, which takes longer than `idleTimeout`."""
    _use_ordered_subscription(query, names)
    query.options = replace(query.options, max_messages_per_trigger=most)
    query.budget = replace(query.budget, messages=most)
    query.emulator.publish(names.topic, *({"data": str(n).encode(), "ordering_key": key} for n in range(count)))
    query.emulator.fail("Acknowledge", None, 1, 7.0)
    _available_now(query)

    assert [str(n) for n in range(count)] == query.rows


def test_available_now_fails_if_acks_that_hold_back_messages_are_not_accepted(query: Engine, names: Names):
    """It does not end as if it had read everything."""
    query.options = replace(query.options, max_messages_per_trigger=10)
    query.budget = replace(query.budget, messages=10)
    query.emulator.publish(names.topic, *MANY[:100])
    query.emulator.fail("Acknowledge", "UNAVAILABLE", 10_000)

    with pytest.raises(ServiceError, match=r"has accepted no ack .* and messages wait for acks"):
        _available_now(query)


def test_available_now_waits_while_acks_are_accepted_slowly(query: Engine, names: Names):
    """Each request takes long, and all together longer than `connectTimeout`."""
    _use_ordered_subscription(query, names)
    query.options = replace(query.options, connect_timeout=6.0)
    query.times = replace(query.times, flush=0.5)
    query.emulator.publish(names.topic, *({"data": str(n).encode(), "ordering_key": "key"} for n in range(1000)))
    query.emulator.fail("Acknowledge", None, 3, 3.0)
    _available_now(query)

    assert [str(n) for n in range(1000)] == query.rows


def test_continuous_query_of_spark_4_0_starts_while_acks_are_refused(query: Engine, names: Names):
    """Its first trigger waits for messages. It does not wait for acks, as a query that ends does."""
    query.passes_start = False
    _use_ordered_subscription(query, names)
    query.options = replace(query.options, connect_timeout=2.0)
    query.emulator.publish(names.topic, {"data": b"a", "ordering_key": "key"})
    query.emulator.fail("Acknowledge", "UNAVAILABLE", 10_000)
    query.start()
    run_until(query, 1)
    query.stop()
    query.start()
    query.trigger()
    query.emulator.publish(names.topic, {"data": b"b", "ordering_key": "other"})
    run_until(query, 2)

    assert ["a", "b"] == query.rows


def test_run_after_one_that_could_return_nothing_says_so(query: Engine, names: Names, caplog: pytest.LogCaptureFixture):
    """Acks are not answered, so that the stop of a run has no time to return all its messages."""
    start_with(query, names, "a")
    query.trigger()
    query.emulator.fail("Acknowledge", None, 1, 600.0)
    query.emulator.publish(names.topic, *MANY[:900])
    buffered(query, 900)
    assert query.session is not None and query.session.active is not None
    query.session.active.commit(1)
    query.stop()
    query.emulator.clear_faults()
    caplog.clear()
    _available_now(query)

    assert len(query.rows) < 901
    assert "messages of" in caplog.text and "are delivered again in up to" in caplog.text


def _available_now(query: Engine) -> None:
    query.start()
    assert query.session is not None
    query.session.prepare_for_available_now()
    while query.trigger():
        pass
    query.stop()


def _use_ordered_subscription(query: Engine, names: Names) -> None:
    name = f"{names.subscription}-ordered"
    query.emulator.create_subscription(name, names.topic, enable_message_ordering=True)
    query.options = replace(query.options, subscription_id=name)

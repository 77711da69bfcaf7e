"""Histories that once broke the promise, each with the outcome that the promise demands.

Scheduled jobs far apart, a sought subscription, a cleaner in the staging area, quotas, a suspended machine, a silent
service, a power loss. `Engine` plays Spark.
"""

from __future__ import annotations

import datetime
import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pubsub_spark.errors import PubSubError, ServiceError, StagingError
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.staging.ids import deserialized
from tests.conftest import Names
from tests.engine import Engine, until
from tests.rpc.conftest import Client
from tests.rpc.session import (
    BOUND,
    LEASE,
    acked,
    acknowledged_after_its_lease,
    buffered,
    die_in_a_batch,
    run_until,
    start_and_acknowledge,
    start_with,
)
from tests.unit.read.service import ids

HOUR, DAY = 3600.0, 86400.0


def area(query: Engine) -> Path:
    """Return the folder of the query's stream."""
    return next(token.parent for token in Path(query.location).rglob("driver-token"))


def acks(query: Engine) -> int:
    """Return the number of messages that are acknowledged."""
    return sum(message.acked for message in query.emulator.messages(query.options.subscription))


def exactly_once(query: Engine, names: Names, **settings: object) -> None:
    """Make the query read a subscription with exactly-once delivery."""
    name = f"{names.subscription}-once"
    query.emulator.create_subscription(name, names.topic, enable_exactly_once_delivery=True, **settings)
    query.options = replace(query.options, subscription_id=name)


def run_once(query: Engine) -> None:
    """Run once with `once`, or with `availableNow` on Spark 4.0 and 4.1: one batch, which is committed at the end."""
    query.start()
    assert query.session is not None
    if query.passes_start:
        query.session.prepare_for_once()
    query.trigger()
    query.stop()


# Jobs that run now and then


def test_job_of_every_hour_forgets(query: Engine, names: Names):
    """Every run leaves its last acks to the next one, an hour later: ids in doubt are those of one run."""
    exactly_once(query, names)
    counts = []
    for hour in range(6):
        query.emulator.publish(names.topic, *(f"h{hour}-{number}" for number in range(50)))
        run_once(query)
        paths = Path(query.location).rglob("in-doubt/*")
        counts.append(sum(deserialized(path.read_bytes(), path.name)[0].shape[1] for path in paths))
        query.advance(HOUR)

    assert {1} == set(Counter(query.rows).values())
    assert max(counts) <= 50


def test_seek_back_delivers_everything_again(query: Engine, names: Names, client: Client):
    """A mistake in the job is corrected and its subscription sought back by a day: all messages are rows again."""
    name = f"{names.subscription}-kept"
    query.emulator.create_subscription(name, names.topic, retain_acked_messages=True)
    query.options = replace(query.options, subscription_id=name)
    for hour in range(3):
        query.start()
        query.emulator.publish(names.topic, f"h{hour}")
        run_until(query, hour + 1)
        if hour == 0:
            query.crash()  # the acks are left to the next run
        else:
            acked(query, hour + 1)
            query.stop()
        query.advance(HOUR)
    query.start()
    assert not query.trigger()
    query.stop()
    client.ask("Subscriber/Seek", subscription=name, time=datetime.datetime.now(datetime.UTC) - datetime.timedelta(1))
    assert 3 == query.emulator.backlog(name)
    query.start()
    run_until(query, 6)
    acked(query, 3)

    assert ["h0", "h1", "h2"] == query.rows[:3]
    assert Counter(query.rows[:3]) == Counter(query.rows[3:])


@pytest.mark.parametrize("trigger", ["once", "availableNow of 4.0"])
@pytest.mark.parametrize("subscription", ["exactly-once", "plain"])
@pytest.mark.parametrize("pause", [HOUR, DAY], ids=["hour", "day"])
def test_run_acknowledges_what_the_run_before_has_read(
    query: Engine, names: Names, trigger: str, subscription: str, pause: float
):
    """A run of one batch never learns that it is committed, and its leases are over when the next run begins."""
    if subscription == "exactly-once":
        exactly_once(query, names)
    query.passes_start = trigger == "once"
    report = []
    for number in range(4):
        query.emulator.publish(names.topic, *(f"{number}-{message}" for message in range(100)))
        run_once(query)
        report.append((len(query.rows), acks(query)))
        query.advance(pause)

    assert [(100, 0), (200, 100), (300, 200), (400, 300)] == report
    assert {1} == set(Counter(query.rows).values())
    assert 2 == max(message.deliveries for message in query.emulator.messages(query.options.subscription))


@pytest.mark.parametrize("budget", [100, 120])
def test_runs_whose_batches_are_full_catch_up_with_their_acks(query: Engine, names: Names, budget: int):
    """Each run of `once` has as many new messages as its batch has room for, or hardly fewer: redeliveries stay behind
    them. When fewer come, all is acknowledged."""
    exactly_once(query, names)
    query.options = replace(query.options, max_messages_per_trigger=budget)
    query.budget = Budget(budget, 10**8)
    for number in range(12):
        if number < 8:
            query.emulator.publish(names.topic, *(f"{number}-{message}" for message in range(100)))
        run_once(query)
        query.advance(HOUR)

    assert (800, 800) == (len(query.rows), acks(query))
    assert {1} == set(Counter(query.rows).values())
    assert max(message.deliveries for message in query.emulator.messages(query.options.subscription)) < 5


def test_processed_messages_are_no_dead_letters(query: Engine, names: Names):
    """Runs of `once` an hour apart with a policy of five attempts: no message is delivered five times."""
    dead, letters = f"{names.topic}-dead", f"{names.subscription}-dead"
    query.emulator.create_topic(dead)
    query.emulator.create_subscription(letters, dead)
    exactly_once(query, names, dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": 5})
    query.emulator.publish(names.topic, *(f"m{number}" for number in range(100)))
    for hour in range(8):
        query.emulator.publish(names.topic, f"tick{hour}")
        run_once(query)
        query.advance(HOUR)

    assert [] == query.emulator.messages(letters)
    assert 108 == len(query.rows)
    assert 107 == acks(query)


# Files that are gone or damaged


def test_batch_that_a_cleaner_removed_is_read_again(query: Engine, names: Names):
    """Batch 1 is committed and batch 2 replayed twice. Between the replays a cleaner removes batch 2: its message is
    delivered again, and is a row before it is acknowledged.
    """
    query.start()
    query.trigger()
    query.emulator.fail("Acknowledge", "UNAVAILABLE", count=10_000)
    query.emulator.publish(names.topic, "a")
    run_until(query, 1)
    query.emulator.publish(names.topic, "b")
    buffered(query, 1)
    die_in_a_batch(query, parts=1)
    query.advance(LEASE)
    query.emulator.clear_faults()
    query.start()
    assert query.session is not None
    query.session.partitions(*query.offsets[-2:])
    until(lambda: query.opened.staging.files("in-doubt/"), "the id of the first message is in doubt")
    query.crash()
    shutil.rmtree(area(query) / str(query.offsets[-1].batch))
    query.advance(LEASE)
    query.start()
    run_until(query, 2)
    acked(query, 2)

    assert ["a", "b"] == query.rows


def test_files_that_are_gone_before_the_acks_are_reported(
    query: Engine, names: Names, caplog: pytest.LogCaptureFixture
):
    """Spark has committed batch 2, and a cleaner removes it while acks of batch 1 are sent: its message is a row again,
    and a WARNING says so. That of batch 1 is acknowledged, because its ack ids are in memory."""
    start_with(query, names, "a")
    run_until(query, 1)
    query.emulator.fail("Acknowledge", None, delay=2.0)
    query.emulator.publish(names.topic, "b")
    buffered(query, 1)
    assert query.trigger()
    query.emulator.publish(names.topic, "c")
    buffered(query, 1)
    assert query.session is not None
    query.session.latest_offset(query.offsets[-1], query.budget)  # batch 2 is committed
    for batch in "12":
        shutil.rmtree(area(query) / batch)
    until(lambda: "are lost, so its messages will be delivered again" in caplog.text, "a WARNING")
    query.sleep(LEASE)
    run_until(query, 4)
    acked(query, 3)

    assert Counter("abbc") == Counter(query.rows)
    assert f"part 0 of batch 2 of `{names.subscription}`" in caplog.text


@pytest.mark.parametrize("file", ["part-*", "manifest", "acknowledged/*", "owners/*", "unfinished/*", "driver-token"])
def test_empty_file_after_a_power_loss(query: Engine, names: Names, file: str):
    """A file is there and empty: the query continues, or an error has the way out. No message is lost."""
    start_and_acknowledge(query, names, "a")
    query.emulator.publish(names.topic, "b")
    buffered(query, 1)
    die_in_a_batch(query, parts=1)
    query.start()
    assert query.session is not None
    query.session.partitions(*query.offsets[-2:])
    query.crash()
    emptied = list(area(query).rglob(file))
    assert emptied
    for path in emptied:
        path.write_bytes(b"")
    query.advance(LEASE)
    query.start()
    if file == "manifest":
        with pytest.raises(StagingError, match=r"is damaged .* remove its stream with `pubsub-spark staging clean`"):
            query.trigger()
        query.crash()
        shutil.rmtree(query.location)
        query.advance(LEASE)
        query.start()
    run_until(query, 2)
    acked(query, 2)

    assert ["a", "b"] == query.rows


def test_empty_file_of_ids_in_doubt_costs_a_repeat(query: Engine, names: Names, caplog: pytest.LogCaptureFixture):
    """The ids in doubt are lost in a power loss: the query continues with a WARNING, and a redelivery is a row."""
    acknowledged_after_its_lease(query, names)
    query.crash()
    query.emulator.clear_faults()
    for path in area(query).rglob("in-doubt/*"):
        path.write_bytes(b"")
    query.start()
    run_until(query, 2)
    acked(query, 1)

    assert ["a", "a"] == query.rows
    assert "ids in doubt are lost" in caplog.text


def test_acks_ahead_of_the_checkpoint_name_the_cause(query: Engine, names: Names):
    """With asynchronous progress tracking a batch is acknowledged before the logs have it: the error reports that."""
    start_and_acknowledge(query, names, "a", "b")
    query.stop()
    del query.offsets[1:]
    query.committed = 1
    query.start()

    with pytest.raises(StagingError, match="asynchronous progress tracking"):
        query.trigger()


# Leases that end


@pytest.mark.long
def test_quota_of_acks_that_is_used_up_repeats_no_row(query: Engine, names: Names):
    """For a minute acks and extensions are refused (RESOURCE_EXHAUSTED): leases of batch 1 end while batch 2 pulls."""
    texts = [f"m{number}" for number in range(3500)]
    query.budget = Budget(2000, 10**8)
    start_with(query, names, *texts)
    for rpc in ("Acknowledge", "ModifyAckDeadline"):
        query.emulator.fail(rpc, "RESOURCE_EXHAUSTED", count=100_000)
    query.trigger()
    query.sleep(58.5)
    assert query.trigger(meanwhile=lambda: query.sleep(2.5))
    query.emulator.clear_faults()
    run_until(query, len(texts))
    acked(query, len(texts))

    assert Counter(texts) == Counter(query.rows)


@pytest.mark.parametrize("seconds", [61.0, *(pytest.param(each, marks=pytest.mark.long) for each in (LEASE, HOUR))])
@pytest.mark.parametrize("is_acked", [True, False], ids=["acked", "unacked"])
def test_machine_that_sleeps_between_plan_and_tasks_repeats_no_row(
    query: Engine, names: Names, seconds: float, is_acked: bool
):
    """All processes are suspended when a batch is planned and its tasks have not begun."""
    texts = [f"m{number}" for number in range(5500)]
    query.budget = Budget(2000, 10**8)
    start_with(query, names, *texts)
    if not is_acked:
        query.emulator.fail("Acknowledge", "UNAVAILABLE", count=100_000)
    query.trigger()
    assert query.trigger(meanwhile=lambda: query.sleep(seconds))
    query.emulator.clear_faults()
    run_until(query, len(texts))
    acked(query, len(texts))

    assert Counter(texts) == Counter(query.rows)


def test_ids_that_are_accepted_while_a_batch_is_planned_are_still_read(query: Engine, names: Names):
    """A redelivery is accepted between the plan of a batch and its tasks: the file that the tasks read exists."""
    start_with(query, names, *(f"m{number}" for number in range(1500)))
    run = query.opened
    with run.changed:
        run.ledger.in_doubt.add(ids("x", "y"), 1, run.now())
        run.ledger.in_doubt.accept(ids("x"))
    run_until(query, 1500)


# Runs that end


def finished(query: Engine, bound: float) -> list[BaseException]:
    """Trigger until the query ends, which takes `bound` seconds at most. Return the error that it ends with."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while query.trigger():
                pass
        except PubSubError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(bound)
    query.is_stopping = True
    assert not thread.is_alive(), f"the query has not ended after {bound} s"
    return errors


def test_available_now_ends_when_acks_are_refused(query: Engine, names: Names):
    """maxUnacknowledgedBatches are waiting, and no ack is accepted for `connectTimeout`: an error reports it."""
    query.options = replace(query.options, max_unacknowledged_batches=1, connect_timeout=2.0)
    query.emulator.fail("Acknowledge", "RESOURCE_EXHAUSTED", count=10**6)
    query.emulator.publish(names.topic, "a")
    query.start()
    assert query.session is not None
    query.session.prepare_for_available_now()
    [error] = finished(query, BOUND)

    assert isinstance(error, ServiceError)
    assert "maxUnacknowledgedBatches" in str(error)
    query.emulator.clear_faults()
    query.crash()
    query.start()
    acked(query, 1)
    assert ["a"] == query.rows


@pytest.mark.parametrize("idle_timeout", [90.0, 180.0, 600.0])
@pytest.mark.parametrize("prepare", ["prepare_for_available_now", "prepare_for_once"])
def test_quiet_subscription_ends_a_run(query: Engine, idle_timeout: float, prepare: str):
    """A silent stream is opened again after two minutes, and `idleTimeout` may be longer."""
    query.speed = 300.0
    query.options = replace(query.options, idle_timeout=idle_timeout, connect_timeout=5 * query.speed)
    query.start()
    getattr(query.session, prepare)()
    began = time.monotonic()

    assert [] == finished(query, BOUND)
    assert time.monotonic() - began >= idle_timeout / query.speed
    query.stop()

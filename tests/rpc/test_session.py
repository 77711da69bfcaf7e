"""The driver's session and the tasks against the emulator, over real gRPC and without a JVM: `Engine` plays Spark."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import Store, open_store
from pubsub_spark.read.task import partition_reader
from pubsub_spark.read.task.partitions import DriverPartition, PullPartition
from tests.conftest import Names
from tests.engine import Engine, until
from tests.rpc.session import (
    BOUND,
    LEASE,
    MANY,
    acked,
    acknowledged_after_its_lease,
    buffered,
    die_in_a_batch,
    run_until,
    start_with,
)
from tests.unit.read.service import part


def test_rows_come_once_and_are_acknowledged(query: Engine, names: Names):
    """A backlog of half as many again as the driver stream buffers."""
    query.emulator.publish(names.topic, *MANY)
    query.start()
    run_until(query, len(MANY))
    acked(query, len(MANY))

    assert Counter(MANY) == Counter(query.rows)
    assert 0 == query.emulator.backlog(names.subscription)
    assert {1} == {m.deliveries for m in query.emulator.messages(names.subscription)}


def test_low_volume_needs_no_executor(query: Engine, names: Names):
    """A few messages are read from the driver stream alone: no task opens a stream."""
    start_with(query, names, "a", "b")
    run_until(query, 2)

    assert [DriverPartition] == [type(partition) for partition in query.partitions_of[query.committed - 1]]


def test_backlog_is_pulled_by_tasks(query: Engine, names: Names):
    """When the driver stream is full the tasks pull the messages that it cannot buffer."""
    start_with(query, names, *MANY)
    run_until(query, len(MANY))

    assert any(len(rows) > 1000 for rows in query.written.values())


def test_tasks_pull_when_the_driver_stream_runs_at_its_rate_limit(
    query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch
):
    """Batches so quick that the driver stream is never full, of 1.5 MB each: after 12 MB in two seconds tasks pull."""
    monkeypatch.setattr(query, "clock", lambda: time.monotonic() / 10)  # two seconds are enough for any machine
    query.budget = Budget(1000, 10**9)
    query.start()
    query.trigger()
    kinds = []
    for number in range(1, 10):
        query.emulator.publish(names.topic, str(number) * 1_500_000)
        buffered(query, 1)
        assert not query.opened.stream.is_flow_controlled
        query.trigger()
        kinds.append({type(partition) for partition in query.partitions_of[query.committed - 1]})
        query.trigger()
        acked(query, number)

    assert [{DriverPartition}] * 7 + [{PullPartition}] == kinds[:8]
    assert [str(number) for number in range(1, 10)] == [row[0] for row in query.rows]


def test_budget_bounds_a_batch(query: Engine, names: Names):
    """`maxMessagesPerTrigger` is kept, whatever the backlog."""
    query.budget = Budget(100, 10**6)
    query.options = replace(query.options, max_messages_per_trigger=100)
    query.emulator.publish(names.topic, *MANY[:500])
    query.start()
    run_until(query, 500)

    assert max(map(len, query.written.values())) <= 100


def test_actions_see_equal_rows(query: Engine, names: Names):
    """A batch that is planned and read three times returns the same rows in the same order."""
    query.emulator.publish(names.topic, *MANY)
    query.start()
    until(lambda: query.trigger(actions=3) and len(query.rows) == len(MANY), "all rows")

    for evaluations in query.evaluations.values():
        assert 3 == len(evaluations)
        assert all(rows == evaluations[0] for rows in evaluations)


def test_expired_lease_gives_no_row_twice(query: Engine, names: Names, options: ReadOptions):
    """Leases run out while Spark works on a batch of a query that was restarted: redelivered messages are dropped."""
    start_with(query, names, "a", "b")
    die_in_a_batch(query, parts=1)
    query.emulator.advance(LEASE)
    query.start()
    query.emulator.publish(names.topic, "c")
    run_until(query, 3)
    acked(query, 3)

    assert ["a", "b", "c"] == sorted(query.rows)
    assert [2, 2, 1] == [m.deliveries for m in query.emulator.messages(names.subscription)]


def test_expired_lease_gives_no_row_twice_after_a_second_crash(query: Engine, names: Names):
    """Ids in doubt survive a restart."""
    acknowledged_after_its_lease(query, names)
    query.crash()
    query.emulator.clear_faults()
    query.emulator.publish(names.topic, "b")
    query.start()
    run_until(query, 2)
    acked(query, 2)

    assert ["a", "b"] == query.rows


def test_expired_lease_gives_no_row_twice_however_long_it_is_buffered(query: Engine, names: Names):
    """After a sink that works for an hour the buffer has messages of its first second."""
    acknowledged_after_its_lease(query, names)
    query.emulator.clear_faults()
    buffered(query, 1)
    for seconds in (20, 500, 500):
        query.advance(seconds)
    query.emulator.publish(names.topic, "b")
    run_until(query, 2)
    acked(query, 2)

    assert ["a", "b"] == query.rows


def test_metrics_and_log_are_true(query: Engine, names: Names, caplog: pytest.LogCaptureFixture):
    """Messages buffered, held by a slow sink, and committed, counted by hand."""
    caplog.set_level("INFO", "pubsub_spark.read")
    start_with(query, names, "a", "four")
    assert 2 == query.metrics["bufferedMessages"]
    assert query.metrics["oldestUnackedSeconds"] > 0
    query.trigger(lasts=20.0)
    counted = query.metrics
    assert (0, 1, 2, 0) == tuple(
        counted[name] for name in ("bufferedMessages", "inFlightBatches", "leasesExtended", "messages")
    )
    acked(query, 2)
    counted = query.metrics
    assert (0, 0, 2, 5, 2, 0, 0) == tuple(
        counted[name]
        for name in (
            "inFlightBatches",
            "unackedBatches",
            "messages",
            "bytes",
            "ackedMessages",
            "failedAcks",
            "redeliveriesDropped",
        )
    )
    [line] = [line for line in caplog.messages if line.startswith("batch 1 of")]
    counts = {"messages": 2, "bytes": 5, "redeliveriesDropped": 0, "malformed": 0, "deadLetters": 0}
    assert line == f"batch 1 of `{names.subscription}` is committed: {json.dumps(counts)}"


def test_backlog_is_seen_in_every_metric_of_it(query: Engine, names: Names):
    """While tasks catch up each report says so, though the driver stream has nothing buffered. Then none does."""
    query.budget = Budget(1200, 10**8)
    query.emulator.fail("Acknowledge", "UNAVAILABLE", count=10_000)
    start_with(query, names, *(f"m{n}" for n in range(5000)))
    query.reports.clear()
    until(lambda: query.trigger() and len(query.rows) == 5000, "all rows")
    catching_up = query.reports[: 4 + 1]
    assert [True] * len(catching_up) == [report["backlogged"] for report in catching_up]
    assert 0 == min(report["bufferedMessages"] for report in catching_up)
    assert [n * 1200 for n in range(5)] <= [report["unackedMessages"] for report in catching_up]
    assert {names.subscription} == {report["subscription"] for report in catching_up}
    assert [1] * len(catching_up) == [report["inFlightBatches"] for report in catching_up]

    query.emulator.clear_faults()
    acked(query, 5000)
    until(lambda: not query.trigger() and query.metrics["unackedMessages"] == 0, "no unacked message")
    assert (False, 0, 0, 0) == tuple(
        query.metrics[name] for name in ("backlogged", "inFlightBatches", "unackedBatches", "oldestUnackedSeconds")
    )


@pytest.mark.parametrize("parts", [1, 2])
def test_store_calls_do_not_grow_with_the_batches_behind(
    query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch, parts: int
):
    """A restart acknowledges 200 batches of an earlier run with as many calls of the store for each as 10 batches."""
    calls = 0

    def counted(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return method(*arguments)

        return call

    def calls_per_batch(behind: int) -> float:
        staging = Staging(open_store(f"{query.location}/{behind}"), names.subscription, "stream")
        for batch in range(1, behind + 1):
            for number in range(parts):
                staging.create(f"{batch}/part-{number}", part([f"{batch}-{number}"]))
        query.location, query.offsets, query.committed = staging.location, [Offset("stream", behind)], 1
        nonlocal calls
        calls = 0
        query.start()
        query.trigger()
        until(lambda: not query.trigger() and query.metrics["unackedBatches"] == 0, "all acked")
        query.crash()
        assert [] == staging.batches()
        return calls / behind

    for name in ("create", "put", "read", "read_range", "list", "folders", "delete"):
        monkeypatch.setattr(Store, name, counted(getattr(Store, name)))
    few, many = calls_per_batch(10), calls_per_batch(200)
    assert many <= 1.1 * few
    assert many <= 6 + 11 * parts  # measured: 14.7 with one part, 25.1 with two, at 10 and at 200 behind


def _model() -> Any:
    """Return the arithmetic of docs/scaling.md."""
    path = Path(__file__).parent.parent.parent / "docs" / "scaling_model.py"
    spec = importlib.util.spec_from_file_location("scaling_model", path)
    assert spec is not None and spec.loader is not None
    model = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    return model


def test_store_requests_are_those_of_the_model(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """In a backlog a batch of four parts asks the store as often as docs/scaling.md says."""
    counted: Counter[str] = Counter()
    counting = False

    def count(kind: str, call: Any) -> Any:
        def counted_call(*arguments: Any, **settings: Any) -> Any:
            counted[kind] += counting
            return call(*arguments, **settings)

        return counted_call

    for kind, calls in {"writes": ("create", "put", "list"), "reads": ("read", "read_range")}.items():
        for name in calls:
            monkeypatch.setattr(Store, name, count(kind, getattr(Store, name)))
    query.partitions, query.budget = 4, Budget(2000, 10**8)
    query.emulator.publish(names.topic, *(f"m{number}" for number in range(20_000)))
    query.start()
    run_until(query, 6000)
    counting, before = True, query.committed
    run_until(query, 16_000)
    counting, batches = False, query.committed - before

    model = _model()
    writes, reads = model.WRITES + model.WRITES_PER_PART * 4, model.READS + model.READS_PER_PART * 4
    assert counted["writes"] / batches == pytest.approx(writes, rel=0.15)
    assert counted["reads"] / batches == pytest.approx(reads, rel=0.15)


def test_a_task_fetches_so_many_at_most(query: Engine, names: Names):
    """`maxRecordsPerFetch` limits the pull of each task, below its share of the budget."""
    query.options = replace(query.options, max_records_per_fetch=100)
    start_with(query, names, *MANY)
    query.trigger()

    assert 1000 + query.partitions * 100 == len(query.rows)


def test_acks_that_a_restart_took_over_are_counted(query: Engine, names: Names):
    """The metrics also count unacknowledged messages of an earlier run."""
    query.emulator.publish(names.topic, "a", "b")
    query.start()
    run_until(query, 2)
    query.crash()
    query.emulator.fail("Acknowledge", None, delay=1.0)
    query.options = replace(query.options, max_unacknowledged_batches=1)  # so that a trigger does not wait for it
    query.start()
    assert query.session is not None
    query.session.latest_offset(query.offsets[-1], query.budget)

    assert (1, 2) == (query.metrics["unackedBatches"], query.metrics["unackedMessages"])
    assert query.metrics["oldestUnackedSeconds"] > 0
    acked(query, 2)
    assert (0, 0) == (query.metrics["unackedBatches"], query.metrics["unackedMessages"])


def test_keys_stay_in_order(emulator: Emulator, names: Names, query: Engine):
    """Rows of a key are in publish order within batches and over them, also after a crash and a redelivery."""
    name = f"{names.subscription}-ordered"
    emulator.create_subscription(name, names.topic, enable_message_ordering=True)
    query.options = replace(query.options, subscription_id=name, max_messages_per_trigger=50)
    query.budget = Budget(50, 10**6)
    keys = "abc"
    for number in range(60):
        emulator.publish(names.topic, *({"data": f"{key}{number}".encode(), "ordering_key": key} for key in keys))
    query.start()
    run_until(query, 20)
    query.crash()
    emulator.advance(LEASE)
    query.start()
    run_until(query, 180)
    acked(query, 180)

    for key in keys:
        mine = [int(text[1:]) for text in query.rows if text[0] == key]
        assert sorted(mine) == mine, f"key {key} came as {mine}"
        assert set(range(60)) == set(mine)


def test_delivery_attempts_are_counted(emulator: Emulator, names: Names, query: Engine):
    """Each row of a subscription with a dead-letter policy has its delivery attempt."""
    name, dead = f"{names.subscription}-dead", f"{names.topic}-dead"
    emulator.create_topic(dead)
    emulator.create_subscription(
        name, names.topic, dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": 5}
    )
    query.options = replace(query.options, subscription_id=name, idle_timeout=BOUND, max_fetch_period=BOUND)
    emulator.publish(names.topic, "a")
    staging = Staging(open_store(query.location), name, "stream")
    staging.write_token()

    attempts = []
    for batch in range(1, 4):
        staging.create(f"{batch}/part-0", part([]))
        pulled = PullPartition(staging, batch, 1, 1, 10**6, math.inf)
        [rows] = [b for b in partition_reader.read(pulled, query.options, query.backend) if b.num_rows]
        attempts += rows.column("delivery_attempt").to_pylist()
        query.streams_are_gone()
        emulator.advance(LEASE)
    assert [1, 2, 3] == attempts


def test_batch_that_keeps_failing_lets_attempts_count(emulator: Emulator, names: Names, query: Engine):
    """Leases are not extended between runs: Pub/Sub delivers the message again, and dead-letters it in the end."""
    name, dead = f"{names.subscription}-dead", f"{names.topic}-dead"
    emulator.create_topic(dead)
    emulator.create_subscription(f"{name}-letters", dead)
    emulator.create_subscription(
        name, names.topic, dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": 5}
    )
    query.options = replace(query.options, subscription_id=name)
    start_with(query, names, "a")
    die_in_a_batch(query, parts=1)
    for _ in range(4):
        assert 0 == emulator.backlog(f"{name}-letters")
        emulator.advance(LEASE)
        query.start()
        assert query.session is not None
        query.session.partitions(*query.offsets[-2:])  # the replay
        buffered(query, 1)
        query.crash()
    emulator.advance(LEASE)

    until(lambda: emulator.backlog(f"{name}-letters") == 1, "the message is set aside")

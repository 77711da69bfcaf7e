"""The driver's session and the tasks against the emulator, over real gRPC and without a JVM: `Engine` plays Spark."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.errors import ForbiddenError, MissingError, ResourceError, ServiceError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read import acks, partition_reader
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.partitions import Budget, DriverPartition, PullPartition
from pubsub_spark.read.staging import Staging
from tests.conftest import Names
from tests.engine import Engine, until
from tests.rpc.session import (
    BOUND,
    LEASE,
    MANY,
    acked,
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
    """A few messages come from the driver stream alone: no task opens a stream."""
    start_with(query, names, "a", "b")
    run_until(query, 2)

    assert query.session is not None
    assert [[DriverPartition]] == [
        [type(part) for part in parts] for parts in query.session._partitions.values() if parts
    ]


def test_backlog_is_pulled_by_tasks(query: Engine, names: Names):
    """When the driver stream is full the tasks pull the messages that it cannot buffer."""
    start_with(query, names, *MANY)
    run_until(query, len(MANY))

    assert any(len(rows) > 1000 for rows in query.written.values())


def test_tasks_pull_when_the_driver_stream_runs_at_its_rate_limit(
    query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch
):
    """Batches so quick that the driver stream is never full, of 1.5 MB each: after 12 MB in two seconds tasks pull."""
    monkeypatch.setattr(query, "clock", lambda: 100.0)  # all of it at one time
    query.budget = Budget(1000, 10**9)
    query.start()
    query.trigger()
    kinds = []
    for number in range(1, 10):
        query.emulator.publish(names.topic, str(number) * 1_500_000)
        buffered(query, 1)
        assert not query.opened.stream.is_flow_controlled
        query.trigger()
        [partitions] = query.session._partitions.values()  # type: ignore[union-attr]
        kinds.append({type(partition) for partition in partitions})
        query.trigger()
        acked(query, number)

    assert [{DriverPartition}] * 7 + [{PullPartition}] == kinds[:8]
    assert [str(number) for number in range(1, 10)] == [row[0] for row in query.rows]


def test_tasks_send_the_acks_of_a_backlog(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """The driver sends the acks of its own messages and of the last batch; tasks send those of the batch before."""
    sent_by: list[tuple[bool, int]] = []
    acknowledge = acks.acknowledge

    def counted(*arguments: Any) -> acks.FailedIds:
        failed = acknowledge(*arguments)
        sent_by.append((threading.current_thread().name == "task acks", failed.taken))
        return failed

    monkeypatch.setattr(acks, "acknowledge", counted)
    query.budget = Budget(1200, 10**6)
    texts = [f"m{number}" for number in range(6000)]
    query.emulator.publish(names.topic, *texts)
    query.start()
    run_until(query, len(texts))
    acked(query, len(texts))

    assert len(texts) == sum(count for _, count in sent_by)
    assert sum(count for is_task, count in sent_by if is_task) > 0
    assert sorted(texts) == sorted(query.rows)


def test_budget_bounds_a_batch(query: Engine, names: Names):
    """`maxMessagesPerTrigger` is kept, whatever the backlog."""
    query.budget = Budget(100, 10**6)
    query.options = replace(query.options, max_messages_per_trigger=100)
    query.emulator.publish(names.topic, *MANY[:500])
    query.start()
    run_until(query, 500)

    assert max(map(len, query.written.values())) <= 100


def test_actions_see_equal_rows(query: Engine, names: Names):
    """A batch that is planned and read three times gives the same rows in the same order."""
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


def redelivered_while_it_is_acknowledged(query: Engine, names: Names) -> None:
    """Batch 1, of one message: the driver was down for longer than its lease; the message is buffered again."""
    start_with(query, names, "a")
    die_in_a_batch(query, parts=1)
    query.emulator.advance(LEASE)
    query.start()
    query.trigger()  # the replay
    assert query.session is not None
    query.session.latest_offset(query.offsets[-1], query.budget)
    buffered(query, 1)
    until(lambda: query.opened.staging.last_acknowledged() == 1, "batch 1 is acknowledged and deleted")


def test_expired_lease_gives_no_row_twice_after_a_second_crash(query: Engine, names: Names):
    """Recent ids survive a restart."""
    redelivered_while_it_is_acknowledged(query, names)
    query.crash()
    query.emulator.advance(LEASE)
    query.emulator.publish(names.topic, "b")
    query.start()
    run_until(query, 2)
    acked(query, 2)

    assert ["a", "b"] == query.rows


def test_expired_lease_gives_no_row_twice_however_long_it_is_buffered(query: Engine, names: Names):
    """After a sink that works for an hour the buffer has messages that came in its first second."""
    redelivered_while_it_is_acknowledged(query, names)
    for seconds in (20, 500, 500):
        query.advance(seconds)
    query.emulator.publish(names.topic, "b")
    run_until(query, 2)
    acked(query, 2)

    assert ["a", "b"] == query.rows


def test_id_attribute_names_what_was_published_twice(query: Engine, names: Names):
    """Duplicates are one row, in one batch or in two, also after a restart; without a value each is itself."""
    query.options = replace(query.options, id_attribute="order")

    def publish(*orders: str) -> None:
        sent = [
            {"data": f"{order}:{number}".encode(), "attributes": {"order": order}}
            for number, order in enumerate(orders)
        ]
        query.emulator.publish(names.topic, *sent)

    query.start()
    publish("7", "7", "8")
    run_until(query, 2)
    publish("8", "9")
    run_until(query, 3)
    acked(query, 5)
    query.stop()
    publish("7", "", "")
    query.start()
    run_until(query, 5)
    acked(query, 8)

    assert ["7:0", "8:2", "9:1", ":1", ":2"] == query.rows
    assert 0 == query.emulator.backlog(names.subscription)


def test_ack_that_fails_for_a_while_is_sent_again(query: Engine, names: Names):
    """An ack that fails with UNAVAILABLE is tried again."""
    query.emulator.publish(names.topic, "a")
    query.emulator.fail("Acknowledge", "UNAVAILABLE", count=3)
    query.start()
    acked(query, 1)

    assert ["a"] == query.rows


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
    assert line == (
        f"batch 1 of `{names.subscription}` is committed: 2 messages, 5 bytes, 0 redeliveries dropped, 0 malformed"
    )


def test_backlog_is_seen_in_every_metric_of_it(query: Engine, names: Names):
    """While tasks catch up each report says so, though the driver stream has nothing buffered; then none does."""
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

    query.emulator._running.faults.clear()
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
    calls: list[str] = []
    ask = Staging._ask

    def counted(staging: Staging, call: Any, path: str, *arguments: Any, **settings: Any) -> Any:
        calls.append(path)
        return ask(staging, call, path, *arguments, **settings)

    def calls_per_batch(behind: int) -> float:
        staging = Staging(f"{query.location}/{behind}", names.subscription, "stream")
        for batch in range(1, behind + 1):
            for number in range(parts):
                staging.create(f"{batch}/part-{number}", part([f"{batch}-{number}"]))
        query.location, query.offsets, query.committed = staging.location, [Offset("stream", behind)], 1
        calls.clear()
        query.start()
        query.trigger()
        until(lambda: not query.trigger() and query.metrics["unackedBatches"] == 0, "all acked")
        query.crash()
        assert [] == staging.batches()
        return len(calls) / behind

    monkeypatch.setattr(Staging, "_ask", counted)
    few, many = calls_per_batch(10), calls_per_batch(200)
    assert many <= 1.1 * few
    assert many <= 6 + 11 * parts  # measured: 14.7 with one part, 25.1 with two, at 10 and at 200 behind


def _model() -> Any:
    """The arithmetic of docs/scaling.md."""
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

    for kind, calls in {"writes": ("put", "list"), "reads": ("get", "get_range")}.items():
        for name in calls:
            monkeypatch.setattr(obstore, name, count(kind, getattr(obstore, name)))
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
    """`maxRecordsPerFetch` bounds what each task pulls, below its share of the budget."""
    query.options = replace(query.options, max_records_per_fetch=100)
    start_with(query, names, *MANY)
    query.trigger()

    assert 1000 + query.partitions * 100 == len(query.rows)


def test_acks_that_a_restart_took_over_are_counted(query: Engine, names: Names):
    """The metrics count unacknowledged messages of an earlier run, too."""
    query.emulator.publish(names.topic, "a", "b")
    query.start()
    run_until(query, 2)
    query.crash()
    query.emulator.fail("Acknowledge", None, delay=1.0)
    query.start()
    assert query.session is not None
    query.session._open(query.offsets[-1])

    assert (1, 2) == (query.metrics["unackedBatches"], query.metrics["unackedMessages"])
    assert query.metrics["oldestUnackedSeconds"] > 0
    acked(query, 2)
    assert (0, 0) == (query.metrics["unackedBatches"], query.metrics["unackedMessages"])


@pytest.mark.parametrize("outcome", ["TRANSIENT_FAILURE_UNORDERED_ACK_ID", "PERMANENT_FAILURE_INVALID_ACK_ID"])
def test_exactly_once_delivery_failures(emulator: Emulator, names: Names, query: Engine, outcome: str):
    """Per-id failures: transient ones are sent again; permanent ones end in a redelivery that is dropped."""
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
    """The service names each failed id; a whole request of them is an answer, and not a broken connection."""
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
    staging = Staging(query.location, name, "stream")
    staging.write_token()

    attempts = []
    for batch in range(1, 4):
        staging.create(f"{batch}/part-0", part([]))
        pulled = PullPartition(staging, batch, 1, 1, 10**6)
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


def test_task_leaves_nothing_behind(query: Engine, names: Names):
    """After a pull its stream and its thread are gone."""
    query.emulator.publish(names.topic, "a")
    staging = Staging(query.location, names.subscription, "stream")
    staging.write_token()
    staging.create("1/part-0", part([]))
    assert ["a"] == query.read([PullPartition(staging, 1, 1, 1, 10**6)])

    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("pull ")]
    until(lambda: query.emulator.streams() == 0, "the end of the stream")


def test_stop_nacks_buffered_messages(query: Engine, names: Names):
    """Buffered messages are free for the next reader as soon as the query has stopped."""
    start_with(query, names, "a")
    query.stop()

    [record] = query.emulator.messages(names.subscription)
    assert record.ack_deadline is None
    assert not record.acked


def test_stop_does_not_wait_for_a_service_that_is_silent(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """Unanswered acks, then unanswered nacks: one timeout is for both."""
    monkeypatch.setattr("pubsub_spark.read.session._STOP_TIMEOUT_SECONDS", 1.0)
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
    """The emulator goes away in the middle of a batch and comes back: the query goes on by itself."""
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
    """A restarted emulator gives new message ids: a message whose ack is in doubt, and a new one, are two."""
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

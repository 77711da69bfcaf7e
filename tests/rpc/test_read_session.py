"""The driver's session and the tasks against the emulator, over real gRPC and without a JVM: `Engine` plays Spark."""

from __future__ import annotations

import datetime
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import obstore
import pytest
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from obstore.exceptions import GenericError

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api.errors import Code
from pubsub_spark.emulator.handlers import iam
from pubsub_spark.errors import ForbiddenError, MissingError, OptionsError, ResourceError, ServiceError, StagingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read import partition_reader
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.partitions import Budget, DriverPartition, PullPartition
from pubsub_spark.read.staging import Staging
from tests.conftest import Names
from tests.engine import CrashError, Engine
from tests.rpc.conftest import Client
from tests.unit.read.service import part

BOUND = 20.0
LEASE = 601.0  # seconds; longer than any lease
MANY = [f"m{n}" for n in range(1500)]  # half as many again as the driver stream buffers


@pytest.fixture
def options(emulator: Emulator, names: Names) -> ReadOptions:
    return ReadOptions(
        subscription_id=names.subscription,
        endpoint=emulator.endpoint,
        idle_timeout=0.1,
        max_fetch_period=0.5,
        connect_timeout=5.0,
    )


@pytest.fixture
def query(emulator: Emulator, names: Names, options: ReadOptions, tmp_path: Path) -> Iterator[Engine]:
    """A query on a plain subscription; not started."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    engine = Engine(emulator, options, str(tmp_path), budget=Budget(10_000, 10**8))
    yield engine
    if engine.session is not None:
        engine.crash()


def until(condition: Callable[[], Any], otherwise: str) -> None:
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, otherwise
        threading.Event().wait(0.005)


def run_until(query: Engine, rows: int) -> None:
    """Trigger until so many rows are committed."""

    def enough() -> bool:
        query.trigger()
        return len(query.rows) >= rows

    until(enough, f"{rows} rows, got {len(query.rows)}")


def acked(query: Engine, count: int) -> None:
    """Trigger until so many messages are acknowledged; an idle query acknowledges too."""

    def enough() -> bool:
        query.trigger()
        return sum(m.acked for m in query.emulator.messages(query.options.subscription)) >= count

    until(enough, f"{count} acks")


def buffered(query: Engine, count: int) -> None:
    """Wait until the driver stream has buffered so many messages."""
    stream = query.opened.stream

    def arrived() -> bool:
        stream.poll(0.01)
        return bool(stream.message_count >= count)

    until(arrived, f"{count} buffered messages")


def start_with(query: Engine, names: Names, *texts: str) -> None:
    """Start, publish, and wait until the driver stream has buffered these messages or as many as it can."""
    query.start()
    query.trigger()
    query.emulator.publish(names.topic, *texts)
    buffered(query, min(len(texts), query.opened.stream.settings.max_messages))


def start_and_acknowledge(query: Engine, names: Names, *texts: str) -> None:
    """Start, and read each message in a batch of its own until it is acknowledged and its files are deleted."""
    query.start()
    query.trigger()  # there is nothing yet, however slow the machine is
    for count, text in enumerate(texts, 1):
        query.emulator.publish(names.topic, text)
        run_until(query, count)
        acked(query, count)


def die_in_a_batch(query: Engine, parts: int) -> None:
    """Crash after so many partitions of the next batch were read."""
    with pytest.raises(CrashError):
        query.trigger(crash_after=parts)


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


@pytest.mark.parametrize("passes_start", [True, False], ids=["4.2", "4.0"])
def test_crash_replays_what_was_staged(query: Engine, names: Names, passes_start: bool):
    """After a crash in the middle of a batch its staged parts are the batch; other messages come after their leases."""
    query.passes_start = passes_start
    start_with(query, names, *MANY)
    die_in_a_batch(query, parts=1)
    query.emulator.advance(LEASE)
    query.start()
    run_until(query, len(MANY))
    acked(query, len(MANY))

    assert Counter(MANY) == Counter(query.rows)


def test_part_after_the_manifest_is_ignored(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """A task that outlives its driver stages into a batch that has a manifest: no row of it, no ack, and no loss."""
    texts = [f"m{n}" for n in range(3000)]
    start_with(query, names, *texts)
    die_in_a_batch(query, parts=0)
    query.start()
    assert query.trigger()
    for check, found in [("_may_pull", True), ("owner.taken_over", None)]:  # which it had passed before the restart
        monkeypatch.setattr(f"pubsub_spark.read.partition_reader.{check}", lambda *_, found=found: found)
    zombies = set(query.read(query.orphans)) - set(query.rows)
    assert zombies
    acked(query, 1000)

    assert not zombies & {m.data.decode() for m in query.emulator.messages(names.subscription) if m.acked}
    monkeypatch.undo()
    query.crash()
    query.emulator.advance(LEASE)
    query.start()
    run_until(query, len(texts))
    assert Counter(texts) == Counter(query.rows)


def test_task_of_an_earlier_run_fails(query: Engine, names: Names):
    """A task that outlives its driver stages nothing where a later run owns the area; its messages come again."""
    start_with(query, names, *MANY)
    die_in_a_batch(query, parts=0)
    [late, *_] = query.orphans[1:]
    query.start()
    query.session.partitions(query.session.initial_offset(), Offset(late.staging.stream, 7))  # type: ignore[union-attr]
    with pytest.raises(StagingError, match="Another query has taken over stream"):
        query.read([late])

    assert [0] == list(late.staging.parts(late.batch))
    assert not query.emulator.streams() > 1


def test_second_query_on_a_copied_checkpoint_takes_over(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """The first query fails when it plans its next batch; the second gives and acknowledges what the first has not."""
    monkeypatch.setattr(Engine, "streams_are_gone", lambda _: None)  # two queries have two
    start_and_acknowledge(query, names, "a")
    second = replace(query, session=None, offsets=[*query.offsets], written={**query.written}, evaluations={})
    query.emulator.publish(names.topic, "b")
    buffered(query, 1)
    assert query.trigger()
    second.start()
    assert not query.written.keys() & second.evaluations.keys()
    second.trigger()
    with pytest.raises(StagingError, match=r"Another query has taken over stream .* Let one query at a time"):
        until(lambda: query.trigger() and False, "the first query fails")
    query.stop()
    query.emulator.publish(names.topic, "c")
    query.emulator.advance(LEASE)
    run_until(second, 3)
    acked(second, 3)

    assert ["a", "b", "c"] == sorted(second.rows)
    second.stop()


def test_forgiven_loss_leaves_the_batches_of_another_query(
    query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch
):
    """A second query from an old copy of the checkpoint, with failOnDataLoss=false, deletes nothing of the first."""
    monkeypatch.setattr(Engine, "streams_are_gone", lambda _: None)  # two queries have two
    start_and_acknowledge(query, names, "a", "b")
    old = replace(query, session=None, offsets=query.offsets[:1], committed=1, written={0: query.written[0]})
    old.options = replace(query.options, fail_on_data_loss=False)
    query.emulator.publish(names.topic, *"wxyz")
    buffered(query, 4)
    query.emulator.fail("Acknowledge", "UNAVAILABLE", count=2)
    assert query.trigger()
    old.start()
    old.trigger()
    acked(query, 6)

    assert 0 == query.metrics["failedAcks"]
    assert ["a", "b", *"wxyz"] == query.rows
    old.crash()


def test_staging_that_vanishes_between_two_actions_fails_the_second(query: Engine, names: Names):
    """A task that pulled again would give, and have acknowledged, messages that the first action never saw."""
    start_with(query, names, *MANY)
    end = query.session.latest_offset(query.session.initial_offset(), query.budget)  # type: ignore[union-attr]
    partitions = query.session.partitions(query.session.initial_offset(), end)  # type: ignore[union-attr]
    assert Counter(MANY) == Counter(query.read(partitions))
    query.emulator.publish(names.topic, *[f"n{n}" for n in range(1000)])
    query.emulator.advance(LEASE)
    files = query.opened.staging.files(end.batch)
    for gone in [{path for path in files if path.endswith("part-1")}, files]:
        for path in gone:
            (Path(query.location) / query.opened.staging.root / path).unlink(missing_ok=True)
        with pytest.raises(StagingError, match=r"The staged files of batch 1 of .* are gone from"):
            query.read(query.session.partitions(query.session.initial_offset(), end))  # type: ignore[union-attr]

    assert not [m for m in query.emulator.messages(names.subscription) if m.acked]


@pytest.mark.parametrize("id_attribute", [None, "id"])
def test_replay_drops_what_an_earlier_part_has(query: Engine, names: Names, id_attribute: str | None):
    """A task that outlived its driver staged redeliveries before the manifest: one row each, and all are acked."""
    query.options = replace(query.options, id_attribute=id_attribute)
    start_with(query, names, *MANY)
    die_in_a_batch(query, parts=1)
    staged = query.orphans or []
    query.emulator.advance(LEASE)
    staging = Staging(query.location, names.subscription, query.offsets[-1].stream, epoch=2**62)
    late = PullPartition(staging, query.offsets[-1].batch, 2, 5000, 10**7, False)
    query.read([late])
    query.start()
    query.trigger(actions=3)
    replayed = query.evaluations[len(query.evaluations) - 1]

    assert all(rows == replayed[0] for rows in replayed)
    run_until(query, len(MANY))
    acked(query, len(MANY))
    assert Counter(MANY) == Counter(query.rows), staged


def test_part_after_the_acks_is_ignored(query: Engine, names: Names):
    """A task so late that its batch is acknowledged and deleted leaves a file that a restart does not acknowledge."""
    start_and_acknowledge(query, names, "a")
    query.opened.staging.create("1/part-1", part(["zombie"]))
    query.stop()
    query.emulator.publish(names.topic, "b")
    query.start()
    run_until(query, 2)
    acked(query, 2)

    assert ["a", "b"] == query.rows
    assert 0 == query.metrics["failedAcks"]


@pytest.mark.parametrize("forgive", [False, True])
def test_batch_evaluated_after_its_acks_is_refused(query: Engine, names: Names, forgive: bool):
    """A DataFrame that outlived its `foreachBatch` does not show, or take, other messages than at first."""
    query.options = replace(query.options, fail_on_data_loss=not forgive)
    start_and_acknowledge(query, names, "a")
    query.emulator.publish(names.topic, *MANY)
    staging, session, end = query.opened.staging, query.session, query.offsets[-1]
    assert session is not None
    looks = [
        lambda: query.read([PullPartition(staging, end.batch, 1, 100, 10**6, False)]),
        lambda: query.read(session.partitions(session.initial_offset(), end)),
    ]
    for look in looks:
        if forgive:
            assert [] == look()
        else:
            with pytest.raises(StagingError, match=r"again.*deleted"):
                look()
    run_until(query, 1 + len(MANY))

    assert Counter(["a", *MANY]) == Counter(query.rows)
    assert {1} == {m.deliveries for m in query.emulator.messages(names.subscription)}


def test_batch_that_is_deleted_while_it_is_planned_again(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """A DataFrame that outlived its `foreachBatch` is refused then, too: no rows would be a silent answer."""
    query.emulator.publish(names.topic, "a")
    query.start()
    run_until(query, 1)
    query.emulator.fail("Acknowledge", None, delay=0.5)
    query.emulator.publish(names.topic, "b")
    buffered(query, 1)
    write_manifest, last = Staging.write_manifest, query.offsets[-1]

    def late(staging: Staging, batch: int) -> list[int]:
        until(lambda: staging.last_acknowledged() == batch and not staging.parts(batch), "the batch is deleted")
        return write_manifest(staging, batch)

    monkeypatch.setattr(Staging, "write_manifest", late)
    assert query.session is not None
    query.session.latest_offset(last, query.budget)
    with pytest.raises(StagingError, match="acknowledged and deleted"):
        query.session.partitions(Offset(last.stream, last.batch - 1), last)


def test_checkpoint_of_a_backup_uses_its_numbers_again(query: Engine, names: Names):
    """Forgiven, the batches after it are like any others: they survive a crash, and zombies are not acknowledged."""
    query.options = replace(query.options, fail_on_data_loss=False)
    start_and_acknowledge(query, names, *"abc")
    query.emulator.publish(names.topic, "x")
    buffered(query, 1)
    die_in_a_batch(query, parts=1)
    query.emulator.advance(LEASE)
    query.committed = 1 + next(batch for batch, rows in query.written.items() if "a" in rows)
    del query.offsets[query.committed :]  # a backup of the checkpoint that ends with "a"
    query.emulator.publish(names.topic, "d")
    query.start()
    session = query.session
    assert session is not None
    session.latest_offset(query.offsets[-1], query.budget)
    buffered(query, 2)
    assert 2 == query.opened.stream.message_count
    die_in_a_batch(query, parts=1)
    query.start()
    run_until(query, 3)
    for count, text in enumerate("efg", 4):  # until the numbers are new ones
        query.emulator.publish(names.topic, text)
        run_until(query, count)
    acked(query, 8)

    assert ["a", "d", "e", "f", "g", "x"] == sorted(query.rows)


def test_batch_that_the_offset_log_has_lost_is_given_again(query: Engine, names: Names):
    """After the last offset was removed, all parts staged under its number are given, and only they are acked."""
    start_with(query, names, *MANY)
    die_in_a_batch(query, parts=2)
    del query.offsets[1:]
    query.emulator.publish(names.topic, "x")  # for which the driver stream is enough
    query.start()
    run_until(query, len(MANY))
    acked(query, len(MANY))

    assert Counter(MANY) == Counter(query.rows) - Counter(["x"])


def test_keys_stay_in_order_where_the_offset_log_has_lost_a_batch(emulator: Emulator, names: Names, query: Engine):
    """Buffered messages stay buffered while that batch is given again: some of them nacked would come second."""
    name, key = f"{names.subscription}-ordered", [f"k{n}" for n in range(20)]
    emulator.create_subscription(name, names.topic, enable_message_ordering=True)
    query.options = replace(query.options, subscription_id=name)
    start_with(query, names, "lost")
    die_in_a_batch(query, parts=1)
    del query.offsets[1:]
    emulator.publish(names.topic, *({"data": text.encode(), "ordering_key": "k"} for text in key))
    query.start()
    query.budget = Budget(10, 10**6)  # the driver stream buffers more than one batch
    assert query.session is not None
    query.session.latest_offset(query.offsets[-1], query.budget)
    buffered(query, len(key))
    run_until(query, 1 + len(key))

    assert ["lost", *key] == query.rows
    assert {1} == {m.deliveries for m in emulator.messages(name)}


def test_second_query_on_a_checkpoint_is_refused(query: Engine, names: Names):
    """A query whose batch was staged by another query fails: going on would lose or mix messages."""
    start_with(query, names, "a")
    query.opened.staging.create("1/part-0", part(["theirs"]))
    with pytest.raises(StagingError, match=r"Batch 1 of .* by another query"):
        query.trigger()


def test_two_attempts_at_a_part_yield_the_winners_rows(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """Speculation: both attempts pull, one stages; the other nacks its messages and yields the winner's rows."""
    query.start()
    query.trigger()
    staging = query.opened.staging
    staging.create("7/part-0", part([]))
    query.crash()
    query.emulator.publish(names.topic, *MANY[:100])
    both = threading.Barrier(2, timeout=BOUND)
    create = Staging.create

    def together(staging: Staging, path: str, content: Any) -> bool:
        both.wait()
        return create(staging, path, content)

    monkeypatch.setattr(Staging, "create", together)
    pulled = PullPartition(staging, 7, 1, 50, 10**6, False)
    seen: list[list[str]] = []
    tasks = [threading.Thread(target=lambda: seen.append(query.read([pulled]))) for _ in range(2)]
    for each in tasks:
        each.start()
    for each in tasks:
        each.join(BOUND)

    assert 2 == len(seen)
    assert seen[0] == seen[1]
    assert 50 == len(seen[0])
    returned = [m.data.decode() for m in query.emulator.messages(names.subscription) if m.failures]
    assert 50 == len(returned)
    assert not set(returned) & set(seen[0])


def test_put_whose_answer_is_lost_nacks_nothing(query: Engine, names: Names, monkeypatch: pytest.MonkeyPatch):
    """The store has the part: its messages are the rows of the next attempt, and a nack would repeat them."""
    query.start()
    query.trigger()
    staging = query.opened.staging
    query.crash()
    query.emulator.publish(names.topic, *MANY[:50])
    put = obstore.put

    def unanswered(*given: Any, **settings: Any) -> None:
        put(*given, **settings)
        raise GenericError("error sending request")

    staging.create("7/part-0", part([]))
    pulled = PullPartition(staging, 7, 1, 50, 10**6, False)
    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", unanswered)
        with pytest.raises(StagingError, match="cannot be used"):
            query.read([pulled])

    assert MANY[:50] == sorted(query.read([pulled]), key=MANY.index)
    assert {0} == {m.failures for m in query.emulator.messages(names.subscription)}


def test_checkpoint_that_is_put_back_to_its_start_does_not_seek(query: Engine, names: Names):
    """A checkpoint put back to its start is no new one: acknowledged messages stay acknowledged."""
    name = f"{names.subscription}-kept"
    query.emulator.create_subscription(name, names.topic, retain_acked_messages=True)
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1)
    query.options = replace(query.options, subscription_id=name, starting_timestamp=before, fail_on_data_loss=False)
    start_and_acknowledge(query, names, "a")
    query.stop()
    query.committed -= 1
    for _ in range(2):
        query.start()
        query.trigger()
        assert [True] == [m.acked for m in query.emulator.messages(name)]
        query.crash()


@pytest.mark.parametrize("forgive", [False, True])
def test_deleted_batch_is_asked_for_again(query: Engine, names: Names, forgive: bool):
    """A checkpoint that was rolled back behind an acknowledged batch fails, or goes on without it if told to."""
    query.options = replace(query.options, fail_on_data_loss=not forgive)
    start_and_acknowledge(query, names, "a")
    query.stop()
    query.committed -= 1  # the last commit is gone from Spark's log
    query.start()
    if forgive:
        assert query.trigger()
        query.emulator.publish(names.topic, "b")
        run_until(query, 1)
        assert ["b"] == query.rows
        acked(query, 2)
    else:
        with pytest.raises(StagingError, match="acknowledged and deleted") as refused:
            query.trigger()
        assert "failOnDataLoss=false" in str(refused.value)


def test_old_spark_shows_a_batch_that_is_not_committed(query: Engine, names: Names):
    """4.0 and 4.1 begin a restart with the last offset in the log: that alone acknowledges nothing."""
    query.passes_start = False
    start_with(query, names, "a", "b")
    die_in_a_batch(query, parts=1)
    query.start()
    query.crash()
    assert 2 == query.emulator.backlog(names.subscription)

    query.emulator.advance(LEASE)
    query.start()
    run_until(query, 2)
    acked(query, 2)
    assert ["a", "b"] == query.rows


@pytest.mark.parametrize("passes_start", [True, False])
def test_old_batch_that_is_looked_at_again_moves_nothing(query: Engine, names: Names, passes_start: bool):
    """A DataFrame of `foreachBatch` that was kept: the query goes on from where it is, and counts nothing twice."""
    query.passes_start = passes_start
    query.options = replace(query.options, fail_on_data_loss=False)
    start_and_acknowledge(query, names, *"abc")
    session = query.session
    assert session is not None
    for batch in range(1, len(query.offsets)):
        session.partitions(query.offsets[-batch - 1], query.offsets[-batch])
    assert not query.trigger()
    query.emulator.fail("Acknowledge", "UNAVAILABLE", count=2)
    query.emulator.publish(names.topic, "d")
    run_until(query, 4)
    query.emulator.publish(names.topic, "e")
    buffered(query, 1)
    session.latest_offset(query.offsets[-1] if passes_start else None, query.budget)
    session.partitions(query.offsets[-2], query.offsets[-1])  # committed, its acks are in flight
    run_until(query, 5)
    acked(query, 5)

    assert ["a", "b", "c", "d", "e"] == query.rows
    assert 5 == query.metrics["messages"]


def test_duplicates_in_the_buffer_are_one_row(query: Engine, names: Names):
    """The leases of buffered messages expire unnoticed, and they are delivered again before a batch has them."""
    start_with(query, names, "a", "b")
    query.emulator.advance(61)
    buffered(query, 4)
    assert 4 == query.opened.stream.message_count, "each message twice"
    run_until(query, 2)
    acked(query, 2)

    assert ["a", "b"] == sorted(query.rows)


def test_lost_staging_area_loses_no_message(query: Engine, names: Names, tmp_path: Path):
    """When the disk is gone nothing in it was acknowledged: the messages come again."""
    start_with(query, names, "a", "b")
    die_in_a_batch(query, parts=1)
    for file in sorted(tmp_path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    query.emulator.advance(LEASE)
    query.start()
    run_until(query, 2)
    acked(query, 2)

    assert Counter("ab") == Counter(query.rows)


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


def test_first_offset_of_spark_4_0_waits_for_messages(query: Engine, names: Names):
    """`availableNow` of Spark 4.0 and 4.1 asks once: the answer has the messages that are there."""
    query.passes_start = False
    query.emulator.publish(names.topic, "a", "b")
    query.start()
    query.trigger()

    assert ["a", "b"] == query.rows


def test_one_batch_of_spark_4_0_says_that_there_is_more(query: Engine, names: Names, caplog: pytest.LogCaptureFixture):
    """A query that was asked for one offset and ended says that there may be more to read; one asked again does not."""
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
    """A stopped `availableNow` query does not go on waiting for what may still come."""
    query.options = replace(query.options, idle_timeout=600)
    query.start()
    assert query.session is not None
    query.session.prepare_for_available_now()
    query.session.is_stopping = lambda: True
    began = time.monotonic()

    query.trigger()
    assert [] == query.rows
    assert time.monotonic() - began < BOUND


def test_available_now_says_that_a_killed_run_holds_messages(
    query: Engine, emulator: Emulator, names: Names, caplog: pytest.LogCaptureFixture
):
    """What the driver stream of a killed run had buffered comes later; the end says so, and the next run reads it."""

    def available_now() -> list[str]:
        caplog.clear()
        query.start()
        assert query.session is not None
        query.session.prepare_for_available_now()
        while query.trigger():
            pass
        query.stop()
        return [line for line in caplog.messages if "was killed" in line]

    start_with(query, names, "a", "b")
    query.crash()
    [line] = available_now()
    assert f"messages of `{names.subscription}`" in line and "in up to 6" in line
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
    assert Staging(query.location, names.subscription, query.offsets[0].stream).read("unfinished-run") is None


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
    """A service that does not answer is an error within bounded time, which names the address."""
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
    query.emulator.hostile(7)
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
    """With a dead-letter policy each row has its delivery attempt."""
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
        pulled = PullPartition(staging, batch, 1, 1, 10**6, False)
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
    assert ["a"] == query.read([PullPartition(staging, 1, 1, 1, 10**6, False)])

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
    """Its ids are none of before: a message whose ack is in doubt, and a new one, are two."""
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


def google(emulator: Emulator) -> SubscriberClient:
    """Google's client on the emulator, to look at resources."""
    return SubscriberClient(transport=SubscriberGrpcTransport(channel=grpc.insecure_channel(emulator.endpoint)))


def test_missing_subscription_is_created_with_its_settings(emulator: Emulator, names: Names, query: Engine):
    """`topicId` says on which topic; every setting that was given is on the subscription."""
    name = f"{names.subscription}-new"
    emulator.create_topic(f"{names.topic}-dead")
    query.options = replace(
        query.options,
        subscription_id=name,
        topic_id=names.topic,
        ack_deadline_seconds=42,
        enable_message_ordering=True,
        enable_exactly_once_delivery=True,
        filter='attributes.kind = "x"',
        retain_acked_messages=True,
        message_retention_duration=3600.0,
        expiration_ttl=172800.0,
        subscription_dead_letter_topic=f"{names.topic}-dead",
        max_delivery_attempts=7,
        minimum_backoff=1.0,
        maximum_backoff=20.0,
    )
    query.start()
    query.trigger()
    found = google(emulator).get_subscription(subscription=name)

    assert (names.topic, 42, True, True, 'attributes.kind = "x"', True) == (
        found.topic,
        found.ack_deadline_seconds,
        found.enable_message_ordering,
        found.enable_exactly_once_delivery,
        found.filter,
        found.retain_acked_messages,
    )
    assert (3600, 172800) == (found.message_retention_duration.seconds, found.expiration_policy.ttl.total_seconds())
    assert (f"{names.topic}-dead", 7) == (
        found.dead_letter_policy.dead_letter_topic,
        found.dead_letter_policy.max_delivery_attempts,
    )
    assert (1, 20) == (found.retry_policy.minimum_backoff.seconds, found.retry_policy.maximum_backoff.seconds)


def test_missing_subscription_without_topic(query: Engine, names: Names):
    """One sentence: what does not exist, and the option that would create it."""
    query.options = replace(query.options, subscription_id=f"{names.subscription}-missing")
    query.start()
    with pytest.raises(MissingError, match="With `topicId` the connector creates it"):
        query.trigger()


def test_subscription_that_another_query_creates_meanwhile(emulator: Emulator, names: Names, query: Engine):
    """A subscription that another query creates between our get and our create is read."""
    query.options = replace(query.options, topic_id=names.topic)
    emulator.fail("GetSubscription", "NOT_FOUND")
    emulator.publish(names.topic, "a")
    query.start()
    run_until(query, 1)

    assert ["a"] == query.rows


def test_subscription_of_another_topic_is_refused(names: Names, query: Engine):
    """`topicId` creates what is missing; a subscription of another topic has other messages than were asked for."""
    query.options = replace(query.options, topic_id=f"{names.topic}-other")
    query.start()
    with pytest.raises(OptionsError, match=f"`topicId` is `{names.topic}-other`, but .* of `{names.topic}`. Correct"):
        query.trigger()


def test_checkpoint_of_another_subscription_is_refused(names: Names, query: Engine):
    """Its batches are those of the other; nothing is read or acknowledged."""
    start_and_acknowledge(query, names, "a")
    query.stop()
    query.emulator.create_subscription(f"{names.subscription}-other", names.topic)
    query.options = replace(query.options, subscription_id=f"{names.subscription}-other")
    query.start()
    with pytest.raises(OptionsError, match=f"belongs to a query of `{names.subscription}`, not of .*-other`. Give"):
        query.trigger()


def test_subscription_is_kept_when_a_batch_is_in_doubt(
    emulator: Emulator, names: Names, query: Engine, caplog: pytest.LogCaptureFixture
):
    """A query that ends in the middle of a batch does not delete its subscription, and a WARNING says so."""
    query.options = replace(query.options, delete_subscription_on_stream_stop=True)
    start_with(query, names, "a")
    session = query.session
    assert session is not None
    end = session.latest_offset(session.initial_offset(), query.budget)
    session.partitions(session.initial_offset(), end)
    query.stop()

    assert names.subscription == emulator_subscription(emulator, names)
    assert f"`{names.subscription}` is not deleted" in caplog.text


def test_subscription_is_kept_when_the_query_failed(emulator: Emulator, names: Names, query: Engine):
    """A query that has failed deletes nothing."""
    query.options = replace(query.options, delete_subscription_on_stream_stop=True)
    query.start()
    query.trigger()
    until(lambda: emulator.close_streams("PERMISSION_DENIED"), "an open stream")
    with pytest.raises(ForbiddenError):
        run_until(query, 1)
    query.stop()

    assert names.subscription == emulator_subscription(emulator, names)


def emulator_subscription(emulator: Emulator, names: Names) -> str:
    """The name of the subscription, as the service gives it."""
    return str(google(emulator).get_subscription(subscription=names.subscription).name)


@pytest.mark.parametrize("permission", ["pubsub.subscriptions.consume", "pubsub.subscriptions.delete"])
def test_missing_permission_is_an_error_at_the_start(
    names: Names, query: Engine, monkeypatch: pytest.MonkeyPatch, permission: str
):
    """The permissions that the options need are checked before the first message, and the error names the one."""
    granted = {"pubsub.subscriptions.consume", "pubsub.subscriptions.delete"} - {permission}
    monkeypatch.setitem(iam.PERMISSIONS, "subscriptions", {name.rpartition(".")[2] for name in granted})
    query.options = replace(query.options, delete_subscription_on_stream_stop=True)
    query.start()

    with pytest.raises(ForbiddenError, match=f"{permission} is not granted"):
        query.trigger()


@pytest.mark.parametrize(("code", "warns"), [("INTERNAL", True), ("UNIMPLEMENTED", False)])
def test_permissions_that_cannot_be_asked_for_do_not_stop_the_query(
    emulator: Emulator, names: Names, query: Engine, caplog: pytest.LogCaptureFixture, code: Code, warns: bool
):
    """Where the service cannot tell what is granted a WARNING says so; an emulator may not know the call."""
    emulator.fail("TestIamPermissions", code, count=9)
    emulator.publish(names.topic, "a")
    query.start()
    run_until(query, 1)

    assert warns == ("is granted on Subscription" in caplog.text)


def test_dead_letter_topic_is_checked_at_the_start(names: Names, query: Engine):
    """A `deadLetterTopic` that does not exist is an error before the first message."""
    query.options = replace(query.options, decode="topic", dead_letter_topic=f"{names.topic}-dead")
    query.start()

    with pytest.raises(MissingError, match=f"Topic `{names.topic}-dead` does not exist"):
        query.trigger()


def test_subscription_is_deleted_on_stop(emulator: Emulator, names: Names, query: Engine):
    """`deleteSubscriptionOnStreamStop` leaves nothing behind."""
    query.options = replace(query.options, delete_subscription_on_stream_stop=True)
    query.start()
    query.trigger()
    query.stop()

    assert [] == list(google(emulator).list_subscriptions(project=f"projects/{names.project}"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"push_config": {"push_endpoint": "https://example.com/push"}}, "pushes its messages to an endpoint"),
        ({"bigquery_config": {"table": "p.d.t"}}, "writes its messages to BigQuery"),
        ({"cloud_storage_config": {"bucket": "some-bucket"}}, "writes its messages to Cloud Storage"),
    ],
)
def test_subscription_that_is_not_pulled_is_refused(
    emulator: Emulator, names: Names, query: Engine, settings: dict[str, Any], says: str
):
    """Push, BigQuery and Cloud Storage subscriptions cannot be pulled, which is an error at the start."""
    name = f"{names.subscription}-elsewhere"
    emulator.create_subscription(name, names.topic, **settings)
    query.options = replace(query.options, subscription_id=name)
    query.start()
    with pytest.raises(ResourceError, match=says) as refused:
        query.trigger()
    assert name in str(refused.value)


def test_detached_subscription_is_refused(emulator: Emulator, names: Names, query: Engine):
    """A subscription that its topic's owner has detached never gets a message again."""
    Client(emulator.endpoint).ask("Publisher/DetachSubscription", subscription=names.subscription)
    query.start()
    with pytest.raises(ResourceError, match=f"`{names.subscription}` is detached from its topic"):
        query.trigger()


def _read_a_and_after_a_restart_b(query: Engine, names: Names) -> None:
    """The seek brings `a`; the restart does not seek again."""
    query.start()
    run_until(query, 1)
    acked(query, 1)
    query.stop()
    query.start()
    query.emulator.publish(names.topic, "b")
    run_until(query, 2)
    assert ["a", "b"] == query.rows


def test_start_goes_back_to_a_snapshot(emulator: Emulator, names: Names, query: Engine):
    """`startingSnapshot` gives a new checkpoint what was not acknowledged when the snapshot was taken, once."""
    snapshot = f"projects/{names.project}/snapshots/before"
    emulator.publish(names.topic, "a")
    google(emulator).create_snapshot(name=snapshot, subscription=names.subscription)
    other = Engine(emulator, query.options, f"{query.location}/other")
    other.start()
    acked(other, 1)
    other.stop()

    query.options = replace(query.options, starting_snapshot=snapshot)
    _read_a_and_after_a_restart_b(query, names)


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"starting_snapshot": "projects/{p}/snapshots/nope"}, "Snapshot `projects/{p}/snapshots/nope`"),
        ({"subscription_id": "new-sub", "topic_id": "nope"}, "Topic `projects/{p}/topics/nope`"),
        (
            {"subscription_id": "new-sub", "topic_id": "{topic}", "subscription_dead_letter_topic": "nope"},
            "Topic `projects/{p}/topics/nope`",
        ),
    ],
)
def test_what_is_missing_is_what_is_named(names: Names, query: Engine, given: dict[str, str], missing: str):
    """The error names the missing snapshot or topic, not the subscription."""
    fields: dict[str, Any] = {name: value.format(p=names.project, topic=names.topic) for name, value in given.items()}
    query.options = replace(query.options, project=names.project, **fields)
    query.start()

    with pytest.raises(MissingError, match=f"^{missing.format(p=names.project)} does not exist"):
        query.trigger()


def test_start_seeks_once(emulator: Emulator, names: Names, query: Engine):
    """`startingTimestamp` takes a new checkpoint back in time, and leaves a restart where it is."""
    name = f"{names.subscription}-kept"
    emulator.create_subscription(name, names.topic, retain_acked_messages=True)
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1)
    other = Engine(emulator, replace(query.options, subscription_id=name), f"{query.location}/other")
    emulator.publish(names.topic, "a")
    other.start()
    acked(other, 1)
    other.stop()

    query.options = replace(query.options, subscription_id=name, starting_timestamp=before)
    _read_a_and_after_a_restart_b(query, names)

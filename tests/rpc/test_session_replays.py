"""Batches that are replayed: after a crash, lost logs, copies of a checkpoint, a second query."""

from __future__ import annotations

import datetime
import math
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.errors import StagingError
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import Store
from pubsub_spark.read.task.partitions import PullPartition
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
    start_and_acknowledge,
    start_with,
)
from tests.unit.read.service import part


@pytest.mark.parametrize("passes_start", [True, False], ids=["4.2", "4.0"])
def test_crash_replays_what_was_staged(query: Engine, names: Names, passes_start: bool):
    """After a crash in the middle of a batch its staged parts are the batch. Other messages come after their leases."""
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
    for check, found in [("_may_pull", True), ("fencing.taken_over", None)]:  # which it had passed before the restart
        monkeypatch.setattr(f"pubsub_spark.read.task.partition_reader.{check}", lambda *_, found=found: found)
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
    """A task that outlives its driver stages nothing if a later run owns the area. Its messages are redelivered."""
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
    """The first query fails when it plans its next batch. The second delivers and acknowledges the rest."""
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
    """A task that pulled again would return, and have acknowledged, messages that the first action never saw."""
    start_with(query, names, *MANY)
    end = query.session.latest_offset(query.session.initial_offset(), query.budget)  # type: ignore[union-attr]
    partitions = query.session.partitions(query.session.initial_offset(), end)  # type: ignore[union-attr]
    assert Counter(MANY) == Counter(query.read(partitions))
    query.emulator.publish(names.topic, *[f"n{n}" for n in range(1000)])
    query.emulator.advance(LEASE)
    files = query.opened.staging.files(f"{end.batch}/")
    for gone in [{path for path in files if path.endswith("part-1")}, files]:
        for path in gone:
            (Path(query.location) / query.opened.staging.root / path).unlink(missing_ok=True)
        with pytest.raises(StagingError, match=r"The staged files of batch 1 of .* are gone from"):
            query.read(query.session.partitions(query.session.initial_offset(), end))  # type: ignore[union-attr]

    assert not [m for m in query.emulator.messages(names.subscription) if m.acked]


def test_late_task_of_a_dead_driver_stages_no_repeat(query: Engine, names: Names):
    """A task that outlived its driver pulls redeliveries of its batch before the manifest: the replay has each once
    and all are acknowledged."""
    start_with(query, names, *MANY)
    die_in_a_batch(query, parts=1)
    query.advance(LEASE)
    assert [] == query.read(query.orphans)
    query.start()
    query.trigger(actions=3)
    replayed = query.evaluations[len(query.evaluations) - 1]

    assert all(rows == replayed[0] for rows in replayed)
    run_until(query, len(MANY))
    acked(query, len(MANY))
    assert Counter(MANY) == Counter(query.rows)


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
        lambda: query.read([PullPartition(staging, end.batch, 1, 100, 10**6, math.inf)]),
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
    """A DataFrame that outlived its `foreachBatch` is refused while its batch is deleted: no rows would be a silent
    answer."""
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
    """After the last offset was removed, all parts staged under its number are returned, and only they are acked."""
    start_with(query, names, *MANY)
    die_in_a_batch(query, parts=2)
    del query.offsets[1:]
    query.emulator.publish(names.topic, "x")  # the driver stream is enough for it
    query.start()
    run_until(query, len(MANY))
    acked(query, len(MANY))

    assert Counter(MANY) == Counter(query.rows) - Counter(["x"])


def test_keys_stay_in_order_where_the_offset_log_has_lost_a_batch(emulator: Emulator, names: Names, query: Engine):
    """Buffered messages stay buffered while that batch is replayed: if nacked, some would be out of order."""
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
    """Of two attempts that both pull, as under speculation, one stages. The other nacks its messages and yields the
    winner's rows.
    """
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
    pulled = PullPartition(staging, 7, 1, 50, 10**6, math.inf)
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
    create = Store.create

    def unanswered(*arguments: Any) -> bool:
        create(*arguments)
        raise StagingError("the store cannot be used: error sending request")

    staging.create("7/part-0", part([]))
    pulled = PullPartition(staging, 7, 1, 50, 10**6, math.inf)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "create", unanswered)
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
    """A checkpoint rolled back behind an acknowledged batch fails, or continues without it if an option allows that."""
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
    """If a DataFrame of `foreachBatch` was kept, the query continues from its position, and counts nothing twice."""
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
    """When the disk is gone nothing in it was acknowledged: the messages are redelivered."""
    start_with(query, names, "a", "b")
    die_in_a_batch(query, parts=1)
    for file in sorted(tmp_path.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    query.emulator.advance(LEASE)
    query.start()
    run_until(query, 2)
    acked(query, 2)

    assert Counter("ab") == Counter(query.rows)


@pytest.mark.parametrize("passes_start", [True, False], ids=["4.2", "4.0"])
def test_area_that_is_left_and_used_again(query: Engine, names: Names, tmp_path: Path, passes_start: bool):
    """A batch that was staged elsewhere is refused. If an option forgives it, the first area's messages of it are not
    acknowledged when the query returns."""
    query.passes_start = passes_start
    start_with(query, names, "a", "b", "c")
    die_in_a_batch(query, parts=1)
    first, query.location = query.location, str(tmp_path / "other")
    query.start()
    with pytest.raises(StagingError, match="was staged in another `stagingLocation`"):
        query.trigger()
    query.stop()
    query.options = replace(query.options, fail_on_data_loss=False)
    query.start()
    while query.trigger():
        pass
    query.stop()
    query.location = first
    query.start()
    query.trigger()
    assert query.session is not None
    assert query.session.active is not None
    query.session.active.worker.flush(BOUND)

    assert [] == [m.data for m in query.emulator.messages(names.subscription) if m.acked]
    query.advance(LEASE)
    run_until(query, 3)
    assert Counter("abc") == Counter(query.rows)

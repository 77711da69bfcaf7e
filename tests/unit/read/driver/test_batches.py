"""The partitions of a batch: buffered messages are staged first, and redeliveries of committed ones are no rows."""

from __future__ import annotations

import grpc
import pytest

from pubsub_spark.errors import MissingFile, StagingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.batches import doubt_ids, drop_redelivered, new_batch, readable_parts, replayed_batch
from pubsub_spark.read.driver.ledger import State
from pubsub_spark.read.driver.planner import Budget, Planner
from pubsub_spark.read.pull.lease import STREAM_LEASE_SECONDS, TRANSIT_SECONDS
from pubsub_spark.read.staging import fencing
from pubsub_spark.read.staging import part as staged_part
from pubsub_spark.read.task.partitions import DriverPartition, Partition, PullPartition, StagedPartition
from tests.unit.read import service
from tests.unit.read.driver.running import DUE, Running
from tests.unit.read.service import SUBSCRIPTION, StatusError, ids

OPTIONS = ReadOptions.parse({"subscriptionId": SUBSCRIPTION}, {})
BUDGET = Budget(100, 10**6)


def planned(running: Running, batch: int, planner: Planner | None = None, budget: Budget = BUDGET) -> list[Partition]:
    return new_batch(running.run, OPTIONS, planner or Planner(2), batch, budget)


def ack_ids(running: Running, part: int, length: int, part_id: str) -> list[str]:
    receipts = running.staging.receipts(1, part, length, part_id)
    return [ack_id for batch in receipts for ack_id in batch.column("ack_id").to_pylist()]


def rows(content: bytes | None) -> list[bytes]:
    assert content is not None
    return [data for batch in staged_part.messages(content) for data in batch.column("data").to_pylist()]


def test_buffered_messages_are_a_batch(running: Running):
    """At low volume the driver's own part is the whole batch. It is staged before Spark has its partition."""
    running.arrive("ab")
    [partition] = planned(running, 1)

    assert isinstance(partition, DriverPartition)
    assert [b"a", b"b"] == rows(partition.content)
    assert {0: len(partition.content)} == running.staging.parts(1)
    [part] = running.ledger.parts_of(1)
    assert (State.STAGED, ["ack-a", "ack-b"]) == (part.state, (part.ack_ids or [])[0].to_pylist())
    assert [2] == [footer.acks for footer in running.ledger.footers([1])]


def test_part_of_the_driver_has_the_lease_of_its_messages(running: Running):
    """They were delivered before the batch was planned, and sent before they were delivered."""
    running.arrive("a")
    running.advance(20)
    planned(running, 1)

    assert {(1, 0): STREAM_LEASE_SECONDS - TRANSIT_SECONDS} == running.leases()


def test_message_that_was_delivered_twice_is_one_row_and_two_acks(running: Running):
    """Both deliveries are acknowledged with the batch."""
    running.arrive("ab")
    running.arrive("b")
    [partition] = planned(running, 1)

    assert isinstance(partition, DriverPartition)
    assert [b"a", b"b"] == rows(partition.content)
    assert [3] == [footer.acks for footer in running.ledger.footers([1])]
    assert [3] == [part.outstanding for part in running.ledger.parts_of(1)]


def test_budget_bounds_the_part_of_the_driver(running: Running):
    """The other messages stay buffered for the next batch."""
    running.arrive("abc")
    [partition] = planned(running, 1, budget=Budget(2, 10**6))

    assert isinstance(partition, DriverPartition)
    assert [b"a", b"b"] == rows(partition.content)
    assert 1 == running.stream.message_count


def test_tasks_pull_in_a_backlog(running: Running):
    """The first task yields the driver's rows before its own. Both exclude the ids in doubt, whose files exist."""
    running.ledger.in_doubt.add(ids("x"), 1, 0.0)
    running.arrive("a")
    first, second = planned(running, 2, Planner(2, is_backlogged=True, streams=3))

    assert isinstance(first, PullPartition)
    assert isinstance(second, PullPartition)
    assert ([b"a"], None) == (rows(first.driver_content), second.driver_content)
    assert [3, 3] == [first.streams, second.streams]
    assert running.staging.files("in-doubt/") == first.excludes == second.excludes
    assert 1 == len(first.excludes)
    assert set(first.excludes) == running.ledger.reads


def test_batch_whose_budget_the_driver_has_used_up_has_no_pulls(running: Running):
    """A task for no messages would only cost its start."""
    running.arrive("ab")
    [partition] = planned(running, 1, Planner(2, is_backlogged=True), Budget(2, 10**6))
    assert isinstance(partition, DriverPartition)


def test_deadline_of_a_plan_is_before_the_first_end_of_a_lease(running: Running):
    """A message of a batch before may be delivered again then. Wall clocks may differ by ten seconds."""
    running.stage(1, 0, "a")
    running.commit(1)
    running.advance(DUE)
    [partition, *_] = planned(running, 2, Planner(2, is_backlogged=True))

    assert isinstance(partition, PullPartition)
    left = partition.deadline - running.runtime.wall()
    assert [(1, 0, running.staging.parts(1)[0], "")] == partition.committed
    assert STREAM_LEASE_SECONDS - DUE - 10 == pytest.approx(left, abs=5)


def test_deadline_of_a_plan_is_before_the_end_of_the_lease_of_the_driver_part(running: Running):
    """Messages that were buffered may be delivered to a task of the same batch then."""
    running.arrive("a")
    running.advance(DUE)
    [partition, *_] = planned(running, 1, Planner(2, is_backlogged=True))

    assert isinstance(partition, PullPartition)
    left = partition.deadline - running.runtime.wall()
    assert STREAM_LEASE_SECONDS - TRANSIT_SECONDS - DUE - 10 == pytest.approx(left, abs=5)


def test_batch_that_another_query_has_staged_is_refused(running: Running):
    """Two queries with one checkpoint would plan different rows."""
    running.staging.create("1/part-0", service.part(["theirs"]))
    with pytest.raises(StagingError, match=r"was staged in .* by another query meanwhile"):
        planned(running, 1)


def test_replay_has_what_was_staged(running: Running):
    """A part that a late task stages after the first look has no rows. Leases of the replay count as ended."""
    running.staging.create("1/part-0", service.part(["a"]))
    running.staging.create("1/part-2", service.part(["b"]))
    first = list(replayed_batch(running.run, 1))
    running.staging.create("1/part-1", service.part(["late"]))

    assert [[0], [2]] == [list(partition.parts) for partition in first if isinstance(partition, StagedPartition)]
    assert first == list(replayed_batch(running.run, 1))
    assert [1] == running.ledger.uncommitted
    assert all(part.lease.is_expired(running.run.now()) for part in running.ledger.parts_of(1))


def test_damaged_part_is_left_out_and_reported(running: Running, caplog: pytest.LogCaptureFixture):
    """Its messages are delivered again, as rows of a later batch."""
    running.staging.create("1/part-0", service.part(["a"]))
    running.staging.create("1/part-1", [b""])

    assert [0] == list(readable_parts(running.staging, 1))
    assert "part 1 of batch 1 of" in caplog.text


def test_batch_that_was_never_staged_loses_no_part(running: Running, caplog: pytest.LogCaptureFixture):
    """A query may be stopped before its batch is staged. One WARNING says so, because files may also be gone."""
    [partition] = replayed_batch(running.run, 1)
    assert isinstance(partition, StagedPartition) and not partition.parts
    assert {} == readable_parts(running.staging, 1)
    assert "is left out" not in caplog.text
    assert 1 == caplog.text.count(f"batch 1 of `{SUBSCRIPTION}` has no rows")


def test_parts_of_tasks_count_if_they_were_yielded(running: Running):
    """Others were staged by tasks that have died or come too late. A part in the place of a yielded one has no rows."""
    running.staging.create("1/part-0", service.part(["a"], part_id="driver"))
    for number in (1, 2, 3):
        running.staging.create(f"1/part-{number}", service.part(["b"], part_id=f"attempt {number}"))
    for number, other in ((1, ""), (2, " before")):
        footer = staged_part.footer(b"".join(service.part(["bc"], part_id=f"attempt {number}{other}")))
        running.staging.record_yielded(1, number, footer)
    parts = readable_parts(running.staging, 1)

    assert [0, 1, 2] == list(parts)
    length, footer = parts[1]
    assert ["ack-b"] == ack_ids(running, 1, length, footer.id)
    length, footer = parts[2]
    with pytest.raises(MissingFile):
        ack_ids(running, 2, length, footer.id)


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        ("1/part-1", "staged file `1/part-1` is gone"),
        ("1/given-1", "no task has yielded it to Spark, or `1/given-1` is gone"),
    ],
)
def test_part_that_is_left_out_is_reported(running: Running, caplog: pytest.LogCaptureFixture, gone: str, reason: str):
    """A cleaner has removed one of its two files."""
    staging = running.staging
    staging.create("1/part-0", service.part(["a"], part_id="driver"))
    staging.create("1/part-1", service.part(["b"], part_id="task"))
    staging.record_yielded(1, 1, staged_part.footer(b"".join(service.part(["b"], part_id="task"))))
    staging.delete_file(gone)

    assert [0] == list(readable_parts(staging, 1))
    assert "part 1 of batch 1 of" in caplog.text
    assert reason in caplog.text


def test_part_in_the_place_of_one_in_the_manifest_is_left_out(running: Running, caplog: pytest.LogCaptureFixture):
    """A file was removed and an attempt of the run before comes late."""
    for number in (0, 1):
        content = service.part(["a"], part_id="first")
        running.staging.create(f"1/part-{number}", content)
        running.staging.record_yielded(1, number, staged_part.footer(b"".join(content)))
    assert [0, 1] == running.staging.write_manifest(1)
    running.staging.delete_file("1/part-1")
    running.staging.create("1/part-1", service.part(["b"], part_id="second"))

    assert [0] == list(readable_parts(running.staging, 1))
    assert "part 1 of batch 1 of" in caplog.text


def test_replay_has_no_part_in_the_place_of_one_that_was_yielded(running: Running):
    """The sink may have the batch already, with other rows. One that no task has yielded is replayed."""
    for number in (0, 1, 2):
        running.staging.create(f"1/part-{number}", service.part(["a"], part_id=f"attempt {number}"))
    running.staging.record_yielded(1, 1, staged_part.footer(b"".join(service.part(["b"], part_id="before"))))
    replayed = replayed_batch(running.run, 1)

    assert [[0], [2]] == [list(each.parts) for each in replayed if isinstance(each, StagedPartition)]
    assert [0, 2] == running.staging.write_manifest(1)


def test_replay_without_the_drivers_part_has_no_rows(running: Running):
    """Others may be of a late task, which began before the files of the batch were removed."""
    content = service.part(["a"], part_id="late")
    running.staging.create("1/part-1", content)
    running.staging.record_yielded(1, 1, staged_part.footer(b"".join(content)))

    assert [] == running.staging.write_manifest(1)


def test_part_with_receipts_of_another_one_counts_only_with_it(running: Running):
    """A redelivery is no row of its part. If the other part is lost, its message must be delivered again."""
    running.staging.create("1/part-0", service.part(["a"], part_id="driver"))
    for number, siblings in ((1, [(0, "driver")]), (2, [(1, "before")]), (3, [(0, "driver"), (2, "second")])):
        part = service.part(["b"], part_id=f"attempt {number}", siblings=siblings)
        running.staging.create(f"1/part-{number}", part)
        running.staging.record_yielded(1, number, staged_part.footer(b"".join(part)))

    assert [0, 1] == list(readable_parts(running.staging, 1))


def test_part_that_needs_one_that_needs_a_lost_one_does_not_count(running: Running, caplog: pytest.LogCaptureFixture):
    """Each has receipts of rows of the one before."""
    running.staging.create("1/part-0", service.part(["a"], part_id="driver"))
    for number, siblings in ((2, [(1, "first")]), (3, [(2, "second")])):
        part = service.part(["b"], part_id={2: "second", 3: "third"}[number], siblings=siblings)
        running.staging.create(f"1/part-{number}", part)
        running.staging.record_yielded(1, number, staged_part.footer(b"".join(part)))

    assert [0] == list(readable_parts(running.staging, 1))
    assert "parts [2] of batch 1" in caplog.text and "parts [3] of batch 1" in caplog.text


def test_yielded_part_of_0_1_0_counts(running: Running):
    """It has no id, and the file that says that it was yielded is empty."""
    for name in ("part-0", "part-1"):
        running.staging.create(f"1/{name}", service.part(["a"]))
    running.staging.create("1/given-1", [])

    assert [0, 1] == list(readable_parts(running.staging, 1))
    assert [0, 1] == running.staging.write_manifest(1)


def test_message_whose_lease_ends_before_it_is_taken_is_no_row_again(running: Running):
    """The process stands still, and its redelivery is buffered before the ids are in doubt."""
    running.stage(1, 0, "a")
    running.commit(1)
    doubt_ids(running.run)
    running.advance(STREAM_LEASE_SECONDS * 2 / 3)
    running.arrive("ab")
    [partition] = planned(running, 2)

    assert isinstance(partition, DriverPartition)
    assert [b"b"] == rows(partition.content)


def test_deadline_of_a_plan_does_not_wait_for_a_slow_store(running: Running):
    """Ids in doubt are written before the plan is made, which may take a minute."""
    running.stage(1, 0, "a")
    running.commit(1)
    running.advance(STREAM_LEASE_SECONDS)
    doubt_ids(running.run)

    def wait(call: str, path: str) -> None:
        if call == "create" and "/in-doubt/" in path:
            running.advance(40.0)

    running.before = wait
    [partition, *_] = planned(running, 2, Planner(2, is_backlogged=True))

    assert isinstance(partition, PullPartition)
    left = partition.deadline - running.runtime.wall()
    assert STREAM_LEASE_SECONDS - 40 - 10 == pytest.approx(left, abs=5)


def test_run_that_is_taken_over_while_it_stages_has_no_rows(running: Running):
    """The other one may have listed the batch before its first part was there."""

    def take_over(call: str, path: str) -> None:
        if call == "create" and path.endswith("/1/part-0"):
            running.before = lambda *_: None
            fencing.claim(running.staging, 1000.0)

    running.arrive("a")
    running.before = take_over
    with pytest.raises(StagingError, match="Another query has taken over"):
        planned(running, 1)


def test_ids_are_in_doubt_whose_leases_end_while_others_are_read(running: Running):
    """A store that takes a minute for a part is no reason for a repeat."""
    running.stage(1, 0, "a")
    running.commit(1)
    running.advance(STREAM_LEASE_SECONDS / 3)
    running.stage(2, 0, "b")
    running.commit(2)
    running.advance(STREAM_LEASE_SECONDS / 3)

    def wait(*_: str) -> None:
        running.before = lambda *_: None
        running.advance(STREAM_LEASE_SECONDS)

    running.before = wait
    doubt_ids(running.run)
    assert running.are_in_doubt("id-a", "id-b")


def test_ids_are_in_doubt_before_leases_may_end(running: Running):
    """Acks of a committed batch take long: the next batch must exclude its messages in time."""
    running.stage(1, 0, "a")
    running.stage(2, 0, "uncommitted")
    running.commit(1)
    doubt_ids(running.run)
    assert running.are_in_doubt()

    running.advance(STREAM_LEASE_SECONDS / 2)
    doubt_ids(running.run)
    assert running.are_in_doubt("id-a")


def test_ids_of_a_part_that_is_gone_are_not_in_doubt(running: Running):
    """Their ids are unknown. The ack worker reports it."""
    running.stage(1, 0, "a")
    running.commit(1)
    running.staging.delete("1/")
    running.advance(STREAM_LEASE_SECONDS)
    doubt_ids(running.run)

    assert running.are_in_doubt()


def test_part_that_is_settled_while_it_is_read_has_no_ids_in_doubt(running: Running):
    """It may be deleted meanwhile, and staged again by a late attempt, with messages that were never rows."""
    running.stage(1, 0, "a")
    running.commit(1)
    running.advance(STREAM_LEASE_SECONDS)

    def settle(*_: str) -> None:
        running.before = lambda *_: None
        part = running.ledger.take_acks(running.runtime.now)
        assert part is not None
        running.ledger.settle(part)
        running.staging.delete("1/")
        running.staging.create("1/part-0", service.part(["b"]))

    running.before = settle
    doubt_ids(running.run)
    assert running.are_in_doubt()


def test_store_that_fails_plans_no_batch(running: Running):
    """A batch that does not exclude messages that may be delivered again could repeat rows."""
    running.stage(1, 0, "a")
    running.commit(1)
    running.advance(STREAM_LEASE_SECONDS)

    def refuse(*_: str) -> None:
        raise StagingError("no such disk")

    running.before = refuse
    with pytest.raises(StagingError, match="no such disk"):
        doubt_ids(running.run)


def test_redeliveries_of_committed_messages_are_acknowledged_at_once(running: Running):
    """They are no rows, fill no budget and wait for no commit."""
    running.ledger.in_doubt.add(ids("id-a", "id-c"), 1, 0.0)
    running.arrive("abc")

    drop_redelivered(running.run)
    assert 2 == running.ledger.redeliveries
    [partition] = planned(running, 2)
    assert isinstance(partition, DriverPartition)
    assert [b"b"] == rows(partition.content)
    assert running.acknowledging().flush(30)
    assert ["ack-a", "ack-c"] == running.service.acked_ids


def test_redelivery_that_comes_after_the_look_at_the_buffer_is_no_row(running: Running):
    """The lease extender polls as well, between any two lines. The redelivery is acknowledged with the batch."""
    running.ledger.in_doubt.add(ids("id-a"), 1, 0.0)
    running.arrive("ab")

    [partition] = planned(running, 2)
    assert isinstance(partition, DriverPartition)
    assert [b"b"] == rows(partition.content)
    assert [2] == [footer.acks for footer in running.ledger.footers([2])]


def test_redelivery_whose_ack_fails_is_no_row_later_either(running: Running):
    """It is delivered once more."""
    running.service.answers = [StatusError(grpc.StatusCode.FAILED_PRECONDITION)]
    running.ledger.in_doubt.add(ids("id-a"), 1, 0.0)
    running.arrive("a")
    drop_redelivered(running.run)
    assert running.acknowledging().flush(30)
    running.arrive("a")
    drop_redelivered(running.run)

    assert 2 == running.ledger.redeliveries
    assert 0 == running.stream.message_count


def test_nothing_in_doubt_drops_nothing(running: Running):
    """The usual case."""
    running.arrive("a")
    drop_redelivered(running.run)
    assert 1 == running.stream.message_count

"""A run between Spark's calls: kept plans, batches that are evaluated again, and warnings."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator

import pytest

from pubsub_spark.errors import ServiceError, StagingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.active_run import ActiveRun
from pubsub_spark.read.driver.in_doubt import DOUBT_SECONDS
from pubsub_spark.read.driver.planner import Budget, Planner
from pubsub_spark.read.driver.triggers import Triggers
from pubsub_spark.read.pull.lease import STANDSTILL_SECONDS
from pubsub_spark.read.staging import fencing
from pubsub_spark.read.task.partitions import DriverPartition, StagedPartition
from tests.unit.read import service
from tests.unit.read.driver.running import LONG, Running
from tests.unit.read.service import SUBSCRIPTION, Answer, ids

BUDGET = Budget(100, 10**6)
Active = Callable[..., ActiveRun]


def refuse() -> None:
    raise StagingError("refused")


@pytest.fixture
def active(running: Running) -> Iterator[Active]:
    """Make an active run, which is ended after the test."""
    made: list[ActiveRun] = []

    def make(
        triggers: Triggers | None = None, is_backlogged: bool = False, of: Running = running, **texts: str
    ) -> ActiveRun:
        options = ReadOptions.parse({"subscriptionId": SUBSCRIPTION, **texts}, {})
        planner = Planner(1, is_backlogged)
        made.append(ActiveRun(options, of.run, triggers or Triggers(1.0), planner, lambda: False))
        return made[-1]

    yield make
    for each in made:
        each.worker.end(LONG)
        each.extender.end(LONG)


def test_batch_has_the_same_partitions_in_each_action(running: Running, active: Active):
    """Also if more messages have arrived in between."""
    run = active()
    running.arrive("a")
    first = run.partitions(1, BUDGET)
    running.arrive("b")

    assert first == run.partitions(1, BUDGET) == run.partitions(1, None)
    assert [DriverPartition] == [type(partition) for partition in first]
    assert 1 == running.stream.message_count


def test_commit_is_counted_and_acknowledged(running: Running, active: Active):
    """The counts are those of the footers."""
    run = active()
    running.arrive("ab")
    run.partitions(1, BUDGET)
    run.commit(1)

    assert run.worker.flush(LONG)
    assert ["ack-a", "ack-b"] == running.service.acked_ids
    assert (2, 0) == (run.counts["messages"], run.counts["redeliveriesDropped"])
    assert 1 == running.ledger.last_commit


def test_parts_that_are_gone_at_the_commit_are_reported(
    running: Running, active: Active, caplog: pytest.LogCaptureFixture
):
    """A cleaner removed them: their messages are not acknowledged, and do not fill the stream for ever."""
    run = active()
    running.arrive("a" * 750)
    run.partitions(1, Budget(1000, 10**6))
    (running.folder / running.staging.root / "1/part-0").unlink()
    run.commit(1)

    assert run.worker.flush(LONG)
    assert [] == running.service.acked
    assert "staged parts [0] of batch 1 of" in caplog.text
    running.arrive("b")
    assert not running.stream.is_flow_controlled


def test_committed_batch_that_is_evaluated_again_is_read_from_staging(running: Running, active: Active):
    """Its files are kept until its acks are settled. Nothing new is planned for it."""
    running.staging.create("1/part-0", service.part(["a"]))
    running.ledger.last_commit = 1
    run = active()
    running.arrive("b")

    assert [StagedPartition(running.staging, 1, [0])] == run.partitions(1, BUDGET)
    assert 1 == running.stream.message_count


def test_deleted_batch_that_is_asked_for_again_is_a_loss(
    running: Running, active: Active, caplog: pytest.LogCaptureFixture
):
    """An error, or a WARNING with `failOnDataLoss=false`."""
    running.staging.begin_after(3)
    running.ledger.last_commit = 3
    with pytest.raises(StagingError, match="asks again for batch 3"):
        active().partitions(3, None)
    with caplog.at_level(logging.WARNING):
        assert [] == active(failOnDataLoss="false").partitions(3, None)
    assert "Continuing without them (failOnDataLoss=false)" in caplog.text


def test_run_that_was_taken_over_plans_no_batch(running: Running, active: Active):
    """It raises that in each later call also."""
    run = active()
    fencing.claim(running.staging, 1000.0)
    with pytest.raises(StagingError, match="Another query has taken over"):
        run.partitions(1, BUDGET)
    with pytest.raises(StagingError, match="Another query has taken over"):
        run.commit(0)
    assert [] == running.staging.batches()


def test_end_nacks_buffered_messages(running: Running, active: Active):
    """They are delivered again at once, to the next reader."""
    run = active()
    running.arrive("ab")
    run.end()

    assert [(0, ["ack-a", "ack-b"])] == running.service.modified
    assert [] == running.service.acked


def test_next_run_knows_until_when_returned_messages_may_come(running: Running, active: Active):
    """If ids are in doubt: a run that is over in seconds must not take the silence for an empty subscription."""
    running.ledger.in_doubt.add(ids("a"), 1, 0.0)
    run = active()
    running.arrive("b")
    run.end()

    left = running.staging.begin_run(running.runtime.wall(), DOUBT_SECONDS) - running.runtime.wall()
    assert 600 == pytest.approx(left, abs=10)


def test_next_run_knows_until_when_tasks_of_the_last_one_may_have_held_messages(running: Running, active: Active):
    """They are counted from its end: an hourly job, whose runs all end within a batch, is not warned of them."""
    run = active()
    running.stage(1, 0, "a")
    run.end()

    left = running.staging.begin_run(running.runtime.wall(), DOUBT_SECONDS) - running.runtime.wall()
    assert 1200 == pytest.approx(left, abs=10)


def test_next_run_knows_until_when_tasks_that_died_may_have_held_redeliveries(running: Running, active: Active):
    """If ids are in doubt. Otherwise no message of theirs was a row before."""
    run = active(is_backlogged=True)
    running.arrive("a")
    run.partitions(1, BUDGET)
    run.commit(1)
    assert run.worker.flush(LONG)
    with running.run.changed:
        running.ledger.in_doubt.add(ids("x"), 1, 0.0)
    run.end()

    left = running.staging.begin_run(running.runtime.wall(), DOUBT_SECONDS) - running.runtime.wall()
    assert 660 == pytest.approx(left, abs=10)


def test_next_run_knows_until_when_messages_of_a_failed_plan_are_leased(running: Running, active: Active):
    """They have left the buffer, and their part is not staged."""
    run = active()
    running.arrive("a")
    running.before = lambda call, path: refuse() if call == "create" and path.endswith("part-0") else None
    run.has_failed = True  # until the end of the call
    with pytest.raises(StagingError):
        run.partitions(1, BUDGET)
    run.end()

    left = running.staging.begin_run(running.runtime.wall(), DOUBT_SECONDS) - running.runtime.wall()
    assert 1200 == pytest.approx(left, abs=10)


def test_next_run_knows_until_when_messages_are_leased_that_could_not_be_returned(
    run_of: Callable[..., Running], active: Active
):
    """The process could start no thread for the call."""

    class Full(service.Service):
        def modify_ack_deadline(self, subscription: str, request: bytes, timeout: float) -> Answer:
            raise ServiceError("This process could not start a thread.")

    running = run_of(service=Full())
    run = active(of=running)
    running.arrive("a")
    run.end()

    left = running.staging.begin_run(running.runtime.wall(), DOUBT_SECONDS) - running.runtime.wall()
    assert 1200 == pytest.approx(left, abs=10)


def test_run_without_its_ack_thread_does_not_end_as_a_success(running: Running, active: Active):
    """Its last call commits the last batch and waits for its acks."""
    run = active(triggers=Triggers(0.01, drained_from=0.0))
    running.arrive("a")
    run.partitions(1, BUDGET)
    run.commit(1)
    assert run.worker.flush(LONG)
    run.worker.failure = MemoryError("malloc failed")
    with pytest.raises(MemoryError, match="malloc failed"):
        run.next_batch(running.staging.stream)


@pytest.mark.parametrize("meanwhile", ["nothing", "a message is returned", "a redelivery comes", "a message comes"])
def test_ids_stay_in_doubt_if_something_happens_while_the_service_is_asked(
    run_of: Callable[..., Running], active: Active, meanwhile: str
):
    """Its answer may take seconds. If nothing happens, an idle stream says that nothing is left to deliver."""

    class Slow(service.Service):
        def modify_ack_deadline(self, subscription: str, request: bytes, timeout: float) -> Answer:
            text = comes.pop() if comes else None
            if text is not None:
                self.calls[-1].say(service.response(text))
                running.until(lambda: running.stream.idle_seconds < 0.1)
                running.until(lambda: running.stream.idle_seconds >= 0.2)
            elif meanwhile == "a message is returned":
                with running.run.changed:
                    running.ledger.returned(running.run.now())
            return super().modify_ack_deadline(subscription, request, timeout)

    comes = {"a redelivery comes": ["x"], "a message comes": ["y"]}.get(meanwhile, [])
    running = run_of(service=Slow())
    run = active(of=running, idleTimeout="100ms")
    running.arrive("a")
    run.partitions(1, BUDGET)
    run.commit(1)
    assert run.worker.flush(LONG)
    with running.run.changed:
        running.ledger.in_doubt.add(ids("x"), 1, running.run.now())
    for seconds in (1300.0, 0.8 * STANDSTILL_SECONDS, 0.8 * STANDSTILL_SECONDS):
        running.advance(seconds)
        running.stream.poll()
    assert not run.next_batch(running.staging.stream)

    assert (meanwhile != "nothing") is running.are_in_doubt("x")


def test_run_of_one_batch_is_counted_at_its_end(running: Running, active: Active, caplog: pytest.LogCaptureFixture):
    """Spark 4.0 and 4.1 do not report that it is committed. A scheduled job has its counts all the same."""
    run = active(triggers=Triggers(1.0, may_be_asked_once=True, asked=1))
    running.arrive("ab")
    run.partitions(1, BUDGET)
    with caplog.at_level(logging.INFO):
        run.end()

    [line] = [line for line in caplog.messages if "has ended" in line]
    assert 2 == json.loads(line.partition(": ")[2])["messages"]

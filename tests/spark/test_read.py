"""The promises of docs/guarantee.md, end to end. These run on the oldest supported Spark as well as on the newest."""

from __future__ import annotations

from functools import partial

import pytest

from tests.spark.scenario import (
    LEASE,
    Acked,
    Advance,
    Backlog,
    Committed,
    Crash,
    Do,
    Drain,
    Fails,
    Held,
    Hold,
    KillDriverWorker,
    Publish,
    Release,
    Rows,
    Scenario,
    Start,
    Stop,
    TasksEnded,
    Until,
    needs_available_now,
    through,
)

MANY = [f"m{n}" for n in range(3000)]  # three times as many as the driver stream buffers


def test_available_now_reads_what_is_there(scenario: Scenario):
    """A few messages are read by one run under every Spark. 4.0 and 4.1 read one batch of them."""
    scenario.run(Publish("a", "b", "c"), Drain(), Rows("a", "b", "c"))


@needs_available_now
def test_available_now_drains_and_ends(scenario: Scenario):
    """All that was there is in the sink and acknowledged when the query ends by itself."""
    scenario.run(Publish(*MANY), Drain(), Rows(*MANY), Backlog(0))


@needs_available_now
def test_available_now_goes_on_where_it_ended(scenario: Scenario):
    """Each run of the same checkpoint reads the messages since the last one."""
    scenario.run(Publish("a"), Drain(), Rows("a"), Publish("b"), Drain(), Rows("a", "b"), Acked("a", "b"), Drain())


def test_last_batch_before_idle_is_acked(scenario: Scenario):
    """A batch is acknowledged as soon as it is committed, without another batch."""
    scenario.run(Start(), Publish("a", "b"), Rows("a", "b"), Acked("a", "b"))


def test_last_batch_before_stop_is_acked(scenario: Scenario):
    """A batch committed before the stop is acknowledged then, or at the latest by the next start."""
    scenario.run(Start(), Publish("a"), Rows("a"), Committed(), Acked("a"), Stop(), Backlog(0))


def test_backlog_is_pulled_by_the_tasks(scenario: Scenario):
    """A backlog that the driver stream cannot buffer is read in a few batches, each message once."""
    scenario.run(Publish(*MANY), Start(), Rows(*MANY), Acked(*MANY))


def test_two_actions_see_equal_rows(scenario: Scenario):
    """`foreachBatch` that evaluates its batch three times sees the same rows in the same order."""
    scenario.sink.actions = 3
    scenario.run(Publish(*MANY), Start(), Rows(*MANY), Acked(*MANY))
    assert all(len(seen) == 3 for seen in scenario.sink.evaluations.values())


def test_restart_goes_on_after_the_last_commit(scenario: Scenario):
    """Messages committed before a stop are not redelivered. Those published meanwhile are delivered."""
    scenario.run(
        Start(), Publish("a"), Rows("a"), Acked("a"), Stop(),
        Publish("b"),
        Start(), Rows("a", "b"), Acked("a", "b"),
    )  # fmt: skip


def test_restart_reads_what_is_available(scenario: Scenario):
    """`processAllAvailable` right after a restart reads the messages that were published before it."""
    scenario.run(Start(), Publish("a"), Rows("a"), Acked("a"), Stop(), Publish("b"), Start())
    scenario.running.processAllAvailable()
    assert ["a", "b"] == sorted(scenario.sink.texts)


@pytest.mark.parametrize("before", ["write", "commit"])
def test_crash_before_commit_repeats_the_batch(scenario: Scenario, before: str):
    """kill -9 between staging and commit: the batch is repeated with the same rows, nothing is lost, nothing acked."""
    scenario.run(
        Publish("a"), Start(), Rows("a"), Acked("a"),
        Hold(before), Publish("b", "c"), Held(), Crash(), Backlog(2), Advance(LEASE),
        Publish("d"),
        Start(), Rows("a", "b", "c", "d"), Acked("a", "b", "c", "d"),
    )  # fmt: skip
    assert [2, 2] in [[table.num_rows for table in seen] for seen in scenario.sink.evaluations.values()]


def test_crash_in_a_backlog_repeats_the_batch(scenario: Scenario):
    """After a crash in a backlog the parts of several tasks are replayed as they were staged."""
    scenario.run(
        Hold("commit"), Publish(*MANY), Start(), Held(), Crash(), Backlog(len(MANY)), Advance(LEASE),
        Start(), Rows(*MANY), Acked(*MANY),
    )  # fmt: skip
    assert 1 == sum(len(seen) == 2 for seen in scenario.sink.evaluations.values())


def test_worker_dies_before_commit(scenario: Scenario):
    """kill -9 of the driver-side worker alone: Spark commits the batch, the query fails, a restart acknowledges it."""
    scenario.run(
        Hold("commit"), Publish("a"), Start(), Held(), KillDriverWorker(), Release(),
        Fails(), Backlog(1), Advance(LEASE),
        Publish("b"),
        Start(), Rows("a", "b"), Acked("a", "b"),
    )  # fmt: skip
    assert all(len(seen) == 1 for seen in scenario.sink.evaluations.values())


def test_parquet_has_everything_once(scenario: Scenario):
    """Spark's own file sink, killed when tasks have staged and not committed, has each message once in the end."""
    sink, gate = scenario.folder / "sink", scenario.folder / "gate"
    gate.mkdir()

    def start(run: Scenario) -> None:
        run.query = (
            run.load(maxMessagesPerTrigger="2000")  # 1000 are the driver stream's, each of two tasks has 500
            .mapInArrow(partial(through, str(gate)), "data binary")
            .selectExpr("cast(data as string) as text")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(run.folder / "checkpoint"))
            .start(str(sink))
        )

    texts = [*MANY, "late"]
    scenario.run(
        Publish(*MANY), Do(start), Until("both tasks at the gate", lambda run: len(list(gate.glob("arrived-*"))) == 2),
        KillDriverWorker(), Stop(), TasksEnded(), Backlog(len(MANY)), Advance(LEASE),
        Publish("late"), Do(lambda run: (gate / "open").touch()), Do(start), Acked(*texts),
    )  # fmt: skip
    assert sorted(texts) == sorted(row.text for row in scenario.spark.read.parquet(str(sink)).collect())

"""Failures while a query runs: tasks, workers, streams, the service. Nothing is lost, nothing is repeated."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from tests.spark.scenario import (
    LEASE,
    Acked,
    Advance,
    Committed,
    Deliveries,
    Do,
    Fails,
    Held,
    Hold,
    Publish,
    Release,
    Rows,
    Scenario,
    Start,
    Stop,
    Until,
    descendants,
    kill,
    through,
)

MANY = [f"m{n}" for n in range(3000)]


def test_killed_task_worker_is_replaced(scenario: Scenario):
    """kill -9 of the tasks' Python workers in the middle of a batch: the next attempt has the rows that were staged."""
    gate = scenario.folder / "gate"
    gate.mkdir()

    def start(run: Scenario) -> None:
        run.query = (
            run.load(numFetchPartitions=2)
            .mapInArrow(partial(through, str(gate)), "data binary")
            .writeStream.foreachBatch(run.sink)
            .option("checkpointLocation", str(run.folder / "checkpoint"))
            .start()
        )

    scenario.run(
        Do(start),
        Publish(*MANY), Until("rows at the gate", lambda run: any(gate.glob("arrived-*"))),
        Do(_kill_task_workers), Fails("Python worker exited"), Advance(LEASE),
        Do(lambda run: (gate / "open").touch()), Do(start), Rows(*MANY), Acked(*MANY),
    )  # fmt: skip


def _kill_task_workers(run: Scenario) -> None:
    """Kill the children of Spark's Python daemon. In local mode a task has one attempt, so the query fails."""
    daemons = run.workers("pyspark.daemon")
    workers = [pid for daemon in daemons for pid in descendants(daemon)]
    assert workers, "tasks run in workers"
    kill(workers)


def test_reused_worker_keeps_nothing(scenario: Scenario):
    """A worker that has pulled runs other code afterwards: no thread of ours is left in it."""

    def threads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"name": [t.name for t in threading.enumerate()]})

    scenario.run(Publish(*MANY), Start(), Rows(*MANY), Stop())
    names = scenario.spark.range(0, 8, 1, 8).mapInArrow(threads, "name string").distinct().collect()

    assert not [row.name for row in names if row.name.startswith(("pull ", "ack worker"))]


def test_streams_that_close_all_the_time(scenario: Scenario):
    """A service that ends every stream again and again delays, and loses nothing."""
    done = threading.Event()

    def close() -> None:
        while not done.wait(0.2):
            scenario.emulator.close_streams()

    closer = threading.Thread(target=close)
    closer.start()
    try:
        scenario.run(Publish(*MANY), Start(), Rows(*MANY), Acked(*MANY))
    finally:
        done.set()
        closer.join()


def test_unavailable_service_is_waited_for(scenario: Scenario):
    """Pulls and acks that fail for a while are tried again, without a report."""
    scenario.emulator.fail("StreamingPull", "UNAVAILABLE", count=3)
    scenario.emulator.fail("Acknowledge", "UNAVAILABLE", count=3)
    scenario.run(Publish("a", "b"), Start(), Rows("a", "b"), Acked("a", "b"))


def test_long_batch_keeps_its_leases(scenario: Scenario):
    """A sink that takes minutes: the leases of staged messages are extended, so nothing is delivered again."""
    scenario.run(
        Hold("commit"), Publish("a", "b"), Start(), Held(),
        Until("a longer lease", lambda run: all(_has_long_lease(run, record) for record in _records(run))),
        Do(lambda run: run.emulator.advance(500)),
        Release(), Committed(), Acked("a", "b"), Deliveries(a=1, b=1),
    )  # fmt: skip


def _records(run: Scenario) -> list[Any]:
    return run.emulator.messages(run.names.subscription)


def _has_long_lease(run: Scenario, record: Any) -> bool:
    """Return whether a ModifyAckDeadline has changed the lease since the delivery."""
    return record.modacks >= 1 and not record.failures


def test_exactly_once_subscription(scenario: Scenario):
    """Acks that the service fails id by id are sent again or abandoned. Each message is in the sink once."""
    name = f"{scenario.names.subscription}-once"
    scenario.emulator.create_subscription(name, scenario.names.topic, enable_exactly_once_delivery=True)
    scenario.emulator.fail_acks(2)
    scenario.run(
        Publish("a", "b"), Start(subscriptionId=name), Rows("a", "b"),
        Until("all acknowledged", lambda run: run.emulator.backlog(name) == 0),
    )  # fmt: skip


def test_keys_stay_in_order(scenario: Scenario):
    """Rows of one key are in publish order, within batches and over them, also after a restart."""
    name = f"{scenario.names.subscription}-ordered"
    scenario.emulator.create_subscription(name, scenario.names.topic, enable_message_ordering=True)
    first, second = [f"k{n}" for n in range(300)], [f"k{n}" for n in range(300, 600)]
    start = Start(subscriptionId=name, maxMessagesPerTrigger=100)
    scenario.run(
        Publish(*first, key="k"), start, Rows(*first), Stop(),
        Publish(*second, key="k"), start, Rows(*first, *second),
        Until("all acknowledged", lambda run: run.emulator.backlog(name) == 0),
    )  # fmt: skip
    assert [*first, *second] == scenario.sink.texts
    assert {"k"} == {row["ordering_key"] for row in scenario.sink.rows}

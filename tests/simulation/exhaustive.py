"""All histories of two messages, two batches, one crash and one late attempt.

Enumerated are the protocol, the trigger and two faults. The driver is killed at any point: each call of the store and
the service, each message that arrives, each write of Spark's logs and of the sink, or never. The first attempt of a
pulling task is suspended at any point and for each duration. Threads run as soon as they can, and nothing else fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.options import ReadOptions
from tests.simulation import checkers, product, runner
from tests.simulation.chooser import Enumerated, Fixed
from tests.simulation.connection import ADDRESS
from tests.simulation.faults import Faults
from tests.simulation.history import SINGLE_BATCH_RUNS, Outcome, Plan
from tests.simulation.hub import Process
from tests.simulation.service import SUBSCRIPTION
from tests.simulation.spark import AVAILABLE_NOW, ONCE, PROCESSING_TIME, Application, Query
from tests.simulation.world import Setup, World

_SINK_SECONDS = 30.0  # of a batch after the crash
_LATE_SECONDS = (20.0, 700.0)  # while the batch is being evaluated again, and after its leases
_TRIGGERS = ((PROCESSING_TIME, True), (AVAILABLE_NOW, True), (AVAILABLE_NOW, False), (ONCE, True))
_LEASES_SECONDS = 700.0


def run() -> runner.Summary:
    """Run all of them, up to the first that breaks an invariant."""
    summary = runner.Summary()
    choices = Enumerated()
    more = True
    while more and not summary.failures:
        outcome = _run_one(choices)
        summary.add(outcome)
        if outcome.violation is not None:
            lines = [f"decisions {choices.decisions} break {outcome.violation}", *outcome.record.lines()]
            summary.failures.append("\n".join(lines))
        more = choices.advance()
    return summary


def _run_one(choices: Enumerated) -> Outcome:
    fixed = Fixed()
    world = World(fixed, Faults(fixed), Setup(Settings(ack_deadline=10)), is_fair=True)
    trigger, passes_start = choices.pick(_TRIGGERS)
    options = ReadOptions(
        endpoint=ADDRESS,
        subscription_id=SUBSCRIPTION,
        max_messages_per_trigger=2,
        idle_timeout=1.0,
        max_fetch_period=1.0,
    )
    query = Query(options, trigger, passes_start, product.Budget(2, 10**6), fetch_partitions=1, buffered=1)
    world.run(lambda: _operate(world, query, choices), seed=0)
    record = world.record
    return Outcome(Plan(0), record.violation, record, steps=world.hub.steps, runs=len(world.applications))


def _operate(world: World, query: Query, choices: Enumerated) -> None:
    world.publish(1)
    world.publish(1)
    application = world.start(query)
    application.driver.on_operation = _once(choices, application.driver.kill)
    application.on_attempt = lambda process: _make_late(application, process, choices)
    end = world.hub.now + 30.0
    while application.is_alive and world.hub.now < end:
        world.wait(1.0)
    if application.is_alive:
        application.stop()
        world.wait_for(application, 60.0)
    application.driver.on_operation = None
    for _ in range(SINGLE_BATCH_RUNS if query.is_asked_once else 2):
        if not world.is_delivered:
            world.run_quietly(world.start(replace(query, sink_seconds=_SINK_SECONDS)))
            world.wait(_LEASES_SECONDS)
    world.check_end()
    checkers.check_repeats(world.record)


def _once(choices: Enumerated, happens: Callable[[], None]) -> Callable[[], None]:
    """Return the chooser that decides at each operation whether something happens there. It happens once at most."""
    has_happened: list[bool] = []

    def decide() -> None:
        if not has_happened and choices.chance(0.5):
            has_happened.append(True)
            happens()

    return decide


def _make_late(application: Application, process: Process, choices: Enumerated) -> None:
    """Suspend the first attempt at one of its operations. It lives on when its driver is gone."""
    if not application.outlives:
        application.outlives.add(process)
        process.on_operation = _once(choices, lambda: application.suspend(process, choices.pick(_LATE_SECONDS)))

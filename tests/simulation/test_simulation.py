"""Histories in each run of the tests, as many as fit into two minutes. All those of two messages."""

from __future__ import annotations

import logging
import math
import os

import pytest

from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.options import ReadOptions
from tests.simulation import cases, checkers, exhaustive, history, product, runner
from tests.simulation.chooser import Fixed
from tests.simulation.connection import ADDRESS
from tests.simulation.faults import Faults
from tests.simulation.history import Plan
from tests.simulation.product import Budget
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.service import SUBSCRIPTION
from tests.simulation.spark import AVAILABLE_NOW, ONCE, PROCESSING_TIME, Query
from tests.simulation.world import Setup, World

_HISTORIES = int(os.environ.get("SIMULATION_HISTORIES", "10000"))
_SECONDS = float(os.environ.get("SIMULATION_SECONDS", "60"))  # of processor time for each part, at most
_PARTS = 2
# Cases that occur in the small histories, which are run in two parts as well.
_NAMED = (
    {"replayed elsewhere", "never written", "counted again", "written again"},
    {"not read", "staged after a loss", "machine paused", "published twice"},
)


@pytest.fixture(autouse=True)
def _quiet():
    """Warnings that a history makes the code log are part of its timeline, if they matter."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(_PARTS))
def test_histories(part):
    """Random histories break no invariant."""
    summary = runner.run(range(part + 1, _HISTORIES + 1, _PARTS), _SECONDS)
    assert not summary.failures, summary.failures[0]
    assert summary.histories > 0
    print(summary)  # noqa: T201  # how many fitted in


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("part", "named"), [*enumerate(_NAMED)])
def test_all_small_histories(part, named):
    """No history of two messages, two batches, one crash and one late attempt breaks an invariant.

    Losses that guarantee.md names occur, and the repeats of causes that are not drawn.
    """
    summary = exhaustive.run(SCENARIOS[part :: len(_NAMED)])
    assert not summary.failures, summary.failures[0]
    assert named <= summary.losses.keys() | summary.repeats.keys()
    assert "rolled back" not in summary.losses


def test_each_loss_is_a_small_history():
    """But those of a rollback, which histories are drawn for."""
    assert {loss.name for loss in cases.LOSSES}.difference(*_NAMED) == {"rolled back"}


@pytest.mark.parametrize("runs", [200, pytest.param(1000, marks=pytest.mark.production)])
@pytest.mark.parametrize(("trigger", "passes_start"), [(AVAILABLE_NOW, True), (AVAILABLE_NOW, False), (ONCE, True)])
def test_many_restarts(trigger, passes_start, runs):
    """An hourly job keeps no more after hundreds of runs than after ten, on a plain subscription and a quiet world."""
    chooser = Fixed()
    world = World(chooser, Faults(chooser), Setup(Settings(ack_deadline=10, ttl=math.inf)), is_fair=True)
    world.hub.step_limit = 10**8
    query = Query(
        ReadOptions(endpoint=ADDRESS, subscription_id=SUBSCRIPTION), trigger, passes_start, Budget(1000, 10**6)
    )
    sizes: list[tuple[int, int]] = []
    memories: list[product.Memory | None] = []

    def operate() -> None:
        for run in range(runs):
            world.publish(2)
            application = world.start(query)
            world.run_quietly(application)
            world.wait(3600.0)
            if run in (10, runs - 1):
                memories.append(application.memory)
                sizes.append((len(world.store.files), sum(map(len, world.store.files.values()))))

    world.run(operate, seed=1)

    assert world.record.violation is None
    assert len(checkers.undelivered(world.record)) <= 2
    [(files, volume), (files_later, volume_later)] = sizes
    [memory, memory_later] = memories
    assert memory is not None
    assert memory_later is not None
    assert len(memory.batches) == len(memory_later.batches) <= 1
    assert memory[1:] == memory_later[1:]
    assert files_later <= files + 2
    assert volume_later <= 2 * volume


def test_message_of_a_killed_run_is_redelivered_after_a_back_off():
    """The next run does not take the subscription for empty meanwhile, however quiet it is.

    It is redelivered ten minutes after its first lease, because its ack was late, and again after the killed run.
    """
    chooser = Fixed()
    settings = Settings(ack_deadline=10, min_backoff=600, max_backoff=600)
    world = World(chooser, Faults(chooser), Setup(settings), is_fair=True)
    options = ReadOptions(endpoint=ADDRESS, subscription_id=SUBSCRIPTION, idle_timeout=1.0)
    query = Query(options, PROCESSING_TIME, True, Budget(1000, 10**6))

    def operate() -> None:
        world.service.quota_until = 92.0  # two seconds after the first lease
        application = world.start(query)
        world.wait(30.0)
        world.publish(1)
        world.wait(660.0005)
        application.kill()
        world.wait(1.0)
        application = world.start(query)
        world.wait(629.0)
        world.publish(1)
        world.run_quietly(application)
        world.check_end()
        checkers.check_repeats(world.record)

    world.run(operate, seed=0)

    assert world.record.violation is None
    assert 3 <= sum("is sent" in what for _, _, what, _ in world.record.timeline)


def test_a_seed_is_one_history():
    """The same seed makes the same history, step by step."""
    one, two = (history.run(Plan(7)).record.lines() for _ in range(2))
    assert one == two

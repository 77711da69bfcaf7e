"""All histories of each scenario: two messages, two batches, one crash and one late attempt, and the like."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from tests.simulation import runner
from tests.simulation.chooser import Enumerated, Fixed
from tests.simulation.faults import Faults
from tests.simulation.history import Outcome, Plan
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import Setup, World

Scenario: TypeAlias = tuple[Callable[[World, Enumerated], None], Setup]


def run(scenarios: Iterable[Scenario] = SCENARIOS) -> runner.Summary:
    """Run all of them, up to the first that breaks an invariant: the first of each scenario, the second of each, ..."""
    summary = runner.Summary()
    left = [(operate, setup, Enumerated()) for operate, setup in scenarios]
    while left:
        for operate, setup, choices in left:
            outcome = _run_one(operate, setup, choices)
            summary.add(outcome)
            if outcome.violation is not None:
                broken = f"decisions {choices.decisions} of {operate.__name__} break {outcome.violation}"
                summary.failures.append("\n".join([broken, *outcome.record.lines()]))
                return summary
        left = [scenario for scenario in left if scenario[2].advance()]
    return summary


def _run_one(operate: Callable[[World, Enumerated], None], setup: Setup, choices: Enumerated) -> Outcome:
    fixed = Fixed()
    world = World(fixed, Faults(fixed), setup, is_fair=True)
    world.run(lambda: operate(world, choices), seed=0)
    record = world.record
    return Outcome(Plan(0), record.violation, record, steps=world.hub.steps, runs=len(world.applications))

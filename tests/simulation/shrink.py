"""A smaller history that breaks the same invariant: fewer kinds of faults, fewer runs, fewer messages, fewer faults.

A history is drawn from its seed, so a change of the plan changes all later draws: each smaller plan is tried with a few
seeds near by, and the first that breaks the same invariant is the new smallest. At the end its faults are spared, half
of them, then a quarter and so on to single ones: everything before the first spared one stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation import history
from tests.simulation.history import Outcome, Plan

_SEEDS = 12  # tried for each smaller plan, besides its own
_MOST_RUNS = 250  # for each of the two


def shrink(outcome: Outcome) -> Outcome:
    """Return the smallest outcome that was found with the same broken invariant."""
    for smaller in (_smaller, _spared):
        budget, progress = _MOST_RUNS, True
        while progress and budget > 0:
            progress = False
            for plan in smaller(outcome):
                budget -= 1
                found = history.run(plan)
                if _is_same_violation(found, outcome) and _size(found) < _size(outcome):
                    outcome, progress = found, True
                    break
                if budget <= 0:
                    break
    return outcome


def _is_same_violation(one: Outcome, other: Outcome) -> bool:
    return bool(one.violation and other.violation and one.violation.invariant == other.violation.invariant)


def _size(outcome: Outcome) -> tuple[int, int, int, int, int]:
    return len(outcome.rates), outcome.runs, outcome.messages, outcome.happened, len(outcome.record.timeline)


def _smaller(outcome: Outcome) -> Iterator[Plan]:
    """Yield plans with one thing less, the greatest reductions first."""
    plan = outcome.plan
    plans = [replace(plan, without=plan.without | {kind}) for kind in sorted(outcome.rates)]
    if outcome.runs > 1:
        plans.append(replace(plan, runs=1))
        plans.append(replace(plan, runs=max(1, (plan.runs or 4) - 1)))
    if outcome.messages > 1:
        plans += [replace(plan, messages=count) for count in (1, 3, outcome.messages // 2) if count < outcome.messages]
    for smaller in plans:
        yield smaller
    for smaller in plans:
        for offset in range(1, _SEEDS):
            yield replace(smaller, seed=plan.seed + 1_000_003 * offset)


def _spared(outcome: Outcome) -> Iterator[Plan]:
    """Yield plans with fewer faults that happen, the fewest first."""
    left = [number for number in range(1, outcome.hit + 1) if number not in outcome.plan.spared]
    count = len(left)
    while count:
        for at in range(0, len(left), count):
            yield replace(outcome.plan, spared=outcome.plan.spared | {*left[at : at + count]})
        count //= 2

"""Mutations of the code are caught: the simulator can fail. `make simulate-mutations` has those that take longer."""

from __future__ import annotations

import logging

import pytest

from tests.simulation import history
from tests.simulation.history import Plan
from tests.simulation.mutations import MUTATIONS, Mutation, caught
from tests.simulation.shrink import shrink


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "mutation", [mutation for mutation in MUTATIONS if mutation.is_quick], ids=lambda mutation: mutation.name
)
def test_caught(mutation: Mutation):
    """A mutation breaks an invariant within so many histories, one of those that it should."""
    logging.disable(logging.CRITICAL)
    try:
        result = caught(mutation)
    finally:
        logging.disable(logging.NOTSET)
    assert result is not None, f"{mutation.name} broke nothing"
    assert result[1].invariant in mutation.breaks, result


def test_each_hole_is_put_back():
    """Those of the first section of issue 32: eleven kinds."""
    assert set(range(1, 12)) == {mutation.hole for mutation in MUTATIONS if mutation.hole is not None}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["acks are not sent", "a replay drops rows"])
def test_a_failed_history_is_made_smaller(name):
    """The same invariant is broken with fewer faults."""
    [mutation] = [each for each in MUTATIONS if each.name == name]
    logging.disable(logging.CRITICAL)
    try:
        with mutation.patch():
            found = (history.run(Plan(seed)) for seed in range(1, 1000))
            failed = next(each for each in found if each.violation and each.happened > 5)
            smaller = shrink(failed)
            again = history.run(smaller.plan)
    finally:
        logging.disable(logging.NOTSET)

    assert failed.violation is not None
    assert smaller.violation == again.violation
    assert smaller.violation is not None
    assert failed.violation.invariant == smaller.violation.invariant
    assert smaller.happened < failed.happened

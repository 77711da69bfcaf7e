"""Histories in each run of the tests, as many as fit into a minute and a half; all those of two messages."""

from __future__ import annotations

import logging
import os

import pytest

from tests.simulation import exhaustive, history, runner
from tests.simulation.history import Plan

_HISTORIES = int(os.environ.get("SIMULATION_HISTORIES", "10000"))
_SECONDS = float(os.environ.get("SIMULATION_SECONDS", "100"))  # on each of the workers, at most
_PARTS = 2  # as many as pytest has workers


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
def test_all_small_histories():
    """No history of two messages, two batches, one crash and one late attempt breaks an invariant."""
    summary = exhaustive.run()
    assert not summary.failures, summary.failures[0]


def test_a_seed_is_one_history():
    """The same seed gives the same history, step by step."""
    one, two = (history.run(Plan(7)).record.lines() for _ in range(2))
    assert one == two

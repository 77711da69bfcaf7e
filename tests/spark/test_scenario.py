"""The steps of scenarios: which failure of a query is the machine's and starts it again."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from tests.spark.scenario import Scenario

_LATE = "Python worker failed to connect back.\nCurrent State: {}\n"


def scenario_that_failed(tmp_path: Path, error: str) -> tuple[Scenario, list[str]]:
    """Return a scenario whose query has failed, and the list of its later starts."""
    nothing: Any = None
    failed: Any = types.SimpleNamespace(exception=lambda: error)
    works: Any = types.SimpleNamespace(exception=lambda: None)
    started: list[str] = []

    def start() -> Any:
        started.append("again")
        return works

    return Scenario(nothing, nothing, nothing, tmp_path, query=failed, start=start), started


def test_query_whose_process_started_too_slowly_is_started_again(tmp_path: Path):
    """Ten seconds are Spark's limit for a Python process to start, and a loaded machine's is no failure of ours."""
    scenario, started = scenario_that_failed(tmp_path, _LATE.format("INITIALIZING"))
    scenario.wait(lambda: bool(started), lambda: "a second start")

    assert ["again"] == started


@pytest.mark.parametrize("error", [_LATE.format("ACTIVE"), "StagingError: gone\nCurrent State: INITIALIZING"])
def test_query_that_failed_otherwise_is_not_started_again(tmp_path: Path, error: str):
    """A failure after the start, or in it with another error, fails the scenario."""
    scenario, started = scenario_that_failed(tmp_path, error)
    with pytest.raises(AssertionError, match="the query failed"):
        scenario.wait(lambda: False, lambda: "nothing")

    assert [] == started

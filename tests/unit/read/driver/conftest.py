"""Fixtures of tests that work on a run of a query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.read.driver.running import Running


@pytest.fixture
def run_of(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Make runs. Their threads are ended after the test."""
    made: list[Running] = []

    def make(**settings: Any) -> Running:
        made.append(Running(tmp_path, **settings))
        return made[-1]

    yield make
    for each in made:
        each.end()


@pytest.fixture
def running(run_of: Callable[..., Running]) -> Running:
    """Return a run on a service that takes everything."""
    return run_of()

"""Fixtures of tests that work on the stand-in of `service`."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def leaves_no_thread() -> Iterator[None]:
    """Check that each test ends all threads that it has started."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before

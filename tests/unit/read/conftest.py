"""Fixtures of tests that open a StreamingPull on the stand-in of `service`."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pubsub_spark.read import streaming_pull


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream reopens without a pause."""
    monkeypatch.setattr(streaming_pull, "delays", lambda: iter(lambda: 0.001, None))


@pytest.fixture
def leaves_no_thread() -> Iterator[None]:
    """Each test ends all threads that it has started."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before

"""Fixtures of tests that work on the stand-in of `service`: a StreamingPull, an ack worker."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubsub_spark.read import ack_worker, streaming_pull
from pubsub_spark.read.staging.area import Staging
from pubsub_spark.read.staging.store import open_store
from pubsub_spark.read import ack_worker
from tests.unit.read.acking_driver import LONG, Driver
from tests.unit.read.service import SUBSCRIPTION


@pytest.fixture
def leaves_no_thread() -> Iterator[None]:
    """Each test ends all threads that it has started."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(ack_worker, "_TICK_SECONDS", 0.01)
    made = Driver(Staging(open_store(str(tmp_path)), SUBSCRIPTION, uuid.uuid4().hex))
    made.start()
    yield made
    made.worker.stop(LONG)

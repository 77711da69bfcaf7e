"""Acks that tasks send: which task sends those of which part, and which parts it says are done."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest

from pubsub_spark.read import task_acks
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.staging.area import Staging, part_path
from pubsub_spark.read.staging.store import open_store
from pubsub_spark.read.task_acks import HeldAcks, SentAcks, TaskAcks, assign
from tests.unit.read import service
from tests.unit.read.service import SUBSCRIPTION, Answer, Service, StatusError


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(open_store(str(tmp_path)), SUBSCRIPTION, uuid.uuid4().hex)


def held(staging: Staging, batch: int, part: int, *texts: str) -> HeldAcks:
    """A staged part with these messages."""
    staging.create(part_path(batch, part), service.part(texts))
    return HeldAcks(batch, part, staging.parts(batch)[part])


def sent(connection: Any, staging: Staging, *parts: HeldAcks) -> list[SentAcks]:
    return TaskAcks(connection, staging, parts).finish()


def test_each_part_is_one_tasks():
    """Five held parts are the work of two tasks, three and two of them."""
    shares = Budget(10, 10).shares(Staging(open_store(""), SUBSCRIPTION, "stream"), 8, 2, 0, 0)
    parts = [HeldAcks(7, part, 100) for part in range(1, 6)]

    first, second = assign(shares, parts)

    assert (parts[0::2], parts[1::2]) == (first.acks, second.acks)


def test_accepted_acks_are_recorded(staging: Staging):
    """A task sends the acks of all messages of its parts, and says how many they were."""
    taken = Service()

    assert [(1, 1, 2), (1, 2, 1)] == sent(taken, staging, held(staging, 1, 1, "a", "b"), held(staging, 1, 2, "c"))
    assert ["ack-a", "ack-b", "ack-c"] == taken.acked_ids


def test_refused_acks_are_left_to_the_driver(staging: Staging):
    """A part with a refused ack is not recorded: the driver sends its acks again, and drops the redeliveries."""
    refusing = Service(answers=[StatusError(grpc.StatusCode.NOT_FOUND)])

    assert [(1, 2, 1)] == sent(refusing, staging, held(staging, 1, 1, "a"), held(staging, 1, 2, "b"))


def test_part_that_is_gone_is_left_to_the_driver(staging: Staging):
    """A staged part that cannot be read fails no task."""
    gone = HeldAcks(1, 1, held(staging, 1, 1, "a").length)
    staging.delete("1/")

    assert [] == sent(Service(), staging, gone)


def test_acks_that_are_not_answered_do_not_hold_up_the_task(staging: Staging, monkeypatch: pytest.MonkeyPatch):
    """A task waits a bounded time for its acks, and records none that are under way then."""
    monkeypatch.setattr(task_acks, "_AFTER_PULL_SECONDS", 0.01)
    answered = threading.Event()

    class Silent(Service):
        def acknowledge(self, subscription: str, request: bytes, timeout: float) -> Answer:
            answered.wait(10)
            return super().acknowledge(subscription, request, timeout)

    silent: Any = Silent()
    acks = TaskAcks(silent, staging, [held(staging, 1, 1, "a")])

    assert [] == acks.finish()
    answered.set()
    acks._thread.join(10)
    assert [] == acks.finish()

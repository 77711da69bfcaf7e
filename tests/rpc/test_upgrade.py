"""Upgrades: a checkpoint and a staging area that an earlier version wrote, read by today's code.

`checkpoint-0.1.0` is of a Spark 4.3 query with version 0.1.0. It committed an empty batch, staged the messages a, b and
c, and was killed (`os._exit`) in `foreachBatch`, before the commit of the second batch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from pubsub_spark.read.offset import Offset
from tests.engine import Engine, until
from tests.rpc.session import run_until

WRITTEN = Path(__file__).parent / "checkpoint-0.1.0"
TOPIC, SUBSCRIPTION = "projects/test-project/topics/upgrade", "projects/test-project/subscriptions/upgrade"


@pytest.fixture
def upgraded(emulator: Emulator, tmp_path: Path) -> Iterator[Engine]:
    """Yield today's query on the checkpoint of 0.1.0, not started. The service no longer knows the staged messages."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC)
    shutil.copytree(WRITTEN / "staging", tmp_path, dirs_exist_ok=True)
    logs = sorted((WRITTEN / "checkpoint" / "offsets").iterdir())
    offsets = [Offset.from_json(json.loads(log.read_text().splitlines()[-1])) for log in logs]
    options = ReadOptions(
        subscription_id=SUBSCRIPTION,
        endpoint=emulator.endpoint,
        idle_timeout=0.1,
        max_fetch_period=0.5,
        connect_timeout=5.0,
    )
    engine = Engine(emulator, options, str(tmp_path), budget=Budget(10_000, 10**8))
    engine.offsets, engine.committed, engine.written = offsets, 1, {0: []}
    yield engine
    if engine.session is not None:
        engine.crash()


@pytest.mark.parametrize("passes_start", [True, False], ids=["4.2", "4.0"])
def test_an_uncommitted_batch_of_0_1_0_is_replayed(upgraded: Engine, passes_start: bool):
    """The staged messages are the rows of the batch, once, and reading continues with new messages."""
    upgraded.passes_start = passes_start
    upgraded.start()
    assert upgraded.trigger()
    assert ["a", "b", "c"] == upgraded.rows

    upgraded.emulator.publish(TOPIC, "d")
    run_until(upgraded, 4)

    assert ["a", "b", "c", "d"] == upgraded.rows


def test_a_committed_batch_of_0_1_0_is_acknowledged_and_deleted(upgraded: Engine):
    """Its acks were not sent yet. Today's code sends them, deletes its files, and does not read its rows again."""
    upgraded.committed, upgraded.written = 2, {0: [], 1: ["a", "b", "c"]}
    upgraded.start()
    upgraded.emulator.publish(TOPIC, "d")
    run_until(upgraded, 4)

    assert ["a", "b", "c", "d"] == upgraded.rows
    until(lambda: upgraded.opened.staging.last_acknowledged() >= 1, "batch 1 is acknowledged")
    until(lambda: not upgraded.opened.staging.parts(1), "batch 1 is deleted")

"""The same scenarios against a Pub/Sub in another process: Google's emulator, and ours when it is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import Names
from tests.servers import OwnProcess, Remote, google_emulator
from tests.spark.scenario import Committed, Do, Held, Hold, Publish, Release, Rows, Scenario, Start


def _scenario(spark: SparkSession, service: Any, names: Names, folder: Path) -> Iterator[Scenario]:
    service.create(names)
    made = Scenario(spark, service, names, folder)
    yield made
    made.close()


@pytest.fixture
def googles(spark: SparkSession, names: Names, tmp_path: Path) -> Iterator[Scenario]:
    with google_emulator(tmp_path) as endpoint:
        yield from _scenario(spark, Remote(endpoint), names, tmp_path)


@pytest.fixture
def killed(spark: SparkSession, names: Names, tmp_path: Path) -> Iterator[Scenario]:
    service = OwnProcess(tmp_path)
    service.start()
    yield from _scenario(spark, service, names, tmp_path)
    service.kill()


@pytest.mark.long
def test_googles_emulator(googles: Scenario):
    """Messages that `df.write` publishes are read once from Google's emulator, which has flow control of its own.

    Not over a restart: for a minute it hands new messages to streams that have ended."""

    def write(run: Scenario, first: int) -> None:
        texts = run.spark.range(first, first + 3000).selectExpr("concat('m', id) as data")
        given = {"topicId": run.names.topic, "endpoint": run.emulator.endpoint}
        texts.write.format("pubsub").options(**given).mode("append").save()

    many = [f"m{n}" for n in range(6000)]
    googles.run(
        Do(lambda run: write(run, 0)), Start(), Rows(*many[:3000]), Do(lambda run: write(run, 3000)), Rows(*many),
        Committed(),
    )  # fmt: skip


def test_killed_emulator(killed: Scenario):
    """kill -9 of the emulator in the middle of a batch, and an empty one in its place: the query continues."""
    service: Any = killed.emulator

    def replace(run: Scenario) -> None:
        """Suspend the driver's stream, which would find no subscription between the last two steps, and fail."""
        workers = run.workers()
        assert workers
        service.kill()
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            service.start()
            service.create(run.names)
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)

    killed.run(
        Publish("a", "b"), Hold("commit"), Start(), Held(), Do(replace), Publish("late"), Release(),
        Rows("a", "b", "late"), Committed(),
    )  # fmt: skip

"""Applications of their own: a driver that is killed, executors that are other machines, Spark Connect.

Each is a process that reads into Parquet (`driver`), with the emulator in this one. A file that Spark's log of the sink
does not name was never written, so the log is what is read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT, Bucket, Names
from tests.spark.scenario import LEASE, command, descendants, kill, needs_available_now, until

MANY = [f"m{n}" for n in range(3000)]
LOCAL_CONF = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


@dataclass
class Application:
    """One query with its folder; started as often as a test likes."""

    emulator: Emulator
    names: Names
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def start(self, **given: Any) -> None:
        """A new driver on the old checkpoint."""
        arguments = {
            "endpoint": self.emulator.endpoint,
            "subscription": self.names.subscription,
            "folder": str(self.folder),
            "conf": LOCAL_CONF | given.pop("conf", {}),
            **({} if "remote" in given else {"master": "local[2]"}),
            **given,
        }
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        environment.pop("PUBSUB_EMULATOR_HOST", None)
        environment.update(self.environment)
        self.log = self.folder / "driver.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", json.dumps(arguments)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.folder,
                start_new_session=True,
            )

    def ends(self) -> int:
        """Wait for the end of the application; its exit code."""
        assert self.process is not None
        return self.process.wait(270)  # of the 300 that pytest gives a test: a loaded machine is no failure

    def kill(self) -> None:
        """kill -9 of the driver, its JVM and all Python processes below it, at once."""
        assert self.process is not None
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        until(lambda: self.emulator.streams() == 0, lambda: f"{self.emulator.streams()} streams are open")

    def executors(self) -> list[int]:
        """Ids of the executors' JVMs, where they have JVMs of their own."""
        assert self.process is not None
        return [pid for pid in descendants(self.process.pid) if "CoarseGrainedExecutorBackend" in command(pid)]

    def texts(self) -> list[str]:
        """The rows of the sink, by its own log."""
        found: dict[str, None] = {}
        for entry in sorted((self.folder / "sink" / "_spark_metadata").glob("[0-9]*")):
            for line in entry.read_text().splitlines()[1:]:
                found[unquote(urlparse(json.loads(line)["path"]).path)] = None
        return [text for path in found for text in pq.read_table(path).column("text").to_pylist()]


@pytest.fixture
def application(emulator: Emulator, names: Names, tmp_path: Path) -> Iterator[Application]:
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    made = Application(emulator, names, tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def test_killed_driver_loses_and_repeats_nothing(application: Application):
    """kill -9 of everything while a backlog is being written, and a restart: each message is in the sink once."""
    trigger = {"trigger": {"processingTime": "0 seconds"}, "options": {"maxMessagesPerTrigger": "700"}}
    application.emulator.publish(application.names.topic, *MANY)
    application.start(**trigger)
    until(lambda: len(application.texts()) > 0, lambda: application.log.read_text()[-2000:], seconds=120)
    application.kill()
    application.emulator.publish(application.names.topic, "late")
    application.emulator.advance(LEASE)
    application.start(**trigger)
    until(
        lambda: application.emulator.backlog(application.names.subscription) == 0,
        lambda: application.log.read_text()[-2000:],
        seconds=120,
    )

    assert Counter([*MANY, "late"]) == Counter(application.texts())


@needs_available_now
def test_executors_on_other_machines(application: Application, bucket: Bucket):
    """Executors that are JVMs of their own, with speculation on, staging on S3: all drains, each message once."""
    application.environment = bucket.environment
    application.emulator.publish(application.names.topic, *MANY)
    application.start(
        master="local-cluster[2,1,1024]",
        options={"stagingLocation": f"{bucket.url}/staging"},
        conf={
            "spark.speculation": "true",
            "spark.speculation.multiplier": "1.0",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.interval": "50ms",
            "spark.speculation.minTaskRuntime": "50ms",
        },
    )

    assert 0 == application.ends(), application.log.read_text()[-3000:]
    assert Counter(MANY) == Counter(application.texts())
    assert 0 == application.emulator.backlog(application.names.subscription)
    assert {"driver-token", "last-acknowledged"} == {name.rpartition("/")[2] for name in bucket.names()}


def test_killed_executor_is_replaced(application: Application):
    """kill -9 of an executor in the middle of a batch: the task's next attempt, elsewhere, has the same rows."""
    gate = application.folder / "gate"
    gate.mkdir()
    application.emulator.publish(application.names.topic, *MANY)
    application.start(
        master="local-cluster[2,1,1024]",
        trigger={"processingTime": "0 seconds"},
        options={"maxMessagesPerTrigger": "2000"},  # 1000 are the driver stream's, each of two tasks has 500
        gate=str(gate),
    )
    until(
        lambda: len(list(gate.glob("arrived-*"))) == 2,  # one on each executor
        lambda: application.log.read_text()[-2000:],
        seconds=180,
    )
    kill(application.executors()[:1])
    (gate / "open").touch()
    until(
        lambda: application.emulator.backlog(application.names.subscription) == 0,
        lambda: application.log.read_text()[-2000:],
        seconds=180,
    )

    assert Counter(MANY) == Counter(application.texts())
    assert 3 <= len(list(gate.glob("arrived-*"))), "a task was tried again"


@needs_available_now
def test_staging_area_that_executors_do_not_see(application: Application):
    """A path that is another one on each machine fails the query with what to do, and acknowledges nothing."""
    application.emulator.publish(application.names.topic, *MANY)
    application.start(
        master="local-cluster[2,1,1024]",
        options={"stagingLocation": "/proc/self/cwd/staging-of-this-machine"},
        conf={"spark.task.maxFailures": "1"},
    )

    assert 0 != application.ends()
    log = application.log.read_text()
    assert "cannot see the driver's staging area `/proc/self/cwd/staging-of-this-machine`" in log
    assert len(MANY) == application.emulator.backlog(application.names.subscription)


@needs_available_now
def test_spark_connect(application: Application):
    """Reading and writing work through Spark Connect, where the client registers the source by hand."""
    application.emulator.publish(application.names.topic, *MANY)
    application.start(remote="local[2]")

    assert 0 == application.ends(), application.log.read_text()[-3000:]
    assert Counter(MANY) == Counter(application.texts())
    assert 0 == application.emulator.backlog(application.names.subscription)

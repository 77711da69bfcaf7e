"""Applications of their own: a driver that is killed, executors that are other machines, Spark Connect.

Each is a process that reads into Parquet (`driver`), with the emulator in this one. A file that Spark's log of the sink
does not name was never written, so the log is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import Bucket, Names
from tests.spark.application import Application
from tests.spark.scenario import LEASE, kill, needs_available_now, until

MANY = [f"m{n}" for n in range(3000)]


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
@pytest.mark.long
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
    left = [re.sub(r"/[0-9-]+$", "", name).rpartition("/")[2] for name in bucket.names()]
    late_acks = ("in-doubt", "unfinished")  # are left if acks were late, as on a slow machine
    assert ["acknowledged", "driver-token", "owners"] == sorted(name for name in left if name not in late_acks)


@needs_available_now
@pytest.mark.long
def test_tasks_are_as_many_as_the_cluster_runs_at_once(application: Application):
    """On a cluster of three executors three tasks pull, however many cores the driver has."""
    application.emulator.publish(application.names.topic, *MANY)
    application.start(
        master="local-cluster[3,1,1024]", options={"numFetchPartitions": None, "maxMessagesPerTrigger": "1500"}
    )

    assert 0 == application.ends(), application.log.read_text()[-3000:]
    assert Counter(MANY) == Counter(application.texts())
    assert "Spark runs 3 at once" in application.log.read_text()


@pytest.mark.long
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
@pytest.mark.long
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


@pytest.mark.long
def test_spark_connect(application: Application):
    """Reading and writing work through Spark Connect, where the client registers the source by hand.

    Its server has one port for all, so one test has a query that continues and one that ends.
    """
    application.emulator.publish(application.names.topic, *MANY)
    application.start(remote="local[2]", trigger={"processingTime": "0 seconds"})
    until(
        lambda: application.emulator.backlog(application.names.subscription) == 0,
        lambda: application.log.read_text()[-2000:],
        seconds=180,
    )
    application.kill()
    application.emulator.publish(application.names.topic, "late")
    application.start(remote="local[2]", trigger={"availableNow": True})

    assert 0 == application.ends(), application.log.read_text()[-3000:]
    assert Counter([*MANY, "late"]) == Counter(application.texts())

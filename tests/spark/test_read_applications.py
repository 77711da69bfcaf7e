"""Applications of their own: a driver that is killed, executors that are other machines, Spark Connect.

Each is a process that reads into Parquet (`driver`), with the emulator in this one. A file that Spark's log of the sink
does not name was never written, so the log is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import Bucket, Names
from tests.spark.application import Application
from tests.spark.scenario import LEASE, OLD, kill, needs_available_now, until

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


def test_executors_on_other_machines(application: Application, bucket: Bucket):
    """Three executors that are JVMs of their own, with speculation on.

    - Three tasks pull, however many cores the driver has, and stage on S3. Each message is read once.
    - kill -9 of an executor in the middle of a batch: the task's next attempt, elsewhere, has the same rows.
    """
    folder = application.folder
    queries: dict[str, Any] = {
        "on-s3": {
            "trigger": {"processingTime": "0 seconds"} if OLD else {"availableNow": True},
            "options": {
                "stagingLocation": f"{bucket.url}/staging",
                "numFetchPartitions": None,
                "maxMessagesPerTrigger": "1500",
            },
        },
        "killed": {
            "gate": str(folder / "gate"),
            "options": {"numFetchPartitions": "3", "maxMessagesPerTrigger": "2500"},  # 1000 are the driver stream's
        },
    }
    (folder / "gate").mkdir()
    application.environment = bucket.environment
    application.start(
        master="local-cluster[3,1,1024]",
        trigger={"processingTime": "0 seconds"},
        queries=_queries(application, queries),
        conf={
            "spark.speculation": "true",
            "spark.speculation.multiplier": "1.0",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.interval": "50ms",
            "spark.speculation.minTaskRuntime": "50ms",
        },
    )

    _drained(application, "on-s3")
    assert "Spark runs 3 at once" in application.log.read_text()

    until(
        lambda: len(list((folder / "gate").glob("arrived-*"))) == 3,  # one on each executor
        lambda: application.log.read_text()[-2000:],
        seconds=180,
    )
    kill(application.executors()[:1])
    (folder / "gate" / "open").touch()
    _drained(application, "killed")
    assert "ExecutorLostFailure" in application.log.read_text(), "a task was tried again"

    assert 0 == application.ends()
    if not OLD:  # a query that is stopped may leave the part that it was about to read
        left = [re.sub("owners/[0-9]+$", "owners/EPOCH", name).rpartition("/")[2] for name in bucket.names()]
        assert ["EPOCH", "driver-token", "last-acknowledged"] == sorted(left)


@needs_available_now
def test_staging_area_that_executors_do_not_see(application: Application):
    """A path that is another one on each machine fails the query with what to do, and acknowledges nothing."""
    application.emulator.publish(application.names.topic, *MANY)
    application.start(
        master="local-cluster[1,1,1024]",
        options={"stagingLocation": "/proc/self/cwd/staging-of-this-machine"},
        conf={"spark.task.maxFailures": "1"},
    )

    assert 0 != application.ends()
    log = application.log.read_text()
    assert "cannot see the driver's staging area `/proc/self/cwd/staging-of-this-machine`" in log
    assert len(MANY) == application.emulator.backlog(application.names.subscription)


def test_spark_connect(application: Application):
    """Reading works through Spark Connect, where the client registers the source by hand.

    Its server has one port for all, so one test has a query that continues and one that ends.
    """
    emulator, names, folder = application.emulator, application.names, application.folder
    emulator.create_topic(f"{names.topic}-few")
    emulator.create_subscription(f"{names.subscription}-few", f"{names.topic}-few")
    emulator.publish(f"{names.topic}-few", "a", "b")
    continues = _queries(application, {"continues": {"trigger": {"processingTime": "0 seconds"}}})
    ends = {"subscription": f"{names.subscription}-few", "folder": str(folder / "ends")}
    application.start(remote="local[2]", queries=[*continues, ends])
    _drained(application, "continues")

    assert 0 == application.ends(), application.log.read_text()[-3000:]
    assert ["a", "b"] == sorted(application.texts("ends"))


def _queries(application: Application, queries: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the queries, each with a folder, and a subscription that has MANY."""
    for name in queries:
        application.emulator.create_subscription(f"{application.names.subscription}-{name}", application.names.topic)
    application.emulator.publish(application.names.topic, *MANY)
    return [
        {
            "subscription": f"{application.names.subscription}-{name}",
            "folder": str(application.folder / name),
            "stop": str(application.folder / f"stop-{name}"),
            **query,
        }
        for name, query in queries.items()
    ]


def _drained(application: Application, name: str) -> None:
    """Wait until a query has acknowledged everything, and stop it. It has each message once."""
    until(
        lambda: application.emulator.backlog(f"{application.names.subscription}-{name}") == 0,
        lambda: application.log.read_text()[-2000:],
        seconds=180,
    )
    (application.folder / f"stop-{name}").touch()
    assert Counter(MANY) == Counter(application.texts(name))

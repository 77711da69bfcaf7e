"""The demo as its user sees it, on a slice of the flights: a run that is proven, and one that is not."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from pyspark.sql import SparkSession
from rich.console import Console

from pubsub_spark import demo
from pubsub_spark.demo.service import PubSub
from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT
from tests.spark.scenario import needs_available_now

ROWS = 3000

pytestmark = needs_available_now


@pytest.fixture
def console(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Console:
    """Return a terminal that remembers. The demo uses, and does not stop, the session that the tests share."""
    monkeypatch.setattr(SparkSession, "stop", lambda session: None)
    return Console(record=True, width=100, file=io.StringIO())


def test_demo_proves_itself(console: Console, spark: SparkSession, tmp_path: Path):
    """All sent flights are in the table, and the table, the picture and the rates are shown."""
    assert demo.run(None, tmp_path, ROWS, console)

    words = console.export_text()
    for expected in ("published 3,000 messages", "read      3,000 messages", "messages/s", "Equal: every flight"):
        assert expected in words
    assert ROWS == spark.read.parquet(str(tmp_path / "flights")).count()
    assert {"carrier", "hour", "departures", "mean_delay"} == set(
        spark.read.parquet(str(tmp_path / "departures")).columns
    )
    assert (tmp_path / "departures.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_demo_is_a_command(tmp_path: Path):
    """`pubsub-spark demo --json` ends with 0 and its verdict. Its report goes to standard error."""
    command = [sys.executable, "-c", "from pubsub_spark.cli import app; app()", "demo", "--json", "--rows", "100"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [*command, "--output", str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )

    assert 0 == ended.returncode, ended.stderr
    assert {"complete": True, "output": str(tmp_path)} == json.loads(ended.stdout)
    assert "Equal: every flight" in ended.stderr


@pytest.mark.long
def test_demo_runs_against_an_address(console: Console, emulator: Emulator, tmp_path: Path):
    """The demo with an endpoint uses the emulator there. The files that an earlier run left in the folder are
    replaced.
    """
    for earlier in ("flights", "checkpoint/offsets"):
        (tmp_path / earlier).mkdir(parents=True)
        (tmp_path / earlier / "0").write_text("of an earlier run")

    assert demo.run(emulator.endpoint, tmp_path, 100, console)

    assert f"Pub/Sub at {emulator.endpoint}" in console.export_text()


@pytest.mark.long
def test_leased_messages_are_waited_for(
    console: Console, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Messages that are leased to another client first, and redelivered later, are in the table at the end."""

    def read_while_some_are_leased(spark: SparkSession, pubsub: PubSub, *more: Any) -> Any:
        with grpc.insecure_channel(pubsub.endpoint) as channel:
            subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
            pulled = subscriber.pull(subscription=pubsub.subscription, max_messages=7).received_messages
            ack_ids = [message.ack_id for message in pulled]
            subscriber.modify_ack_deadline(subscription=pubsub.subscription, ack_ids=ack_ids, ack_deadline_seconds=15)
        return read(spark, pubsub, *more)

    read = demo.read_flights
    monkeypatch.setattr(demo, "read_flights", read_while_some_are_leased)

    assert demo.run(emulator.endpoint, tmp_path, 100, console)


def test_refusal_is_one_sentence(console: Console, emulator: Emulator, tmp_path: Path):
    """When Pub/Sub refuses, the demo ends with the connector's sentence and the place of Spark's log."""
    emulator.fail("Publish", "PERMISSION_DENIED", count=1000)

    with pytest.raises(RuntimeError) as refused:
        demo.run(emulator.endpoint, tmp_path, 100, console)

    assert "projects/flights-demo/topics/flights-" in str(refused.value)
    assert str(refused.value).endswith(f"Spark's log is `{tmp_path / 'spark.log'}`.")
    assert "Traceback" not in str(refused.value)


@pytest.mark.long
def test_lost_flight_is_noticed(console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """When one flight too few is published, the demo reports the difference, and fails."""
    monkeypatch.setattr(demo.flights, "save", _all_but_one(demo.flights.save))

    assert not demo.run(None, tmp_path, 100, console, idle_seconds=1.0)
    assert "NOT EQUAL: rows, distinct ids, sum of id" in console.export_text()


def _all_but_one(save):
    return lambda table, path: save(table.slice(0, table.num_rows - 1), path)

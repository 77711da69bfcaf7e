"""The examples of docs/writing.md, and the job of docs/dead-letters.md, on an emulator."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT

PROJECT = "projects/my-project"


@pytest.mark.long
def test_every_block_runs(spark: SparkSession, emulator: Emulator):
    """Every block of the page runs, top to bottom in one session, once the topics exist. Every write arrives."""
    for name in ("departures", "counts"):
        emulator.create_topic(f"{PROJECT}/topics/{name}")
        emulator.create_subscription(f"{PROJECT}/subscriptions/{name}-in", f"{PROJECT}/topics/{name}")
    here = rf'.option("endpoint", "{emulator.endpoint}")\g<0>'
    names: dict[str, Any] = {"spark": spark}
    try:
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "writing.md").read_text(), re.DOTALL):
            at_home = re.sub(r'\.option\("(topicId|subscriptionId)"', here, block)
            exec(compile(at_home, "docs/writing.md", "exec"), names)
        names["query"].processAllAvailable()
    finally:
        if "query" in names:
            names["query"].stop()

    counts = emulator.messages(f"{PROJECT}/subscriptions/counts-in")
    assert {"AA": 3, "UA": 3} == {message.ordering_key: json.loads(message.data)["count"] for message in counts}
    departures = emulator.messages(f"{PROJECT}/subscriptions/departures-in")
    assert sorted([b'{"carrier":"AA","flight":1141}', b'{"carrier":"UA","flight":1545}'] * 3) == sorted(
        message.data for message in departures
    )
    assert {"", "AA", "UA"} == {message.ordering_key for message in departures}
    assert 2 == names["summary"].value.messages


@pytest.mark.long
def test_dead_letters_are_redriven_by_a_job(spark: SparkSession, emulator: Emulator, tmp_path: Path):
    """The job of docs/dead-letters.md publishes repaired messages, and keeps those that were cut in a table."""
    for name in ("events", "dead-letters"):
        emulator.create_topic(f"{PROJECT}/topics/{name}")
        emulator.create_subscription(f"{PROJECT}/subscriptions/{name}-in", f"{PROJECT}/topics/{name}")
    of_connector = {"pubsub_spark_error": "no JSON", "pubsub_spark_data_bytes": "12", "pubsub_spark_ordering_key": "AA"}
    of_pubsub = {"CloudPubSubDeadLetterSourceSubscription": "events-in"}
    emulator.publish(
        f"{PROJECT}/topics/dead-letters",
        {"data": b'{"delay":NaN}', "attributes": {"k": "v"} | of_connector},
        {"data": b"{}", "attributes": of_pubsub, "ordering_key": "UA"},
        {"data": b"{", "attributes": of_connector | {"pubsub_spark_incomplete": "data"}},
    )
    section = (ROOT / "docs" / "dead-letters.md").read_text().partition("### Redriving with Spark")[2]
    [block] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    block = block.replace('.format("pubsub")', f'.format("pubsub").option("endpoint", "{emulator.endpoint}")')
    block = block.replace('.option("subscriptionId"', '.option("idleTimeout", "1s").option("subscriptionId"')
    names: dict[str, Any] = {"spark": spark}
    exec(compile(block.replace("/tmp/dead-letters", str(tmp_path)), "docs/dead-letters.md", "exec"), names)
    names["query"].awaitTermination()

    redriven = emulator.messages(f"{PROJECT}/subscriptions/events-in")
    assert [(b'{"delay":null}', {"k": "v"}, "AA"), (b"{}", {}, "UA")] == sorted(
        (message.data, message.attributes, message.ordering_key) for message in redriven
    )
    assert [b"{"] == [bytes(row.data) for row in spark.read.parquet(str(tmp_path / "incomplete")).collect()]

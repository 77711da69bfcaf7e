"""What docs/writing.md shows runs, and does what it says."""

from __future__ import annotations

import json
import re
from typing import Any

from pyspark.sql import SparkSession

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT

PROJECT = "projects/my-project"


def test_every_block_runs(spark: SparkSession, emulator: Emulator):
    """Every block of the page runs, top to bottom in one session, once the topics exist; every write arrives."""
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

"""Seconds that a scheduled job takes: `availableNow` into a `noop` sink, from `start()` until the query has ended.

    python benchmarks/scheduled.py [--runs 5] [--cases NAME...]

The emulator keeps the messages of each run before it starts. In the same session: Spark's file source with 500 rows in
one file, and a Python source whose rows are ready (ready_made.py), which is the floor of ours. `first` is the first
query of this application: JVM, Python workers and imports have to start. `import` is that of a fresh process which has
Spark's and Arrow's modules, by `python -X importtime`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from pyspark.sql import SparkSession  # noqa: E402
from read import session  # noqa: E402
from ready_made import ReadyMade  # noqa: E402

from pubsub_spark.emulator import Emulator  # noqa: E402

_CASES: dict[str, tuple[int, Mapping[str, Any]]] = {  # the number of messages, and options
    "nothing": (0, {}),
    "500 messages": (500, {}),
    "1,000 messages": (1000, {}),
    "20,000 messages": (20_000, {}),
    "30,000 messages, 64 partitions": (30_000, {"numFetchPartitions": 64}),
}


def scheduled(spark: SparkSession, emulator: Emulator, messages: int, options: Mapping[str, Any]) -> float:
    """Return the seconds of one run over so many messages of a new subscription."""
    topic, subscription = (f"projects/bench/{kind}/n{time.monotonic_ns()}" for kind in ("topics", "subscriptions"))
    emulator.create_topic(topic)
    emulator.create_subscription(subscription, topic)
    for first in range(0, messages, 1000):
        emulator.publish(topic, *[b"x" * 100] * min(1000, messages - first))
    stream = spark.readStream.format("pubsub").options(
        backend="emulator", endpoint=emulator.endpoint, subscriptionId=subscription, **options
    )
    with tempfile.TemporaryDirectory() as staging:
        seconds, rows = timed(stream.option("stagingLocation", staging).load())
    if (rows, emulator.backlog(subscription)) != (messages, 0):
        raise RuntimeError(f"{rows} rows of {messages} messages, {emulator.backlog(subscription)} not acknowledged")
    return seconds


def timed(frame: Any) -> tuple[float, int]:
    """Return the seconds of a run into `noop`, and its rows."""
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        began = time.monotonic()
        query = writer.start()
        query.awaitTermination()
        seconds = time.monotonic() - began
        return seconds, sum(progress["numInputRows"] for progress in query.recentProgress)


def import_seconds() -> float:
    """Return the seconds that a fresh process takes to import the connector."""
    code = "import numpy, pyarrow.compute, pyspark.sql.datasource, pubsub_spark.source"
    command = [sys.executable, "-X", "importtime", "-c", code]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    [last] = (line for line in lines if line.endswith("| pubsub_spark.source"))
    return int(last.split("|")[1]) / 1e6


def main(runs: int, cases: list[str]) -> None:
    """Print the seconds of each case: median, least and most."""
    print(f"import: {statistics.median(import_seconds() for _ in range(5)):.2f} s")
    spark = session()
    with Emulator() as emulator, tempfile.TemporaryDirectory() as folder:
        print(f"first: {scheduled(spark, emulator, 500, {}):.1f} s\n")
        spark.range(500).coalesce(1).write.mode("overwrite").parquet(folder)
        files = spark.readStream.schema("id long").parquet(folder)
        spark.dataSource.register(ReadyMade)
        ready = spark.readStream.format("ready_made").option("partitions", 2)
        taken: dict[str, list[float]] = {}
        for _ in range(runs + 1):  # the first of each is not counted
            taken.setdefault("file source, 500 rows", []).append(timed(files)[0])
            for rows in (0, 20_000):
                taken.setdefault(f"ready-made Python source, {rows:,} rows", []).append(
                    timed(ready.option("messages", rows).load())[0]
                )
            for case in cases:
                taken.setdefault(case, []).append(scheduled(spark, emulator, *_CASES[case]))
        print("| run | s | least | most |\n|---|---|---|---|")
        for case, (_, *seconds) in taken.items():
            print(f"| {case} | {statistics.median(seconds):.2f} | {min(seconds):.2f} | {max(seconds):.2f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cases", nargs="+", choices=_CASES, default=list(_CASES))
    given = parser.parse_args()
    main(given.runs, given.cases)

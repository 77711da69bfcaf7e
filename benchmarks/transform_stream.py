"""Decode, transform, encode: one query from a subscription to a topic, both with the demo's schema of 20 fields.

    python benchmarks/transform_stream.py [--messages N]

Read from `canned.py` with `decode=topic`, one field changed, written to `write_server.py` with `encode=topic`. Compared
with the same query with Spark's `noop` sink, and one that reads and writes bytes. `local[2]`, the servers on the same
two cores. Each way runs twice, and the better counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql.functions import col

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import codec_stream  # noqa: E402
import read  # noqa: E402
import write  # noqa: E402

FLIGHTS = [sys.executable, codec_stream.__file__, "serve", "0"]


def run(spark: Any, messages: int, decode: bool, topic: str | None) -> float:
    """Return messages/s of a query to the write server's topic, or to nowhere."""
    with (
        read.canned(messages, FLIGHTS) as endpoint,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as staging,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoint,
    ):
        options = {
            "subscriptionId": read.SUBSCRIPTION,
            "endpoint": endpoint,
            "stagingLocation": staging,
            "numFetchPartitions": 2,
            "maxMessagesPerTrigger": 400_000,
            "maxBytesPerTrigger": "1g",
            "maxFetchPeriod": "10s",
        } | ({"decode": "topic", "schema": codec_stream.SCHEMA} if decode else {})
        stream = spark.readStream.format("pubsub").options(**options).load()
        if decode:
            stream = stream.withColumn("value", col("value").withField("distance", col("value.distance") * 2))
            stream = stream.select("value")
        else:
            stream = stream.select("data")
        writer = stream.writeStream.option("checkpointLocation", checkpoint).outputMode("append")
        if topic is None:
            query = writer.format("noop").start()
        else:
            sink = {"backend": "emulator", "endpoint": topic, "topicId": write.TOPIC}
            query = writer.format("pubsub").options(**sink, encode="topic" if decode else "none").start()
        return read.drained(query, messages)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=4_000_000)
    messages = arguments.parse_args().messages
    spark = read.session()
    rates = dict.fromkeys(("bytes", "bytes to a topic", "decode, transform", "decode, transform, encode, publish"), 0.0)
    with write.server() as topic:
        for _ in range(2):
            for name, decode, sink in zip(rates, (False, False, True, True), (None, topic) * 2, strict=True):
                rates[name] = max(rates[name], run(spark, messages, decode, sink))
    spark.stop()
    for name, rate in rates.items():
        print(f"{name:36}{rate:12,.0f} messages/s{rate / rates['bytes']:8.2f} of bytes to nowhere")


if __name__ == "__main__":
    main()

"""The main job, end to end: a year of real flights through Pub/Sub into a table, and the proof that none is missing.

`run` plays the part of an application: it knows Spark and Google's own clients, and of the connector only
`format("pubsub")` and its options.

    flights    the data: the source file, its columns, the Avro schema made of them, the totals to compare
    service    the Pub/Sub: an emulator in this process or at an address. Topic, schema, subscription
    session    the Spark session, with its log in a file
    report     the terminal output: progress, table, the proof
    picture    the table as a picture
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console

from . import flights, picture, report, service, session

__all__ = ["run"]

# More tasks than cores, so that their ends move the bar at an endpoint that does not report its backlog.
_PUBLISH_TASKS = 8
# A year arrives in several micro-batches, as it would in production, and the bar moves.
_MAX_MESSAGES_PER_TRIGGER = 60_000
# Without a new message, until the demo stops reading. Messages that were sent to a stream while it ended are delivered
# again when their leases end, a minute later: often by Google's emulator, by ours if the machine is very busy.
_IDLE_SECONDS = 90.0


class Rate(NamedTuple):
    """A number of messages and the seconds that they took."""

    messages: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.messages:,} messages in {self.seconds:.1f} s: {self.messages / self.seconds:,.0f} messages/s"


def run(
    endpoint: str | None, output: Path, rows: int | None, console: Console, idle_seconds: float = _IDLE_SECONDS
) -> bool:
    """Return whether everything that was published is in the table."""
    started = time.monotonic()
    if endpoint is not None:
        service.check(endpoint)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(f"The folder `{output}` cannot be made: {error.strerror}.") from error
    for earlier in ("flights", "departures", "checkpoint"):
        shutil.rmtree(output / earlier, ignore_errors=True)

    source = flights.read(rows)
    flights.save(source, output / "source.parquet")
    console.print(f"{source.num_rows:,} flights from New York in 2013, {len(flights.COLUMNS)} columns")
    with session.start(output / "spark.log", console) as spark, service.provide(endpoint) as pubsub:
        console.print(f"Pub/Sub at {pubsub.endpoint}, {'an emulator of our own' if endpoint is None else 'as asked'}")
        console.print(f"    {pubsub.topic}, with an Avro schema\n    {pubsub.subscription}\n")
        sent = _publish(spark, pubsub, output, source.num_rows, console)
        received = read_flights(spark, pubsub, output, source.num_rows, console, idle_seconds)

        table = spark.read.parquet(str(output / "flights"))
        departures = _departures(table)
        departures.write.parquet(str(output / "departures"))
        by_carrier_and_hour = departures.toArrow()
        report.print_departures(console, by_carrier_and_hour)
        picture.draw(by_carrier_and_hour, output / "departures.png")

        console.print(f"published {sent}")
        console.print(f"read      {received}")
        console.print(f"Parquet   {output / 'flights'}, {output / 'departures'}")
        console.print(f"picture   {output / 'departures.png'}\n")
        equal = report.print_proof(console, flights.totals(source), flights.totals_of(table))
    console.print(f"{time.monotonic() - started:.0f} s in all")
    return equal


def _publish(spark: SparkSession, pubsub: service.PubSub, output: Path, total: int, console: Console) -> Rate:
    df = spark.read.parquet(str(output / "source.parquet")).repartition(_PUBLISH_TASKS)
    started = time.monotonic()
    with report.bar(console, "publishing", total) as advance, report.watch(pubsub.published(spark, total), advance):
        df.write.format("pubsub").mode("append").options(**pubsub.options).option("topicId", pubsub.topic).save()
        advance(total)  # a task succeeds only when all its messages have an id
    return Rate(total, time.monotonic() - started)


def read_flights(
    spark: SparkSession, pubsub: service.PubSub, output: Path, total: int, console: Console, idle_seconds: float
) -> Rate:
    stream = (
        spark.readStream.format("pubsub")
        .options(**pubsub.options)
        .option("subscriptionId", pubsub.subscription)
        .option("decode", "topic")
        .option("mode", "FAILFAST")
        .option("maxMessagesPerTrigger", _MAX_MESSAGES_PER_TRIGGER)
        .load()
        .select("message_id", "publish_time", "value.*")
    )
    started = time.monotonic()
    seen: dict[int, int] = {}
    with report.bar(console, "reading", total) as advance:
        rows, latest = 0, started
        while True:
            _drain(stream, output, seen, advance)
            if sum(seen.values()) > rows:
                rows, latest = sum(seen.values()), time.monotonic()
            if rows >= total or time.monotonic() - latest >= idle_seconds:
                return Rate(rows, latest - started)


def _drain(stream: DataFrame, output: Path, seen: dict[int, int], advance: Callable[[int], None]) -> None:
    """`seen` has the rows of each batch of all runs on this checkpoint."""
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(output / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(output / "flights"))
    )
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(1))
        seen.update((progress.batchId, progress.numInputRows) for progress in query.recentProgress)
        advance(sum(seen.values()))


def _departures(table: DataFrame) -> DataFrame:
    return (
        table.where(F.col("dep_time").isNotNull())
        .groupBy("carrier", "hour")
        .agg(F.count("*").alias("departures"), F.round(F.avg("dep_delay"), 2).alias("mean_delay"))
        .orderBy("carrier", "hour")
    )

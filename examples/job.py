"""A job: a subscription into a Delta table, each message once, with dead letters, alerts and metrics. Copy it.

    spark-submit --py-files alerts.py job.py --subscription projects/my-project/subscriptions/flights-to-lake \
        --table gs://my-bucket/flights --checkpoint gs://my-bucket/checkpoint --staging gs://my-staging-bucket/staging \
        --dead-letters projects/my-project/topics/dead-letters --metrics gs://my-bucket/metrics --trigger "10 seconds"

Each message whose payload can be decoded is one row of the table, however often the job is killed and started again
with the same checkpoint. The others are copied to the dead-letter topic and acknowledged. A copy may be repeated. If
Spark has no jar of Delta Lake, the table is Parquet, which a reader may see in the middle of a batch. docs/to-table.md
has the settings for Delta.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from alerts import PubSubListener  # examples/alerts.py, in the same folder or by --py-files
from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("job")


def has_delta(spark: SparkSession, table: str) -> bool:
    """Return whether Spark can load Delta Lake. A missing table is another error than a missing jar."""
    try:
        spark.read.format("delta").load(table)
    except Exception as error:  # of Py4J or of Spark, by the version
        return "DATA_SOURCE_NOT_FOUND" not in str(error)
    return True


def query_id(batch: DataFrame) -> str:
    """Return the id of the query, which is that of its checkpoint. A new checkpoint starts at batch 0 again."""
    return str(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def write_delta(table: str, batch: DataFrame, number: int) -> None:
    """Append a batch. Delta skips a batch that it already has, by `txnAppId` and `txnVersion`."""
    exactly_once = {"txnAppId": query_id(batch), "txnVersion": str(number)}
    batch.write.format("delta").mode("append").options(mergeSchema="true", **exactly_once).save(table)


def write_parquet(table: str, batch: DataFrame, number: int) -> None:
    """Write a batch to a folder of its own, so that a repeated batch replaces itself."""
    batch.write.mode("overwrite").parquet(f"{table}/query={query_id(batch)}/batch={number}")


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description="Read a subscription into a table, each message once.")
    parser.add_argument("--subscription", required=True, help="projects/PROJECT/subscriptions/SUBSCRIPTION")
    parser.add_argument("--table", required=True, help="path or URL of the table")
    parser.add_argument("--checkpoint", required=True, help="path or URL, of this job only")
    parser.add_argument("--staging", required=True, help="stagingLocation: on a cluster gs://, s3:// or az://")
    parser.add_argument("--dead-letters", required=True, help="topic for payloads that cannot be decoded")
    parser.add_argument("--metrics", help="metricsLocation: folder for metrics in Prometheus' text format")
    parser.add_argument("--trigger", default="10 seconds", help="an interval, or availableNow for a scheduled job")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="another option to read with"
    )
    return parser.parse_args()


def main() -> None:
    """Run the query until it ends or fails."""
    job = arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs a line for each batch
    spark = SparkSession.builder.appName(f"Pub/Sub to {job.table}").getOrCreate()
    listener = PubSubListener(alert=log.error)  # or a function that calls the on-call engineer
    spark.streams.addListener(listener)

    write: Callable[[str, DataFrame, int], None] = write_delta
    if not has_delta(spark, job.table):
        write = write_parquet
        log.warning("Spark cannot load Delta Lake, so `%s` is Parquet. Add Delta's jar with --packages.", job.table)

    options = {
        "subscriptionId": job.subscription,
        "stagingLocation": job.staging,
        "decode": "topic",
        "mode": "DROPMALFORMED",  # without rows, because they are in the dead-letter topic
        "deadLetterTopic": job.dead_letters,
        **({"metricsLocation": job.metrics} if job.metrics else {}),
        **dict(option.split("=", 1) for option in job.option),
    }
    rows = spark.readStream.format("pubsub").options(**options).load()  # on Databricks: format("pubsub_spark")
    trigger: dict[str, Any] = {"processingTime": job.trigger}
    if job.trigger == "availableNow":
        trigger = {"availableNow": True}
    query = (
        rows.select("message_id", "publish_time", "value.*")
        .writeStream.queryName("pubsub-to-table")
        .foreachBatch(partial(write, job.table))
        .option("checkpointLocation", job.checkpoint)
        .trigger(**trigger)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        listener.wait_for_end(query)


if __name__ == "__main__":
    main()

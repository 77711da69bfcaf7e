# Databricks notebook source
# MAGIC %md
# MAGIC # Ordering keys, out and back
# MAGIC
# MAGIC Messages with the same ordering key reach a subscription with message ordering in the order in which they were published. This
# MAGIC notebook writes a column as the ordering key, reads the messages back, and shows that the order of each key is kept.
# MAGIC
# MAGIC It needs no account: a Pub/Sub emulator runs in this process.

# COMMAND ----------

import os
import sys
import tempfile
from pathlib import Path

from pubsub_spark.emulator import Emulator

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # as plain Python: Spark's workers are this Python, too
emulator = Emulator().start()
os.environ["PUBSUB_EMULATOR_HOST"] = emulator.endpoint  # for Google's clients
service = {"endpoint": emulator.endpoint, "projectId": "notebook"}
folder = Path(tempfile.mkdtemp(prefix="notebook-"))

# COMMAND ----------

topic, subscription = "projects/notebook/topics/positions", "projects/notebook/subscriptions/positions"
emulator.create_topic(topic)
emulator.create_subscription(subscription, topic, enable_message_ordering=True)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Out
# MAGIC
# MAGIC Ten aircraft report a hundred positions each. `orderingKey` names the column with the key. Rows of a key must be in one partition and
# MAGIC in their order when they are written: `repartition` by the key, and sort within.

# COMMAND ----------

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
positions = spark.range(1000).selectExpr("concat('N', id % 10) tail", "cast(id div 10 as int) number")
(
    positions.repartition("tail")
    .sortWithinPartitions("tail", "number")
    .selectExpr("cast(number as string) data", "tail")
    .write.format("pubsub_spark")
    .options(**service, topicId=topic, orderingKey="tail")
    .mode("append")
    .save()
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. And back
# MAGIC
# MAGIC All rows of a key in a batch are in one partition, in publish order, and the next batch has what comes after them. So a query that
# MAGIC does not repartition sees the order. `monotonically_increasing_id` numbers the rows as they come.

# COMMAND ----------

from pyspark.sql import DataFrame

arrived: list[DataFrame] = []


def keep(batch: DataFrame, number: int) -> None:
    rows = batch.selectExpr(
        "ordering_key tail", "cast(cast(data as string) as int) number", "monotonically_increasing_id() row"
    )
    arrived.extend((number, each.row, each.tail, each.number) for each in rows.collect())


query = (
    spark.readStream.format("pubsub_spark")
    .options(**service, subscriptionId=subscription)
    .load()
    .writeStream.foreachBatch(keep)
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(f"{len(arrived)} messages in {len({batch for batch, *_ in arrived})} batches")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. The proof

# COMMAND ----------

by_tail: dict[str, list[int]] = {}
for _batch, _row, tail, number in sorted(arrived):
    by_tail.setdefault(tail, []).append(number)
for tail, numbers in sorted(by_tail.items()):
    print(tail, "in order" if numbers == list(range(100)) else "NOT in order", numbers[:5], "...", numbers[-1])
assert {f"N{n}": list(range(100)) for n in range(10)} == by_tail

# COMMAND ----------

emulator.stop()

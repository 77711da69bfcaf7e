# Databricks notebook source
# MAGIC %md
# MAGIC # Write and read ordering keys
# MAGIC
# MAGIC A subscription with message ordering delivers messages of the same ordering key in the order of their publication. This
# MAGIC notebook writes a column as the ordering key, reads the messages, and checks the order of each key.
# MAGIC
# MAGIC A Pub/Sub emulator runs in this process, so no account is needed.

# COMMAND ----------

import os
import sys
import tempfile
from pathlib import Path

from pubsub_spark.emulator import Emulator

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of Spark's workers, outside of Databricks
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
# MAGIC ## 1. Write
# MAGIC
# MAGIC Ten aircraft report a hundred positions each. `orderingKey` names the column with the key. Before the write, bring the
# MAGIC rows of a key into one partition with `repartition`, and sort them there.

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
# MAGIC ## 2. Read
# MAGIC
# MAGIC All rows of a key in a batch are in one partition, in publish order. Later messages are in later batches. So a query
# MAGIC without a repartition sees the order. `monotonically_increasing_id` numbers the rows in it.

# COMMAND ----------

from pyspark.sql import DataFrame

arrived: list[DataFrame] = []


def keep(batch: DataFrame, number: int) -> None:
    rows = batch.selectExpr(
        "ordering_key tail", "cast(cast(data as string) as int) number", "monotonically_increasing_id() row"
    )
    arrived.extend((number, position.row, position.tail, position.number) for position in rows.collect())


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

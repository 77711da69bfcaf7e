# Databricks notebook source
# MAGIC %md
# MAGIC # A schema revision arrives while a stream is running
# MAGIC
# MAGIC A topic's schema is a resource with revisions. Each message names its revision, so a reader can decode old and new
# MAGIC messages in one query. This notebook changes the schema of a topic while a query reads it.
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

# MAGIC %md
# MAGIC ## 1. A topic whose schema has two fields
# MAGIC
# MAGIC The second subscription is for step 4. It keeps the messages until then.

# COMMAND ----------

import json

schema, topic = "projects/notebook/schemas/flight", "projects/notebook/topics/flights"
first = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "flight", "type": "int"}],
}
emulator.create_schema(schema, "AVRO", json.dumps(first))
emulator.create_topic(topic, schema=schema)
for name in ("running", "later"):
    emulator.create_subscription(f"projects/notebook/subscriptions/{name}", topic)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. A running query and rows of the first revision
# MAGIC
# MAGIC `decode=topic` adds the column `value` with the fields of the newest revision at the start of the query.

# COMMAND ----------

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

spark = SparkSession.builder.getOrCreate()


def start(subscription: str) -> StreamingQuery:
    """Start a query from a subscription into a table in memory of the same name."""
    options = {**service, "subscriptionId": subscription, "decode": "topic"}
    stream = spark.readStream.format("pubsub_spark").options(**options).load()
    written = stream.select("value.*", "schema_revision").writeStream.format("memory").queryName(subscription)
    return written.option("checkpointLocation", str(folder / subscription)).start()


def publish(rows: DataFrame) -> None:
    rows.write.format("pubsub_spark").options(**service).mode("append").option("topicId", topic).save()


query = start("running")
publish(spark.createDataFrame([("UA", 1545), ("AA", 1141)], "carrier string, flight int"))
query.processAllAvailable()
spark.table("running").drop("schema_revision").orderBy("carrier").show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. The second revision
# MAGIC
# MAGIC It adds a field with a default, so readers of each revision can read messages of the other. Pub/Sub refuses to commit a
# MAGIC definition that breaks this.

# COMMAND ----------

from google.cloud.pubsub import SchemaServiceClient
from google.pubsub_v1.types import Schema

second = {**first, "fields": [*first["fields"], {"name": "delay", "type": ["null", "int"], "default": None}]}
revision = Schema(name=schema, type_=Schema.Type.AVRO, definition=json.dumps(second))
SchemaServiceClient().commit_schema(name=schema, schema=revision)
publish(spark.createDataFrame([("B6", 725, 18)], "carrier string, flight int, delay int"))
query.processAllAvailable()
running = spark.table("running").orderBy("carrier")
running.drop("schema_revision").show()
print("revisions of the messages:", running.select("schema_revision").distinct().count())

# COMMAND ----------

# MAGIC %md
# MAGIC The query continues with the columns of its start. It reads the message of the second revision without the new field. A
# MAGIC query that starts after the revision has a column for the field.
# MAGIC
# MAGIC ## 4. The same messages with the columns of the second revision
# MAGIC
# MAGIC `delay` is null in messages of the first revision.

# COMMAND ----------

again = start("later")
again.processAllAvailable()
spark.table("later").drop("schema_revision").orderBy("carrier").show()

# COMMAND ----------

assert {"UA": 1545, "AA": 1141, "B6": 725} == {row.carrier: row.flight for row in spark.table("running").collect()}
assert {"UA": None, "AA": None, "B6": 18} == {row.carrier: row.delay for row in spark.table("later").collect()}
query.stop()
again.stop()
emulator.stop()
print("every message was decoded, with the columns of the revision at the start of its query")

# Databricks notebook source
# MAGIC %md
# MAGIC # A year of flights through Pub/Sub
# MAGIC
# MAGIC The steps of `make demo`. Flights that left New York in 2013 are published from a DataFrame and read with Structured
# MAGIC Streaming. They are then counted by carrier and hour, and compared with their file.
# MAGIC
# MAGIC The notebook runs on Databricks and as plain Python (`python notebooks/1_stream_to_table.py`). It needs the extra
# MAGIC `demo`, which includes the flights. It uses the first 20,000. Set `FLIGHTS` to another number, or to 336776 for all.

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. A Pub/Sub emulator
# MAGIC
# MAGIC It runs in this process. Google's clients find it by the variable `PUBSUB_EMULATOR_HOST`. The connector also reads this
# MAGIC variable if it is set before Spark starts. Here it gets the option `endpoint`. To use the real service, set `service` to
# MAGIC `{}` and delete the rest of this cell and the last cell.

# COMMAND ----------

import os
import sys
import tempfile
import uuid
from pathlib import Path

from pubsub_spark.emulator import Emulator

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # of Spark's workers, outside of Databricks
emulator = Emulator().start()
os.environ["PUBSUB_EMULATOR_HOST"] = emulator.endpoint
service = {"endpoint": emulator.endpoint}

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. A topic with an Avro schema
# MAGIC
# MAGIC The topic refuses messages that are not flights. `NA` in the file becomes null.

# COMMAND ----------

from google.cloud.pubsub import PublisherClient, SchemaServiceClient, SubscriberClient
from google.pubsub_v1.types import Encoding, Schema, SchemaSettings, Subscription, Topic

from pubsub_spark.demo import flights

project = os.environ.get("GOOGLE_CLOUD_PROJECT", "flights-notebook")
run = uuid.uuid4().hex[:8]
topic = f"projects/{project}/topics/flights-{run}"
subscription = f"projects/{project}/subscriptions/flights-{run}"

schema = SchemaServiceClient().create_schema(
    parent=f"projects/{project}",
    schema=Schema(type_=Schema.Type.AVRO, definition=flights.avro_schema()),
    schema_id=f"flight-{run}",
)
settings = SchemaSettings(schema=schema.name, encoding=Encoding.BINARY)
PublisherClient().create_topic(request=Topic(name=topic, schema_settings=settings))
SubscriberClient().create_subscription(request=Subscription(name=subscription, topic=topic, ack_deadline_seconds=60))

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Publish a DataFrame
# MAGIC
# MAGIC The DataFrame has no column `data`, so each row is encoded with the topic's schema. The format is `pubsub_spark`,
# MAGIC because `pubsub` is Databricks' own reader on Databricks. Elsewhere `pubsub` also works.

# COMMAND ----------

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.getOrCreate()

file = flights.read(int(os.environ.get("FLIGHTS", "20000")))
departures_of_2013 = spark.createDataFrame(file)
departures_of_2013.write.format("pubsub_spark").options(**service).mode("append").option("topicId", topic).save()
print(f"{file.num_rows:,} flights published")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. Read them with Structured Streaming
# MAGIC
# MAGIC `decode=topic` adds the column `value` with the fields of the topic's schema. `availableNow` reads the available
# MAGIC messages and ends. A message is acknowledged after Spark has committed its batch.

# COMMAND ----------

folder = Path(tempfile.mkdtemp(prefix="flights-"))
stream = spark.readStream.format("pubsub_spark").options(**service).option("subscriptionId", subscription)
query = (
    stream.option("decode", "topic")
    .load()
    .select("message_id", "publish_time", "value.*")
    .writeStream.format("parquet")
    .option("checkpointLocation", str(folder / "checkpoint"))
    .trigger(availableNow=True)
    .start(str(folder / "flights"))
)
query.awaitTermination()
table = spark.read.parquet(str(folder / "flights"))
table.select("message_id", "publish_time", "id", "carrier", "origin", "dest", "dep_delay").orderBy("id").show(5)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. Count and draw

# COMMAND ----------

departures = (
    table.where("dep_time is not null")
    .groupBy("carrier", "hour")
    .agg(F.count("*").alias("departures"), F.round(F.avg("dep_delay"), 2).alias("mean_delay"))
    .orderBy("carrier", "hour")
)
departures.show(10)

# COMMAND ----------

from pubsub_spark.demo import picture

picture.draw(departures.toArrow(), folder / "departures.png")
picture.show(folder / "departures.png")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 6. The proof
# MAGIC
# MAGIC The number of rows, of distinct ids, and the sum of every column. pyarrow computes them from the file, Spark from the
# MAGIC table.

# COMMAND ----------

sent, arrived = flights.totals(file), flights.totals_of(table)
for name, expected in sent.items():
    print(f"{name:25} {expected:>20,} {arrived[name]:>20,}")
assert sent == arrived, "the table differs from the file"
print("equal")

# COMMAND ----------

SubscriberClient().delete_subscription(subscription=subscription)
PublisherClient().delete_topic(topic=topic)
SchemaServiceClient().delete_schema(name=schema.name)

# COMMAND ----------

emulator.stop()

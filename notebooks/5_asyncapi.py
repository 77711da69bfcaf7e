# Databricks notebook source
# MAGIC %md
# MAGIC # From an AsyncAPI document to a stream
# MAGIC
# MAGIC One document describes a topic, its schema and subscription, and the format of their messages. `pubsub-spark apply`
# MAGIC creates these resources. The query takes its options from the same document.
# MAGIC
# MAGIC A Pub/Sub emulator runs in this process, so no account is needed. The notebook needs the extra `asyncapi`.

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
# MAGIC ## 1. The document
# MAGIC
# MAGIC The binding of the message names its schema and its ordering key, the payload's field `tailnum`. It adds the attribute
# MAGIC `source` to each message.

# COMMAND ----------

document = folder / "flights.yaml"
with document.open("w") as file:
    file.write("""
asyncapi: 3.0.0
info: {title: Flights, version: 1.0.0}
servers:
  production: {host: pubsub.googleapis.com, protocol: googlepubsub}
channels:
  departures:
    address: flight-departures
    messages:
      flightDeparted: {$ref: '#/components/messages/flightDeparted'}
    bindings:
      googlepubsub:
        labels: {team: flights}
        schemaSettings: {name: flight, encoding: binary}
operations:
  flight-departures-to-table:
    action: receive
    channel: {$ref: '#/channels/departures'}
components:
  messages:
    flightDeparted:
      payload:
        schemaFormat: application/vnd.apache.avro+yaml;version=1.9.0
        schema:
          type: record
          name: Flight
          fields:
            - {name: carrier, type: string}
            - {name: flight, type: int}
            - {name: tailnum, type: ["null", string], default: null}
      bindings:
        googlepubsub:
          orderingKey: tailnum
          attributes: {source: nyc}
          schema: {name: flight}
""")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Apply it twice
# MAGIC
# MAGIC The second run changes nothing.

# COMMAND ----------

from pubsub_spark.cli import app

command = ["apply", str(document), "--project", "notebook", "--endpoint", emulator.endpoint]
for _ in range(2):
    app(command, standalone_mode=False)  # in a shell: pubsub-spark apply flights.yaml --project notebook

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Write and read with the document

# COMMAND ----------

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
options = {**service, "asyncapi": str(document), "message": "flightDeparted"}
flights = spark.createDataFrame(
    [("UA", 1545, "N14228"), ("AA", 1141, "N619AA"), ("B6", 725, None)], "carrier string, flight int, tailnum string"
)
flights.write.format("pubsub_spark").mode("append").options(**options).save()
stream = spark.readStream.format("pubsub_spark").options(**options).load()
query = (
    stream.selectExpr("value.*", "attributes['source'] source", "ordering_key")
    .writeStream.format("memory")
    .queryName("departures")
    .option("checkpointLocation", str(folder / "checkpoint"))
    .start()
)
query.processAllAvailable()
spark.table("departures").orderBy("carrier").show(truncate=False)

# COMMAND ----------

rows = {row.carrier: (row.flight, row.ordering_key, row.source) for row in spark.table("departures").collect()}
assert {"UA": (1545, "N14228", "nyc"), "AA": (1141, "N619AA", "nyc"), "B6": (725, None, "nyc")} == rows
query.stop()
emulator.stop()

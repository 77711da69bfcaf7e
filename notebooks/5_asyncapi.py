# Databricks notebook source
# MAGIC %md
# MAGIC # From an AsyncAPI document to a stream
# MAGIC
# MAGIC One document says which topic, schema and subscription there are, and how messages are written and read. `pubsub-spark apply` makes
# MAGIC the project so; the same document gives the query its options.
# MAGIC
# MAGIC It needs no account: a Pub/Sub emulator runs in this process. It needs the extra `asyncapi`.

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

# MAGIC %md
# MAGIC ## 1. The document
# MAGIC
# MAGIC The binding of the message adds the attribute `source` to each message, makes the payload's field `tailnum` its ordering key, and
# MAGIC names the schema.

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
# MAGIC ## 2. Apply it, twice
# MAGIC
# MAGIC A second run finds nothing to do.

# COMMAND ----------

from pubsub_spark.cli import app

command = ["apply", str(document), "--project", "notebook", "--endpoint", emulator.endpoint]
for _ in range(2):
    app(command, standalone_mode=False)  # in a shell: pubsub-spark apply flights.yaml --project notebook

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. Write and read by the document

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

# Databricks notebook source
# MAGIC %md
# MAGIC # Kill the driver and start it again: nothing is lost or repeated
# MAGIC
# MAGIC A job reads a subscription into a table. While messages are published, Spark and its driver are killed with `kill -9`.
# MAGIC It is then started again with the same checkpoint. At the end all published messages are compared with the table.
# MAGIC
# MAGIC Spark reads an interrupted batch again from the staging area, with the same rows. So a sink that writes each batch once
# MAGIC (Parquet, Delta) has each message once.
# MAGIC
# MAGIC A Pub/Sub emulator runs in this process, so no account is needed. The picture needs the extra `demo`. The job is a
# MAGIC process here. On Databricks it would be a job of its own.

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

topic, subscription = "projects/notebook/topics/numbers", "projects/notebook/subscriptions/numbers"
emulator.create_topic(topic)
emulator.create_subscription(subscription, topic)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. The job
# MAGIC
# MAGIC The job is as in production: a stream, a sink, a checkpoint and a staging area.

# COMMAND ----------

job = folder / "job.py"
with job.open("w") as file:
    file.write(f"""
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
folder = "{folder}"
stream = (
    spark.readStream.format("pubsub")
    .option("endpoint", "{emulator.endpoint}")
    .option("subscriptionId", "{subscription}")
    .option("stagingLocation", folder + "/staging")
    .load()
)
numbers = stream.selectExpr("cast(cast(data as string) as int) number", "current_timestamp() written")
written = numbers.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
query = written.start(folder + "/table")
query.awaitTermination()
""")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Publish, kill, start again
# MAGIC
# MAGIC The publisher never stops. The first run is killed after some batches, and the second one continues its work. Messages
# MAGIC that the first run had received and not staged are leased to it for up to a minute. Instead of waiting for their
# MAGIC redelivery, the notebook moves the emulator's clock once the streams of the first run have ended.

# COMMAND ----------

import signal
import subprocess
import threading
import time

published: list[float] = []  # when, of each number
publishing = threading.Event()
publishing.set()


def publish() -> None:
    while publishing.is_set():
        emulator.publish(topic, *(str(number) for number in range(len(published), len(published) + 20)))
        published.extend([time.time()] * 20)
        time.sleep(0.1)


def run() -> subprocess.Popen:
    """Start the job as a process group of its own, so that a signal also reaches Spark and its workers."""
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([sys.executable, str(job)], stdout=log, stderr=log, start_new_session=True)


def batches() -> int:
    """Return the number of batches in Spark's commit log."""
    return sum(file.name.isdigit() for file in (folder / "checkpoint" / "commits").glob("*"))


def wait_for(condition, process: subprocess.Popen, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.1)


publisher = threading.Thread(target=publish)
publisher.start()
first = run()
wait_for(lambda: batches() >= 4, first)
os.killpg(first.pid, signal.SIGKILL)
first.wait()
killed, before = time.time(), batches()
while emulator.streams() > 0:
    time.sleep(0.1)
emulator.advance(60)
second = run()
wait_for(lambda: batches() >= before + 2, second)
publishing.clear()
publisher.join()
wait_for(lambda: emulator.backlog(subscription) == 0, second)
os.killpg(second.pid, signal.SIGKILL)  # all messages are acknowledged
second.wait()
print("killed after some batches, started again, all acknowledged")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. The proof

# COMMAND ----------

import json

import pyarrow as pa
import pyarrow.dataset as ds

# Spark's own list of files. A killed run leaves files that belong to no batch.
committed = {
    json.loads(line)["path"].removeprefix("file://")
    for log in (folder / "table" / "_spark_metadata").glob("[0-9]*")
    for line in log.read_text().splitlines()
    if line.startswith("{")
}
table = ds.dataset(sorted(committed), format="parquet").to_table()
numbers = table.column("number").to_pylist()
print("lost: ", len(set(range(len(published))) - set(numbers)))
print("twice:", len(numbers) - len(set(numbers)))
assert sorted(numbers) == list(range(len(published)))

# COMMAND ----------

from pubsub_spark.demo import picture

written = table.column("written").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() / 1e6
start = published[0]
counts = {"published": [seconds - start for seconds in published], "in the table": written - start}
title = "Published, and written by a query that was killed once"
picture.draw_steps(counts, {"kill -9": killed - start}, title, "messages", folder / "proof.png")
picture.show(folder / "proof.png")

# COMMAND ----------

# MAGIC %md
# MAGIC In the flat part Spark starts again. The step after it contains the interrupted batch and the messages that were
# MAGIC published meanwhile. No number is missing or repeated.

# COMMAND ----------

emulator.stop()

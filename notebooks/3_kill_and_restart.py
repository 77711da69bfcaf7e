# Databricks notebook source
# MAGIC %md
# MAGIC # Kill the driver, start it again: nothing is lost, nothing comes twice
# MAGIC
# MAGIC A job reads a subscription into a table. While messages are being published it is killed with `kill -9`, Spark, Python and all, and
# MAGIC started again with the same checkpoint. At the end every message that was published is compared with the table.
# MAGIC
# MAGIC A batch that was interrupted is given to Spark again from the staging area, with the same rows, so a sink that writes each batch
# MAGIC once (Parquet, Delta) has each message once.
# MAGIC
# MAGIC It needs no account: a Pub/Sub emulator runs in this process. The extra `demo` brings what draws the picture. On Databricks the job would be a job of its own; here it is a process.

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

topic, subscription = "projects/notebook/topics/numbers", "projects/notebook/subscriptions/numbers"
emulator.create_topic(topic)
emulator.create_subscription(subscription, topic)

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. The job
# MAGIC
# MAGIC It is what one would write for production: a stream, a sink, a checkpoint, a place for staged batches.

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
# MAGIC The publisher goes on all the time. The first run is killed when it has written some batches; the second has to take over what
# MAGIC the first had begun. What the first had received and not staged is leased to it for up to a minute, and comes again then; instead of
# MAGIC waiting, the emulator's clock is moved while nothing runs.

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
    """Start the job as a process group of its own, so that a signal reaches Spark and its workers, too."""
    with (folder / "log").open("ab") as log:
        return subprocess.Popen([sys.executable, str(job)], stdout=log, stderr=log, start_new_session=True)


def batches() -> int:
    """The number of batches in Spark's commit log."""
    return sum(each.name.isdigit() for each in (folder / "checkpoint" / "commits").glob("*"))


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
emulator.advance(60)
second = run()
wait_for(lambda: batches() >= before + 2, second)
publishing.clear()
publisher.join()
wait_for(lambda: emulator.backlog(subscription) == 0, second)
os.killpg(second.pid, signal.SIGKILL)  # all that it read is acknowledged
second.wait()
print("killed after some batches, started again, all acknowledged")

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. The proof

# COMMAND ----------

import json

import pyarrow as pa
import pyarrow.dataset as ds

# Spark's own list of files: a run that is killed leaves files that no batch has.
committed = {
    json.loads(line)["path"].removeprefix("file://")
    for each in (folder / "table" / "_spark_metadata").glob("[0-9]*")
    for line in each.read_text().splitlines()
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
counts = {"published": [each - start for each in published], "in the table": written - start}
title = "Published, and written by a query that was killed once"
picture.draw_steps(counts, {"kill -9": killed - start}, title, "messages", folder / "proof.png")
picture.show(folder / "proof.png")

# COMMAND ----------

# MAGIC %md
# MAGIC The flat piece is the time in which Spark starts again. The step after it is the interrupted batch and all that was published
# MAGIC meanwhile. No number is missing and none is there twice.

# COMMAND ----------

emulator.stop()

# Databricks notebook source
# MAGIC %md
# MAGIC # On Databricks
# MAGIC
# MAGIC Nothing in this notebook was run on Databricks by us: there is no workspace here. It is derived from Databricks' documentation and from
# MAGIC what open-source Spark does with the same calls. `docs/databricks.md` says for each point what was tried.
# MAGIC
# MAGIC | runtime | Spark | what is to be expected |
# MAGIC |---|---|---|
# MAGIC | 17.x | 4.0 | reads and writes; `availableNow` reads one batch a run; no metrics in `lastProgress` (tried on open-source Spark 4.0) |
# MAGIC | 18.x | 4.1 | the same (tried on open-source Spark 4.1) |
# MAGIC | later, with Spark 4.2 | 4.2 | everything (tried on open-source Spark 4.2 and 4.3) |
# MAGIC | 16.x and before | 3.5 | refused: the API lacks what the connector needs (derived) |
# MAGIC
# MAGIC Access mode *dedicated*: everything. *Standard* and *serverless*: Python sources run in isolated workers; allow egress to
# MAGIC `pubsub.googleapis.com:443` and to the bucket (derived). Serverless takes `trigger(availableNow=True)` alone (derived).

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Install
# MAGIC
# MAGIC The wheel is in a volume; on a cluster with several notebooks make it a library of the cluster. With the
# MAGIC installed versions as constraints pip replaces no package of the runtime. `decode=topic` needs the extra `protoc` for Protobuf
# MAGIC schemas: `docs/databricks.md`.

# COMMAND ----------

# MAGIC %sh pip list --format=freeze > runtime.txt

# COMMAND ----------

# MAGIC %pip install /Volumes/main/default/wheels/pubsub_spark-0.1.0-py3-none-any.whl --constraint runtime.txt

# COMMAND ----------

from pyspark.sql import SparkSession

import pubsub_spark

spark = SparkSession.builder.getOrCreate()
pubsub_spark.register(spark)  # says in one sentence when the workers lack the package

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Credentials
# MAGIC
# MAGIC From secrets. A service credential of Unity Catalog is for Databricks' own connector alone, and is refused with a sentence; a cluster on
# MAGIC Google Cloud with a service account needs no option at all.

# COMMAND ----------

from databricks.sdk.runtime import dbutils

options = {
    "projectId": "my-project",
    "credentials": dbutils.secrets.get("pubsub", "service-account.json"),
    "stagingLocation": "gs://my-bucket/staging",  # all executors see it; a volume may lack create-only writes
}

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. A stream into a table
# MAGIC
# MAGIC `pubsub_spark`, for `pubsub` is Databricks' own reader. The query runs until it is stopped. With `trigger(availableNow=True)` a
# MAGIC run on these runtimes reads one batch: `docs/databricks.md` says what a scheduled job has to set.

# COMMAND ----------

flights = spark.readStream.format("pubsub_spark").options(**options).option("subscriptionId", "flights")
query = (
    flights.option("decode", "topic")
    .load()
    .select("message_id", "publish_time", "value.*")
    .writeStream.option("checkpointLocation", "/Volumes/main/default/checkpoints/flights")
    .trigger(processingTime="10 seconds")
    .toTable("main.default.flights")
)
query.awaitTermination()

# COMMAND ----------

# MAGIC %md
# MAGIC ## 4. The same as a declarative pipeline
# MAGIC
# MAGIC In a pipeline's source file, with the wheel among the pipeline's dependencies:
# MAGIC
# MAGIC ```python
# MAGIC from pyspark import pipelines as dp
# MAGIC
# MAGIC @dp.table(name="flights_raw")
# MAGIC def flights_raw():
# MAGIC     return (
# MAGIC         spark.readStream.format("pubsub_spark")
# MAGIC         .option("projectId", "my-project")
# MAGIC         .option("subscriptionId", "flights")
# MAGIC         .option("stagingLocation", "gs://my-bucket/staging")
# MAGIC         .load()
# MAGIC     )
# MAGIC ```
# MAGIC
# MAGIC `notebooks/databricks.yml` deploys this notebook as a continuous job.

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. From the built-in reader
# MAGIC
# MAGIC The options have the same names; `columns=databricks` gives the same columns. A checkpoint of the built-in reader cannot be read: stop it
# MAGIC when its backlog is empty, and start with a new one.

# COMMAND ----------

same_columns = flights.option("columns", "databricks").load()
same_columns.printSchema()

# Databricks notebook source
# MAGIC %md
# MAGIC # On Databricks
# MAGIC
# MAGIC We have not run this notebook on Databricks, because we have no workspace. It is derived from Databricks' documentation
# MAGIC and from the same calls on open-source Spark. `docs/databricks.md` lists which parts were tried.
# MAGIC
# MAGIC | runtime | Spark | expected |
# MAGIC |---|---|---|
# MAGIC | 17.x | 4.0 | reads and writes. `availableNow` reads one batch per run. `lastProgress` has no metrics (tried on open-source Spark 4.0) |
# MAGIC | 18.x | 4.1 | the same (tried on open-source Spark 4.1) |
# MAGIC | later, with Spark 4.2 | 4.2 | everything (tried on open-source Spark 4.2 and 4.3) |
# MAGIC | 16.x and before | 3.5 | refused: the API is too old for the connector (derived) |
# MAGIC
# MAGIC Access mode *dedicated*: everything works. *Standard* and *serverless*: Python sources run in isolated workers. Allow
# MAGIC egress to `pubsub.googleapis.com:443` and to the bucket (derived). Serverless accepts only `trigger(availableNow=True)`
# MAGIC (derived).

# COMMAND ----------

# MAGIC %md
# MAGIC ## 1. Install
# MAGIC
# MAGIC The wheel is in a volume. If a cluster has several notebooks, install it as a library of the cluster. With the installed
# MAGIC versions as constraints pip replaces no package of the runtime. `decode=topic` needs the extra `protoc` for Protobuf
# MAGIC schemas (`docs/databricks.md`).

# COMMAND ----------

# MAGIC %sh pip list --format=freeze > runtime.txt

# COMMAND ----------

# MAGIC %pip install /Volumes/main/default/wheels/pubsub_spark-0.1.0-py3-none-any.whl --constraint runtime.txt

# COMMAND ----------

from pyspark.sql import SparkSession

import pubsub_spark

spark = SparkSession.builder.getOrCreate()
pubsub_spark.register(spark)  # raises an error if the workers lack the package

# COMMAND ----------

# MAGIC %md
# MAGIC ## 2. Credentials
# MAGIC
# MAGIC Read them from secrets. The connector refuses a service credential of Unity Catalog, because only Databricks' own
# MAGIC connector can use it. A cluster on Google Cloud with a service account needs no option.

# COMMAND ----------

from databricks.sdk.runtime import dbutils

options = {
    "projectId": "my-project",
    "credentials": dbutils.secrets.get("pubsub", "service-account.json"),
    "stagingLocation": "gs://my-staging-bucket/staging",  # reached by all executors. A volume may lack create-only writes
}

# COMMAND ----------

# MAGIC %md
# MAGIC ## 3. A stream into a table
# MAGIC
# MAGIC The format is `pubsub_spark`, because `pubsub` is Databricks' own reader. The query runs until it is stopped. With
# MAGIC `trigger(availableNow=True)` a run on these runtimes reads one batch. `docs/databricks.md` has the options for a
# MAGIC scheduled job.

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
# MAGIC In a pipeline's source file. The wheel is one of the pipeline's dependencies:
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
# MAGIC         .option("stagingLocation", "gs://my-staging-bucket/staging")
# MAGIC         .load()
# MAGIC     )
# MAGIC ```
# MAGIC
# MAGIC `notebooks/databricks.yml` deploys this notebook as a continuous job.

# COMMAND ----------

# MAGIC %md
# MAGIC ## 5. From the built-in reader
# MAGIC
# MAGIC The options have the same names, and `columns=databricks` returns the same columns. The connector cannot read a
# MAGIC checkpoint of the built-in reader. Stop that query when its backlog is empty, and start with a new checkpoint.

# COMMAND ----------

same_columns = flights.option("columns", "databricks").load()
same_columns.printSchema()

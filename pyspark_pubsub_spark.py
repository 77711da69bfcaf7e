"""The same source under the name `pubsub_spark`, for where a Java source is called `pubsub`, as on Databricks."""

from pubsub_spark.source import PubSubSparkDataSource as DefaultSource

__all__ = ["DefaultSource"]

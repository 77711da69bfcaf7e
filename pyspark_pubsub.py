"""Where Spark finds the source: it imports every top-level `pyspark_*` module and registers its `DefaultSource`."""

from pubsub_spark.source import PubSubDataSource as DefaultSource

__all__ = ["DefaultSource"]

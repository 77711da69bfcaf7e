"""Registration of the data source in a session that does not find it by itself, and of the table function."""

from __future__ import annotations

import re
import sys

from pyspark.sql import SparkSession

from .source import PubSubDataSource, PubSubSparkDataSource
from .table_function import register_function


def register(spark: SparkSession) -> None:
    """Register `format("pubsub")`, `format("pubsub_spark")` and SQL's `read_pubsub(...)` in a session.

    Raises RuntimeError when the Python of Spark's workers cannot import the package.
    """
    for source in (PubSubDataSource, PubSubSparkDataSource):
        spark.dataSource.register(source)
    register_function(spark)
    try:
        spark.read.format("pubsub_spark").option("subscriptionId", "projects/p/subscriptions/none").load()
    except Exception as error:
        missing = re.search(r"No module named '(\w+)", str(error))
        if missing is None:
            raise
        raise RuntimeError(
            f"The Python of Spark's workers has no package `{missing[1]}`: set PYSPARK_PYTHON to `{sys.executable}` "
            "before Spark starts, or install pubsub-spark for that Python."
        ) from None

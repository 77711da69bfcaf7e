"""Registration of the data source in a session that does not find it by itself, and of the table function."""

from __future__ import annotations

import logging
import re
import sys

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from .source import PubSubDataSource, PubSubSparkDataSource
from .table_function import register_function

_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Register `format("pubsub")`, `format("pubsub_spark")` and SQL's `read_pubsub(...)` in a session.

    A WARNING says when another source has the first name. Raises RuntimeError when the Python of Spark's workers cannot
    import the package.
    """
    spark.dataSource.register(PubSubSparkDataSource)
    _register_short_name(spark)
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


def _register_short_name(spark: SparkSession) -> None:
    try:
        spark.dataSource.register(PubSubDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        name = PubSubDataSource.name()
        _log.warning(
            'format("%s") is another source in this session (on Databricks its own reader): use format("%s")',
            name,
            PubSubSparkDataSource.name(),
        )

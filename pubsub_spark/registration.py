"""Registration of the data source in a session that does not find it by itself, and of the table function."""

from __future__ import annotations

import logging
import re
import sys

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.functions import udf

from .source import PubSubDataSource, PubSubSparkDataSource
from .table_function import register_function

_log = logging.getLogger(__name__)


def register(spark: SparkSession) -> None:
    """Register `format("pubsub")`, `format("pubsub_spark")` and SQL's `read_pubsub(...)` in a session.

    A WARNING says when another source has the first name. Raises RuntimeError when the Python of Spark's workers cannot
    import the package.
    """
    _register(spark, PubSubSparkDataSource)
    is_new = _register(spark, PubSubDataSource)
    register_function(spark)
    missing = _missing_in_planner(spark) or _missing_in_task(spark)
    if missing is not None:
        raise RuntimeError(
            f"The Python of Spark's workers has no package `{missing}`: set PYSPARK_PYTHON to `{sys.executable}` "
            "before Spark starts, or install pubsub-spark for that Python."
        )
    if not is_new and not _is_ours(spark, PubSubDataSource.name()):
        _log.warning(
            'format("%s") is another source in this session (on Databricks its own reader): use format("%s")',
            PubSubDataSource.name(),
            PubSubSparkDataSource.name(),
        )


def _register(spark: SparkSession, source: type[DataSource]) -> bool:
    """Register a source; False where its name is taken: on Spark 4.0 also by itself, when Spark has found it."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return False
    return True


def _missing_in_planner(spark: SparkSession) -> str | None:
    """The package that the driver's worker cannot import when it plans a read; None when there is none."""
    try:
        _columns(spark, PubSubSparkDataSource.name())
    except Exception as error:
        missing = re.search(r"No module named '(\w+)", str(error))
        if missing is None:
            raise
        return missing[1]
    return None


def _missing_in_task(spark: SparkSession) -> str | None:
    """The package that a task cannot import; None when there is none. An executor's Python may not be the driver's."""

    def missing(_: int) -> str | None:
        import importlib  # the function travels to the task without this module

        try:
            importlib.import_module("pubsub_spark.source")
        except ModuleNotFoundError as error:
            return (error.name or "pubsub_spark").partition(".")[0]
        return None

    found = spark.range(1).select(udf(missing, "string", useArrow=False)("id")).first()
    return None if found is None else found[0]


def _is_ours(spark: SparkSession, name: str) -> bool:
    try:
        return _columns(spark, name) == _columns(spark, PubSubSparkDataSource.name())
    except Exception:  # whatever another source says to options that are not its own
        return False


def _columns(spark: SparkSession, name: str) -> list[str]:
    """The columns of a format, which Spark asks a Python source for in a worker."""
    return spark.read.format(name).option("subscriptionId", "projects/p/subscriptions/none").load().columns

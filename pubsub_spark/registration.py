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
_NO_SUBSCRIPTION = {"subscriptionId": "projects/p/subscriptions/none"}


def register(spark: SparkSession) -> None:
    """Register `format("pubsub")`, `format("pubsub_spark")` and SQL's `read_pubsub(...)` in a session.

    A WARNING says when another source has the first name. Raises RuntimeError when the Python of Spark's workers cannot
    import the package, or the process on the driver that plans streams cannot.
    """
    _register(spark, PubSubSparkDataSource)
    is_new = _register(spark, PubSubDataSource)
    register_function(spark)
    missing, is_shipped = _look_in_task(spark)
    missing = _missing_in_planner(spark) or missing
    if missing is not None:
        raise RuntimeError(
            f"The Python of Spark's workers has no package `{missing}`: set PYSPARK_PYTHON to `{sys.executable}` "
            "before Spark starts, or install pubsub-spark for that Python."
        )
    if is_shipped and (missing := _missing_in_stream(spark)):
        raise RuntimeError(
            "Batch queries work, and streams do not: the process on the driver that plans them has no package "
            f"`{missing}`, because Spark does not pass it `--py-files`. Set PYTHONPATH to the same files when you run "
            "spark-submit, or install pubsub-spark on the driver."
        )
    if not is_new and not _is_ours(spark, PubSubDataSource.name()):
        _log.warning(
            'format("%s") is another source in this session (on Databricks its own reader): use format("%s")',
            PubSubDataSource.name(),
            PubSubSparkDataSource.name(),
        )


def _register(spark: SparkSession, source: type[DataSource]) -> bool:
    """Return False if the name is taken: on Spark 4.0 also by the source itself, if Spark has found it."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return False
    return True


def _missing_in_planner(spark: SparkSession) -> str | None:
    try:
        _columns(spark, PubSubSparkDataSource.name())
    except Exception as error:
        missing = _missing_in(error)
        if missing is None:
            raise
        return missing
    return None


def _look_in_task(spark: SparkSession) -> tuple[str | None, bool]:
    """Return the package that a task cannot import, or None, and whether the task has the source from `--py-files`.

    An executor's Python may not be the driver's.
    """

    def look(_: int) -> tuple[str | None, bool]:
        import importlib  # the function travels to the task without this module

        from pyspark import SparkFiles

        try:
            source = importlib.import_module("pubsub_spark.source")
        except ModuleNotFoundError as error:
            return (error.name or "pubsub_spark").partition(".")[0], False
        return None, str(source.__file__).startswith(SparkFiles.getRootDirectory())

    shape = "missing string, is_shipped boolean"
    row = spark.range(1).select(udf(look, shape, useArrow=False)("id").alias("found")).select("found.*").first()
    return (None, False) if row is None else (row[0], row[1])


def _missing_in_stream(spark: SparkSession) -> str | None:
    """Return the package that the process of streaming sources cannot import.

    The stream has a schema that the source refuses, so that it always ends before anything is read.
    """
    stream = spark.readStream.format(PubSubSparkDataSource.name()).schema("refused int").options(**_NO_SUBSCRIPTION)
    try:
        stream.load().writeStream.format("noop").start().awaitTermination()
    except Exception as error:
        return _missing_in(error)
    return None


def _missing_in(error: Exception) -> str | None:
    missing = re.search(r"No module named '(\w+)", str(error))
    return None if missing is None else missing[1]


def _is_ours(spark: SparkSession, name: str) -> bool:
    try:
        return _columns(spark, name) == _columns(spark, PubSubSparkDataSource.name())
    except Exception:  # whatever another source says to options that are not its own
        return False


def _columns(spark: SparkSession, name: str) -> list[str]:
    """Spark asks a Python source for its columns in a worker."""
    return spark.read.format(name).options(**_NO_SUBSCRIPTION).load().columns

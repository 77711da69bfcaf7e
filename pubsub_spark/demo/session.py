"""The Spark session of the demo, on this machine's cores, with its log in a file.

The JVM and the Python workers inherit the standard error of the process that starts them. While Spark starts, that is
the log file, so that the terminal shows the demo's own lines alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console

# The first version of Spark with `availableNow` for Python sources.
_MIN_SPARK_VERSION = (4, 2)


@contextmanager
def start(log: Path, console: Console) -> Iterator[SparkSession]:
    """The session is stopped at the end. It finds `format("pubsub")` by itself, as any session does."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with console.status("starting Spark"), _standard_error_in(log):
        try:
            spark = (
                SparkSession.builder.master("local[*]")
                .appName("flights through Pub/Sub")
                .config("spark.driver.bindAddress", "127.0.0.1")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
                .config("spark.sql.session.timeZone", "UTC")
                .config("spark.sql.shuffle.partitions", "4")
                .getOrCreate()
            )
        except PySparkException as error:
            raise RuntimeError(f"Spark does not start, is there a Java 17 or newer? Its log is `{log}`.") from error
    if tuple(map(int, spark.version.split(".")[:2])) < _MIN_SPARK_VERSION:
        spark.stop()
        raise RuntimeError(f"The demo needs Spark 4.2 or newer for `availableNow`, and this is {spark.version}.")
    console.print(f"Spark {spark.version} on {spark.sparkContext.defaultParallelism} cores, its log in {log}")
    try:
        yield spark
    except PySparkException as error:
        raise RuntimeError(f"{_sentence(error)} Spark's log is `{log}`.") from error
    finally:
        spark.stop()


def _sentence(error: PySparkException) -> str:
    """Spark passes an error on as text with two stack traces."""
    lines = str(error).splitlines()
    ours = [line.partition(": ")[2] for line in lines if line.startswith("pubsub_spark.errors.")]
    return ours[-1] if ours else str(error)


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("w") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)

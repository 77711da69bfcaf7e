"""The Spark session of the demo, on this machine's cores, with everything it has to say in a file.

The JVM inherits the standard error of whoever starts it, and so do the Python workers it starts. While it is being
started that is the log file, so that the terminal keeps to the demo's own words.
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

# The first Spark whose `availableNow` asks a Python source.
_OLDEST = (4, 2)


@contextmanager
def start(log: Path, console: Console) -> Iterator[SparkSession]:
    """A local session that is stopped at the end. It finds `format("pubsub")` by itself, as any session does."""
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
            raise RuntimeError(
                f"Spark does not start, is there a Java 17 or newer? Its words are in `{log}`."
            ) from error
    if tuple(map(int, spark.version.split(".")[:2])) < _OLDEST:
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
    """What the connector said, out of what Spark made of it: Spark passes errors on as text with two stack traces."""
    lines = str(error).splitlines()
    ours = [line.partition(": ")[2] for line in lines if line.startswith("pubsub_spark.errors.")]
    return ours[-1] if ours else str(error)


@contextmanager
def _standard_error_in(path: Path) -> Iterator[None]:
    """Let file descriptor 2 be `path` for a while: what a child process is given as its standard error."""
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

"""`register(spark)`: both names of the source, and what is wrong when workers cannot import it."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pubsub_spark
from pubsub_spark.source import PubSubDataSource
from tests.conftest import ROOT

SCRIPT = """
from pyspark.sql import SparkSession
from pubsub_spark import register

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    register(spark)
except RuntimeError as error:
    print("SAID:", error)
"""


def test_both_names_are_registered(spark: SparkSession):
    """After `register` the schema of either format is known, and the package says its version."""
    pubsub_spark.register(spark)
    for name in ("pubsub", "pubsub_spark"):
        frame = spark.read.format(name).option("subscriptionId", "projects/p/subscriptions/sub").load()
        assert "message_id" == frame.columns[0]
    assert pubsub_spark.__version__[0].isdigit()


def test_name_of_another_source_is_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Where a Java source has the short name, as on Databricks, a WARNING names the other one, which works."""
    monkeypatch.setattr(PubSubDataSource, "name", classmethod(lambda cls: "rate"))

    pubsub_spark.register(spark)

    [warning] = caplog.messages
    assert 'format("rate") is another source in this session' in warning
    assert 'use format("pubsub_spark")' in warning
    frame = spark.read.format("pubsub_spark").option("subscriptionId", "projects/p/subscriptions/sub").load()
    assert "message_id" == frame.columns[0]


def test_workers_without_the_package_are_named(tmp_path: Path):
    """A worker's Python without the package is one sentence with the Python to set."""
    venv.create(tmp_path / "bare", with_pip=False)
    bare = tmp_path / "bare" / "bin" / "python"
    environment = {**os.environ, "PYSPARK_PYTHON": str(bare), "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment.pop("PYTHONPATH", None)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{SCRIPT}"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert "SAID: The Python of Spark's workers has no package" in ended.stdout, ended.stdout + ended.stderr[-3000:]
    assert f"set PYSPARK_PYTHON to `{sys.executable}`" in ended.stdout

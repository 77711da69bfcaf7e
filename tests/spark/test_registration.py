"""`register(spark)`: both names of the source, and the error when workers cannot import it."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pyspark
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
    print("REGISTERED")
except RuntimeError as error:
    print("SAID:", error)
"""


def test_both_names_are_registered(spark: SparkSession):
    """After `register` the schema of either format is known, and the package has its version."""
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


@pytest.mark.long
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


@pytest.mark.long
def test_stream_without_py_files_is_named(tmp_path: Path):
    """With `--py-files` batches find the package and streams do not. With PYTHONPATH as well both find it."""
    venv.create(tmp_path / "bare", with_pip=False)
    bare = tmp_path / "bare" / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(tmp_path / "bare")}))
    # All dependencies without this package: a path in a `.pth` file does not bring the `.pth` files that are in it.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    shutil.copytree(ROOT / "pubsub_spark", tmp_path / "files" / "pubsub_spark")
    archive = shutil.make_archive(str(tmp_path / "pubsub_spark"), "zip", tmp_path / "files")
    job = tmp_path / "job.py"
    job.write_text(SCRIPT)
    spark_home = pyspark.__path__[0]
    environment = {**os.environ, "PYSPARK_PYTHON": str(bare), "SPARK_HOME": spark_home}
    for name in ("PYTHONPATH", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)

    def submit(**more: str) -> str:
        command = [f"{spark_home}/bin/spark-submit", "--master", "local[1]", "--py-files", archive, str(job)]
        return subprocess.run(command, env=environment | more, cwd=tmp_path, capture_output=True, text=True).stdout

    assert "SAID: Batch queries work, and streams do not" in submit()
    assert "REGISTERED" in submit(PYTHONPATH=archive)

"""The line of docs/clusters.md for `spark-submit --archives`, with executors that are JVMs of their own.

In `make test` Spark's `local-cluster` starts them, in `make test-production` a standalone cluster of two workers.
"""

import os
import re
import shutil
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT, Names
from tests.spark.scenario import until

SPARK_HOME = Path(pyspark.__path__[0])
MESSAGES = 200
JOB = """
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("pubsub").options(subscriptionId={subscription!r}, endpoint={endpoint!r})
query = (
    rows.option("stagingLocation", {folder!r} + "/staging").load()
    .writeStream.format("parquet").option("checkpointLocation", {folder!r} + "/checkpoint")
    .trigger(availableNow=True).start({folder!r} + "/table")
)
query.awaitTermination()
pythons = spark.sparkContext.parallelize(range(2), 2).map(lambda _: sys.executable).collect()
print("ROWS", spark.read.parquet({folder!r} + "/table").count(), "PYTHONS", *sorted(set(pythons)))
"""


@contextmanager
def daemon(folder: Path, name: str, role: str, *arguments: str) -> Iterator[Path]:
    """Yield a master or a worker, and its log."""
    log = folder / f"{name}.log"
    command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}"]
    command += ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments]
    environment = os.environ | {"SPARK_HOME": str(SPARK_HOME)}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment)
    try:
        yield log
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=["local-cluster[2,1,1024]", pytest.param("standalone", marks=pytest.mark.production)])
def master(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of the master of a cluster with two workers."""
    if request.param != "standalone":
        yield request.param
        return
    with ExitStack() as cluster:
        log = cluster.enter_context(daemon(tmp_path, "master", "master.Master"))
        until(lambda: "Starting Spark master at" in log.read_text(), log.read_text)
        [url] = re.findall(r"Starting Spark master at (\S+)", log.read_text())
        for name in ("worker1", "worker2"):
            arguments = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / name), url)
            cluster.enter_context(daemon(tmp_path, name, "worker.Worker", *arguments))
        until(lambda: log.read_text().count("Registering worker") == 2, log.read_text)
        yield url


@pytest.mark.long
def test_line_of_the_page_runs(master: str, emulator: Emulator, names: Names, tmp_path: Path):
    """Driver and executors run the Python of the archive, and a stream reads every message."""
    venv.create(tmp_path / "environment", with_pip=False)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(tmp_path / "environment")}))
    (packages / "packages.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")  # in place of an install
    shutil.make_archive(str(tmp_path / "pubsub-spark"), "gztar", tmp_path / "environment")
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    emulator.publish(names.topic, *(str(number).encode() for number in range(MESSAGES)))
    given = {"subscription": names.subscription, "endpoint": emulator.endpoint, "folder": str(tmp_path / "data")}
    (tmp_path / "job.py").write_text(JOB.format(**given))
    (tmp_path / "conf").mkdir()
    settings = {"master": master, "driver.host": "127.0.0.1", "executor.memory": "512m", "ui.enabled": "false"}
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "".join(f"spark.{name} {value}\n" for name, value in settings.items())
    )
    [line] = re.findall(r"^env .*spark-submit.*$", (ROOT / "docs" / "clusters.md").read_text(), re.MULTILINE)
    environment = os.environ | {"SPARK_HOME": str(SPARK_HOME), "SPARK_CONF_DIR": str(tmp_path / "conf")}
    environment["PYSPARK_DRIVER_PYTHON"] = "/nonexistent/python"  # the line does not depend on it
    environment.pop("PYTHONPATH", None)

    ended = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert f"ROWS {MESSAGES} PYTHONS" in ended.stdout, ended.stdout + ended.stderr[-3000:]
    pythons = ended.stdout.partition("PYTHONS")[2].split()
    assert all(python.endswith("/environment/bin/python") for python in pythons)
    assert [] == [python for python in pythons if python.startswith(str(tmp_path / "environment"))]

"""`pubsub-spark doctor` with the Spark that it starts."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCTOR = [sys.executable, "-c", "from pubsub_spark.cli import app; app()", "doctor", "--json"]


def test_source_is_found_by_a_spark_of_its_own(tmp_path: Path):
    """Both names are this package's source in a Spark that the doctor starts."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    environment |= {"PUBSUB_EMULATOR_HOST": "127.0.0.1:1"}
    ended = subprocess.run(DOCTOR, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    found = {each["check"]: each["state"] for each in json.loads(ended.stdout)}

    assert ("ok", "ok", "wrong") == (found['format("pubsub")'], found['format("pubsub_spark")'], found["endpoint"])
    assert 1 == ended.returncode


@pytest.mark.long
def test_workers_without_the_package(tmp_path: Path):
    """With workers that cannot import the package Spark is not started, and the remedy names the Python to set."""
    venv.create(tmp_path / "bare", with_pip=False)
    environment = {**os.environ, "PYSPARK_PYTHON": str(tmp_path / "bare" / "bin" / "python")}
    environment.pop("PYTHONPATH", None)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {DOCTOR[2]}"
    command = [sys.executable, "-c", code, *DOCTOR[3:]]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    found = {each["check"]: each for each in json.loads(ended.stdout)}

    assert "wrong" == found["package in workers"]["state"]
    assert "skipped" == found["Spark"]["state"]
    assert 1 == ended.returncode

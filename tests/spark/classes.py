"""Spark's classes as the JVM maps them into memory: `python -m tests.spark.classes` writes them to a file.

A JVM that maps the file spends half as much processor time on its first query, because it parses and verifies few
classes. `tests.conftest` passes the file to the JVMs of all tests. A JVM ignores the file of another Java or Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

from pubsub_spark.emulator import Emulator
from tests.conftest import CLASSES, JAVA_OPTIONS, ROOT
from tests.spark.application import LOCAL_CONF

_TOPIC, _SUBSCRIPTION = "projects/p/topics/news", "projects/p/subscriptions/all"


def main() -> None:
    """Write the file, unless it is newer than Spark and Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "java")
    jars = Path(pyspark.__path__[0], "jars")
    if CLASSES.exists() and CLASSES.stat().st_mtime > max(path.stat().st_ctime for path in (java.resolve(), jars)):
        return
    CLASSES.parent.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder, Emulator() as emulator:
        emulator.create_topic(_TOPIC)
        emulator.create_subscription(_SUBSCRIPTION, _TOPIC)
        emulator.publish(_TOPIC, b"one", b"two")
        written = Path(folder, "classes.jsa")
        query = {
            "endpoint": emulator.endpoint,
            "subscription": _SUBSCRIPTION,
            "folder": folder,
            "conf": LOCAL_CONF,
            "master": "local[2]",
        }
        environment = {
            **os.environ,
            "JDK_JAVA_OPTIONS": f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={written}",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "tests.spark.driver", json.dumps(query)]
        # The JVM writes the file after the end of its Python, and has the other end of the pipe until then.
        subprocess.run(command, env=environment, cwd=folder, capture_output=True, check=False)
        if written.exists():  # tests without it are slower, and no different
            shutil.move(written, CLASSES)


if __name__ == "__main__":
    main()

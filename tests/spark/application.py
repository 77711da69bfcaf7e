"""An application of its own that reads a subscription into Parquet: started, killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT, Names
from tests.spark.scenario import command, descendants, until

LOCAL_CONF = {"spark.ui.enabled": "false", "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


@dataclass
class Application:
    """One query with its folder. Started as often as a test likes."""

    emulator: Emulator
    names: Names
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def start(self, **given: Any) -> None:
        """Start a new driver on the old checkpoint."""
        arguments = {
            "endpoint": self.emulator.endpoint,
            "subscription": self.names.subscription,
            "folder": str(self.folder),
            "conf": LOCAL_CONF | given.pop("conf", {}),
            **({} if "remote" in given else {"master": "local[2]"}),
            **given,
        }
        self.run([sys.executable, "-m", "tests.spark.driver", json.dumps(arguments)])

    def run(self, command_line: list[str]) -> None:
        """Start a process in the folder, with this Python and this tree for Spark's workers."""
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        environment.pop("PUBSUB_EMULATOR_HOST", None)
        environment.update(self.environment)
        self.log = self.folder / "driver.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command_line,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.folder,
                start_new_session=True,
            )

    def ends(self) -> int:
        """Wait for the end of the application. Its exit code."""
        assert self.process is not None
        return self.process.wait(270)  # less than the 300 of a test in pytest: a loaded machine is no failure

    def kill(self) -> None:
        """Send kill -9 to the driver, its JVM and all Python processes below it, at once."""
        assert self.process is not None
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        until(lambda: self.emulator.streams() == 0, lambda: f"{self.emulator.streams()} streams are open")

    def executors(self) -> list[int]:
        """Return the ids of the executors' JVMs, if they have JVMs of their own."""
        assert self.process is not None
        return [pid for pid in descendants(self.process.pid) if "CoarseGrainedExecutorBackend" in command(pid)]

    def texts(self) -> list[str]:
        """Return the rows of the sink, by its own log."""
        found: dict[str, None] = {}
        for entry in sorted((self.folder / "sink" / "_spark_metadata").glob("[0-9]*")):
            for line in entry.read_text().splitlines()[1:]:
                found[unquote(urlparse(json.loads(line)["path"]).path)] = None
        return [text for path in found for text in pq.read_table(path).column("text").to_pylist()]

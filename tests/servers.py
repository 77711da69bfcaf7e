"""Servers that tests start as processes of their own: Google's emulator, and ours for tests that kill it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator.api import protos
from tests.conftest import ROOT, Names
from tests.rpc.conftest import Client

START_SECONDS = 60


@contextmanager
def google_emulator(folder: Path) -> Iterator[str]:
    """`host:port` of Google's emulator, its files in `folder`. Skip the test if it is not installed."""
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud, which brings Google's emulator, is not installed")
    endpoint = f"127.0.0.1:{free_port()}"
    log = folder / "log"
    command = ["gcloud", "beta", "emulators", "pubsub", "start", f"--host-port={endpoint}", f"--data-dir={folder}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_until_up(endpoint, process, log)
        yield endpoint
    finally:
        # gcloud starts a shell that starts Java: all of one group, which is this process's id.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _wait_until_up(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends:
        if process.poll() is not None:
            said = log.read_text()
            if "component" in said and "not" in said:
                pytest.skip("gcloud has no Pub/Sub emulator; `gcloud components install pubsub-emulator` brings it")
            break
        try:
            with urllib.request.urlopen(f"http://{endpoint}/", timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail(f"The emulator did not start:\n{log.read_text()}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@dataclass
class Remote:
    """A Pub/Sub in another process, with the part of `Emulator` that the steps of a scenario use."""

    endpoint: str

    def create(self, names: Names) -> None:
        """The topic and the subscription of a test."""
        client = Client(self.endpoint)
        with client.channel:
            client.ask("Publisher/CreateTopic", name=names.topic)
            client.ask("Subscriber/CreateSubscription", name=names.subscription, topic=names.topic)

    def publish(self, topic: str, *messages: dict[str, Any]) -> None:
        """Publish in one request."""
        client = Client(self.endpoint)
        with client.channel:
            made = [protos.PubsubMessage(**message) for message in messages]
            client.ask("Publisher/Publish", topic=topic, messages=made)

    def streams(self) -> int:
        """Always None: a process outside cannot tell how many streams are open."""
        return 0


class OwnProcess(Remote):
    """Our emulator as `pubsub-spark emulator`, to be killed and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        self._folder = folder
        super().__init__(f"127.0.0.1:{self._port}")

    def start(self) -> None:
        command = [sys.executable, "-c", "from pubsub_spark.cli import app; app()", "emulator", "--port"]
        log = self._folder / "emulator.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*command, str(self._port)], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT
            )
        _wait_until_up(self.endpoint, self._process, log)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

"""Google's emulator and ours, each started once, and what each says to the whole script."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pubsub_spark.emulator import Emulator
from tests.conformance import player
from tests.conformance.player import Outcome

START_SECONDS = 60


@dataclass(frozen=True)
class Answers:
    """What came back for each step, by its name."""

    ours: dict[str, Outcome]
    google: dict[str, Outcome]


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of Google's emulator; the whole process group ends with the session."""
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud, which brings Google's emulator, is not installed")
    folder = tmp_path_factory.mktemp("google")
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
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
    pytest.fail(f"Google's emulator did not start:\n{log.read_text()}")


@pytest.fixture(scope="session")
def ours() -> Iterator[tuple[dict[str, Outcome], dict[str, Outcome]]]:
    """What ours says by gRPC, and, started anew, by HTTP."""
    with Emulator() as first, Emulator() as second:
        yield player.play(player.GrpcLine(first.endpoint)), player.play(player.HttpLine(second.endpoint))


@pytest.fixture(scope="session")
def answers(google: str, ours: tuple[dict[str, Outcome], dict[str, Outcome]]) -> Answers:
    """What both say by gRPC."""
    return Answers(ours[0], player.play(player.GrpcLine(google)))

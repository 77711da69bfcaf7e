"""`pubsub-spark emulator` as a shell sees it: the line it prints, a client that uses it, a clean end."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

COMMAND = [sys.executable, "-c", "from pubsub_spark.cli import app; app()", "emulator", "--port", "0", "--verbose"]


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    options = getattr(request, "param", [])
    with subprocess.Popen([*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        yield running
        if running.poll() is None:
            running.kill()


@pytest.mark.parametrize(
    ("process", "ending"),
    [([], signal.SIGINT), (["--log-format", "json"], signal.SIGTERM)],
    indirect=["process"],
    ids=["SIGINT", "SIGTERM"],
)
def test_emulator_serves_until_told_to_stop(process: subprocess.Popen[str], ending: signal.Signals):
    """`pubsub-spark emulator` prints the line a shell evaluates, answers Google's client, logs the call, and ends
    with 0."""
    assert process.stdout is not None
    export, assignment = process.stdout.readline().split()
    variable, endpoint = assignment.split("=")
    with grpc.insecure_channel(endpoint) as channel:
        publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        publisher.create_topic(name="projects/my-project/topics/news")

    os.kill(process.pid, ending)
    _, log = process.communicate(timeout=30)

    assert ("export", "PUBSUB_EMULATOR_HOST") == (export, variable)
    assert "CreateTopic" in log
    assert "CreateTopic, projects/my-project/topics/news, " in log
    if ending == signal.SIGTERM:  # its lines are JSON
        [line] = [line for line in map(json.loads, log.splitlines()) if line.get("rpc") == "CreateTopic"]
        assert ("INFO", "projects/my-project/topics/news", "OK") == (line["severity"], line["resource"], line["code"])
        assert line["milliseconds"] > 0
    assert 0 == process.returncode


def test_an_address_that_cannot_be_had_says_why():
    """A port that is taken is one reason, an address of another machine is another (192.0.2.1 is no machine's)."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for host, reason in (("127.0.0.1", "Address already in use"), ("192.0.2.1", "Cannot assign requested address")):
            ended = subprocess.run([*COMMAND, "--host", host, "--port", port], capture_output=True, text=True)

            said = f"The emulator cannot listen on `{host}:{port}`: {reason}. Choose another host or port.\n"
            assert (1, "", said) == (ended.returncode, ended.stdout, ended.stderr)

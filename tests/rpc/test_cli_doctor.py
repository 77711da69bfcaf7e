"""`pubsub-spark doctor` without Spark. tests/spark/test_doctor.py starts it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pubsub_spark.cli import app
from pubsub_spark.emulator import Emulator
from tests.rpc.conftest import COMMAND, invoke

DOCTOR = [*COMMAND, "doctor", "--no-spark"]
PROTO = 'syntax = "proto3"; message M { string a = 1; }'
TOPIC, SUB = "projects/my-project/topics/flights", "projects/my-project/subscriptions/all"


@pytest.fixture
def environment(emulator: Emulator) -> dict[str, str]:
    """Return a shell with a correct environment."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    return {
        **os.environ,
        "PUBSUB_EMULATOR_HOST": emulator.endpoint,
        "GOOGLE_CLOUD_PROJECT": "my-project",
        "PYSPARK_PYTHON": sys.executable,
    }


def doctor(environment: dict[str, str], *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit code, and the findings by check."""
    result = CliRunner().invoke(app, ["doctor", "--no-spark", "--json", *words], env=environment)
    return result.exit_code, {each["check"]: each for each in json.loads(result.stdout)}


def test_everything_is_right(environment: dict[str, str], emulator: Emulator, tmp_path: Path):
    """A run without findings ends with 0. A message goes out and in, and no resource of the check is left."""
    words = ("--subscription", "all", "--option", f"stagingLocation={tmp_path}", "--try")
    code, found = doctor(environment, *words)

    assert 0 == code, found
    assert {"ok"} == {each["state"] for check, each in found.items() if check != "Spark"}
    assert f"pubsub.subscriptions.consume on {SUB}" in found
    assert str(tmp_path) in found["staging area"]["found"]
    assert found["a message"]["found"].startswith("published and pulled in ")
    assert [] == emulator.messages(SUB)
    listed = invoke(["topics", "list", "--json"], environment)
    assert [TOPIC] == [each["name"] for each in json.loads(listed.stdout)]


def test_emulator_alone_is_enough(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch):
    """With `--no-spark` and without PySpark nothing is wrong, though there is neither Java nor a worker's Python."""

    def version(package: str, found: Any = metadata.version) -> str:
        if package == "pyspark":
            raise metadata.PackageNotFoundError(package)
        return str(found(package))

    monkeypatch.setattr(metadata, "version", version)
    code, found = doctor({**environment, "JAVA_HOME": "/nowhere", "PYSPARK_PYTHON": "/nowhere/python"})

    assert 0 == code
    assert "skipped" == found["Spark"]["state"]
    assert not {"PySpark", "Java", "worker's Python"} & {*found}


def test_no_message_is_tried_on_a_topic_with_a_schema(environment: dict[str, str]):
    """The message of the doctor's own would not fit: that is no finding against the topic."""
    for command in (
        ["schemas", "create", "record", "--type", "protocol-buffer", "--definition", PROTO],
        ["topics", "create", "typed", "--schema", "record", "--message-encoding", "json"],
    ):
        invoke(command, environment)
    code, found = doctor(environment, "--topic", "typed", "--try")

    schema = "projects/my-project/schemas/record"
    assert (0, "skipped") == (code, found["a message"]["state"]), found
    assert found["a message"]["found"] == f"`projects/my-project/topics/typed` has the schema `{schema}`"
    assert "`--topic`" in found["a message"]["remedy"]


def test_permissions_for_a_decoded_stream_with_dead_letters(environment: dict[str, str], emulator: Emulator):
    """Those on the topic of the subscription and on its schema are among them."""
    emulator.create_schema("projects/my-project/schemas/record", "PROTOCOL_BUFFER", PROTO)
    emulator.create_topic("projects/my-project/topics/typed", schema="projects/my-project/schemas/record")
    emulator.create_subscription("projects/my-project/subscriptions/typed", "projects/my-project/topics/typed")
    options = ("--option", "decode=topic", "--option", "deadLetterTopic=flights")
    code, found = doctor(environment, "--subscription", "typed", *options)

    assert 0 == code, found
    assert {
        "pubsub.subscriptions.consume on projects/my-project/subscriptions/typed",
        "pubsub.subscriptions.get on projects/my-project/subscriptions/typed",
        "pubsub.topics.get on projects/my-project/topics/typed",
        "pubsub.schemas.get on projects/my-project/schemas/record",
        f"pubsub.topics.publish on {TOPIC}",
    } == {check for check in found if check.startswith("pubsub.")}


def test_what_is_wrong_has_a_remedy(environment: dict[str, str], tmp_path: Path):
    """Each wrong finding has its fix, and the command ends with 1."""
    code, found = doctor(environment, "--subscription", "gone")
    assert 1 == code
    assert found["projects/my-project/subscriptions/gone"]["remedy"].startswith("Create it, or correct its name.")

    code, found = doctor(environment, "--subscription", "all", "--option", "maxMessage=5")
    assert (1, "`maxMessage` is not an option; did you mean `maxMessages`?") == (code, found["options"]["found"])
    assert "skipped" == found["Pub/Sub, staging area"]["state"]

    code, found = doctor({**environment, "PUBSUB_EMULATOR_HOST": "127.0.0.1:1"}, "--subscription", "all")
    assert (1, "wrong", "skipped") == (code, found["endpoint"]["state"], found["permissions"]["state"])

    (tmp_path / "file").touch()
    code, found = doctor(environment, "--option", f"stagingLocation={tmp_path}/file", "--subscription", "all")
    assert (1, "wrong") == (code, found["staging area"]["state"])


def test_rows_come_while_checks_run(environment: dict[str, str], tmp_path: Path):
    """On a terminal findings are shown while another check runs, and that check is named."""
    gate, python = tmp_path / "gate", tmp_path / "python"
    os.mkfifo(gate)
    python.write_text(f'#!/bin/sh\ncat "{gate}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    terminal, there = pty.openpty()
    environment |= {"PYSPARK_PYTHON": str(python), "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(DOCTOR, stdout=there, env=environment) as running:
        os.close(there)
        shown = b""
        while b"worker's Python" not in shown:  # which waits at the gate
            shown += os.read(terminal, 65536)
        gate.write_text("")
        while b"permissions" not in shown:
            shown += os.read(terminal, 65536)
        assert 0 == running.wait(timeout=30)
    os.close(terminal)
    first = shown.decode().partition("worker's Python")[0]

    assert "Java" in first
    assert "..." in first.splitlines()[-1]
    assert "endpoint" not in first


def test_table_has_no_colour_in_a_pipe(environment: dict[str, str]):
    """The table is plain text if the output is no terminal."""
    ended = subprocess.run(DOCTOR, capture_output=True, text=True, env=environment, check=True)

    assert "\x1b" not in ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[0].split() == ["check", "found", "remedy"]

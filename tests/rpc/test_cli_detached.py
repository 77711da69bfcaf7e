"""Emulators in the background, as a shell starts, awaits and ends them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pubsub_spark.cli import app
from pubsub_spark.emulator import Emulator
from tests.rpc.conftest import SUB, TOPIC, Client


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder of the state files; what still runs at the end is killed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "pubsub-spark"
    yield folder
    for file in folder.glob("*.json"):
        os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)


def run(*options: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["emulator", *options])
    return result.exit_code, result.stdout, result.stderr


def chosen(endpoint: str) -> list[str]:
    """The messages that chaos hands out first, of thirty."""
    client = Client(endpoint)
    with client.channel:
        client.ask("Publisher/CreateTopic", name=TOPIC)
        client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC)
        client.publish(*({"data": b"%d" % number} for number in range(30)))
        return [each.decode() for each in client.data()]


def test_detached_emulator_serves_until_stopped(state: Path):
    """`--detach` returns when the emulator is ready and `--stop` when it has ended; in between it serves, with its
    options."""
    code, export, about = run("--detach", "--port", "0", "--seed", "7")
    endpoint = export.strip().removeprefix("export PUBSUB_EMULATOR_HOST=")
    port = endpoint.rpartition(":")[2]
    pid = json.loads((state / f"emulator-{port}.json").read_text())["pid"]
    assert 0 == code
    assert f"The emulator runs at {endpoint} (process id {pid}, log {state}/emulator-{port}.log).\n" == about
    assert 0o700 == state.stat().st_mode & 0o777

    assert (0, export, "") == run("--wait-ready", "--port", port)
    assert {"endpoint": endpoint} == json.loads(run("--wait-ready", "--port", port, "--json")[1])
    with Emulator() as same:
        same.chaos(7)
        assert chosen(endpoint) == chosen(same.endpoint)
    taken = f"The emulator cannot listen on `{endpoint}`: Address already in use. Give it another host or port.\n"
    assert (1, "", taken) == run("--detach", "--port", port)

    assert (0, "", f"The emulator at {endpoint} has ended (process id {pid}).\n") == run("--stop", "--port", port)
    assert (pid, 0) == os.waitpid(pid, 0)
    nobody = f"No emulator was started with `--detach` on port {port}; name its port with `--port`.\n"
    assert (1, "", nobody) == run("--stop", "--port", port)
    late = f"No emulator answers at `{endpoint}` after 0.1 s. Start one, or correct `--host` and `--port`.\n"
    assert (1, "", late) == run("--wait-ready", "--port", port, "--timeout", "0.1")
    assert [f"emulator-{port}.log"] == [file.name for file in state.iterdir()]


def test_json_of_a_detached_emulator(state: Path):
    """With `--json` the endpoint, process id and log are told as JSON, and so is what was stopped."""
    code, told, _ = run("--detach", "--port", "0", "--json")
    running = json.loads(told)
    port = running["endpoint"].rpartition(":")[2]

    assert (0, str(state / f"emulator-{port}.log")) == (code, running.pop("log"))
    assert running == json.loads(run("--stop", "--port", port, "--json")[1])
    os.waitpid(running["pid"], 0)


def test_detached_emulator_that_does_not_start_says_everything(state: Path, tmp_path: Path):
    """All that is wrong with a document is told, and not its last line alone."""
    document = tmp_path / "api.yaml"
    document.write_text("asyncapi: 3.0.0\nchannels: {a: 1, b: 2}\n")
    code, _, said = run("--detach", "--port", "0", "--config", str(document))

    assert (1, f"`{document}` has 2 problems:", 3) == (code, said.splitlines()[0], len(said.splitlines()))


def test_another_process_is_not_stopped(state: Path, emulator: Emulator):
    """A process id that another process has by now is not signalled."""
    state.mkdir()
    file = state / f"emulator-{emulator.port}.json"
    file.write_text(json.dumps({"pid": 1, "endpoint": emulator.endpoint}))

    gone = f"The emulator that was started at `{emulator.endpoint}` does not run any more; nothing was stopped.\n"
    assert (1, "", gone) == run("--stop", "--port", str(emulator.port))
    assert not file.exists()


def test_one_of_the_three_is_meant():
    """Two of the options together cannot be meant."""
    assert (2, "", "Give one of `--detach`, `--stop` and `--wait-ready`.\n") == run("--detach", "--stop")

"""Emulators in the background, as a shell starts, awaits and ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pubsub_spark.cli import app
from pubsub_spark.emulator import Emulator
from tests.rpc.conftest import SUB, TOPIC, Client


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Yield the folder of the state files. Emulators that still run at the end are killed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    folder = tmp_path / "pubsub-spark"
    yield folder
    for file in folder.glob("*.json"):
        os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["emulator", *words])
    return result.exit_code, result.stdout, result.stderr


def chosen(endpoint: str) -> list[str]:
    """Return the messages that chaos delivers first, of thirty."""
    client = Client(endpoint)
    with client.channel:
        client.ask("Publisher/CreateTopic", name=TOPIC)
        client.ask("Subscriber/CreateSubscription", name=SUB, topic=TOPIC)
        client.publish(*({"data": b"%d" % number} for number in range(30)))
        return [each.decode() for each in client.data()]


def test_started_emulator_serves_until_stopped(state: Path, monkeypatch: pytest.MonkeyPatch):
    """`start` returns when the emulator is ready and `stop` when it has ended. In between it serves, with its
    options."""
    code, export, about = run("start", "--port", "0", "--seed", "7")
    endpoint = export.strip().removeprefix("export PUBSUB_EMULATOR_HOST=")
    port = endpoint.rpartition(":")[2]
    pid = json.loads((state / f"emulator-{port}.json").read_text())["pid"]
    assert 0 == code
    log = f"{state}/emulator-{port}.log"
    assert f"The emulator runs at {endpoint} (process id {pid}, log {log}).\nPage: http://{endpoint}/\n" == about
    assert 0o700 == state.stat().st_mode & 0o777

    assert (0, export, "") == run("wait", "--port", port)
    assert {"endpoint": endpoint} == json.loads(run("wait", "--endpoint", endpoint, "--json")[1])
    with Emulator() as same:
        same.chaos(7)
        assert chosen(endpoint) == chosen(same.endpoint)

    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", endpoint)  # as the shell that evaluated the line
    assert (0, "", f"The emulator at {endpoint} has ended (process id {pid}).\n") == run("stop")
    assert (pid, 0) == os.waitpid(pid, 0)
    nobody = f"No emulator that `start` started runs on port {port}. Nothing was stopped.\n"
    assert (1, "", nobody) == run("stop", "--port", port)
    late = f"No emulator answers at `{endpoint}` after 0.1 s. Start one, or correct `--endpoint` or `--port`.\n"
    assert (1, "false\n", late) == run("wait", "--timeout", "0.1")
    assert [f"emulator-{port}.log"] == [file.name for file in state.iterdir()]


def test_second_start_prints_the_same_line(state: Path):
    """A second `start` of one's own emulator succeeds. It is refused with an option that the first one did not have."""
    _, export, _ = run("start", "--port", "0", "--verbose")
    port = export.strip().rpartition(":")[2]

    code, again, about = run("start", "--port", port)
    assert (0, export) == (code, again)
    assert about.startswith(f"The emulator already runs at 127.0.0.1:{port} (process id ")

    other = f"The emulator at 127.0.0.1:{port} already runs, without `--seed 7`. "
    code, told, about = run("start", "--port", port, "--verbose", "--seed", "7")
    assert (1, "false\n", f"{other}End it first: `pubsub-spark emulator stop --port {port}`.\n") == (code, told, about)
    elsewhere = (
        f"No emulator that `start` started runs on port 1. Those that run are on {port}: name one with `--port`.\n"
    )
    assert (1, "", elsewhere) == run("stop", "--port", "1")


def test_emulator_of_another_is_named(state: Path, emulator: Emulator):
    """A start at the address of an emulator that `start` did not start reports that."""
    code, told, about = run("start", "--port", str(emulator.port))

    assert (1, "false\n") == (code, told)
    assert about.startswith(
        f"An emulator already runs at `{emulator.endpoint}` (process id {os.getpid()}). Use it with"
    )


@pytest.mark.parametrize(
    "words", [["start", "--port", "{taken}"], ["start", "--prot", "0"], ["wait", "--timeout", "0"], ["--detach"]]
)
def test_shell_that_evaluates_a_failure_fails(words: list[str], state: Path):
    """`eval "$(...)"` of a start or a wait that fails ends a script with `set -e`."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [each.format(taken=port) for each in words]
        if words[0] == "wait":
            command += ["--port", "1"]
        program = f"{sys.executable} -c 'from pubsub_spark.cli import app; app()' emulator {' '.join(command)}"
        script = f'set -e; eval "$({program})"; echo "tests run at [$PUBSUB_EMULATOR_HOST]"'
        ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True)

    assert (1, "") == (ended.returncode, ended.stdout)
    assert ended.stderr


def test_json_of_a_started_emulator(state: Path):
    """With `--json` endpoint, page, process id and log are printed as JSON, also by `stop`."""
    code, told, _ = run("start", "--port", "0", "--json")
    running = json.loads(told)
    port = running["endpoint"].rpartition(":")[2]
    log = str(state / f"emulator-{port}.log")

    assert (0, log, f"http://127.0.0.1:{port}/") == (code, running["log"], running["page"])
    [row] = json.loads(run("status", "--json")[1])
    assert (running["endpoint"], log) == (row["endpoint"], row["log"])
    ended = json.loads(run("stop", "--port", port, "--json")[1])
    assert {"pid": running["pid"], "endpoint": running["endpoint"]} == ended
    os.waitpid(running["pid"], 0)
    assert (1, "") == run("status", "--port", port)[:2]


def test_status_shows_the_emulator_at_the_endpoint(state: Path, emulator: Emulator):
    """An emulator that `start` did not start is shown by its address, without a log."""
    code, table, _ = run("status", "--port", str(emulator.port))

    assert 0 == code
    assert [emulator.endpoint, str(os.getpid()), f"http://{emulator.endpoint}/", "-"] == table.splitlines()[1].split()


def test_started_emulator_has_the_resources_of_its_file(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`start --config` creates the resources of a seed file, which is looked for in the folder of the command."""
    (tmp_path / "seeds.yaml").write_text(f"topics: {{{TOPIC}: {{}}}}\n")
    monkeypatch.chdir(tmp_path)
    code, export, _ = run("start", "--port", "0", "--config", "seeds.yaml", "--allow-host", "a.example.com")
    client = Client(export.strip().removeprefix("export PUBSUB_EMULATOR_HOST="))

    with client.channel:
        assert (0, TOPIC) == (code, client.ask("Publisher/GetTopic", topic=TOPIC).name)


def test_emulator_that_does_not_start_says_everything(state: Path, tmp_path: Path):
    """All errors of a document are reported, instead of only its last line."""
    document = tmp_path / "api.yaml"
    document.write_text("asyncapi: 3.0.0\nchannels: {a: 1, b: 2}\n")
    code, _, said = run("start", "--port", "0", "--config", str(document))

    assert (1, f"`{document}` has 2 problems:", 3) == (code, said.splitlines()[0], len(said.splitlines()))


def test_another_process_is_not_stopped(state: Path, emulator: Emulator):
    """A process id that another process has by now is not signalled."""
    state.mkdir()
    file = state / f"emulator-{emulator.port}.json"
    file.write_text(json.dumps({"pid": 1, "endpoint": emulator.endpoint, "options": []}))

    gone = f"No emulator that `start` started runs on port {emulator.port}. Nothing was stopped.\n"
    assert (1, "", gone) == run("stop", "--port", str(emulator.port))
    assert not file.exists()


@pytest.mark.parametrize(("old", "new"), [("--detach", "start"), ("--stop", "stop"), ("--wait-ready", "wait")])
def test_old_flags_name_the_command(old: str, new: str):
    """The former flags are commands now."""
    assert (2, "false\n", f"`{old}` is a command: `pubsub-spark emulator {new}`.\n") == run("--port", "1", old)

"""Emulators in the background: `pubsub-spark emulator --detach`, `--stop` and `--wait-ready`.

A detached emulator is a process of its own, in a session of its own. Its process id and address stand in a file of the
user's state directory (`$XDG_STATE_HOME/pubsub-spark/emulator-PORT.json`), beside it its log. A process id is only
signalled after the emulator at that address has said that it is its own: ids are used again.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from .command import exit_with

_EXPORT = "export PUBSUB_EMULATOR_HOST="
_COMMAND = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); from pubsub_spark.cli import app; app(sys.argv[1:])"
_POLL_SECONDS = 0.05
_REQUEST_SECONDS = 2.0


class Running(NamedTuple):
    """A detached emulator."""

    pid: int
    endpoint: str


def start(arguments: Sequence[str], timeout: float) -> Running:
    """Start `pubsub-spark emulator` with these arguments in the background; returns when it is ready.

    The end of the command when it is not, after `timeout` seconds at the most.
    """
    _state_directory().mkdir(parents=True, exist_ok=True, mode=0o700)
    log_path = _path(f"starting-{os.getpid()}", "log")
    paths = "\n".join(each or str(Path.cwd()) for each in sys.path)
    with log_path.open("w") as log:
        process = subprocess.Popen(  # noqa: S603 (this very program)
            [sys.executable, "-c", _COMMAND, paths, "emulator", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as stream:
        line = _first_line(stream, timeout)
    if line is None or not line.startswith(_EXPORT):
        process.kill()
        process.wait()
        said = log_path.read_text().strip().splitlines()
        log_path.unlink()
        if line is None:
            exit_with(f"The emulator was not ready after {timeout:g} seconds; give it more with `--timeout`.")
        exit_with("\n".join(said) or "The emulator ended at once, without a word; start it without `--detach`.")
    process.returncode = 0  # left behind: or subprocess warns that it still runs
    running = Running(process.pid, line.removeprefix(_EXPORT).strip())
    _keep(running, log_path)
    return running


def stop(port: int, timeout: float) -> Running:
    """End the emulator that was detached on this port, by SIGTERM; returns when its process is gone."""
    path = _path(port, "json")
    try:
        running = Running(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        exit_with(f"No emulator was started with `--detach` on port {port}; name its port with `--port`.")
    if _pid_at(running.endpoint) != running.pid:
        path.unlink()
        exit_with(f"The emulator that was started at `{running.endpoint}` does not run any more; nothing was stopped.")
    os.kill(running.pid, signal.SIGTERM)
    ends = time.monotonic() + timeout
    while _exists(running.pid):
        if time.monotonic() > ends:
            exit_with(f"The emulator with process id {running.pid} has not ended after {timeout:g} seconds; end it.")
        time.sleep(_POLL_SECONDS)
    path.unlink()
    return running


def wait_ready(endpoint: str, timeout: float) -> None:
    """Wait until an emulator answers at this address; the end of the command when none does in time."""
    ends = time.monotonic() + timeout
    while _get(endpoint, "/healthz") is None:
        if time.monotonic() > ends:
            exit_with(
                f"No emulator answers at `{endpoint}` after {timeout:g} s. Start one, or correct `--host` and `--port`."
            )
        time.sleep(_POLL_SECONDS)


def log_of(running: Running) -> Path:
    """The file that a detached emulator logs to."""
    return _path(running.endpoint.rpartition(":")[2], "log")


def _keep(running: Running, log_path: Path) -> None:
    """Write what `stop` needs, and let the log have its name by the port."""
    log_path.replace(log_of(running))
    path = _path(running.endpoint.rpartition(":")[2], "json")
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(running._asdict()))
    written.replace(path)


def _state_directory() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pubsub-spark"


def _path(port: int | str, suffix: str) -> Path:
    return _state_directory() / f"emulator-{port}.{suffix}"


def _first_line(stream: IO[str], seconds: float) -> str | None:
    """The first line of a process; empty when it ends without one, None when it has none in time."""
    ready, _, _ = select.select([stream], [], [], seconds)
    return stream.readline() if ready else None


def _pid_at(endpoint: str) -> int | None:
    """The process id of the emulator at an address, as it says itself; None when none answers."""
    answer = _get(endpoint, "/_emulator/process")
    with suppress(ValueError, TypeError, KeyError):
        return int(json.loads(answer or "")["pid"])
    return None


def _get(endpoint: str, path: str) -> str | None:
    """The body of an answer with status 200; None otherwise. No proxy of the environment is asked."""
    connection = http.client.HTTPConnection(endpoint, timeout=_REQUEST_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return body if response.status == 200 else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended and only its parent has not asked how; where /proc tells."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def arguments_of(command: Any, values: dict[str, Any], without: Sequence[str]) -> list[str]:
    """The options of a call as it could be written, by the parameters of its command."""
    arguments: list[str] = []
    for parameter in command.params:
        value = values.get(parameter.name)
        if parameter.name in without or value is None or value is False:
            continue
        each_value = value if isinstance(value, list | tuple) else [value]
        for each in each_value:
            arguments += [parameter.opts[0]] if each is True else [parameter.opts[0], str(each)]
    return arguments

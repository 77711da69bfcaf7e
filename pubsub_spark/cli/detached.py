"""Emulators in the background: `pubsub-spark emulator start`, `stop`, `wait` and `status`.

A file of the user's state directory has a started emulator's process id, address and options
(`$XDG_STATE_HOME/pubsub-spark/emulator-PORT.json`). The file next to it is its log. A process id is only signalled
after the emulator at that address has reported it as its own, because ids are used again.
"""

from __future__ import annotations

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
from .emulator_client import is_ready, pid_at

_EXPORT = "export PUBSUB_EMULATOR_HOST="
# Programs of the process. SERVE imports the emulator alone, which takes half of the time, and its argument is JSON.
_PATH = "import sys; sys.path[:] = sys.argv.pop(1).split('\\n'); "
RUN = _PATH + "from pubsub_spark.cli import app; app(['emulator', 'run', *sys.argv[1:]])"
SERVE = _PATH + "from pubsub_spark.emulator.background import main; sys.exit(main(sys.argv[1]))"
_POLL_SECONDS = 0.05


class Running(NamedTuple):
    pid: int
    endpoint: str
    options: list[list[str]]  # of the command line: a name, and its value unless it is a flag

    @property
    def port(self) -> str:
        return self.endpoint.rpartition(":")[2]

    @property
    def log(self) -> Path:
        return _path(self.port, "log")


def start(program: str, arguments: Sequence[str], options: list[list[str]], timeout: float) -> Running:
    """Start an emulator in the background, and return when it is ready.

    program: RUN or SERVE. options: those of the command line, to be kept. Ends the command if the emulator is not ready
    after `timeout` seconds.
    """
    _state_directory().mkdir(parents=True, exist_ok=True, mode=0o700)
    log_path = _path(f"starting-{os.getpid()}", "log")
    paths = "\n".join(path or str(Path.cwd()) for path in sys.path)
    with log_path.open("w") as log:
        process = subprocess.Popen(  # noqa: S603 (this very program)
            [sys.executable, "-c", program, paths, *arguments],
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
            exit_with(f"The emulator was not ready after {timeout:g} seconds. Allow more with `--timeout`.")
        exit_with("\n".join(said) or "The emulator ended at once, without a word. See `pubsub-spark emulator run`.")
    process.returncode = 0  # left behind: otherwise subprocess warns that it still runs
    running = Running(process.pid, line.removeprefix(_EXPORT).strip(), options)
    _keep(running, log_path)
    return running


def started(port: int | str) -> Running | None:
    """Return None if no started emulator runs on this port."""
    path = _path(port, "json")
    try:
        running = Running(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    if pid_at(running.endpoint) == running.pid:
        return running
    path.unlink(missing_ok=True)
    return None


def all_started() -> list[Running]:
    """Return the emulators that were started and still run, by their ports."""
    emulators = (started(path.stem.removeprefix("emulator-")) for path in _state_directory().glob("emulator-*.json"))
    return sorted((emulator for emulator in emulators if emulator is not None), key=lambda emulator: int(emulator.port))


def stop(port: int | str, timeout: float) -> Running:
    """End the emulator on this port, by SIGTERM. Return when its process is gone."""
    running = started(port)
    if running is None:
        ports = ", ".join(emulator.port for emulator in all_started())
        exit_with(
            f"No emulator that `start` started runs on port {port}. "
            + (f"Those that run are on {ports}: name one with `--port`." if ports else "Nothing was stopped.")
        )
    os.kill(running.pid, signal.SIGTERM)
    ends = time.monotonic() + timeout
    while _exists(running.pid):
        if time.monotonic() > ends:
            exit_with(f"The emulator with process id {running.pid} has not ended after {timeout:g} seconds. Kill it.")
        time.sleep(_POLL_SECONDS)
    _path(port, "json").unlink(missing_ok=True)
    return running


def wait(endpoint: str, timeout: float) -> None:
    """Return when an emulator answers. End the command if none does in time."""
    ends = time.monotonic() + timeout
    while not is_ready(endpoint):
        if time.monotonic() > ends:
            exit_with(
                f"No emulator answers at `{endpoint}` after {timeout:g} s. Start one, or correct `--endpoint` or "
                "`--port`."
            )
        time.sleep(_POLL_SECONDS)


def _keep(running: Running, log_path: Path) -> None:
    log_path.replace(running.log)
    path = _path(running.port, "json")
    written = path.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(running._asdict()))
    written.replace(path)


def _state_directory() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pubsub-spark"


def _path(port: int | str, suffix: str) -> Path:
    return _state_directory() / f"emulator-{port}.{suffix}"


def _first_line(stream: IO[str], seconds: float) -> str | None:
    """Return an empty line when the process ends without one, or None when time is over."""
    ready, _, _ = select.select([stream], [], [], seconds)
    return stream.readline() if ready else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def given_options(context: Any, without: Sequence[str]) -> list[list[str]]:
    """Return the options of the command line as names and values. Paths are absolute."""
    options: list[list[str]] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name)
        source = context.get_parameter_source(parameter.name)
        if parameter.name in without or value is None or value is False or source.name != "COMMANDLINE":
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            shown = [] if item is True else [str(item.absolute() if isinstance(item, Path) else item)]
            options.append([parameter.opts[0], *shown])
    return options

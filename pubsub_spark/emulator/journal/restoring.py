"""The state in a data directory: its base, and the changes of the log.

A separate process writes a base from the files alone, because reading a million messages takes seconds, and no call
should wait that long.
"""

from __future__ import annotations

from pathlib import Path

from pubsub_spark.emulator.journal import files
from pubsub_spark.emulator.journal.commands import Replay, ReplayError
from pubsub_spark.emulator.journal.files import DataDirError, LogFile
from pubsub_spark.emulator.resources.resource_format import RESOURCE_FORMAT
from pubsub_spark.emulator.state.state import State


def restored(log: LogFile, upto: int | None = None, remembered: int = 0) -> Replay:
    """Return the state after a row of the log, or after the last. Raise DataDirError if a row does not fit."""
    replay = Replay(State(remembered=remembered), RESOURCE_FORMAT)
    if log.base:
        base = files.read_base(log.path.parent, log.base)
        try:
            state = State.load(base["state"], RESOURCE_FORMAT, remembered=remembered)
            replay = Replay(state, RESOURCE_FORMAT, base["now"])
            replay.connect(base["connected"])
        except Exception as problem:
            raise DataDirError(
                f"`{files.base_path(log.path.parent, log.base)}` is no base of an emulator "
                f"({type(problem).__name__}: {problem}). Restore the directory from a copy, or choose an empty one."
            ) from problem
    for number, commands in log.groups(upto):
        for command in commands:
            try:
                replay.apply(command)
            except ReplayError as problem:
                raise DataDirError(
                    f"Row {number} of `{log.path}` does not fit the rows before it: {problem}. The directory holds "
                    "more than one emulator's files, or pubsub-spark is another version. Restore it from a copy."
                ) from problem
    return replay


def write_base(directory: Path, number: int) -> None:
    log = LogFile(directory, read_only=True)
    try:
        replay = restored(log, number)
    finally:
        log.close()
    content = {"state": replay.state.dump(RESOURCE_FORMAT), "now": replay.now, "connected": replay.connected()}
    files.write_base(directory, number, content)

"""The journal of a running emulator: changes are written before the calls that made them are answered.

Commands wait in a list. One thread writes all waiting commands as one row of the log (a group), and then releases the
waiting callers, so concurrent calls share one write and its fsync. When the log has grown beyond the base, a separate
process writes the next base. Rows that it includes are deleted, a few after each group.

A log that cannot be written ends the emulator, and calls that wait for it fail with UNAVAILABLE: no call is answered
whose change was not kept.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.journal import files, restoring
from pubsub_spark.emulator.journal.commands import Command, Recorder
from pubsub_spark.emulator.journal.files import LogFile
from pubsub_spark.emulator.options import FsyncPolicy
from pubsub_spark.emulator.resources.resource_format import RESOURCE_FORMAT
from pubsub_spark.emulator.state.state import State

_log = logging.getLogger("pubsub_spark.emulator")

MIN_LOG_BYTES = 128 << 20  # before a new base is written. The log must also be larger than the base
_COMMAND_BYTES = 1000  # of a base, which are read as fast as one command is carried out
_PRUNED_ROWS = 16  # after each group. More than are written, but so few that no caller waits for it
_MAX_GROUP_COMMANDS = 64  # a Publish has at most 10 MB, and a row of SQLite at most 1 GB


class _Waiter(NamedTuple):
    ticket: int
    future: asyncio.Future[None]


class Journal:
    """`state` is the content of the directory. From `start` on every change of it is written."""

    def __init__(self, directory: Path, fsync: FsyncPolicy = "group", *, now: float, remembered: int = 0) -> None:
        """Raise DataDirError. now: seconds since the epoch."""
        self._directory = directory
        self._lock_file = files.lock(directory)
        try:
            self._log = LogFile(directory, fsync)
            try:
                files.remove_bases(directory, but=self._log.base)
                replay = restoring.restored(self._log, remembered=remembered)
            except BaseException:
                self._log.close()
                raise
        except BaseException:
            self._lock_file.close()
            raise
        self.state: State = replay.state
        broker = self.state.broker
        self.is_empty = not (broker.topics or broker.subscriptions or broker.snapshots or [*self.state.schemas])
        self.now = max(now, replay.now)  # the emulator's clock never goes back
        self.on_failure: Callable[[BaseException], None] = lambda _: None
        self._most_commands = 1 if fsync == "call" else _MAX_GROUP_COMMANDS
        self._changed = threading.Condition()
        self._commands: deque[Command] = deque()
        self._ticket = 0  # of the last recorded command
        self._written = 0  # of the last written command
        self._failure: BaseException | None = None
        self._closed = False
        self._waiters: deque[_Waiter] = deque()  # of the event loop, in the order of their tickets
        self._loop: asyncio.AbstractEventLoop | None = None
        # Of the rows that the base lacks, including the cost of their commands.
        self._log_bytes = self._log.size() + _COMMAND_BYTES * replay.commands
        self._is_chaotic = False
        self._compaction: subprocess.Popen[bytes] | None = None
        self._compacting_to = 0
        self._thread = threading.Thread(target=self._run, name="pubsub-emulator-journal", daemon=True)

    def start(self) -> None:
        """Record every change of the state from now on, beginning with the restart."""
        Recorder(self.state, RESOURCE_FORMAT, self._record)
        self.state.broker.restart(self.now)
        self.state.events.clear()
        self._thread.start()

    def _record(self, command: Command) -> None:
        with self._changed:
            self._commands.append(command)
            self._ticket += 1
            self._changed.notify_all()

    # Waiting

    async def written(self) -> None:
        """To be called on one event loop only."""
        ticket = self._ticket
        if self._written >= ticket:
            return
        self._loop = asyncio.get_running_loop()
        waiter = _Waiter(ticket, self._loop.create_future())
        self._waiters.append(waiter)
        if self._failure is not None:
            self._wake()
        await waiter.future

    def flush(self) -> None:
        with self._changed:
            ticket = self._ticket
            self._changed.wait_for(lambda: self._written >= ticket or self._failure is not None)
            if self._written < ticket:
                raise self._unavailable()

    def _wake(self) -> None:
        """It runs on the event loop."""
        while self._waiters and (self._failure is not None or self._waiters[0].ticket <= self._written):
            waiter = self._waiters.popleft()
            if waiter.future.done():  # its call was cancelled
                continue
            if waiter.ticket <= self._written:
                waiter.future.set_result(None)
            else:
                waiter.future.set_exception(self._unavailable())

    def _wake_all(self) -> None:
        with self._changed:
            self._changed.notify_all()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _unavailable(self) -> RpcError:
        return RpcError("UNAVAILABLE", f"The journal in `{self._directory}` cannot be written: {self._failure}.")

    # Writing

    def _run(self) -> None:
        try:
            while self._write_group():
                self._compact()
        except Exception as error:
            self._failure = error
            self._wake_all()
            self.on_failure(error)

    def _write_group(self) -> bool:
        """Return False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._commands or self._closed)
            count = min(self._most_commands, len(self._commands))
            group = [self._commands.popleft() for _ in range(count)]
        if not group:
            return False
        self._log_bytes += self._log.append(group) + _COMMAND_BYTES * len(group)
        for command in group:
            if command.name == "set_chaos":
                self._is_chaotic = command.arguments != (None,)
        self._written += len(group)
        self._wake_all()
        return True

    # Compaction

    def _compact(self) -> None:
        if self._compaction is None:
            base_bytes = self._base_bytes()
            # A base lacks the next choices of chaos.
            if self._log_bytes > max(MIN_LOG_BYTES, base_bytes) and not self._is_chaotic:
                self._begin_compaction()
        elif self._compaction.poll() is not None:
            self._end_compaction(self._compaction)
        if self._log.base:
            self._log.prune(_PRUNED_ROWS)

    def _base_bytes(self) -> int:
        return files.base_path(self._directory, self._log.base).stat().st_size if self._log.base else 0

    def _begin_compaction(self) -> None:
        self._compacting_to, self._log_bytes = self._log.number, 0
        command = [sys.executable, "-m", __package__ or "", str(self._directory.absolute()), str(self._compacting_to)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._compaction = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)  # noqa: S603

    def _end_compaction(self, process: subprocess.Popen[bytes]) -> None:
        self._compaction = None
        code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        if code:
            _log.error(
                "No new base could be written in `%s`. The emulator tries again when the log has grown.",
                self._directory,
            )
            return
        self._log.rebase(self._compacting_to)
        files.remove_bases(self._directory, but=self._log.base)

    def close(self) -> None:
        """Write the recorded commands, and release the directory."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if self._compaction is not None:
            self._compaction.kill()
            self._compaction.communicate()
        self._log.close()
        self._lock_file.close()

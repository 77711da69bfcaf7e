"""Checkpoints: the copying of SQLite's write-ahead log into the database, in parallel with writing.

SQLite would do it in the thread that writes, and the calls of that group would wait for 16 MB to reach the disk. Here a
thread copies most of it. Then the thread that writes copies the rest between two groups.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from pathlib import Path

_log = logging.getLogger("pubsub_spark.emulator")

_BYTES = 16 << 20  # of write-ahead log, before it is copied
_ROUNDS = 3  # each copies the changes written during the one before


class Checkpoints:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = 0  # bytes since the last checkpoint began
        self._is_rest_due = False
        self._due = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def wrote(self, writer: sqlite3.Connection, size: int) -> None:
        """The thread that writes calls this."""
        self._written += size
        if self._is_rest_due:
            self._is_rest_due = False
            _checkpoint(writer)
        elif self._written > _BYTES and not self._due.is_set():
            self._written = 0
            self._due.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pubsub-emulator-checkpoint", daemon=True)
                self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            while self._due.wait() and not self._closed:
                for _ in range(_ROUNDS):
                    _checkpoint(database)
                self._is_rest_due = True
                self._due.clear()


def _checkpoint(database: sqlite3.Connection) -> None:
    try:
        database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as problem:  # the write-ahead log still has everything
        _log.warning("A checkpoint of the journal failed, and is tried again: %s", problem)

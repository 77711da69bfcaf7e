"""The files of a data directory: the log, the bases, the lock. Also how their damage is recognized.

    lock                 held by the emulator that uses the directory
    journal.sqlite       table `log`: one row for each group of commands, numbered from 1 without gaps, with a checksum
                         that continues from row to row. Table `base`: the last row that the base includes
    base-N.sqlite        the state after row N of the log. Complete, or missing

SQLite's write-ahead log makes a row all or nothing. A half-written end of the file `-wal`, left by a broken machine, is
cut with a WARNING. Damage with something whole behind it is refused, because later content cannot be trusted without
it.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import pickle
import sqlite3
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, get_args

from pubsub_spark.emulator.journal.checkpoints import Checkpoints
from pubsub_spark.emulator.journal.commands import Command
from pubsub_spark.emulator.options import FsyncPolicy

_log = logging.getLogger("pubsub_spark.emulator")

FORMAT = 2  # of the files. To be raised if an older emulator could not read the files of a newer one
LOG = "journal.sqlite"
_SYNCHRONOUS: dict[FsyncPolicy, str] = {"group": "FULL", "call": "FULL", "never": "OFF"}
_WAL_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence, two salts, two checksums
_FRAME_HEADER = struct.Struct(">6I")  # page, pages of the database after a commit (else 0), two salts, two checksums
_WAL_MAGIC = 0x377F0682
_PAGE_BYTES = 16_384  # a Publish of 1000 messages in few pages, a small call in one
_CHUNK_BYTES = 4 << 20  # of a base, in one row
_ROWS_AT_ONCE = 16


class DataDirError(Exception):
    """A data directory cannot be used: another emulator's, newer, damaged, or not readable."""


class PlainPickler(pickle.Pickler):
    """It refuses at once data that could not be read again."""

    def reducer_override(self, value: Any) -> Any:
        raise pickle.PicklingError(f"`{type(value).__name__}` is no plain data")


class _PlainUnpickler(pickle.Unpickler):
    """It runs no code of its input."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"`{module}.{name}` is no plain data")


def lock(directory: Path) -> IO[bytes]:
    """Make the directory, and lock out every other emulator until the returned file is closed."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (directory / "lock").open("ab")
    except OSError as problem:
        raise DataDirError(
            f"The data directory `{directory}` cannot be used: {problem.strerror}. Choose one that can be written to."
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise DataDirError(
            f"The data directory `{directory}` is in use by another emulator. Stop that one, or choose "
            "another directory."
        ) from None
    return file


class LogFile:
    """`number` is the last row of the log, and `base` the last row that the base includes."""

    def __init__(self, directory: Path, fsync: FsyncPolicy = "group", *, read_only: bool = False) -> None:
        if fsync not in _SYNCHRONOUS:
            raise ValueError(f"`fsync` must be one of {', '.join(get_args(FsyncPolicy))}, got {fsync}.")
        self.path = directory / LOG
        self.number = self._checksum = 0
        self._checkpoints = Checkpoints(self.path)
        tail = None if read_only else _WalFile(self.path.with_name(f"{LOG}-wal"))
        with self._reading():
            address = f"{self.path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
            self._database = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
            try:
                self._check_version()
                if tail is not None:
                    self._begin(tail, fsync)
                (self.base,) = self._database.execute("SELECT number FROM base").fetchone()
                last = self._database.execute(
                    "SELECT number, checksum FROM log ORDER BY number DESC LIMIT 1"
                ).fetchone()
            except BaseException:
                self._database.close()
                raise
            self.number, self._checksum = last or (0, 0)

    def _check_version(self) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version > FORMAT:
            raise DataDirError(
                f"The data directory `{self.path.parent}` was written by a newer emulator (format {version}, and this "
                f"one knows {FORMAT}). Start that version of pubsub-spark, or choose another directory."
            )
        self._version = version

    def _begin(self, tail: _WalFile, fsync: FsyncPolicy) -> None:
        execute = self._database.execute
        execute(f"PRAGMA page_size={_PAGE_BYTES}")
        execute("PRAGMA journal_mode=WAL")
        execute(f"PRAGMA synchronous={_SYNCHRONOUS[fsync]}")
        execute("PRAGMA wal_autocheckpoint=0")  # `Checkpoints` does it
        tail.check(execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1])
        execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if not self._version:
            self._create()

    def _create(self) -> None:
        execute = self._database.execute
        if execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise DataDirError(
                f"`{self.path}` is not a journal of an emulator. Choose a directory that is empty or does not exist."
            )
        execute("BEGIN")
        execute("CREATE TABLE log (number INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, commands BLOB NOT NULL)")
        execute("CREATE TABLE base (number INTEGER NOT NULL)")
        execute("INSERT INTO base VALUES (0)")
        execute(f"PRAGMA user_version={FORMAT}")
        execute("COMMIT")
        self._version = FORMAT

    def append(self, group: Sequence[Command]) -> int:
        """Write commands as one row, and return its size in bytes. They are kept when this returns."""
        buffer = io.BytesIO()
        PlainPickler(buffer, 5).dump(list(map(tuple, group)))
        content = buffer.getvalue()
        checksum = zlib.crc32(content, self._checksum)
        if self._version < FORMAT:
            self._database.execute(f"PRAGMA user_version={FORMAT}")
            self._version = FORMAT
        # One statement instead of a transaction around it: each statement releases Python's lock and waits for it
        # again.
        self._database.execute("INSERT INTO log VALUES (?, ?, ?)", (self.number + 1, checksum, content))
        self.number, self._checksum = self.number + 1, checksum
        self._checkpoints.wrote(self._database, len(content))
        return len(content)

    def groups(self, upto: int | None = None) -> Iterator[tuple[int, list[Command]]]:
        """Yield the number and the commands of each row behind the base."""
        number = self.base
        checksum: int | None = self._checksum_of(number) if number else 0
        upto = self.number if upto is None else upto
        while number < upto:
            with self._reading(number + 1):
                rows = self._database.execute(
                    "SELECT number, checksum, commands FROM log WHERE number > ? ORDER BY number LIMIT ?",
                    (number, min(_ROWS_AT_ONCE, upto - number)),
                ).fetchall()
            if not rows:
                raise self._damaged(number + 1)
            for row_number, written, content in rows:
                number += 1
                if row_number != number or not isinstance(content, bytes):
                    raise self._damaged(number)
                if checksum is not None and zlib.crc32(content, checksum) != written:
                    raise self._damaged(number)
                checksum = written
                try:
                    commands = [Command(*fields) for fields in _PlainUnpickler(io.BytesIO(content)).load()]
                except Exception:
                    raise self._damaged(number) from None
                yield number, commands

    def _checksum_of(self, number: int) -> int | None:
        """Return None if the row was deleted. Then the next row's checksum cannot be verified."""
        with self._reading(number):
            row = self._database.execute("SELECT checksum FROM log WHERE number = ?", (number,)).fetchone()
        return row[0] if row else None

    def size(self) -> int:
        """Return the size in bytes of the commands behind the base."""
        with self._reading():
            select = "SELECT coalesce(sum(length(commands)), 0) FROM log WHERE number > ?"
            return int(self._database.execute(select, (self.base,)).fetchone()[0])

    def rebase(self, number: int) -> None:
        self._database.execute("UPDATE base SET number = ?", (number,))
        self.base = number

    def prune(self, rows: int) -> int:
        """Delete at most `rows` rows that the base includes, and return their number.

        The last one stays, because the checksum of the next row continues from it.
        """
        oldest = "SELECT number FROM log WHERE number < ? ORDER BY number LIMIT ?"
        return self._database.execute(f"DELETE FROM log WHERE number IN ({oldest})", (self.base, rows)).rowcount  # noqa: S608

    def close(self) -> None:
        self._checkpoints.close()
        self._database.close()

    @contextlib.contextmanager
    def _reading(self, number: int = 0) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as problem:
            if isinstance(problem, sqlite3.OperationalError) and "unable to open" in str(problem):
                raise DataDirError(f"`{self.path}` cannot be opened. Check its permissions.") from None
            raise self._damaged(number, f" ({problem})") from None

    def _damaged(self, number: int, more: str = "") -> DataDirError:
        location = f"row {number} of its table `log`" if number else "its head"
        return DataDirError(
            f"`{self.path}` is damaged at {location}{more}. Restore the directory from a copy, or choose an empty one."
        )


class _WalFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._header = b""
        self._frames: list[tuple[int, int, int]] = []  # of each: the pages after a commit, and the salts
        self._rest = 0  # bytes of an incomplete frame
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            self._header = file.read(_WAL_HEADER.size)
            if len(self._header) < _WAL_HEADER.size:
                return
            self._page = _WAL_HEADER.unpack(self._header)[2]
            while len(head := file.read(_FRAME_HEADER.size)) == _FRAME_HEADER.size:
                self._frames.append(_FRAME_HEADER.unpack(head)[1:4])
                file.seek(self._page, os.SEEK_CUR)
            size = file.seek(0, os.SEEK_END)
            self._rest = (size - _WAL_HEADER.size) % (self._page + _FRAME_HEADER.size)

    def check(self, valid: int) -> None:
        """Log a WARNING about a cut end behind the valid frames. Raise DataDirError if whole changes follow it.

        Frames of an earlier round, which have other salts, are not part of the log.
        """
        if len(self._header) < _WAL_HEADER.size:  # begun, but nothing was written
            return
        if _WAL_HEADER.unpack(self._header)[0] & ~1 != _WAL_MAGIC:
            raise self._damaged(0)
        salts = _WAL_HEADER.unpack(self._header)[4:6]
        behind = [commit for commit, *own in self._frames[valid:] if tuple(own) == salts]
        offset = _WAL_HEADER.size + valid * (self._page + _FRAME_HEADER.size)
        if sum(map(bool, behind)) > 1 or (any(behind) and not behind[-1]):
            raise self._damaged(offset)
        if behind or self._rest:
            _log.warning(
                "`%s` ends in a change that was not written as a whole, at byte %s, and it is cut. No call that wrote "
                "it was answered, unless the machine itself broke down.",
                self._path,
                offset,
            )

    def _damaged(self, offset: int) -> DataDirError:
        return DataDirError(
            f"`{self._path}` is damaged at byte {offset}, and whole changes follow. Restore the directory from a copy, "
            "or choose an empty one."
        )


# Bases


def base_path(directory: Path, number: int) -> Path:
    return directory / f"base-{number}.sqlite"


def write_base(directory: Path, number: int, content: Any) -> None:
    """Write a base completely or not at all."""
    path = base_path(directory, number)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(unfinished, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=OFF")
        database.execute("PRAGMA synchronous=OFF")
        database.execute("CREATE TABLE chunks (number INTEGER PRIMARY KEY, checksum INTEGER, content BLOB)")
        database.execute("BEGIN")
        with io.BufferedWriter(_ChunkWriter(database), _CHUNK_BYTES) as file:
            PlainPickler(file, 5).dump(content)
        database.execute("COMMIT")
    with unfinished.open("rb+") as written:
        os.fsync(written.fileno())
    unfinished.rename(path)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_base(directory: Path, number: int) -> Any:
    """Raise DataDirError if the base is missing or damaged."""
    path = base_path(directory, number)
    if not path.exists():
        raise DataDirError(f"`{path}` is missing, and `{LOG}` continues from it. Restore the directory from a copy.")
    with contextlib.closing(sqlite3.connect(path)) as database:
        chunks = _ChunkReader(database)
        try:
            with io.BufferedReader(chunks, _CHUNK_BYTES) as file:
                return _PlainUnpickler(file).load()
        except Exception as problem:
            raise DataDirError(
                f"`{path}` is damaged at row {chunks.number} of its table `chunks` ({problem}). Restore the directory "
                "from a copy, or choose an empty one."
            ) from None


def remove_bases(directory: Path, but: int) -> None:
    """Remove every base but one, including unfinished ones."""
    for path in directory.glob("base-*"):
        if path != base_path(directory, but):
            path.unlink(missing_ok=True)


class _ChunkWriter(io.RawIOBase):
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._checksum = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        for start in range(0, len(content), _CHUNK_BYTES):
            chunk = bytes(content[start : start + _CHUNK_BYTES])
            self._checksum = zlib.crc32(chunk, self._checksum)
            self._database.execute("INSERT INTO chunks (checksum, content) VALUES (?, ?)", (self._checksum, chunk))
        return len(content)


class _ChunkReader(io.RawIOBase):
    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._checksum = 0
        self._rest = b""
        self.number = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self.number += 1
            select = "SELECT checksum, content FROM chunks WHERE number = ?"
            row = self._database.execute(select, (self.number,)).fetchone()
            if row is None:
                return 0
            self._checksum = zlib.crc32(row[1], self._checksum)
            if self._checksum != row[0]:
                raise ValueError("its checksum is another")
            self._rest = row[1]
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

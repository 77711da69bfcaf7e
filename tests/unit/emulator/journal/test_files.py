"""The files of a data directory, and their recovery when they are damaged."""

from __future__ import annotations

import contextlib
import logging
import pickle
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pubsub_spark.emulator.journal import files
from pubsub_spark.emulator.journal.commands import Command
from pubsub_spark.emulator.journal.files import FORMAT, LOG, DataDirError, LogFile
from tests.conftest import ROOT

WAL = f"{LOG}-wal"


def group(number: int, size: int = 10) -> list[Command]:
    return [Command("publish", (f"topic {number}", [b"x" * size]), {}, None)]


def killed(folder: Path, groups: int = 4, size: int = 10) -> Path:
    """Return the directory of a process that was killed after it wrote `groups` groups."""
    source = (
        "import os, sys; from pathlib import Path; from pubsub_spark.emulator.journal.files import LogFile;"
        "from tests.unit.emulator.journal.test_files import group;"
        f"log = LogFile(Path(sys.argv[1])); [log.append(group(each, {size})) for each in range(1, {groups} + 1)];"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", source, str(folder)], cwd=ROOT)
    assert (folder / WAL).stat().st_size
    return folder


def topics(folder: Path) -> list[str]:
    """Return the text of each group that can be read."""
    log = LogFile(folder)
    try:
        return [commands[0].arguments[0] for _, commands in log.groups()]
    finally:
        log.close()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def test_groups_outlive_a_kill(tmp_path: Path):
    """Every group that was appended is read in its order after kill -9."""
    assert ["topic 1", "topic 2", "topic 3", "topic 4"] == topics(killed(tmp_path))


def test_a_half_written_end_is_cut_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """An incomplete last change, as a broken machine may leave it, is cut. Those before it are read."""
    wal = killed(tmp_path, size=50_000) / WAL
    wal.write_bytes(wal.read_bytes()[:-1000])

    with caplog.at_level(logging.WARNING):
        found = topics(tmp_path)

    assert ["topic 1", "topic 2", "topic 3"] == found
    [line] = caplog.messages
    assert "ends in a change that was not written as a whole, at byte" in line
    caplog.clear()
    assert found == topics(tmp_path)
    assert [] == caplog.messages, "it is cut once"


def test_a_clean_end_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Neither a kill between two changes nor a stop leaves anything half-written."""
    topics(killed(tmp_path))
    topics(tmp_path)

    assert [] == caplog.messages


def test_a_damaged_middle_of_the_write_ahead_log_is_refused(tmp_path: Path):
    """SQLite would cut everything from the damage on, including whole changes. The error names the byte instead."""
    wal = killed(tmp_path, size=50_000) / WAL
    flip(wal, wal.stat().st_size // 2)

    with pytest.raises(DataDirError, match=f"`.*{WAL}` is damaged at byte [0-9]+, and whole changes follow. Restore"):
        LogFile(tmp_path)


def test_a_damaged_row_is_refused_with_its_number(tmp_path: Path):
    """The row's checksum detects a byte that changed on the disk."""
    topics(killed(tmp_path))
    path = tmp_path / LOG
    flip(path, path.read_bytes().index(b"topic 3"))

    with pytest.raises(DataDirError, match=f"`.*{LOG}` is damaged at row 3 of its table `log`. Restore the directory"):
        topics(tmp_path)


@pytest.mark.parametrize(
    "sql", ["DELETE FROM log WHERE number = 2", "UPDATE log SET commands = x'80' WHERE number = 2"]
)
def test_a_missing_or_strange_row_is_refused(tmp_path: Path, sql: str):
    """Rows have numbers without gaps, and checksums that continue from row to row."""
    topics(killed(tmp_path))
    with sqlite3.connect(tmp_path / LOG) as database:
        database.execute(sql)
    database.close()

    with pytest.raises(DataDirError, match="is damaged at row 2"):
        topics(tmp_path)


def test_a_row_that_has_no_commands_is_refused(tmp_path: Path):
    """A row with the right checksum but other content, as another program would write it, is also damaged."""
    log = LogFile(tmp_path)
    log.append([("a", "b")])  # type: ignore[list-item]
    log.close()

    with pytest.raises(DataDirError, match="is damaged at row 1"):
        topics(tmp_path)


def test_a_damaged_head_is_refused(tmp_path: Path):
    """The error for a file that is not a database says so."""
    (tmp_path / LOG).write_bytes(b"no database at all, but long enough to be taken for one by its length" * 100)

    with pytest.raises(DataDirError, match=r"is damaged at its head .*file is not a database"):
        LogFile(tmp_path)


def test_a_newer_version_is_refused(tmp_path: Path):
    """A file of a newer emulator is refused instead of guessed at."""
    LogFile(tmp_path).close()
    with sqlite3.connect(tmp_path / LOG) as database:
        database.execute("PRAGMA user_version=3")
    database.close()

    with pytest.raises(DataDirError, match=r"was written by a newer emulator \(format 3, and this one knows 2\)"):
        LogFile(tmp_path)


def test_an_older_version_is_read_and_its_file_becomes_newer_with_the_first_row(tmp_path: Path):
    """An older emulator can still start on a file that this one only read."""

    def version() -> int:
        with contextlib.closing(sqlite3.connect(tmp_path / LOG)) as database:
            return int(database.execute("PRAGMA user_version").fetchone()[0])

    LogFile(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / LOG)) as database:
        database.execute("PRAGMA user_version=1")
    log = LogFile(tmp_path)
    assert 1 == version()

    log.append([Command("clear", (), {}, None)])
    log.close()

    assert FORMAT == version()


def test_another_database_is_refused(tmp_path: Path):
    """Another program's database of the same name is not touched."""
    with sqlite3.connect(tmp_path / LOG) as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()

    with pytest.raises(DataDirError, match="is not a journal of an emulator"):
        LogFile(tmp_path)


def test_one_emulator_has_a_directory(tmp_path: Path):
    """A second emulator is refused until the first has released the directory."""
    held = files.lock(tmp_path)

    with pytest.raises(DataDirError, match=f"`{tmp_path}` is in use by another emulator. Stop that one"):
        files.lock(tmp_path)

    held.close()
    files.lock(tmp_path).close()


def test_a_new_directory_is_private(tmp_path: Path):
    """Only the owner can read the messages."""
    files.lock(tmp_path / "data").close()

    assert 0o700 == (tmp_path / "data").stat().st_mode & 0o777


def test_a_directory_that_cannot_be_made_says_why(tmp_path: Path):
    """A file in place of the directory is an error."""
    (tmp_path / "file").touch()

    with pytest.raises(DataDirError, match=r"cannot be used: Not a directory\. Choose one that can be written to"):
        files.lock(tmp_path / "file" / "data")


def test_a_base_gives_back_what_was_written(tmp_path: Path):
    """A base returns the written data, even if longer than one row. Bytes that occur twice are stored once."""
    frame = b"x" * (5 << 20)
    files.write_base(tmp_path, 7, {"one": [frame, 2.5, None], "two": (frame,)})

    found = files.read_base(tmp_path, 7)

    assert {"one": [frame, 2.5, None], "two": (frame,)} == found
    assert found["one"][0] is found["two"][0]
    assert files.base_path(tmp_path, 7).stat().st_size < 1.5 * len(frame)


def _cut(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM chunks WHERE number = 2")
    database.close()


def _flip(path: Path) -> None:
    flip(path, path.read_bytes().rindex(b"xxxx"))


@pytest.mark.parametrize(("damage", "said"), [(_cut, "at row 2"), (_flip, "at row [1-9]"), (Path.unlink, "is missing")])
def test_a_base_that_is_damaged_or_missing_is_refused(tmp_path: Path, damage: Callable[[Path], None], said: str):
    """A base is read as a whole or not at all."""
    files.write_base(tmp_path, 7, [b"x" * (5 << 20)])
    damage(files.base_path(tmp_path, 7))

    with pytest.raises(DataDirError, match=said):
        files.read_base(tmp_path, 7)


def test_code_in_a_base_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A base is plain data. A reference to a function is refused."""
    monkeypatch.setattr(files, "PlainPickler", pickle.Pickler)
    files.write_base(tmp_path, 7, shutil.rmtree)

    with pytest.raises(DataDirError, match=r"`shutil\.rmtree` is no plain data"):
        files.read_base(tmp_path, 7)


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path):
    """An argument that is not plain data, which a new method of the broker might have, fails when it is written."""
    log = LogFile(tmp_path)

    with pytest.raises(pickle.PicklingError, match="`PosixPath` is no plain data"):
        log.append([Command("publish", (tmp_path,), {}, None)])
    log.close()


def test_rows_that_a_base_has_are_deleted_little_by_little(tmp_path: Path):
    """The last of the rows stays, because the checksum of the next one continues from it."""
    log = LogFile(tmp_path)
    for each in range(1, 11):
        log.append(group(each))
    log.rebase(8)

    assert [5, 2, 0] == [log.prune(5) for _ in range(3)]
    assert [9, 10] == [number for number, _ in log.groups()]
    log.close()
    assert ["topic 9", "topic 10"] == topics(tmp_path)

"""The journal of a running emulator: waiting calls, its end, and the time at which a base is written."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.journal import files, journal
from pubsub_spark.emulator.journal.files import DataDirError
from pubsub_spark.emulator.journal.journal import Journal
from pubsub_spark.emulator.options import FsyncPolicy
from tests.conftest import ROOT
from tests.engine import until

TOPIC, SUB = "projects/p/topics/topic", "projects/p/subscriptions/sub"
BODY = b"\x0a\x01a"


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(tmp_path, now=1000.0)
    found.start()
    yield found
    found.close()


def publish(to: Journal, times: int = 1) -> None:
    broker = to.state.broker
    topic = broker.topics.get(TOPIC) or broker.create_topic(TOPIC, protos.Topic(name=TOPIC), 600.0)
    for _ in range(times):
        broker.publish(topic, [BODY], "", 1001.0)


def published(folder: Path) -> int:
    """Return the number of messages that the next emulator finds."""
    found = Journal(folder, now=1000.0)
    try:
        return len(found.state.broker.topics[TOPIC].log)
    finally:
        found.close()


@pytest.mark.parametrize("fsync", ["group", "call", "never"])
def test_what_was_flushed_is_kept(tmp_path: Path, fsync: FsyncPolicy):
    """Each policy keeps everything if only the process ends. `call` writes a row for each."""
    found = Journal(tmp_path, fsync, now=1000.0)
    found.start()
    publish(found, times=3)
    found.flush()
    found.close()

    assert 3 == published(tmp_path)


def test_the_end_writes_what_nobody_waited_for(tmp_path: Path):
    """A stop writes all recorded commands, and the directory is free afterwards."""
    found = Journal(tmp_path, now=1000.0)
    found.start()
    publish(found)
    found.close()

    assert 1 == published(tmp_path)


def test_calls_that_come_together_are_one_row(begun: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """While one group is written, the next one gathers."""
    rows: list[int] = []
    writing, may_write = threading.Event(), threading.Event()
    append = files.LogFile.append

    def slow(log: files.LogFile, group: Any) -> int:
        rows.append(len(group))
        writing.set()
        may_write.wait()
        return append(log, group)

    begun.flush()
    monkeypatch.setattr(files.LogFile, "append", slow)
    publish(begun)
    writing.wait()
    first = rows[0]
    publish(begun, times=5)
    may_write.set()
    begun.flush()

    assert 1 <= first <= 2  # the topic, and perhaps the message that came with it
    assert 7 == sum(rows)
    assert len(rows) <= 3


def test_a_log_that_cannot_be_written_ends_the_emulator(begun: Journal, monkeypatch: pytest.MonkeyPatch):
    """If the disk is full, waiting calls fail with UNAVAILABLE and the emulator is asked to end."""
    ended: list[BaseException] = []
    begun.on_failure = ended.append
    full = sqlite3.OperationalError("database or disk is full")

    def fail(*_: Any) -> int:
        raise full

    begun.flush()
    monkeypatch.setattr(files.LogFile, "append", fail)
    publish(begun)

    with pytest.raises(RpcError, match=r"The journal in `.*` cannot be written: database or disk is full") as refused:
        begun.flush()
    assert "UNAVAILABLE" == refused.value.code
    until(lambda: ended, "the end of the emulator")
    assert [full] == ended


def test_the_clock_does_not_go_back(tmp_path: Path):
    """An emulator whose clock was moved continues from that time after its end."""
    with Emulator(data_dir=tmp_path) as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUB, TOPIC)
        emulator.advance(5000)
        emulator.publish(TOPIC, b"a")
        [before] = emulator.messages(SUB)

    with Emulator(data_dir=tmp_path) as emulator:
        emulator.publish(TOPIC, b"b")

        assert emulator.is_restored
        assert before.publish_time <= emulator.messages(SUB)[1].publish_time


def test_a_reset_is_kept_with_its_clock(tmp_path: Path):
    """After a reset nothing is left, and the time is the machine's."""
    with Emulator(data_dir=tmp_path) as emulator:
        emulator.create_topic(TOPIC)
        emulator.advance(5000)
        emulator.reset()
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUB, TOPIC)
        emulator.publish(TOPIC, b"a")
        [before] = emulator.messages(SUB)

    with Emulator(data_dir=tmp_path) as emulator:
        emulator.publish(TOPIC, b"b")
        [_, after] = emulator.messages(SUB)

        assert after.publish_time - before.publish_time < 1000


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Return the processes that the journal has started."""
    started: list[subprocess.Popen[bytes]] = []

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Started)
    return started


def test_a_base_is_written_by_another_process_and_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[bytes]]
):
    """When the log outgrows the base a new one is written and the rows that it has are deleted. No message is lost."""
    monkeypatch.setattr(journal, "MIN_LOG_BYTES", 1)
    found = Journal(tmp_path, now=1000.0)
    found.start()
    publish(found, times=200)
    found.flush()
    until(lambda: processes, "a process that writes a base")
    assert 0 == processes[0].wait()
    publish(found, times=3)  # the next group finds the base
    found.flush()
    found.close()

    log = files.LogFile(tmp_path)
    log.close()
    assert log.base > 0
    assert files.base_path(tmp_path, log.base).exists()
    assert 203 == published(tmp_path)


def test_a_base_of_something_else_is_refused(begun: Journal, tmp_path: Path):
    """A base with other content is a one-line error without a traceback."""
    publish(begun)
    begun.close()
    log = files.LogFile(tmp_path)
    files.write_base(tmp_path, log.number, {"state": []})
    log.rebase(log.number)
    log.close()

    with pytest.raises(DataDirError, match=r"base-[0-9]+\.sqlite` is no base of an emulator \(TypeError: "):
        Journal(tmp_path, now=1000.0)


def test_the_process_that_writes_a_base_ends_with_the_emulator(begun: Journal, tmp_path: Path):
    """After an emulator was killed, no process remains in its directory."""
    publish(begun)
    begun.close()
    command = [sys.executable, "-m", "pubsub_spark.emulator.journal", str(tmp_path), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        process.stdin.close()

    assert 1 == process.returncode
    assert [] == [*tmp_path.glob("base-*.sqlite")]


def test_a_base_is_not_written_while_there_is_chaos(
    begun: Journal, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[bytes]]
):
    """No base is written during chaos, because it does not contain the next choices of chaos."""
    monkeypatch.setattr(journal, "MIN_LOG_BYTES", 1 << 40)
    publish(begun)
    begun.state.broker.set_chaos(7)
    begun.flush()
    monkeypatch.setattr(journal, "MIN_LOG_BYTES", 1)
    publish(begun)
    begun.close()

    assert [] == processes

"""A streaming test as a list of steps: publish, start, wait for rows, break something, start again.

    scenario.run(
        Publish("a", "b"), Start(), Rows("a", "b"), Acked("a", "b"),
        Publish("c"), Stop(), Start(), Rows("a", "b", "c"),
    )

A step acts or waits for a condition, never for a time. A condition that is not true within BOUND seconds fails with the
actual state. The sink is `foreachBatch` in this process: it keeps every evaluation of every batch, so two that differ
are noticed wherever they happen, and it writes a batch under its number, as an idempotent sink does. `Hold` stops it in
the middle of a batch, which is where the interesting crashes are.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pubsub_spark.emulator import Emulator
from tests.conftest import Names

BOUND = 100.0  # seconds, more than a lease: a message sent to a closing stream is redelivered after one
LEASE = 601.0  # seconds until everything that a killed client held is redelivered
_POLL_SECONDS = 0.02  # between two looks at a condition

_OLD = tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2)
needs_available_now = pytest.mark.skipif(_OLD, reason="Spark 4.0 and 4.1 run one batch with availableNow")
needs_metrics = pytest.mark.skipif(_OLD, reason="Spark 4.0 and 4.1 request no metrics from Python sources")

# Spark waits ten seconds for a Python worker to start, which no setting changes. A loaded machine takes longer.
_TOO_LATE, _NOT_BEGUN = "Python worker failed to connect back", "Current State: INITIALIZING"
_MOST_STARTS = 3

# Short waits, so that tests are short. A test that is about one of them sets its own.
_OPTIONS = {"idleTimeout": "1s", "maxFetchPeriod": "2s", "connectTimeout": "10s"}


class SinkCrashedError(Exception):
    """The sink was ended by the scenario in the middle of a batch."""


def until(condition: Callable[[], Any], otherwise: Callable[[], str], seconds: float = BOUND) -> None:
    """Wait for a condition. Raises AssertionError with `otherwise()` when it does not become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s in vain: {otherwise()}"
        threading.Event().wait(_POLL_SECONDS)


@dataclass
class Sink:
    """An idempotent sink: a batch is written under its number, and replaces an earlier write of it."""

    evaluations: dict[int, list[pa.Table]] = field(default_factory=dict)
    written: dict[int, pa.Table] = field(default_factory=dict)
    actions: int = 1
    hold_before: str | None = None  # "write" or "commit"
    holding: threading.Event = field(default_factory=threading.Event)
    resumed: threading.Event = field(default_factory=threading.Event)
    crashing: bool = False

    def __call__(self, batch: DataFrame, number: int) -> None:
        seen = self.evaluations.setdefault(number, [])
        for _ in range(self.actions):
            seen.append(batch.toArrow())
            assert seen[0].equals(seen[-1]), f"batch {number} changed between two evaluations: {seen[0]}, {seen[-1]}"
        if seen[-1].num_rows:
            self._pause("write")
        self.written[number] = seen[-1]
        if seen[-1].num_rows:
            self._pause("commit")

    def _pause(self, where: str) -> None:
        if self.hold_before == where:
            self.holding.set()
            assert self.resumed.wait(BOUND), "the scenario held the sink and never let it go"
            self.hold_before = None
            self.holding.clear()
            self.resumed.clear()
            if self.crashing:
                self.crashing = False
                raise SinkCrashedError(f"before {where}")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all batches, in their order."""
        return [row for _, table in sorted(self.written.items()) for row in table.to_pylist()]

    @property
    def texts(self) -> list[str]:
        """The payloads of all batches, in their order."""
        return [bytes(row["data"]).decode() for row in self.rows]


@dataclass
class Scenario:
    """The state that the steps share: topic, subscription, checkpoint, sink, and the running query, if any."""

    spark: SparkSession
    emulator: Emulator
    names: Names
    folder: Path
    sink: Sink = field(default_factory=Sink)
    query: StreamingQuery | None = None
    checkpoint: str = "checkpoint"
    start: Callable[[], StreamingQuery] | None = None  # the query once more, and how often that was done
    starts: int = 0

    def run(self, *steps: Step) -> None:
        """Take the steps in their order."""
        for step in steps:
            step.take(self)

    def close(self) -> None:
        """Stop the query that still runs, if any."""
        self.sink.resumed.set()
        if self.query is not None and self.query.isActive:
            self.query.stop()

    @property
    def running(self) -> StreamingQuery:
        assert self.query is not None, "Start() comes first"
        return self.query

    def options(self, **given: Any) -> dict[str, str]:
        """Return the reader's options: this scenario's, and the arguments."""
        mine = {
            "subscriptionId": self.names.subscription,
            "endpoint": self.emulator.endpoint,
            "stagingLocation": str(self.folder / "staging"),
        }
        return {name: str(value) for name, value in (mine | _OPTIONS | given).items() if value is not None}

    def load(self, **given: Any) -> DataFrame:
        """Return a streaming DataFrame of this scenario's subscription."""
        name = given.pop("format", "pubsub")
        return self.spark.readStream.format(name).options(**self.options(**given)).load()

    def wait(self, condition: Callable[[], Any], otherwise: Callable[[], str]) -> None:
        """Wait for a condition. AssertionError at once when the query fails meanwhile."""

        def seen() -> bool:
            if condition():
                return True
            if self.query is not None and (error := self.query.exception()) is not None:
                if self.start is None or self.starts >= _MOST_STARTS or not is_spark_too_slow(str(error)):
                    raise AssertionError(f"the query failed: {error}")
                self.starts += 1
                self.query = self.start()
            return False

        until(seen, otherwise)

    def workers(self, module: str = "python_streaming_source_runner") -> list[int]:
        """Return ids of this session's Python processes with `module`. The source runner is the driver-side worker."""
        return [pid for pid in descendants(os.getpid()) if module in command(pid)]


class Step(Protocol):
    """One line of a scenario."""

    def take(self, scenario: Scenario) -> None: ...


@dataclass(init=False)
class Publish:
    """Publish messages with these payloads."""

    def __init__(self, *texts: str, key: str = "", **attributes: str) -> None:
        self.messages = [{"data": text.encode(), "ordering_key": key, "attributes": attributes} for text in texts]

    def take(self, scenario: Scenario) -> None:
        scenario.emulator.publish(scenario.names.topic, *self.messages)


@dataclass(init=False)
class Start:
    """Start the query, or start it again from its checkpoint. trigger: as in `DataStreamWriter.trigger`."""

    def __init__(self, trigger: dict[str, Any] | None = None, **options: Any) -> None:
        self.trigger = trigger or {"processingTime": "0 seconds"}
        self.options = options

    def take(self, scenario: Scenario) -> None:
        assert scenario.query is None or not scenario.query.isActive, "it runs already"

        def start() -> StreamingQuery:
            return (
                scenario.load(**self.options)
                .writeStream.foreachBatch(scenario.sink)
                .option("checkpointLocation", str(scenario.folder / scenario.checkpoint))
                .trigger(**self.trigger)
                .start()
            )

        scenario.start, scenario.starts = start, 0
        scenario.query = start()


class Drain(Start):
    """Start the query with `Trigger.AvailableNow`, and wait for its end."""

    def __init__(self, **options: Any) -> None:
        super().__init__({"availableNow": True}, **options)

    def take(self, scenario: Scenario) -> None:
        super().take(scenario)
        Ends().take(scenario)


class Ends:
    """Wait until the query ends by itself, without an error."""

    def take(self, scenario: Scenario) -> None:
        assert scenario.running.awaitTermination(int(BOUND)), "the query did not end by itself"
        _is_gone(scenario)


class Stop:
    """Stop the query, as an operator would."""

    def take(self, scenario: Scenario) -> None:
        scenario.running.stop()
        _is_gone(scenario)


@dataclass(init=False)
class Fails:
    """Wait until the query fails. Its error message has all of these phrases."""

    def __init__(self, *phrases: str) -> None:
        self.phrases = phrases

    def take(self, scenario: Scenario) -> None:
        query = scenario.running
        until(lambda: not query.isActive, lambda: f"a failure, but the query runs: {query.status}")
        message = str(query.exception())
        for phrase in self.phrases:
            assert phrase in message, f"{phrase!r} is not in: {message}"


@dataclass(init=False)
class Rows:
    """Wait until the sink has exactly these payloads, in any order."""

    def __init__(self, *texts: str) -> None:
        self.texts = Counter(texts)

    def take(self, scenario: Scenario) -> None:
        sink = scenario.sink
        scenario.wait(
            lambda: Counter(sink.texts).total() >= self.texts.total(),
            lambda: f"{brief(self.texts.elements())}, got {brief(sink.texts)}",
        )
        got = Counter(sink.texts)
        assert self.texts == got, f"missing {brief(self.texts - got)}; too many {brief(got - self.texts)}"


class Committed:
    """Wait until every planned batch is in Spark's commit log."""

    def take(self, scenario: Scenario) -> None:
        folder = scenario.folder / scenario.checkpoint
        scenario.wait(
            lambda: 0 <= last(folder / "offsets") == last(folder / "commits"),
            lambda: f"batch {last(folder / 'offsets')} committed, but {last(folder / 'commits')} is the last",
        )


@dataclass(init=False)
class Acked:
    """Wait until exactly these payloads are acknowledged."""

    def __init__(self, *texts: str) -> None:
        self.texts = sorted(texts)

    def take(self, scenario: Scenario) -> None:
        def acked() -> list[str]:
            records = scenario.emulator.messages(scenario.names.subscription)
            return sorted(record.data.decode() for record in records if record.acked)

        scenario.wait(lambda: acked() == self.texts, lambda: f"acks of {brief(self.texts)}, got {brief(acked())}")


@dataclass(init=False)
class Backlog:
    """Wait until the subscription has `count` unacknowledged messages."""

    def __init__(self, count: int) -> None:
        self.count = count

    def take(self, scenario: Scenario) -> None:
        def backlog() -> int:
            return scenario.emulator.backlog(scenario.names.subscription)

        scenario.wait(lambda: backlog() == self.count, lambda: f"a backlog of {self.count}, got {backlog()}")


@dataclass(init=False)
class Deliveries:
    """Assert how often each payload was delivered."""

    def __init__(self, **times: int) -> None:
        self.times = times

    def take(self, scenario: Scenario) -> None:
        records = scenario.emulator.messages(scenario.names.subscription)
        assert self.times == {record.data.decode(): record.deliveries for record in records}


@dataclass
class Hold:
    """Stop the sink in the middle of the next batch with rows, before `write` or before `commit`."""

    before: str = "commit"

    def take(self, scenario: Scenario) -> None:
        scenario.sink.hold_before = self.before


class Held:
    """Wait until the sink has stopped in the middle of a batch."""

    def take(self, scenario: Scenario) -> None:
        scenario.wait(scenario.sink.holding.is_set, lambda: "a batch in the sink")


class Release:
    """Let the sink continue."""

    def take(self, scenario: Scenario) -> None:
        scenario.sink.resumed.set()


class TasksEnded:
    """Wait until no task runs: Spark kills those of a query that was stopped, and does not wait for their end."""

    def take(self, scenario: Scenario) -> None:
        def running() -> int:
            executors = scenario.spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
            return sum(executor.numRunningTasks() for executor in executors)

        until(lambda: running() == 0, lambda: f"{running()} tasks run")
        _streams_are_gone(scenario)


class KillDriverWorker:
    """Kill (-9) the driver-side worker, the process that has the driver stream and sends acks."""

    def take(self, scenario: Scenario) -> None:
        # One that Spark has abandoned, in this test or in the one before, ends by itself when its peer is gone.
        until(lambda: len(scenario.workers()) == 1, lambda: f"one driver-side worker, got {scenario.workers()}")
        kill(scenario.workers())
        _streams_are_gone(scenario)


class Crash:
    """Kill (-9) the driver-side worker, and end the query in the middle of its batch: nothing is committed."""

    def take(self, scenario: Scenario) -> None:
        KillDriverWorker().take(scenario)
        scenario.sink.crashing = True
        scenario.sink.resumed.set()
        until(lambda: not scenario.running.isActive, lambda: "the end of the query")


@dataclass
class Advance:
    """Move the service's clock. Leases expire accordingly."""

    seconds: float

    def take(self, scenario: Scenario) -> None:
        scenario.emulator.advance(self.seconds)


@dataclass
class Do:
    """Run an action that has no step of its own."""

    act: Callable[[Scenario], Any]

    def take(self, scenario: Scenario) -> None:
        self.act(scenario)


@dataclass
class Until:
    """Wait for a condition that has no step of its own. `what` names it."""

    what: str
    condition: Callable[[Scenario], Any]

    def take(self, scenario: Scenario) -> None:
        scenario.wait(lambda: self.condition(scenario), lambda: self.what)


def is_spark_too_slow(error: str) -> bool:
    """Return whether a query failed because its source's process did not start in time. Then none of our code ran."""
    return _TOO_LATE in error and _NOT_BEGUN in error


def _is_gone(scenario: Scenario) -> None:
    """Wait for the end of the driver-side worker, because Spark does not. Its stream is open until then."""
    until(lambda: not scenario.workers(), lambda: f"the end of the driver-side worker {scenario.workers()}")
    _streams_are_gone(scenario)


def _streams_are_gone(scenario: Scenario) -> None:
    """Wait until the service has noticed that a client is gone. It leases messages to it until then."""
    until(lambda: scenario.emulator.streams() == 0, lambda: f"{scenario.emulator.streams()} streams are open")


def brief(texts: Iterable[str]) -> str:
    """Return the number of payloads, and the first of them."""
    counted = Counter(texts)
    return f"{counted.total()} payloads, {len(counted)} different ({', '.join(sorted(counted)[:5])} ...)"


def last(log: Path) -> int:
    """Return the number of the last batch in a log of Spark's checkpoint, or -1 if it is empty."""
    return max((int(entry.name) for entry in log.glob("[0-9]*")), default=-1)


def offset(scenario: Scenario, batch: int) -> dict[str, Any]:
    """Return the source's end offset of a batch, as Spark's offset log has it."""
    lines = (scenario.folder / scenario.checkpoint / "offsets" / str(batch)).read_text().splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def through(gate: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task, for `mapInArrow`. One with rows waits for a file `open` in the folder `gate`."""
    attempt = Path(gate) / f"arrived-{uuid.uuid4().hex}"
    for batch in batches:
        if batch.num_rows:
            attempt.touch()
            until(lambda: (Path(gate) / "open").exists(), lambda: "an open gate")
        yield batch.select(["data"])


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below `pid`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry.parent.name))
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def command(pid: int) -> str:
    """Return the command line of a process, or an empty one if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def kill(pids: Iterable[int]) -> None:
    """Kill processes (-9), and wait until they are gone."""
    killed = list(pids)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(command, killed)), lambda: f"the end of processes {killed}")

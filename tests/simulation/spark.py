"""Spark's micro-batch engine: offset log, batches, commit log, and a sink, as a query driver sees them.

    Spark 4.2+     latestOffset(start) on every trigger, first thing on restart. Start is the end of the last batch
    Spark 4.0/4.1  latestOffset() without it. A restart begins with partitions(end, end) of the last offset-log entry

In both, the offset log is written when a batch is planned, and the commit log when its sink has written it. After a
restart, a batch in the offset log alone is run again, without asking for an offset. The source is not told of a commit
but by the next `latestOffset`.

An application is a driver process and a process for each attempt of a task. A checkpoint and a sink outlive them.
"""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pubsub_spark.errors import PubSubError
from pubsub_spark.options import ReadOptions
from tests.simulation import product
from tests.simulation.hub import Process
from tests.simulation.record import Commit, Row, Rows
from tests.simulation.runtime import SimRuntime

if TYPE_CHECKING:
    from tests.simulation.world import World

_ATTEMPTS = 4  # of a task, as spark.task.maxFailures
_SLOTS = 2  # tasks that run at once
_RACES = {"speculation", "partial action"}  # with these two attempts may stage a part whose file was removed
_FIRST_IDLE_SECONDS, _MAX_IDLE_SECONDS = 0.1, 20.0  # between two idle triggers, in Spark 10 ms

PROCESSING_TIME, AVAILABLE_NOW, ONCE = "processingTime", "availableNow", "once"


class BatchFailedError(Exception):
    """A batch that has failed: a task failed too often, or the sink did."""


@dataclass
class Checkpoint:
    """Offset log and commit log, as JSON texts like Spark's, so that nothing but plain values survives."""

    name: str
    offsets: list[str] = field(default_factory=list)
    commits: set[int] = field(default_factory=set)

    def offset(self, number: int) -> Any:
        """Return the end offset of a batch."""
        return _offset(self.offsets[number])

    @property
    def stream(self) -> str:
        """The stream of the last batch, "" without one."""
        return self.offset(-1).stream if self.offsets else ""


@lru_cache
def _offset(text: str) -> Any:
    return product.Offset.from_json(json.loads(text))


@dataclass
class Sink:
    """A sink. Rows are kept by batch and partition.

    is_idempotent: whether it skips a batch that it has. lag: seconds from the return of its function until its writes
    are finished, which a process that has ended never does.
    """

    is_idempotent: bool = True
    lag: float = 0.0
    written: dict[int, dict[int, Rows]] = field(default_factory=dict)


@dataclass
class Query:
    """The user's query. passes_start: whether Spark is 4.2 or later.

    buffered: how many messages the driver stream buffers, so that a few messages make a backlog for tasks to pull.
    sink_seconds: that each batch waits for its sink.
    """

    options: ReadOptions
    trigger: str
    passes_start: bool
    budget: Any
    fetch_partitions: int = 2
    buffered: int = 1000
    interval: float = 0.0  # seconds between two triggers
    fails_on_data_loss: bool = True
    sink_seconds: float = 0.0

    @property
    def runs_on(self) -> bool:
        """Whether the query does not end by itself."""
        return self.trigger == PROCESSING_TIME

    @property
    def is_asked_once(self) -> bool:
        """Whether Spark asks for one offset only."""
        return self.trigger == ONCE or (self.trigger == AVAILABLE_NOW and not self.passes_start)


class Application:
    """One start of a query: its processes, until they have ended.

    ended: whether the query is over, by itself, by `stop`, by an error or by a kill (is_killed). error: its failure.
    is_idle: whether its last trigger has found nothing, so that the source knows of every commit. memory: at its end.
    """

    def __init__(self, world: World, query: Query, name: str) -> None:
        self.hub, self.query, self.name = world.hub, query, name
        self.checkpoint, self.sink = world.checkpoint, world.sink
        self._backend, self._store, self._faults = world.backend, world.store, world.faults
        self._metrics_store = world.metrics_store
        self._record, self._machines = world.record, world.machines
        machine = world.chooser.pick(self._machines) if len(self._machines) > 1 else self._machines[0]
        if any(machine.skew > earlier.driver.machine.skew for earlier in world.applications):
            self._record.note("clock ahead")
        self.driver: Process = Process(world.hub, name, machine)
        self.driver.on_kill.append(self._driver_is_gone)
        self.tasks: list[Process] = []
        self.ended = self.stopping = self.is_killed = False
        self.error: Exception | None = None
        self.memory: product.Memory | None = None
        self.has_succeeded = self.is_idle = False
        self.outlives: set[Process] = set()  # attempts that live on when the driver is gone
        self.on_attempt: Callable[[Process], None] | None = None
        schema = world.service.schema
        self._schema = schema
        self._reader = None if schema is None else schema.reader
        self._task_reader: Any = None  # of the process that plans tasks, from the first batch on
        self._task_options = replace(query.options, fail_on_data_loss=query.fails_on_data_loss)
        self._runtime = SimRuntime(self.driver)
        self._wakes = self._runtime.condition()
        self._number = len(self.checkpoint.offsets) - 1  # of the last batch in the offset log, as this run knows it
        self.driver.start(self._run, "stream execution thread")

    @property
    def is_alive(self) -> bool:
        return not (self.driver.dead or self.ended)

    def stop(self) -> None:
        """Ask the query to end, as SIGTERM does."""
        self.stopping = True
        self._wakes.notify_all()

    def kill(self) -> None:
        """Kill every process."""
        for process in [self.driver, *self.tasks]:
            process.kill()

    def _driver_is_gone(self) -> None:
        """End executors with their driver, at once or when they notice. A late attempt lives on."""
        if self.ended:
            return
        self.ended = self.is_killed = True
        self._record.tell(self.name, "is killed")
        for process in self.tasks:
            if process not in self.outlives and not self._faults.hits("late attempt"):
                self.hub.after(self.hub.chooser.pick((0.0, 0.0, 0.5, 10.0)), process.kill)

    def _run(self) -> None:
        query = self.query
        self._record.begin_offset(is_new=True)
        driver = product.driver(
            query.options,
            self._backend,
            self._store,
            query.fetch_partitions,
            lambda: self.stopping,
            query.is_asked_once or not query.passes_start,
            query.buffered,
            self._runtime,
            self._reader,
            self._metrics_store,
        )
        try:
            self._run_batches(driver)
            self.has_succeeded = True
        except BatchFailedError as error:
            self._record.tell(self.name, "fails: %s", error)
        except PubSubError as error:
            self.error = error
            self._record.tell(self.name, "fails: %s", str(error))
            self._check_advice(error)
        except Exception as error:
            self.error = error
            self._record.violate("I4", f"the query fails with {error!r}: {traceback.format_exc(limit=-3)}")
        self.memory = product.memory(driver)
        try:
            driver.close()
        except PubSubError as error:
            self._record.tell(self.name, "fails to stop: %s", str(error))
        except Exception as error:
            self._record.violate("I4", f"stopping fails with {error!r}")
        self._record.tell(self.name, "has ended")
        self.ended = True
        for process in self.tasks:
            if process not in self.outlives and not self._faults.hits("late attempt"):
                self.hub.after(0.0, process.kill)
        self.driver.kill()

    def _run_batches(self, driver: Any) -> None:
        query, log = self.query, self.checkpoint
        if query.trigger == AVAILABLE_NOW and query.passes_start:
            driver.prepare_for_available_now()
        number = self._number
        committed = number in log.commits
        if number >= 0 and not query.passes_start:
            end = log.offset(number)
            driver.partitions(end, end)
        if number >= 0 and not committed:
            self._run_batch(driver, number)
            if query.is_asked_once:
                return
        idle_pause = _FIRST_IDLE_SECONDS
        while not self.stopping:
            has_run = self._trigger(driver)
            if query.is_asked_once or (not has_run and query.trigger == AVAILABLE_NOW):
                return
            idle_pause = _FIRST_IDLE_SECONDS if has_run else min(2 * idle_pause, _MAX_IDLE_SECONDS)
            pause = query.interval if has_run else max(query.interval, idle_pause)
            with self._wakes:
                self._wakes.wait_for(lambda: self.stopping, pause)

    def _trigger(self, driver: Any) -> bool:
        """Ask for an offset, and run the batch up to it. Returns whether there was one."""
        query, log = self.query, self.checkpoint
        start = log.offset(self._number) if self._number >= 0 else driver.initial_offset()
        if query.trigger == ONCE and query.passes_start:
            driver.prepare_for_once()
        self._record.begin_offset()
        end = driver.latest_offset(start if query.passes_start else None, query.budget)
        self._record.end_offset()
        driver.metrics()
        self.is_idle = end == start and self._number >= 0
        if self.is_idle:
            return False
        self._write()  # the offset log, create-only
        if len(log.offsets) != self._number + 1:
            raise BatchFailedError("another query has written to the offset log")
        log.offsets.append(json.dumps(end.to_json()))
        self._number += 1
        self._record.tell(self.name, "plans batch %s", end.batch)
        self._run_batch(driver, self._number)
        return True

    def _run_batch(self, driver: Any, number: int) -> None:
        log, faults = self.checkpoint, self._faults
        end = log.offset(number)
        start = log.offset(number - 1) if number else driver.initial_offset()
        rows: dict[int, Rows] = {}  # of the partitions that an action has read
        is_whole = number not in self.sink.written  # whether the actions of this run have written all partitions
        for _ in range(self.hub.chooser.pick((1, 1, 1, 2))):  # actions of foreachBatch
            if rows and faults.hits("file removed"):  # rarely at this moment otherwise
                self._store.remove_one(f"/{end.stream}/{end.batch}/")
            partitions = driver.partitions(start, end)
            is_partial = faults.hits("partial action")
            is_whole = is_whole and not is_partial
            read = self._evaluate(partitions, (end.stream, end.batch), is_partial)
            if not faults.rates.keys() & _RACES:
                self._record.compare((end.stream, end.batch), rows, read)
            rows |= read
        if faults.hits("sink fails"):
            raise BatchFailedError("the sink has failed before it wrote")
        if self.query.sink_seconds:
            self._runtime.sleep(self.query.sink_seconds)
        if self.hub.chooser.chance(0.1):
            self._runtime.sleep(self.hub.chooser.seconds(1, 120))
        self._write()
        if number not in self.sink.written or not self.sink.is_idempotent:
            self._write_rows(number, rows)
        if faults.hits("sink fails"):
            raise BatchFailedError("the sink has failed after it wrote")
        self._write()  # the commit log
        if number in log.commits:
            raise BatchFailedError("another query has written to the commit log")
        log.commits.add(number)
        commit = Commit(self.hub.now, log.name, number, (end.stream, end.batch), self.sink.written[number])
        self._record.commit(commit, self.name, is_whole and self._task_options.fail_on_data_loss)

    def _write_rows(self, number: int, rows: dict[int, Rows]) -> None:
        """Write the rows of a batch to the sink."""
        sink, ids = self.sink, [message_id for partition in rows.values() for message_id, _ in partition]
        if number in sink.written:
            self._record.note("written again", ids)
        sink.written[number] = rows

        def write() -> None:
            if self.driver.dead:
                self._record.note("never written", ids)
                return
            for message_id in ids:
                self._record.sunk[message_id].append(self.hub.now)

        if sink.lag:
            self.hub.after(sink.lag, write)
        else:
            write()

    def _write(self) -> None:
        """Take the time of a write, at which the driver may be killed."""
        self.driver.operation()
        self._runtime.sleep(0.001)

    # Tasks

    def _evaluate(self, partitions: list[Any], batch: tuple[str, int], is_partial: bool) -> dict[int, Rows]:
        """Return the rows by partition, each read by a task of up to four attempts.

        is_partial: whether the action needs only some partitions (`take`), or fails and `foreachBatch` catches it.
        """
        runtime = self._runtime
        wanted = self.hub.chooser.below(max(1, len(partitions))) if is_partial else len(partitions)
        processes: list[Process] = []
        results: dict[int, Rows] = {}
        waiting = list(range(len(partitions)))
        running: dict[int, int] = dict.fromkeys(waiting, 0)  # attempts that live, by partition
        attempts: dict[int, int] = dict.fromkeys(waiting, 0)
        reports = runtime.queue()
        busy = 0
        while True:
            while waiting and busy < _SLOTS:
                index = waiting.pop(0)
                for _ in range(2 if self._faults.hits("speculation") and attempts[index] < 2 else 1):
                    processes.append(self._attempt(partitions[index], batch, index, attempts[index], reports))
                    attempts[index] += 1
                    running[index] += 1
                    busy += 1
            if len(results) >= wanted:
                break
            index, rows, error = reports.get()
            running[index] -= 1
            busy -= 1
            if index in results:
                continue  # a second attempt, which has lost
            if rows is not None:
                results[index] = rows
            elif not running[index]:
                if attempts[index] >= _ATTEMPTS and is_partial:
                    break
                if attempts[index] >= _ATTEMPTS:
                    raise BatchFailedError(f"partition {index} failed {attempts[index]} times: {error}")
                waiting.append(index)
        if is_partial:
            self._record.tell(
                self.name, "leaves %s of %s partitions unread", len(partitions) - len(results), len(partitions)
            )
            self._leave(processes)
        return results

    def _leave(self, processes: list[Process]) -> None:
        """Leave the attempts of an action that is over: each is soon killed or suspended, or runs to its end."""
        chooser = self.hub.chooser
        for process in processes:
            if process in self.tasks:
                operation = process.operations + 1 + chooser.below(10)
                match chooser.pick(("forgotten", "forgotten", "killed", "suspended")):
                    case "killed":
                        process.at[operation] = process.kill
                    case "suspended":
                        seconds = chooser.seconds(1, 1000)
                        process.at[operation] = partial(self.suspend, process, seconds)

    def _attempt(self, partition: Any, batch: tuple[str, int], index: int, number: int, reports: Any) -> Process:
        """Start an attempt in a process of its own."""
        machine = self.hub.chooser.pick(self._machines)
        process = Process(self.hub, f"{self.name} task {batch[1]}.{index}.{number}", machine)
        self.tasks.append(process)
        self._record.attempt(process.name, index)
        pickled = pickle.dumps(partition)
        if self._schema is not None:
            self._task_reader = self._task_reader or self._schema.reader
        reader = self._task_reader
        runtime = SimRuntime(process)
        done: list[bool] = []

        def report(rows: Rows | None, error: object) -> None:
            if not done:
                done.append(True)
                self.tasks.remove(process)
                reports.put((index, rows, error))

        def run() -> None:
            rows: list[Row] = []
            try:
                batches = product.read(pickle.loads(pickled), self._task_options, self._backend, runtime, reader)
                for record_batch in batches:
                    rows += _rows(record_batch)
            except PubSubError as error:
                self._record.tell(process.name, "fails: %s", str(error))
                if self.is_alive and not self.has_committed(batch):
                    self._check_advice(error)
                report(None, error)
                return
            except Exception as error:
                self._record.violate("I4", f"a task fails with {error!r}: {traceback.format_exc(limit=-3)}")
                report(None, error)
                return
            if self.is_alive and not self.has_committed(batch):
                self._record.evaluate(batch, self._store.location, index, tuple(rows), process.name)
            else:
                self._record.tell(process.name, "ends too late, with %s rows", len(rows))
            if self._faults.hits("task fails"):
                report(None, "simulated")
            else:
                report(tuple(rows), None)
            process.kill()

        process.on_kill.append(lambda: report(None, "its process was killed"))
        process.start(run, "task")
        self.plan_faults(process, "task killed")
        if self.on_attempt is not None:
            self.on_attempt(process)
        return process

    def _check_advice(self, error: Exception) -> None:
        """Check I4: no error names a lost file unless a cleaner has removed one."""
        if "gone from" in str(error) and not self._record.has_lost:
            self._record.violate("I4", f"no cleaner has removed anything: {error}")

    def has_committed(self, batch: tuple[str, int]) -> bool:
        """Return whether the checkpoint has a batch in its commit log."""
        return any((each.stream, each.batch) == batch for each in map(self.checkpoint.offset, self.checkpoint.commits))

    def plan_faults(self, process: Process, kill: str) -> None:
        """Decide at which of its waits a process is killed or suspended."""
        chooser, faults = self.hub.chooser, self._faults
        if faults.hits(kill):
            process.at[self._operation()] = process.kill
        if kill == "task killed" and faults.hits("late attempt"):
            process.at[self._operation()] = lambda: self.suspend(process, chooser.seconds(1, 4000))
        if faults.hits("process suspended"):
            process.at[self._operation()] = lambda: self.suspend(process, chooser.seconds(1, 4000))
        if faults.hits("machine sleeps"):
            process.at[self._operation()] = lambda: self._sleep(process, chooser.seconds(1, 4000))

    def _operation(self) -> int:
        return (
            1 + int(self.hub.chooser.seconds(1, 300))
            if self.hub.chooser.chance(0.5)
            else 1 + self.hub.chooser.below(60)
        )

    def suspend(self, process: Process, seconds: float) -> None:
        """Suspend one process."""
        self._record.tell(process.name, "is suspended for %s s", round(seconds, 1))
        self._record.note("suspended", seconds)
        process.suspend(seconds)

    def _sleep(self, process: Process, seconds: float) -> None:
        self._record.tell(process.name, "its machine sleeps for %s s", round(seconds, 1))
        self._record.note("suspended", seconds)
        process.machine.sleep(self.hub, seconds)

    def pause(self, process: Process, seconds: float) -> None:
        """Pause a process's machine, as a hypervisor does: no clock of the machine shows it."""
        self._record.tell(process.name, "its machine is paused for %s s", round(seconds, 1))
        self._record.note("paused", seconds)
        process.machine.sleep(self.hub, seconds, is_paused=True)

    def suspend_all(self, seconds: float) -> None:
        """Suspend every process of the query."""
        self._record.tell(self.name, "is suspended with all its tasks for %s s", round(seconds, 1))
        self._record.note("suspended", seconds)
        for process in [self.driver, *self.tasks]:
            process.suspend(seconds)


def _rows(batch: pa.RecordBatch) -> list[Row]:
    """Return ids and data, or ids and decoded values."""
    ids = batch.column("message_id").to_pylist()
    if "value" not in batch.schema.names:
        return list(zip(ids, batch.column("data").to_pylist(), strict=True))
    decoded = batch.select(batch.schema.names[batch.schema.get_field_index("value") :]).to_pylist()
    return [(each, row | (row.pop("value") or {})) for each, row in zip(ids, decoded, strict=True)]

"""Faults put into the code for the duration of some histories. Each must be caught, or the simulator proves nothing.

    python -m tests.simulation.mutations [NAME ...]

A mutation is a name, a patch, and invariants. The first that breaks must be one of these. Some change inputs and
outputs at the edges of the code (store, connection, Spark's calls), the others leave out a rule. hole: the number of
the hole in issue 32 that it opens again.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from pubsub_spark.read import dead_letters
from pubsub_spark.read.driver import ack_worker, active_run, batches, in_doubt, in_doubt_files, ledger, start
from pubsub_spark.read.pull import driver_stream, health, lease, streaming_pull
from pubsub_spark.read.pull.lease import LEASE_SECONDS
from pubsub_spark.read.staging import area, fencing, schemas
from pubsub_spark.read.staging import part as staged_part
from pubsub_spark.read.staging.ids import digests, merged
from pubsub_spark.read.task import partition_pull, partition_reader
from tests.simulation import exhaustive, history, product
from tests.simulation.connection import SimConnection, SimFuture
from tests.simulation.history import Plan
from tests.simulation.record import Violation
from tests.simulation.store import SimStore

HISTORIES = 10_000  # within which each is caught

Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutation:
    """A fault in the code. breaks: the invariants that it may break. hole: see the module."""

    name: str
    breaks: tuple[str, ...]
    patch: Patch
    is_quick: bool = False  # whether the small histories catch it, in a second or two
    hole: int | None = None


def replaced(target: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Return the patch that replaces an attribute by the result of `make`."""
    return lambda: mock.patch.object(target, name, make(getattr(target, name)))


def together(*patches: Patch) -> Patch:
    """Return one patch for several rules, when each alone is enough."""

    @contextmanager
    def patch() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in patches:
                stack.enter_context(each())
            yield

    return patch


# The store


def _overwrites(create: Any) -> Any:
    def mutated(self: SimStore, path: str, content: Sequence[Any]) -> bool:
        if "/part-" not in path:
            return bool(create(self, path, content))
        self.put(path, b"".join(bytes(buffer) for buffer in content))
        return True

    return mutated


def _is_forgetful(reading: Any) -> Any:
    def mutated(self: SimStore, path: str) -> bytes | None:
        content: bytes | None = reading(self, path)
        return None if "/part-" in path else content

    return mutated


def _is_not_synced(lose_power: Any) -> Any:
    """A power loss also cuts files short that were written long ago."""

    def mutated(self: SimStore) -> None:
        for path, content in sorted(self.files.items()):
            self.files[path] = self._hub.chooser.pick((b"", content[: len(content) // 2], content))
        lose_power(self)

    return mutated


def _deletes_ids_alone(delete: Any) -> Any:
    return lambda self, path: delete(self, path) if "/in-doubt/" in path else None


# Requests to Pub/Sub


def _answered(is_sent: Callable[[SimConnection], bool]) -> Callable[[Any], Any]:
    """Return calls that are answered, and sent only if something is so."""

    def make(call: Any) -> Any:
        def mutated(self: SimConnection, subscription: str, request: bytes, timeout: float) -> Any:
            if is_sent(self):
                return call(self, subscription, request, timeout)
            future = SimFuture(self._process, self._futures)
            future.answer(None)
            return future

        return mutated

    return make


# Answers to Spark


@contextmanager
def _driver(change: Callable[[Any, str, Any], Any]) -> Iterator[None]:
    """Wrap the driver: change(driver, name of the call, its real result) returns the result for Spark."""
    make = product.driver

    class Wrapped:
        def __init__(self, driver: Any) -> None:
            self._driver = driver

        def __getattr__(self, name: str) -> Any:
            call = getattr(self._driver, name)
            if name == "active":
                return call
            return lambda *arguments: change(self._driver, name, call(*arguments), *arguments)

    with mock.patch.object(product, "driver", lambda *arguments: Wrapped(make(*arguments))):
        yield


def _commits_early(driver: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Tell the source of a batch's commit when its partitions are planned."""
    if name == "partitions" and result:
        with contextlib.suppress(Exception):
            driver.latest_offset(arguments[1], product.Budget(1, 1))
    return result


def _skips_the_last_partition(driver: Any, name: str, result: Any, *arguments: Any) -> Any:
    return result[:-1] if name == "partitions" and len(result) > 1 else result


@contextmanager
def _reading(change: Callable[[Any, list[Any]], list[Any]]) -> Iterator[None]:
    """Wrap the reading of a partition: change(partition, record batches) returns the record batches for Spark."""
    read = product.read

    def mutated(partition: Any, *arguments: Any) -> Iterator[Any]:
        yield from change(partition, list(read(partition, *arguments)))

    with mock.patch.object(product, "read", mutated):
        yield


def _is_replay(partition: Any) -> bool:
    return type(partition).__name__ == "StagedPartition"


# Decisions of the ledger and around it


def _nothing(_: Any) -> Any:
    return lambda *arguments, **settings: None


def _unless_ok(failed: Any) -> Any:
    return lambda self, now, error, *more: None if error.startswith("OK") else failed(self, now, error, *more)


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda _: lambda *arguments, **settings: value


def _of_the_pull(_: Any) -> Any:
    """Leave out the leases of earlier batches. A later deadline would count as that of a clock that is apart."""
    return lambda self, batch, now: now + self._pull_lease


def _cuts_off(_: Any) -> Any:
    """Cancel the streams of a pull in place of the half-close, so that messages on their way stay leased."""

    def mutated(self: streaming_pull.StreamingPull) -> None:
        for stream in self.streams:
            stream.cancel()

    return mutated


def _doubts_replays(replayed: Any) -> Any:
    """Put the ids of a batch in doubt that is replayed and not committed."""

    def mutated(run: Any, batch: int) -> Any:
        partitions = replayed(run, batch)
        for part in run.ledger.parts_of(batch):
            receipts = run.staging.receipts(part.batch, part.number, part.length)
            run.ledger.in_doubt.add(merged([digests(each.column("message_id")) for each in receipts]), 0, run.now())
        in_doubt_files.write_in_doubt(run)
        return partitions

    return mutated


def _waits_for_a_commit(redelivered: Any) -> Any:
    """Acknowledge redeliveries with the parts of the next batch."""

    def mutated(self: ledger.AckLedger, redelivery: Any) -> None:
        self.__dict__.setdefault("waiting", []).append(redelivery)

    return mutated


def _with_those_that_wait(commit: Any) -> Any:
    def mutated(self: ledger.AckLedger, *arguments: Any) -> Any:
        waiting, self.__dict__["waiting"] = self.__dict__.get("waiting", []), []
        self._redelivered += waiting
        return commit(self, *arguments)

    return mutated


def _or_those_that_wait(known: property) -> Any:
    return property(lambda self: bool(self.__dict__.get("waiting")) or known.__get__(self))


def _renews_times(read: Any) -> Any:
    """Read ids in doubt with the latest time that they may have."""
    return lambda staging, contents, start, topic, wall, now: read(staging, contents, start, topic, -math.inf, now)


def _lists_committed(take: Any) -> Any:
    """List a batch again after its commit."""

    def mutated(self: ledger.AckLedger, now: float) -> int | None:
        number = take(self, now)
        if number is not None:
            return int(number)
        return next((n for n in self.unsettled if self._batches[n].list_at <= now), None)

    return mutated


def _takes_late_parts(stage: Any) -> Any:
    """Acknowledge a part that a listing finds after the commit of its batch."""

    def mutated(self: ledger.AckLedger, batch: int, number: int, length: int, *arguments: Any, **settings: Any) -> Any:
        planned = self._batches.get(batch)
        if planned is None or not planned.is_committed or number in planned.parts:
            return stage(self, batch, number, length, *arguments, **settings)
        planned.parts[number] = ledger.Part(batch, number, length, planned.lease, state=ledger.State.COMMITTED)
        return True

    return mutated


def _forgets_silence(_: Any) -> Any:
    """Count idle time from the last opening of the stream."""
    return lambda self, now: max(0.0, now - max(self._idle_since, self._connected_at)) if self._idle_since else 0.0


def _makes_progress() -> Any:
    """Take each look at the acks for progress."""
    count = itertools.count()
    return property(lambda self: next(count))


def _accepts_all(answered: Any) -> Any:
    def mutated(self: Any, accepted: Any, lost: Any, *arguments: Any) -> None:
        answered(self, merged([accepted, lost]), lost[:, :0], *arguments)

    return mutated


def _counts_earlier_runs(commit: Any) -> Any:
    """Count a driver part of an earlier run as messages of this run's stream."""

    def mutated(self: Any, batch: int, parts: Any) -> Any:
        gone = commit(self, batch, parts)
        for part in self.parts_of(batch):
            part.outstanding = part.footer.acks if part.number == 0 else 0
        return gone

    return mutated


def _whatever_was_yielded(record: Any) -> Any:
    """Yield a part although the rows of another one in its place were yielded."""

    def mutated(*arguments: Any) -> bool:
        record(*arguments)
        return True

    return mutated


def _last_written(_: Any) -> Any:
    """Take the file that was written last for the last acknowledged batch, as if each overwrote the one before."""

    def mutated(self: area.Staging) -> int:
        numbers = [int(name) for name in self.store.list(f"{self.root}/acknowledged/")]  # in the order of creation
        return numbers[-1] if numbers else 0

    return mutated


def _drains_always(_: Any) -> Any:
    def mutated(self: Any, idle_seconds: float) -> None:
        if self.run.stream.is_idle(idle_seconds):
            self.run.ledger.in_doubt.drained(self.run.now() + in_doubt.DOUBT_SECONDS * 2)

    return mutated


def _loads_later_batches(read: Any) -> Any:
    return lambda staging, paths, start, *arguments: read(staging, paths, 10**9, *arguments)


def _trusts_every_part(drop: Any) -> Any:
    """Take every part in the staging area for a committed one."""

    def mutated(self: Any) -> None:
        staging, batch = self.partition.staging, self.partition.batch
        parts = [(b, n, length, "") for b in staging.batches() if b < batch for n, length in staging.parts(b).items()]
        self.partition.committed = parts
        drop(self)

    return mutated


def _reads_any_part(_: Any) -> Any:
    """Take every part of a batch for one with rows."""

    def mutated(staging: Any, batch: int) -> Any:
        return {part: (length, staging.footer(batch, part, length)) for part, length in staging.parts(batch).items()}

    return mutated


_REPORTERS = ack_worker, active_run, batches, start  # of lost files
_ANY_ROW = ("I1", "I2", "I3", "I5")

MUTATIONS: list[Mutation] = [
    Mutation(
        "redeliveries are acknowledged after the next commit",
        ("I3",),
        together(
            replaced(ledger.AckLedger, "redelivered", _waits_for_a_commit),
            replaced(ledger.AckLedger, "commit", _with_those_that_wait),
            replaced(ledger.AckLedger, "has_redelivered", _or_those_that_wait),
        ),
        hole=1,
    ),
    Mutation("a start renews the times of ids", ("I1",), replaced(start, "read_in_doubt", _renews_times), hole=2),
    Mutation(
        "a stream that is opened again begins its idle time",
        ("I4",),
        replaced(health.StreamHealth, "idle_seconds", _forgets_silence),
        hole=5,
    ),
    Mutation(
        "availableNow waits for acks without a limit",
        ("I4",),
        lambda: mock.patch.object(ack_worker.AckWorker, "answers", _makes_progress()),
        hole=6,
    ),
    Mutation(
        "a long footer is damaged",
        _ANY_ROW,
        together(
            replaced(area, "FOOTER_READ_BYTES", lambda _: 256),
            replaced(staged_part, "footer_length", _constant(0)),
        ),
        hole=8,
    ),
    Mutation("local files are not synced", _ANY_ROW, replaced(SimStore, "lose_power", _is_not_synced), hole=10),
    Mutation(
        "lost files are silent",
        ("I4",),
        together(*(replaced(logging.getLogger(each.__name__), "warning", _nothing) for each in _REPORTERS)),
        hole=11,
    ),
    Mutation(
        "a batch is listed after its commit",
        ("I1",),
        together(
            replaced(ledger.AckLedger, "take_listing", _lists_committed),
            replaced(ledger.AckLedger, "stage", _takes_late_parts),
        ),
    ),
    Mutation("redeliveries are not acknowledged", ("I3", "I5"), replaced(ledger.AckLedger, "redelivered", _nothing)),
    Mutation("nothing is in doubt before a batch", ("I5",), replaced(ledger.AckLedger, "take_doubtful", _constant([]))),
    Mutation("late acks are not in doubt", ("I5",), replaced(ledger.AckLedger, "is_doubtful", _constant(False))),
    Mutation("acks in time are in doubt", ("I6",), replaced(ledger.AckLedger, "is_doubtful", _constant(True))),
    Mutation("no pull is late", ("I5",), replaced(ledger.AckLedger, "deadline", _of_the_pull), hole=3),
    Mutation("ids of a replay are in doubt", ("I1",), replaced(active_run, "replayed_batch", _doubts_replays), hole=4),
    Mutation(
        "stale acks of redeliveries count", ("I5",), replaced(ledger.AckLedger, "redelivered_answered", _accepts_all)
    ),
    Mutation("drained at any pause", ("I5",), replaced(active_run.ActiveRun, "_record_drained", _drains_always)),
    Mutation("acks of an earlier run make room", ("I5",), replaced(ledger.AckLedger, "commit", _counts_earlier_runs)),
    Mutation(
        "the last write counts, and any part",
        ("I1", "I4"),
        together(
            replaced(area.Staging, "last_acknowledged", _last_written),
            replaced(start, "readable_parts", _reads_any_part),
        ),
    ),
    Mutation(
        "ids of a rolled back batch are in doubt", ("I1",), replaced(start, "read_in_doubt", _loads_later_batches)
    ),
    Mutation("ids in doubt are lost at a restart", ("I5",), replaced(in_doubt.InDoubt, "load", _nothing)),
    Mutation("ids in doubt stay an earlier run's", ("I4",), replaced(in_doubt.InDoubt, "take_over", _nothing)),
    Mutation("doubt does not spread in a key", ("I5",), replaced(ledger.AckLedger, "doubts_others", _constant(False))),
    Mutation("keys are split", ("keys",), replaced(partition_pull, "has_text", _constant(False))),
    Mutation("an ended lease is a row", ("I5",), replaced(driver_stream.DriverStream, "_set_expired_aside", _nothing)),
    Mutation("a part is staged after its lease", ("I5",), replaced(partition_reader, "_expired", _constant(None))),
    Mutation(
        "a standstill is not noticed", ("I5",), replaced(lease.Arrivals, "look", lambda _: lambda self, now, *_: now)
    ),
    Mutation("a nearly full stream is no backlog", ("I4",), replaced(driver_stream, "_NEARLY_FULL", lambda _: 1.0)),
    Mutation("a pull is cut off", ("I3", "I5"), replaced(streaming_pull.StreamingPull, "half_close", _cuts_off)),
    Mutation("acks hold back no messages", ("I4",), replaced(active_run.ActiveRun, "_wait_for_room", _nothing)),
    Mutation("files on another machine are ours", ("I1", "I2"), replaced(area.Staging, "successor", _constant(None))),
    Mutation("another location is replayed", ("I1", "I2"), replaced(start.Start, "_report_other_area", _nothing)),
    Mutation(
        "a message twice in the buffer is two rows",
        ("I5",),
        replaced(batches, "first_deliveries", lambda _: lambda received: [each.messages for each in received]),
    ),
    Mutation(
        "late parts count as committed",
        ("I1",),
        replaced(partition_pull.PartitionPull, "_drop_staged", _trusts_every_part),
    ),
    Mutation(
        "a deleted batch is read at a start, and any part",
        ("I1", "I2", "I3"),
        together(replaced(start, "check_not_behind", _constant(0)), replaced(start, "readable_parts", _reads_any_part)),
    ),
    Mutation(
        "acks without an answer are forgotten at the end",
        ("I5",),
        replaced(ledger.AckLedger, "has_redelivered", lambda _: property(lambda self: False)),
    ),
    Mutation(
        "a killed run has leases and no back-off",
        ("I5",),
        replaced(area.Staging, "begin_run", lambda begin: lambda self, now, seconds: begin(self, now, LEASE_SECONDS)),
    ),
    Mutation(
        "no manifest",
        _ANY_ROW,
        replaced(area.Staging, "_manifest", lambda _: lambda self, batch: dict.fromkeys(range(99), "")),
    ),
    Mutation(
        "a lost file is no error",
        (*_ANY_ROW, "I4"),
        together(
            replaced(partition_reader, "_may_pull", _constant(True)),
            replaced(area.Staging, "record_yielded", _whatever_was_yielded),
        ),
    ),
    Mutation("create without create-only", ("I1", "I2", "I3", "I4", "I5"), replaced(SimStore, "create", _overwrites)),
    Mutation(
        "no fencing", ("I1", "I2", "I3", "I4", "I5", "keys"), replaced(fencing, "taken_over", lambda _: lambda _: None)
    ),
    Mutation(
        "a staged part is pulled again", ("I1", "I2", "I3", "I4", "I5"), replaced(SimStore, "read", _is_forgetful), True
    ),
    Mutation("batches are not deleted", ("I6",), replaced(SimStore, "delete", _deletes_ids_alone)),
    Mutation(
        "acks are not sent", ("I3", "I5"), replaced(SimConnection, "acknowledge", _answered(lambda _: False)), True
    ),
    Mutation(
        "leases are not extended",
        ("I3", "I5"),
        replaced(SimConnection, "modify_ack_deadline", _answered(lambda _: False)),
    ),
    Mutation(
        "a message that cannot be decoded is no dead letter",
        ("I1",),
        replaced(dead_letters, "publish", _constant(None)),
        True,
    ),
    Mutation(
        "zeros are the end of a part",
        ("I1",),
        replaced(staged_part, "counted", lambda _: lambda batches, rows, name: batches),
        True,
    ),
    Mutation(
        "a stream that ends with OK is there",
        ("I4",),
        replaced(health.StreamHealth, "failed", _unless_ok),
        True,
    ),
    Mutation(
        "a response without messages is a message", ("I4",), replaced(streaming_pull, "_MESSAGES", lambda _: b""), True
    ),
    Mutation("ack before the commit", ("I1",), lambda: _driver(_commits_early), True, hole=7),
    Mutation("a partition is left out", ("I1", "I2", "I3"), lambda: _driver(_skips_the_last_partition)),
    Mutation(
        "a replay drops rows",
        ("I1", "I2", "I3"),
        lambda: _reading(lambda partition, batches: batches[:-1] if _is_replay(partition) else batches),
        True,
    ),
    Mutation(
        "a replay decodes with the schema of its run",
        ("I2",),
        replaced(schemas.StagedSchemas, "reader", lambda _: lambda self, schema: schema),
        hole=9,
    ),
    Mutation(
        "each evaluation asks for the revisions that messages name",
        ("I2",),
        replaced(schemas.StagedSchemas, "fetcher", lambda _: lambda self, fetch: fetch),
    ),
    Mutation(
        "a replay has its rows in another order",
        ("I2",),
        lambda: _reading(lambda partition, batches: batches[::-1] if _is_replay(partition) else batches),
        True,
    ),
]


def caught(mutation: Mutation, histories: int = HISTORIES, first: int = 1) -> tuple[int, Violation] | None:
    """Return after how many histories a mutation was caught and by what, or None if it was not."""
    with mutation.patch():
        small = exhaustive.run()
        if small.violation is not None:
            return small.histories, small.violation
        for seed in range(first, first + histories - small.histories):
            violation = history.run(Plan(seed)).violation
            if violation is not None:
                return small.histories + seed - first + 1, violation
    return None


def _how(name: str) -> str:
    """Return after how many histories a mutation is caught and by what. "NOT ..." if it names no such violation."""
    logging.disable(logging.CRITICAL)
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == name)
    result = caught(mutation)
    if result is None:
        return "NOT CAUGHT"
    histories, (invariant, what) = result
    how = f"after {histories:,} histories: {invariant}: {what}"
    return how if invariant in mutation.breaks else f"NOT NAMED, {how}"


def main() -> int:
    """Run the mutations that the arguments name, or all. The exit code says whether each was caught as it names."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    names = arguments.names or [mutation.name for mutation in MUTATIONS]
    missed = 0
    with ProcessPoolExecutor(arguments.jobs, initializer=gc.freeze) as pool:
        for name, how in zip(names, pool.map(_how, names), strict=True):
            missed += how.startswith("NOT")
            sys.stdout.write(f"{name:45} {how[:200]}\n")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())

"""The cases of docs/guarantee.md that allow a repeated row or a lost message, each as a predicate on the record.

A repeat that no case names breaks invariant I5, a loss I1. A case may only look at the record: the actions of the
service, the store and Spark. `sentence` is the beginning of its line in guarantee.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.simulation import product
from tests.simulation.record import Commit, Record, Staged

KEPT_SECONDS = 7 * 86400.0  # that ids are in doubt


@dataclass(frozen=True)
class Repeat:
    """A row that was committed again. first, again: virtual times of the two commits."""

    message_id: str
    first: float
    again: float
    is_in_same_batch: bool


@dataclass(frozen=True)
class Case:
    """A case that allows a repeat."""

    name: str
    sentence: str
    explains: Callable[[Record, Repeat], bool]


@dataclass(frozen=True)
class Loss:
    """A case that allows an acked message that is no row. explains: by message id, and the process that acks."""

    name: str
    sentence: str
    explains: Callable[[Record, str, str], bool]


def _delivered_by_itself(record: Record, repeat: Repeat) -> bool:
    """A message of an ordering key comes with all later ones of its key."""
    notes = (*record.notes["ack forgotten"], *record.notes["lease cut"])
    again = {message_id for at, ids in notes if at <= repeat.again for message_id in ids}
    key = record.messages[repeat.message_id].key
    earlier = {each for each in again if record.messages[each].key == key and int(each) < int(repeat.message_id)}
    return repeat.message_id in again or bool(key and earlier)


def _was_slow(record: Record, repeat: Repeat) -> bool:
    slow = (*record.notes["response slow"], *record.notes["held back"])  # a slow one holds up others
    return any(repeat.first <= at <= repeat.again for at, _ in slow)


def _was_late(record: Record, repeat: Repeat) -> bool:
    return any(repeat.message_id in ids for at, ids in record.notes["response late"] if at <= repeat.first)


def _read_by_another(record: Record, repeat: Repeat) -> bool:
    """One of two runs has acknowledged its batch after the other one had read the ids in doubt of the area.

    Or one has committed a batch while the other one started. The latter takes the ids of that batch for those of a
    checkpoint that was put back, and deletes them, before it fails.
    """
    if any(
        at <= repeat.again and message_id == repeat.message_id for at, message_id in record.notes["forgotten behind"]
    ):
        return True
    first = [commit.batch for at, commit in record.committed[repeat.message_id] if at == repeat.first]
    acked = [at for at in record.acked[repeat.message_id] if at <= repeat.again]
    late = [batch for at, batch in record.notes["acknowledged late"] if at <= repeat.again]
    return not acked and any(stream == other and number <= last for stream, number in first for other, last in late)


def _sought(record: Record, repeat: Repeat) -> bool:
    return any(at <= repeat.again for at, _ in record.notes["seek"])


def _staging_lost(record: Record, repeat: Repeat) -> bool:
    lost = (*record.notes["file removed"], *record.notes["other staging"])
    return any(at <= repeat.again for at, _ in lost)


def _rolled_back(record: Record, repeat: Repeat) -> bool:
    return any(at <= repeat.again for at, _ in record.notes["rolled back"])


def _ack_failed_for_long(record: Record, repeat: Repeat) -> bool:
    acked = [at for at in record.acked[repeat.message_id] if at <= repeat.again]
    return repeat.again - repeat.first > KEPT_SECONDS and not acked


def _stored_for_long(record: Record, repeat: Repeat) -> bool:
    return repeat.is_in_same_batch and any(at <= repeat.again for at, _ in record.notes["suspended"])


def _clocks_were_apart(record: Record, repeat: Repeat) -> bool:
    suspended = any(repeat.first <= at <= repeat.again for at, _ in record.notes["suspended"])
    is_ahead = any(repeat.first <= at <= repeat.again for at, _ in record.notes["clock ahead"])
    return is_ahead or (suspended and bool(record.notes["clocks apart"]))


def _machine_paused(record: Record, repeat: Repeat) -> bool:
    return any(at <= repeat.again for at, _ in record.notes["paused"])


def _written_again(record: Record, repeat: Repeat) -> bool:
    return any(at == repeat.again and repeat.message_id in ids for at, ids in record.notes["written again"])


def _published_twice(record: Record, repeat: Repeat) -> bool:
    return any(repeat.message_id == message_id for _, message_id in record.notes["published twice"])


def _staged(record: Record, message_id: str) -> Iterator[tuple[Commit, Staged]]:
    """Yield the parts of committed batches that have a message."""
    for commit in record.commits:
        for part in record.staged[commit.batch]:
            if message_id in product.staged_ids(part.content):
                yield commit, part


def _was_not_read(record: Record, message_id: str, by: str) -> bool:
    """The part must have been staged before a driver counted the parts of the committed batch."""
    return any(
        part.partition not in commit.rows and part.at <= record.counted.get(commit.batch, math.inf)
        for commit, part in _staged(record, message_id)
    )


def _was_replayed_elsewhere(record: Record, message_id: str, by: str) -> bool:
    """No other batch was committed before the query has returned to the files, maybe before the commit."""
    changes = [at for at, _ in record.notes["other staging"]]
    for commit, part in _staged(record, message_id):
        before, later = [at for at in changes if part.at <= at <= commit.at], [at for at in changes if at > commit.at]
        returns = [*before[1:], *later, math.inf][0]
        if before and not any(commit.at < other.at <= returns for other in record.commits):
            return True
    return False


def _was_counted_again(record: Record, message_id: str, by: str) -> bool:
    return any(message_id == known for _, known in record.notes["counted again"])


def _was_never_written(record: Record, message_id: str, by: str) -> bool:
    return any(message_id in ids for _, ids in record.notes["never written"])


def _was_staged_after_a_loss(record: Record, message_id: str, by: str) -> bool:
    for (_, _, _, (stream, number), _), part in _staged(record, message_id):
        removed = {path.partition(f"/{stream}/")[2] for at, path in record.notes["file removed"] if at <= part.at}
        parts = {path.replace("part", "given") for path in removed if path.startswith(f"{number}/part-")}
        if parts & removed or f"{number}/manifest" in removed or any(path.startswith("ack") for path in removed):
            return True
    return False


CASES: tuple[Case, ...] = (
    Case(
        "delivered again by Pub/Sub",
        "Pub/Sub delivers it twice although it was acknowledged, or before its lease was over",
        _delivered_by_itself,
    ),
    Case(
        "response slow",
        "its ack failed, and Pub/Sub sends it again only after the query has found the subscription empty",
        _was_slow,
    ),
    Case(
        "response late",
        "a response was on its way for more than 5 s, and its leases ended before they could be extended",
        _was_late,
    ),
    Case(
        "another query",
        "another query, or another `readStream` of the same query, reads the subscription, and an ack failed",
        _read_by_another,
    ),
    Case("seek", "a seek moves the subscription back", _sought),
    Case("staging lost", "files of the staging area were removed, truncated, or are in another area", _staging_lost),
    Case("checkpoint rolled back", "the checkpoint is older than the rows read", _rolled_back),
    Case(
        "ack failed for long",
        "an ack failed for longer than message ids are kept",
        _ack_failed_for_long,
    ),
    Case(
        "stored for long",
        "a task's lease (a minute) expired before its part was staged",
        _stored_for_long,
    ),
    Case(
        "clocks apart",
        "an executor's clock is more than 10 s behind the driver's, and a task begins when leases of the batch before "
        "have expired",
        _clocks_were_apart,
    ),
    Case(
        "machine paused",
        "the driver's machine was paused by its hypervisor for longer than a lease",
        _machine_paused,
    ),
    Case("written again", "the sink is not idempotent and Spark repeats a batch", _written_again),
    Case("published twice", "the publisher published it twice", _published_twice),
)


LOSSES: tuple[Loss, ...] = (
    Loss("rolled back", "the checkpoint is older than the acknowledged batches", Record.is_undone),
    Loss(
        "replayed elsewhere",
        "a batch was replayed without its rows because its files are elsewhere",
        _was_replayed_elsewhere,
    ),
    Loss("not read", "your `foreachBatch` function does not read all partitions of its DataFrame", _was_not_read),
    Loss(
        "staged after a loss",
        "something removes single files of a batch that is evaluated or replayed, and a task of a dead or suspended "
        "attempt stages its messages after that",
        _was_staged_after_a_loss,
    ),
    Loss("counted again", "an emulator counts its messages from 1 again after a restart", _was_counted_again),
    Loss("never written", "your `foreachBatch` function returns before its writes finish", _was_never_written),
)
ENDED = {  # by the service, in `Message.ended`
    "seek": "you ask for it",
    "dead letter": "Pub/Sub drops it",
    "recreated": "Pub/Sub drops it",
}


def loss_of(record: Record, message_id: str, by: str) -> str:
    """Return the name of the first case that explains why an acked message is no row, or "" if none does."""
    return next((loss.name for loss in LOSSES if loss.explains(record, message_id, by)), "")


def name_of(record: Record, repeat: Repeat) -> str | None:
    """Return the name of the first case that explains a repeat, or None if none does."""
    return next((case.name for case in CASES if case.explains(record, repeat)), None)

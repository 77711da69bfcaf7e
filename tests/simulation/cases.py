"""The cases of docs/guarantee.md that allow a repeated row, each as a predicate on the record.

A repeat that no case names breaks invariant I5. A case may only look at the record: the actions of the service, the
store and Spark. `sentence` is the line of guarantee.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.simulation.record import Record

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


def _delivered_by_itself(record: Record, repeat: Repeat) -> bool:
    notes = (*record.notes["ack forgotten"], *record.notes["lease cut"])
    return any(repeat.message_id in ids for at, ids in notes if at <= repeat.again)


def _was_slow(record: Record, repeat: Repeat) -> bool:
    slow = (*record.notes["response slow"], *record.notes["held back"])  # a slow one holds up others
    return any(repeat.first <= at <= repeat.again for at, _ in slow)


def _was_late(record: Record, repeat: Repeat) -> bool:
    return any(repeat.message_id in ids for at, ids in record.notes["response late"] if at <= repeat.first)


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


CASES: tuple[Case, ...] = (
    Case(
        "delivered again by Pub/Sub",
        "Pub/Sub itself delivers it twice although it was acknowledged, or its lease was not over",
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
    Case("seek", "the subscription is sought back", _sought),
    Case("staging lost", "files of the staging area were removed, cut short, or are in another area", _staging_lost),
    Case("checkpoint rolled back", "the checkpoint is older than what was read", _rolled_back),
    Case(
        "ack failed for long",
        "an acknowledgement failed for longer than the ids of its messages are kept",
        _ack_failed_for_long,
    ),
    Case(
        "stored for long",
        "a task stored its part for longer than its lease of a minute",
        _stored_for_long,
    ),
    Case(
        "clocks apart",
        "an executor's clock is more than 10 s behind the driver's, and leases of the batch before have expired, or a "
        "restarted driver's clock is minutes ahead of the last one's",
        _clocks_were_apart,
    ),
)


def name_of(record: Record, repeat: Repeat) -> str | None:
    """Return the name of the first case that explains a repeat, or None if none does."""
    return next((case.name for case in CASES if case.explains(record, repeat)), None)

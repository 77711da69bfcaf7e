"""Which messages are held for which batch: when their leases must be extended, and when they may be acknowledged.

Runs on the driver. No I/O and no clock: `now` is always an argument, in seconds.

The promise: a message is acknowledged only after Spark has committed the batch that carried it. Batches leave this
object towards an ack through `commit(n)` alone, and `commit(n)` returns only batches announced under a number of n or
less, each once. A crash forgets all of it; the staging area still has the receipts, and Pub/Sub sends again what it
has not.

The second rule is about leases. Tasks pull with a lease of STREAM_LEASE and never extend it: most batches are
committed and acknowledged long before it runs out. `watched(now)` names the batches that are not, whose staged parts
the keeper then looks up and reports with `found`; `due(now)` names the parts whose lease has run for a quarter of its
time, so that an extension may fail and be tried again before a message comes a second time. Tasks do not say when they
pulled: it was after the batch was announced, and that is what counts.

The third is the redelivery filter: ids whose ack came late, failed, or is unknown are remembered for the longest lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

LEASE = 600.0  # seconds: the longest ack deadline, https://cloud.google.com/pubsub/docs/lease-management
STREAM_LEASE = 60.0  # seconds: what a stream's deliveries start with, as Google's clients for exactly-once delivery
_QUARTER = 1 / 4  # of a lease has run: it is looked after, with time for two tries
WATCH = STREAM_LEASE * _QUARTER


@dataclass(frozen=True)
class Lease:
    """Of messages that were leased together: when it began, for how long, and whether it was over in between."""

    since: float
    seconds: float
    lapsed: bool = False

    @property
    def ends(self) -> float:
        """The moment from which the messages may come again."""
        return self.since + self.seconds

    def due(self, now: float) -> bool:
        """Whether it is time to extend it."""
        return now - self.since >= self.seconds * _QUARTER

    def over(self, now: float) -> bool:
        """Whether the messages may have come again."""
        return self.lapsed or now >= self.ends

    def extended(self, since: float, now: float, refused: bool) -> Lease:
        """It was set to LEASE seconds, at `since` or after it, and before `now`; or the service refused some of it."""
        return Lease(since, LEASE, lapsed=refused or self.over(now))


@dataclass
class _Batch:
    announced: float
    parts: dict[int, Lease] = field(default_factory=dict)

    def part(self, part: int) -> Lease:
        return self.parts.get(part, Lease(self.announced, STREAM_LEASE))


@dataclass
class Leases:
    """Announced batches that are not acknowledged yet, and ids to drop when they come again."""

    _held: dict[int, _Batch] = field(default_factory=dict)
    _committed: dict[int, _Batch] = field(default_factory=dict)
    _remembered: list[tuple[float, pa.Array]] = field(default_factory=list)
    memories: int = 0  # how often something was remembered

    def announce(self, batch: int, now: float) -> None:
        """Hold a batch; its parts are pulled from now on, or were pulled at a time before `now`."""
        if batch not in self._committed:
            self._held.setdefault(batch, _Batch(now))

    def found(self, batch: int, part: int, lease: Lease | None = None) -> None:
        """A part of a batch was staged, its messages leased like this or, at the most, since the announcement."""
        owner = self._batches.get(batch)
        if owner is not None:
            owner.parts.setdefault(part, lease or owner.part(part))

    def watched(self, now: float) -> list[int]:
        """Batches that are not acknowledged for so long that somebody must look which parts they have."""
        return sorted(number for number, batch in self._batches.items() if now - batch.announced >= WATCH)

    def due(self, now: float) -> list[tuple[int, int]]:
        """Parts, as (batch, part), whose lease has run for a quarter of its time."""
        return sorted(
            (number, part)
            for number, batch in self._batches.items()
            for part, lease in batch.parts.items()
            if lease.due(now)
        )

    def extended(self, batch: int, part: int, since: float, now: float, refused: bool = False) -> None:
        """As `Lease.extended`, for a part."""
        owner = self._batches.get(batch)
        if owner is not None:
            owner.parts[part] = owner.part(part).extended(since, now, refused)

    @property
    def _batches(self) -> dict[int, _Batch]:
        return self._committed | self._held

    def commit(self, batch: int) -> list[int]:
        """Spark has committed everything up to and with `batch`: the batches to acknowledge now, each named once."""
        numbers = sorted(number for number in self._held if number <= batch)
        for number in numbers:
            self._committed[number] = self._held.pop(number)
        return numbers

    def is_late(self, batch: int, part: int, now: float) -> bool:
        """Whether the lease of a part may have run out once: its messages come again, acks may count for nothing."""
        owner = self._batches.get(batch)
        return owner is None or owner.part(part).over(now)

    def overdue(self, now: float) -> list[int]:
        """Committed batches whose acks are not through for so long that parts of them may be late."""
        return sorted(number for number, batch in self._committed.items() if now - batch.announced >= STREAM_LEASE)

    def acknowledged(self, batch: int) -> None:
        """The service has taken the acks of a committed batch, or nothing more can be done for it."""
        self._committed.pop(batch, None)

    @property
    def held(self) -> list[int]:
        """Batches announced and not committed."""
        return sorted(self._held)

    @property
    def unacknowledged(self) -> list[int]:
        """Batches committed whose acks are under way."""
        return sorted(self._committed)

    def remember(self, message_ids: pa.Array, now: float) -> None:
        """Drop these ids when they come again within the longest lease."""
        if len(message_ids):
            self._remembered.append((now + LEASE, message_ids))
            self.memories += 1

    def forget(self, now: float) -> None:
        """Of what has come at `now` or later nothing can be what was remembered a longest lease before."""
        self._remembered = [(until, ids) for until, ids in self._remembered if until > now]

    @property
    def remembered(self) -> pa.Array:
        """The ids to drop, as an Arrow string array."""
        return pa.concat_arrays([ids for _, ids in self._remembered]) if self._remembered else pa.array([], pa.string())

"""The leases of planned batches: when they must be extended, and when their messages may be acknowledged.

Runs on the driver. No I/O and no clock: `now` is always an argument, in seconds.

The promise: a message is acknowledged only after Spark has committed the batch that carried it. A batch becomes
`unacknowledged` through `commit(n)` alone, and `commit(n)` returns only batches planned under a number of n or less,
each once. A crash forgets all of it; the staging area still has the receipts, and Pub/Sub sends again what it has not.

The states of a batch:

    (none)          plan(n)                 -> uncommitted     Spark asks for the partitions of batch n
    uncommitted     commit(m >= n)          -> unacknowledged  Spark's commit log holds batch m
    unacknowledged  record_acknowledged(n)  -> (none)          its acks were accepted, or refused for good

The lease of a part exists in either state of its batch; its states are those of `pull.lease`.

Tasks pull with a lease of STREAM_LEASE_SECONDS and extend it only until their part is staged, if that takes long: most
batches are committed and acknowledged long before its end. `to_track(now)` names the batches that are not, whose staged
parts the lease extender then lists and reports with `track`; `due(now)` names the parts whose lease has run for a
quarter of its time, so that an extension may fail and be tried again. Tasks do not report when they pulled: it was
after the batch was planned, and that time counts.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from .pull.lease import EXTEND_AFTER, STREAM_LEASE_SECONDS, Lease

TRACK_AFTER_SECONDS = STREAM_LEASE_SECONDS * EXTEND_AFTER


@dataclass
class _Batch:
    planned: float
    parts: dict[int, Lease] = field(default_factory=dict)

    def lease(self, part: int) -> Lease:
        return self.parts.get(part, Lease(self.planned, STREAM_LEASE_SECONDS))


@dataclass
class Leases:
    """The planned batches whose messages are not acknowledged yet, and the leases of their parts.

    lock: held around each use, because two threads of the driver share this object.
    """

    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _uncommitted: dict[int, _Batch] = field(default_factory=dict)
    _unacknowledged: dict[int, _Batch] = field(default_factory=dict)

    def plan(self, batch: int, now: float) -> None:
        """Add a batch whose leases begin at `now` or later, or count as if they had begun at `now` (a replay)."""
        if batch not in self._unacknowledged:
            self._uncommitted.setdefault(batch, _Batch(now))

    def track(self, batch: int, part: int, lease: Lease | None = None) -> None:
        """Add a staged part of a batch. lease: when it is known; else it began when the batch was planned."""
        owner = self._batches.get(batch)
        if owner is not None:
            owner.parts.setdefault(part, lease or owner.lease(part))

    def to_track(self, now: float) -> list[int]:
        """The batches planned at least TRACK_AFTER_SECONDS ago, whose staged parts are to be listed and tracked."""
        return sorted(number for number, batch in self._batches.items() if now - batch.planned >= TRACK_AFTER_SECONDS)

    def due(self, now: float) -> list[tuple[int, int]]:
        """The tracked parts, as (batch, part), whose lease is to be extended now."""
        return sorted(
            (number, part)
            for number, batch in self._batches.items()
            for part, lease in batch.parts.items()
            if lease.is_due(now)
        )

    def record_extension(self, batch: int, part: int, sent: float, answered: float, refused: bool = False) -> None:
        """Record the answer to an extension of a part's lease; see `Lease.extended`."""
        owner = self._batches.get(batch)
        if owner is not None:
            owner.parts[part] = owner.lease(part).extended(sent, answered, refused)

    @property
    def _batches(self) -> dict[int, _Batch]:
        return self._unacknowledged | self._uncommitted

    def commit(self, batch: int) -> list[int]:
        """Record that Spark has committed all up to `batch`; the batches to acknowledge now, each named once."""
        numbers = sorted(number for number in self._uncommitted if number <= batch)
        for number in numbers:
            self._unacknowledged[number] = self._uncommitted.pop(number)
        return numbers

    def is_expired(self, batch: int, part: int, now: float) -> bool:
        """Whether the lease of a part may have expired: its messages may be delivered again, its acks be refused."""
        owner = self._batches.get(batch)
        return owner is None or owner.lease(part).is_expired(now)

    def expired(self, now: float) -> list[int]:
        """The committed batches that wait for their acks for so long that leases of their parts may have expired."""
        return sorted(
            number for number, batch in self._unacknowledged.items() if now - batch.planned >= STREAM_LEASE_SECONDS
        )

    def record_acknowledged(self, batch: int) -> None:
        """Remove a committed batch: the service has answered all of its acks."""
        self._unacknowledged.pop(batch, None)

    @property
    def uncommitted(self) -> list[int]:
        """The batches that are planned and not committed."""
        return sorted(self._uncommitted)

    @property
    def unacknowledged(self) -> list[int]:
        """The batches that are committed and not acknowledged."""
        return sorted(self._unacknowledged)

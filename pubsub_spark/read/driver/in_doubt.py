"""Ids in doubt: messages of committed batches that Pub/Sub may deliver again, each until a time.

An id is in doubt if its ack was sent after its lease may have ended, was refused, or was never answered. A redelivery
of its message is no row: it is acknowledged at once, with the new ack id. An id is in doubt until

    that ack is accepted, or
    the subscription was drained, DOUBT_SECONDS or more after the last answer, without a delivery, or
    KEPT_SECONDS are over, or more than MAX_IDS are in doubt.

DOUBT_SECONDS are the longest back-off of a retry policy and the longest lease after it. Ids stay in doubt over restarts
until some run has drained the subscription.

There may be millions of ids, and each batch looks up thousands. So they are runs, as in a log-structured merge tree:
immutable, sorted, one minute each, and a new run is merged with the one before it unless that is twice as long. A run
is one file in the staging area, which tasks read. The file says until when in wall time, and the last batch: in a
checkpoint that was put back to before that batch its ids are rows again. A restart reads the files and writes its own.

Pure. `now` is seconds on the driver's lease clock.

Limits: https://cloud.google.com/pubsub/docs/lease-management and
https://cloud.google.com/pubsub/docs/reference/rpc/google.pubsub.v1#retrypolicy (600 s each).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..pull.lease import LEASE_SECONDS
from ..staging.ids import Digests, IdSet, is_in, merged

MAX_BACKOFF_SECONDS = 600.0  # of a retry policy
DOUBT_SECONDS = MAX_BACKOFF_SECONDS + LEASE_SECONDS
KEPT_SECONDS = 7 * 86400.0  # Pub/Sub's own default for messages that are not acknowledged
MAX_IDS = 10_000_000  # 160 MB
_SLOT_SECONDS, _DAY_SECONDS = 60.0, 86400.0
_MAX_OVERDUE = 32  # runs


@dataclass(frozen=True)
class IdRun:
    """Ids that are in doubt at least until a time, none of a batch after `batch`.

    path: of its file, which may not be written yet.
    """

    path: str
    until: float
    batch: int
    ids: IdSet

    @property
    def count(self) -> int:
        return int(self.ids.digests.shape[1])


@dataclass
class InDoubt:
    """The runs, the oldest first. prefix: of the names of their files. A name is never used twice."""

    prefix: str
    max_ids: int = MAX_IDS
    runs: list[IdRun] = field(default_factory=list)
    files: set[str] = field(default_factory=set)  # paths that are in the staging area
    _last: int = 0
    _accepted: list[Digests] = field(default_factory=list)

    @property
    def sets(self) -> list[IdSet]:
        """The ids in doubt, a set for each run."""
        return [run.ids for run in self.runs]

    def add(self, ids: Digests, batch: int, now: float) -> None:
        """Add ids of a committed batch whose acks were answered, or not, just now."""
        if not ids.shape[1]:
            return
        until = ((now + DOUBT_SECONDS) // _SLOT_SECONDS + 1) * _SLOT_SECONDS
        before = self.runs[-1].until if self.runs else until
        if before < until and [run.until for run in self.runs].count(before) > 1:
            self._push(self._popped(before, math.inf), [], before)
        self._push(self._popped(until, ids.shape[1]), [ids], until, batch)

    def load(self, path: str, ids: Digests, batch: int, until: float) -> None:
        """Add the ids in a file of an earlier run of the query. A run that was killed may have left copies of ids."""
        self.files.add(path)
        if self.runs:
            ids = ids[:, ~is_in(ids, self.sets)]
        if not ids.shape[1]:
            return
        self.runs.append(IdRun(path, until, batch, IdSet(ids)))
        self.runs.sort(key=lambda run: run.until)

    def join(self, now: float) -> None:
        """Make one run a day of the runs that only a drained subscription ends, so that they pile up no files."""
        days: dict[float, list[IdRun]] = {}
        for run in self.runs:
            days.setdefault((now - run.until) // _DAY_SECONDS if run.until <= now else -run.until, []).append(run)
        self.runs = []
        for runs in days.values():
            if len(runs) == 1:
                self.runs += runs
            else:
                self._push(runs, [], runs[-1].until)

    def take_over(self) -> None:
        """Name a file of this run of the query for each run: an earlier one, if it lives, may delete its files."""
        self.runs = [replace(run, path=self._new_path()) for run in self.runs]

    def accept(self, ids: Digests) -> None:
        """Record that redeliveries of these ids were acknowledged in time. `compact` removes the ids."""
        self._accepted.append(ids)

    def is_overdue(self, now: float) -> bool:
        """Return whether ids would not be in doubt any more if the subscription were drained."""
        return any(run.until <= now for run in self.runs)

    def drained(self, now: float) -> None:
        """Record that nothing is left to deliver: acks of messages that could have been redelivered were accepted."""
        self.runs = [run for run in self.runs if run.until > now]

    def compact(self, now: float) -> int:
        """Remove ids that were accepted or are too old or too many. Return the number of the latter."""
        accepted, self._accepted = [IdSet(merged(self._accepted))] if self._accepted else [], []
        runs, self.runs, count, lost = self.runs, [], 0, 0
        has_copies = sum(run.count for run in runs) > self.max_ids  # of ids that were in doubt again
        for run in reversed(runs):
            known = accepted + self.sets if has_copies else accepted
            left = run.ids.digests[:, ~is_in(run.ids.digests, known)] if known else run.ids.digests
            if run.until + KEPT_SECONDS <= now or count + left.shape[1] > self.max_ids:
                lost += left.shape[1]
            elif left.shape[1] == run.count:
                self.runs.insert(0, run)
            elif left.shape[1]:
                self.runs.insert(0, IdRun(self._new_path(), run.until, run.batch, IdSet(left)))
            count += left.shape[1]
        if sum(run.until <= now for run in self.runs) > _MAX_OVERDUE:
            self.join(now)
        return lost

    def obsolete(self, read: set[str]) -> list[str]:
        """Return the files of no run that no planned batch reads. read: the files that planned batches read."""
        return sorted(self.files - {run.path for run in self.runs} - read)

    def _popped(self, until: float, length: float) -> list[IdRun]:
        """Remove and return the last runs of a slot that are shorter than twice the runs after them."""
        popped: list[IdRun] = []
        while self.runs and self.runs[-1].until == until and self.runs[-1].count < 2 * length:
            popped.append(self.runs.pop())
            length += popped[-1].count
        return popped

    def _push(self, runs: Sequence[IdRun], ids: Sequence[Digests], until: float, batch: int = 0) -> None:
        joined = merged([*(run.ids.digests for run in runs), *ids])
        last = max([batch, *(run.batch for run in runs)])
        self.runs.append(IdRun(self._new_path(), until, last, IdSet(joined)))

    def _new_path(self) -> str:
        self._last += 1
        return f"{self.prefix}{self._last}"

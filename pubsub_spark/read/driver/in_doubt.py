"""Ids in doubt: messages of committed batches that Pub/Sub may deliver again, each until a time.

An id is in doubt if its ack was sent after its lease may have ended, was refused, or was never answered. The next
delivery of its message is no row: it is acknowledged at once. REMEMBERED_SECONDS after the last answer the id is
forgotten: the longest lease that another delivery can hold, and the longest back-off of a retry policy.

After an outage there may be millions of ids, and each batch looks up thousands. So they are runs, as in a
log-structured merge tree: immutable, sorted, one minute each, and a new run is merged with the one before it unless
that is twice as long. A run is one file in the staging area, which tasks read and a restart finds. The file says until
when in wall time, and up to which batch: in a checkpoint that was put back to before that batch its ids are rows again.

Pure. `now` is seconds on the driver's lease clock.

Limits: https://cloud.google.com/pubsub/docs/lease-management and
https://cloud.google.com/pubsub/docs/reference/rpc/google.pubsub.v1#retrypolicy (600 s each).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..staging.ids import Digests, IdSet, merged

REMEMBERED_SECONDS = 600.0
_SLOT_SECONDS = 60.0


@dataclass(frozen=True)
class Run:
    """Ids in doubt until a time, none of a batch after `batch`. path: of its file, which may not be written yet."""

    path: str
    until: float
    batch: int
    ids: IdSet

    @property
    def count(self) -> int:
        """The number of ids."""
        return int(self.ids.digests.shape[1])


@dataclass
class InDoubt:
    """The runs, the oldest first. prefix: of the names of their files; a name is never used twice."""

    prefix: str
    runs: list[Run] = field(default_factory=list)
    files: set[str] = field(default_factory=set)  # paths that are in the staging area
    _last: int = 0

    def add(self, ids: Digests, batch: int, now: float) -> None:
        """Add ids of a committed batch until REMEMBERED_SECONDS from now, and up to a minute longer."""
        if not ids.shape[1]:
            return
        until = ((now + REMEMBERED_SECONDS) // _SLOT_SECONDS + 1) * _SLOT_SECONDS
        before = self.runs[-1].until if self.runs else until
        if before < until and [run.until for run in self.runs].count(before) > 1:
            self._push(self._popped(before, math.inf), [], before)
        self._push(self._popped(until, ids.shape[1]), [ids], until, batch)

    def load(self, path: str, ids: Digests, batch: int, until: float) -> None:
        """Add the run of a file that an earlier run of the query wrote."""
        self.files.add(path)
        self.runs.append(Run(path, until, batch, IdSet(ids)))
        self.runs.sort(key=lambda run: run.until)

    def forget(self, now: float) -> None:
        """Remove the ids whose messages, if delivered at `now` or later, are no redeliveries."""
        self.runs = [run for run in self.runs if run.until > now]

    def obsolete(self, read: set[str]) -> list[str]:
        """Return the files of no run that no planned batch reads. read: the files that planned batches read."""
        return sorted(self.files - {run.path for run in self.runs} - read)

    def _popped(self, until: float, length: float) -> list[Run]:
        """Remove and return the last runs of a slot that are shorter than twice the runs after them."""
        popped: list[Run] = []
        while self.runs and self.runs[-1].until == until and self.runs[-1].count < 2 * length:
            popped.append(self.runs.pop())
            length += popped[-1].count
        return popped

    def _push(self, runs: Sequence[Run], ids: Sequence[Digests], until: float, batch: int = 0) -> None:
        self._last += 1
        joined = merged([*(run.ids.digests for run in runs), *ids])
        last = max([batch, *(run.batch for run in runs)])
        self.runs.append(Run(f"{self.prefix}{self._last}", until, last, IdSet(joined)))

"""Recent ids: the ids of messages that may be delivered again, each until a time.

Each batch looks up and adds a few thousand ids, so they are runs, as in a log-structured merge tree: immutable, sorted,
each for the ids of one minute; a new one is merged with the one before it unless that is twice as long, and those of a
minute that is over become one. A batch costs what it has itself and not what is recent; a process that has read the
file of a run needs only those of later ones.

Pure: `now` is an argument, in seconds of any clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .leases import LEASE_SECONDS
from .staging.ids import Digests, IdSet, merged

_SLOT_SECONDS = 60.0


@dataclass(frozen=True)
class Run:
    """Ids that are recent until a time."""

    number: int
    until: float
    ids: IdSet

    @property
    def count(self) -> int:
        """The number of ids."""
        return int(self.ids.digests.shape[1])


@dataclass
class RecentIds:
    """The runs, the oldest first. They are numbered in their order; a number is never used again."""

    runs: list[Run] = field(default_factory=list)
    _last: int = 0

    def add(self, added: Digests, now: float) -> None:
        """Add ids for the longest lease from `now` on, and up to a minute longer."""
        if not added.shape[1]:
            return
        until = ((now + LEASE_SECONDS) // _SLOT_SECONDS + 1) * _SLOT_SECONDS
        before = self.runs[-1].until if self.runs else until
        if before < until and [run.until for run in self.runs].count(before) > 1:
            self._push(self._popped(before, np.inf), before)
        self._push([*self._popped(until, added.shape[1]), added], until)

    def _popped(self, until: float, length: float) -> list[Digests]:
        """Remove the last runs of a slot that are shorter than twice those that come after them, of `length` ids."""
        parts: list[Digests] = []
        while self.runs and self.runs[-1].until == until and self.runs[-1].count < 2 * length:
            parts.append(self.runs.pop().ids.digests)
            length += parts[-1].shape[1]
        return parts

    def _push(self, parts: Sequence[Digests], until: float) -> None:
        self._last += 1
        self.runs.append(Run(self._last, until, IdSet(merged(parts))))

    def forget(self, now: float) -> None:
        """Remove the ids that no message delivered at `now` or later can have as a redelivery."""
        self.runs = [run for run in self.runs if run.until > now]

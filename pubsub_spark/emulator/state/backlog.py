"""Counters of unacked messages by publish time: how many there are, and how old the oldest is, without visiting any.

They cover the messages of a subscription that were leased once or have an ordering key. A message beyond its retention
leaves the count at that time, and is never counted again.
"""

from __future__ import annotations

import heapq

NEVER = float("inf")
_SPARE_ENTRIES = 64  # of the heap, beyond two for each publish time, before it is tidied


class Unacked:
    def __init__(self) -> None:
        self.total = 0
        self.expired_until = -NEVER  # messages published then, or earlier, have outlived their retention
        self._counts: dict[float, int] = {}
        self._times: list[float] = []  # heap. A time without a count is passed over

    def add(self, published: float, messages: int = 1) -> None:
        if published <= self.expired_until:
            return
        self.total += messages
        counts = self._counts
        if published in counts:
            counts[published] += messages
        else:
            counts[published] = messages
            heapq.heappush(self._times, published)

    def remove(self, published: float, messages: int = 1) -> None:
        """Messages that expired before are not in the count."""
        count = self._counts.get(published)
        if count is None:
            return
        self.total -= messages
        if count > messages:
            self._counts[published] = count - messages
            return
        del self._counts[published]
        if len(self._times) > 2 * len(self._counts) + _SPARE_ENTRIES:
            self._times = sorted(self._counts)

    @property
    def oldest(self) -> float:
        """The first publish time, or infinity."""
        times = self._times
        while times and times[0] not in self._counts:
            heapq.heappop(times)
        return times[0] if times else NEVER

    def expire(self, retention: float, now: float) -> None:
        """`retention` is in seconds."""
        while (oldest := self.oldest) + retention <= now:
            self.total -= self._counts.pop(oldest)
            self.expired_until = oldest

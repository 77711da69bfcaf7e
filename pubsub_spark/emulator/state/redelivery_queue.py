"""The queue of messages that come again: of those without an ordering key, which have `ordering`. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.delivery import Delivery


class RedeliveryQueue:
    """Deliveries that have ended without an ack; `ready` are those that wait for no backoff, in their order."""

    def __init__(self) -> None:
        self.ready: deque[Delivery] = deque()
        self._backing_off: list[tuple[float, int, Delivery]] = []  # heap
        self._ties = count()

    def add(self, delivery: Delivery, opens: float = 0) -> None:
        """Add a delivery; with `opens`, which is a time to come, it is ready from then on."""
        if opens:
            heapq.heappush(self._backing_off, (opens, next(self._ties), delivery))
        else:
            self.ready.append(delivery)

    @property
    def due(self) -> float:
        """The time when the next backoff ends; infinity when nothing is backing off."""
        return self._backing_off[0][0] if self._backing_off else NEVER

    def open(self, now: float) -> int:
        """Make those ready whose backoff has passed; how many."""
        opened = 0
        while self.due <= now:
            self.ready.append(heapq.heappop(self._backing_off)[2])
            opened += 1
        return opened

    def backing_off(self) -> list[tuple[float, Delivery]]:
        """Those that are backing off, each with the time when that ends, the first to be ready first."""
        return [(opens, delivery) for opens, _, delivery in sorted(self._backing_off, key=lambda entry: entry[:2])]

    def __iter__(self) -> Iterator[Delivery]:
        yield from self.ready
        for _, _, delivery in self._backing_off:
            yield delivery

"""The queue of messages to redeliver that have no ordering key. Those with a key are in `ordering`."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.delivery import Delivery


class RedeliveryQueue:
    """Deliveries that have ended without an ack. `ready` are those without a backoff to wait for, in order."""

    def __init__(self) -> None:
        self.ready: deque[Delivery] = deque()
        self._backing_off: list[tuple[float, int, Delivery]] = []  # heap
        self._ties = count()

    def add(self, delivery: Delivery, opens: float = 0) -> None:
        """If `opens`, a future time, is set, the delivery is ready from then on."""
        if opens:
            heapq.heappush(self._backing_off, (opens, next(self._ties), delivery))
        else:
            self.ready.append(delivery)

    @property
    def due(self) -> float:
        """The end of the next backoff, or infinity."""
        return self._backing_off[0][0] if self._backing_off else NEVER

    def open(self, now: float) -> int:
        """Make the deliveries ready whose backoff has passed. Return their number."""
        opened = 0
        while self.due <= now:
            self.ready.append(heapq.heappop(self._backing_off)[2])
            opened += 1
        return opened

    def backing_off(self) -> list[tuple[float, Delivery]]:
        """Return the deliveries with the end of their backoff, the first to be ready first."""
        return [(opens, delivery) for opens, _, delivery in sorted(self._backing_off, key=lambda entry: entry[:2])]

    def __iter__(self) -> Iterator[Delivery]:
        yield from self.ready
        for _, _, delivery in self._backing_off:
            yield delivery

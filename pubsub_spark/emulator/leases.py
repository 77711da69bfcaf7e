"""Hand-outs that are good: number, message, holder, deadline.

Pure. Numbers count up, one for each hand-out, and are what ack ids stand for. One heap entry stands for a whole batch
of leases, and nothing is done to it when they are acked or extended: when its time comes, the leases that are still
there and due are given back, the others are passed over.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count

from pubsub_spark.emulator.delivery import Consumer, Delivery

NEVER = float("inf")
_SPARE_ENTRIES = 1000  # beyond two for each lease, before they are tidied


class Leases:
    """The leases of one subscription."""

    def __init__(self, first_number: int) -> None:
        self._next_number = first_number
        self._leased: dict[int, Delivery] = {}
        self._entries: list[tuple[float, int, Sequence[int]]] = []  # heap of (deadline, tie, numbers)
        self._ties = count()

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._leased.values())

    @property
    def due(self) -> float:
        """When leases may run out next; infinity when there are none."""
        return self._entries[0][0] if self._entries else NEVER

    def get(self, number: int) -> Delivery | None:
        return self._leased.get(number)

    def end(self, number: int) -> Delivery | None:
        """The lease is over; what was leased, or None when it was over already."""
        return self._leased.pop(number, None)

    def grant(self, batch: list[Delivery], consumer: Consumer, deadline: float) -> None:
        """Hand a batch to a consumer, each with a number of its own."""
        numbers = range(self._next_number, self._next_number + len(batch))
        for number, delivery in zip(numbers, batch, strict=True):
            delivery.number = number
            delivery.deadline = deadline
            delivery.holder = consumer
            delivery.deliveries += 1
        self._next_number = numbers.stop
        self._leased.update(zip(numbers, batch, strict=True))
        consumer.messages += len(batch)
        consumer.size += sum(len(delivery.message.frame) for delivery in batch)
        self._expect(deadline, numbers)

    def extend(self, deliveries: Sequence[Delivery], deadline: float) -> None:
        """Set another deadline, later or earlier."""
        for delivery in deliveries:
            delivery.deadline = deadline
        self._expect(deadline, [delivery.number for delivery in deliveries])

    def expired(self, now: float) -> Iterator[Delivery]:
        """End the leases whose deadline has come, one by one."""
        while self._entries and self._entries[0][0] <= now:
            _, _, numbers = heapq.heappop(self._entries)
            for number in numbers:
                delivery = self._leased.get(number)
                if delivery is not None and delivery.deadline <= now:
                    del self._leased[number]
                    yield delivery

    def clear(self) -> None:
        self._leased.clear()
        self._entries.clear()

    def _expect(self, deadline: float, numbers: Sequence[int]) -> None:
        heapq.heappush(self._entries, (deadline, next(self._ties), numbers))
        if len(self._entries) > 2 * len(self._leased) + _SPARE_ENTRIES:
            alive = ((number, each.deadline) for number, each in self._leased.items() if each.deadline < NEVER)
            self._entries = [(deadline, next(self._ties), (number,)) for number, deadline in alive]
            heapq.heapify(self._entries)

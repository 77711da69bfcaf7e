"""The leases of a subscription: number, message, holder, deadline.

Each lease has its own number, which its ack id stands for. The numbers of a batch are consecutive, and those of the
next batch begin at the next multiple of SPAN.

One heap entry stands for a whole batch. Acks and extensions do not touch it, and leases that are no longer due are
passed over when its time comes.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.delivery import Consumer, Delivery
from pubsub_spark.emulator.state.wire_format import SPAN

MAX_ACKED_NUMBERS = 100_000
_SPARE_ENTRIES = 1000  # beyond two for each lease, before they are tidied


class BatchNumbers(Iterator[int]):
    def __init__(self) -> None:
        self.next_number = 1

    def __next__(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number


class Leases(dict[int, Delivery]):
    """The deliveries by their numbers."""

    def __init__(self, batches: Iterator[int]) -> None:
        super().__init__()
        self._batch_numbers = batches
        self._deadlines: list[tuple[float, int, Sequence[int]]] = []  # heap of (deadline, tie, numbers)
        self._ties = count()

    @property
    def due(self) -> float:
        """The time when leases may expire next, or infinity."""
        return self._deadlines[0][0] if self._deadlines else NEVER

    def grant(self, deliveries: Sequence[Delivery], consumer: Consumer, deadline: float) -> range:
        """Hand a batch to a consumer. Return one number for each message."""
        first = next(self._batch_numbers) * SPAN
        numbers = range(first, first + len(deliveries))
        for number, delivery in zip(numbers, deliveries, strict=True):
            delivery.number = number
            delivery.deadline = deadline
            delivery.holder = consumer
            delivery.deliveries += 1
            self[number] = delivery
        self._expect(deadline, numbers)
        return numbers

    def extend(self, deliveries: Sequence[Delivery], deadline: float) -> None:
        for delivery in deliveries:
            delivery.deadline = deadline
        self._expect(deadline, [delivery.number for delivery in deliveries])

    def expired(self, now: float) -> Iterator[Delivery]:
        """End the leases whose deadline has passed, and yield their deliveries."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, numbers = heapq.heappop(self._deadlines)
            for number in numbers:
                if number in self and self[number].deadline <= now:
                    yield self.pop(number)

    def clear(self) -> None:
        super().clear()
        self._deadlines.clear()

    def _expect(self, deadline: float, numbers: Sequence[int]) -> None:
        heapq.heappush(self._deadlines, (deadline, next(self._ties), numbers))
        if len(self._deadlines) > 2 * len(self) + _SPARE_ENTRIES:
            self._deadlines = [
                (delivery.deadline, next(self._ties), (number,))
                for number, delivery in self.items()
                if delivery.deadline < NEVER
            ]
            heapq.heapify(self._deadlines)


class AckedNumbers(OrderedDict[int, None]):
    """The numbers acknowledged last on an exactly-once subscription. Acknowledging one again is no error."""

    def add(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self[number] = None
            if len(self) > MAX_ACKED_NUMBERS:
                self.popitem(last=False)

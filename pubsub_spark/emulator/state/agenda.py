"""The agenda of a broker: when each of its subscriptions next has something to do.

There is one heap for all subscriptions, so a thousand idle ones cost nothing. An entry that an earlier one of the same
subscription has replaced is passed over. Subscriptions that are due at the same time are ordered by name, so a state
that was loaded from a dump continues like the dumped one.
"""

from __future__ import annotations

import heapq
from itertools import count

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.subscription import Subscription

_SPARE_ENTRIES = 64  # beyond two for each subscription, before they are tidied


class Agenda:
    def __init__(self) -> None:
        self._times: dict[Subscription, float] = {}
        self._heap: list[tuple[float, str, int, Subscription]] = []
        self._ties = count()

    def __len__(self) -> int:
        """Entries that will be passed over also count."""
        return len(self._heap)

    def add(self, due: float, subscription: Subscription) -> None:
        """Put a subscription on the agenda, unless it is already there at that time or an earlier one."""
        if due < self._times.get(subscription, NEVER):
            self._times[subscription] = due
            heapq.heappush(self._heap, (due, subscription.name, next(self._ties), subscription))
            if len(self._heap) > 2 * len(self._times) + _SPARE_ENTRIES:
                self._heap = [entry for entry in self._heap if self._times.get(entry[3]) == entry[0]]
                heapq.heapify(self._heap)

    def discard(self, subscription: Subscription) -> None:
        self._times.pop(subscription, None)

    @property
    def due(self) -> float:
        """The first due time, or infinity."""
        return self._heap[0][0] if self._heap else NEVER

    def pop(self, now: float) -> Subscription | None:
        while self._heap and self._heap[0][0] <= now:
            due, _, _, subscription = heapq.heappop(self._heap)
            if self._times.get(subscription) == due:
                del self._times[subscription]
                return subscription
        return None

    def entries(self) -> list[tuple[float, str]]:
        """Return due times and names, in the order of the times."""
        return sorted((due, subscription.name) for subscription, due in self._times.items())

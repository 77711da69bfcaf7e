"""The agenda of a broker: at which time each of its subscriptions has something to do next.

Pure. One heap for all subscriptions, so a thousand idle ones cost nothing. An entry that an earlier one of the same
subscription has replaced, or whose subscription is gone, is passed over when its time comes. Of those that are due at
one time the first by name is first: a state that was loaded from a dump goes on as the one that was dumped.
"""

from __future__ import annotations

import heapq
from itertools import count

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.subscription import Subscription

_SPARE_ENTRIES = 64  # beyond two for each subscription, before they are tidied


class Agenda:
    """The subscriptions by the time at which they are due."""

    def __init__(self) -> None:
        self._times: dict[Subscription, float] = {}
        self._heap: list[tuple[float, str, int, Subscription]] = []
        self._ties = count()

    def __len__(self) -> int:
        """The number of entries, those that are passed over included."""
        return len(self._heap)

    def add(self, due: float, subscription: Subscription) -> None:
        """Put a subscription on the agenda, unless it stands there at that time or an earlier one."""
        if due < self._times.get(subscription, NEVER):
            self._times[subscription] = due
            heapq.heappush(self._heap, (due, subscription.name, next(self._ties), subscription))
            if len(self._heap) > 2 * len(self._times) + _SPARE_ENTRIES:
                self._heap = [entry for entry in self._heap if self._times.get(entry[3]) == entry[0]]
                heapq.heapify(self._heap)

    def discard(self, subscription: Subscription) -> None:
        """Take a subscription off the agenda."""
        self._times.pop(subscription, None)

    @property
    def due(self) -> float:
        """The time of the first entry; infinity when there is none."""
        return self._heap[0][0] if self._heap else NEVER

    def pop(self, now: float) -> Subscription | None:
        """Take the first subscription that is due off the agenda; None when none is."""
        while self._heap and self._heap[0][0] <= now:
            due, _, _, subscription = heapq.heappop(self._heap)
            if self._times.get(subscription) == due:
                del self._times[subscription]
                return subscription
        return None

    def entries(self) -> list[tuple[float, str]]:
        """The subscriptions by name, in the order in which they are due, each with its time."""
        return sorted((due, subscription.name) for subscription, due in self._times.items())

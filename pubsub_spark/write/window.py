"""What may be sent now and what must wait. Pure: no clock, no socket, no lock.

Three rules. At most `max_requests` are under way. Of one ordering key (a lane: topic and key) one request at a time is
under way, and the next only after its confirmation, so a key's messages arrive in their order. And whoever makes
requests must stop while there is no `room`, so a task's memory does not grow with its rows.

After a failure nothing more is offered. What waits behind it in its lane is dropped, and all that has no key; other
keys' requests go on, so what was begun in order ends in order.
"""

from __future__ import annotations

from collections import deque

from .requests import Request

Lane = tuple[str, str]


class Window:
    """Requests that are offered but not confirmed: waiting for their turn, under way, or paused before another try."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._ready: deque[Request] = deque()
        self._lanes: dict[Lane, deque[Request]] = {}
        self._under_way = 0
        self._paused = 0
        self.held_bytes = 0

    @property
    def room(self) -> bool:
        """Whether another request may be made and offered."""
        return self.held_bytes < self._max_bytes

    @property
    def busy(self) -> bool:
        """Whether something is still to be sent or answered."""
        return bool(self._ready or self._under_way or self._paused)

    def offer(self, request: Request) -> None:
        """Take a request; it comes out of `due` when its turn comes."""
        self.held_bytes += len(request.body)
        if request.ordering_key:
            lane = (request.topic, request.ordering_key)
            if lane in self._lanes:
                self._lanes[lane].append(request)
                return
            self._lanes[lane] = deque()
        self._ready.append(request)

    def due(self) -> list[Request]:
        """The requests to send now; each counts as under way from here on."""
        found = []
        while self._ready and self._under_way < self._max_requests:
            found.append(self._ready.popleft())
            self._under_way += 1
        return found

    def confirmed(self, request: Request) -> None:
        """A request under way was confirmed: the next of its key may go."""
        self._under_way -= 1
        self.held_bytes -= len(request.body)
        if request.ordering_key:
            lane = (request.topic, request.ordering_key)
            if self._lanes[lane]:
                self._ready.append(self._lanes[lane].popleft())
            else:
                del self._lanes[lane]

    def paused(self) -> None:
        """A request under way failed for now: it keeps its lane but leaves its place to others."""
        self._under_way -= 1
        self._paused += 1

    def resumed(self, request: Request) -> None:
        """The pause of a request is over: it is the next to be sent."""
        self._paused -= 1
        self._ready.appendleft(request)

    def failed(self, request: Request) -> None:
        """A request under way failed for good: its key stops, and so does all that has no key."""
        self._under_way -= 1
        self.held_bytes -= len(request.body)
        dropped = self._lanes.pop((request.topic, request.ordering_key), deque())
        unordered = [waiting for waiting in self._ready if not waiting.ordering_key]
        self._ready = deque(waiting for waiting in self._ready if waiting.ordering_key)
        self.held_bytes -= sum(len(waiting.body) for waiting in [*dropped, *unordered])

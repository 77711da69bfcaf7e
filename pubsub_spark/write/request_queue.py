"""The requests that are not confirmed yet, and which of them may be sent now. Pure: no clock, no socket, no lock.

Three rules, as in Google's PublisherClient:

- At most `max_in_flight` requests are in flight.
- One request of an ordering key (of a topic) is in flight or waits for its retry. The next leaves the key's queue when
  it is confirmed, so the messages of a key arrive in their order.
- Flow control: the caller adds no request while `has_capacity` is false, and then waits until `has_drained`. It counts
  the memory of a request's Python objects, not its body alone: with one small message for each of many keys, they are
  most of it.

After a request has failed for good the caller adds nothing more. The queue of its key is dropped, and so are queued
requests without a key. Requests of other keys are still sent, so each key ends with a prefix of its messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ..publish.requests import EncodedRequest

TopicAndKey = tuple[str, str]

# The objects that Python keeps for an outstanding request in addition to its body: the request, its key, its place in
# the queues and in the scheduler's heap, its attempts. Measured with tracemalloc while 20,000 keys await a retry.
_OBJECT_BYTES = 1000
# The share of the memory that is still used when a caller that waited continues.
_RESUME_SHARE = 0.75


def memory_bytes(request: EncodedRequest) -> int:
    return len(request.body) + _OBJECT_BYTES


class RequestQueue:
    """The outstanding requests of a task: queued, in flight, or waiting for a retry."""

    def __init__(self, max_in_flight: int, max_outstanding_bytes: int) -> None:
        self._max_in_flight = max_in_flight
        self._max_outstanding_bytes = max_outstanding_bytes
        self._sendable: deque[EncodedRequest] = deque()
        # A key is in here while one of its requests is outstanding. Its queue has the later ones, or is None instead of
        # empty: an empty deque takes 760 bytes.
        self._key_queues: dict[TopicAndKey, deque[EncodedRequest] | None] = {}
        self._in_flight = 0
        self._awaiting_retry = 0
        self._has_failed = False
        self.outstanding_bytes = 0

    @property
    def has_capacity(self) -> bool:
        return self.outstanding_bytes < self._max_outstanding_bytes

    @property
    def has_drained(self) -> bool:
        """A quarter is free then, to save wake-ups."""
        return self.outstanding_bytes < self._max_outstanding_bytes * _RESUME_SHARE

    @property
    def has_outstanding(self) -> bool:
        return bool(self._sendable or self._in_flight or self._awaiting_retry)

    def add(self, request: EncodedRequest) -> None:
        self.outstanding_bytes += memory_bytes(request)
        if request.ordering_key:
            key = (request.topic, request.ordering_key)
            if key in self._key_queues:
                queue = self._key_queues[key]
                if queue is None:
                    self._key_queues[key] = deque([request])
                else:
                    queue.append(request)
                return
            self._key_queues[key] = None
        self._sendable.append(request)

    def take_sendable(self) -> list[EncodedRequest]:
        """Return the requests to send now. They count as in flight from here on."""
        taken = []
        while self._sendable and self._in_flight < self._max_in_flight:
            taken.append(self._sendable.popleft())
            self._in_flight += 1
        return taken

    def confirm(self, request: EncodedRequest) -> None:
        self._in_flight -= 1
        self.outstanding_bytes -= memory_bytes(request)
        if request.ordering_key:
            key = (request.topic, request.ordering_key)
            queue = self._key_queues.get(key)
            if queue:
                self._sendable.append(queue.popleft())
            else:
                self._key_queues.pop(key, None)

    def await_retry(self) -> None:
        """Take a request out of flight that failed for now."""
        self._in_flight -= 1
        self._awaiting_retry += 1

    def retry(self, request: EncodedRequest) -> None:
        """Make a request that awaited its retry the next to be sent."""
        self._awaiting_retry -= 1
        self._sendable.appendleft(request)

    def fail(self, request: EncodedRequest) -> None:
        """Remove a request in flight that failed for good, and drop queued requests by the module's rule."""
        self._in_flight -= 1
        self.outstanding_bytes -= memory_bytes(request)
        self._drop(self._key_queues.pop((request.topic, request.ordering_key), None) or ())
        if not self._has_failed:
            self._has_failed = True
            self._drop(queued for queued in self._sendable if not queued.ordering_key)
            self._sendable = deque(queued for queued in self._sendable if queued.ordering_key)

    def drop_queued(self) -> None:
        """Remove every request that is neither in flight nor awaits its retry."""
        for queue in self._key_queues.values():
            self._drop(queue or ())
        self._key_queues.clear()
        self._drop(self._sendable)
        self._sendable.clear()

    def _drop(self, requests: Iterable[EncodedRequest]) -> None:
        self.outstanding_bytes -= sum(map(memory_bytes, requests))

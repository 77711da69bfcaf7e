"""The driver's own StreamingPull: what waits here says that there is something to do now.

It is kept open with small limits. Its messages become the first part of the next batch; they are staged then, and
until then their leases are looked after here (`due`, `extended`). `crowded` says that flow control held messages back:
there are more than the door can serve.

Used by two threads of the driver, Spark's calls and the keeper; every method takes the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from ..backend import Connection
from ..codec.envelope import Received, received, size
from ..errors import PubSubError
from .leases import Lease
from .pull import QUIET, Flow, Stream

MOST_MESSAGES = 1000
MOST_BYTES = 4 * 2**20
_LAST_LOOKS = 10  # at what is under way when the door is closed; a service that goes on sending is cut off


@dataclass(frozen=True)
class _Waiting:
    """What one look at the stream has brought."""

    arrived: float
    lease: Lease
    got: Received


class Door:
    """Messages that have arrived and belong to no batch yet. clock: seconds, monotonic."""

    def __init__(self, connection: Connection, flow: Flow, clock: Callable[[], float]) -> None:
        self.flow = flow
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # who polls; held while waiting
        self._waiting: list[_Waiting] = []
        self._outstanding: deque[tuple[int, int]] = deque()  # messages and their bytes, as the service counts them
        self._reopened = 0
        self._crowded = False
        self._looked = clock()
        self._stream = Stream(connection, flow, has_room=self._has_room)

    def poll(self, timeout: float = 0) -> None:
        """Take in what has arrived; wait up to `timeout` seconds for the first response.

        Raises what ended the stream: ResourceError or ServiceError.
        """
        if not self._turn.acquire(blocking=timeout > 0):
            return  # the other thread is taking in what has come; two at a time would mix up its order
        try:
            since, self._looked = self._looked, self._clock()
            self._take_in(self._stream.take(timeout), since)
        finally:
            self._turn.release()

    def _take_in(self, responses: list[bytes], since: float) -> None:
        """since: the last look, when nothing of it was there; the machine may have slept meanwhile."""
        with self._lock:
            if self._stream.reopened != self._reopened:  # the service counts what is outstanding for each stream
                self._reopened = self._stream.reopened
                self._outstanding = self._held()
            if responses:
                got = received(responses)
                if got.messages.num_rows:
                    self._waiting.append(_Waiting(self._clock(), Lease(since, self.flow.deadline), got))
                    self._outstanding.append((got.messages.num_rows, sum(map(len, responses))))
            if self._reaches_a_limit(self._outstanding):
                self._crowded = True

    def _has_room(self) -> bool:
        with self._lock:
            return not self._reaches_a_limit(self._held())

    def _held(self) -> deque[tuple[int, int]]:
        """Messages and their bytes, of what waits."""
        return deque((w.got.messages.num_rows, size(w.got.messages)) for w in self._waiting)

    def _reaches_a_limit(self, outstanding: deque[tuple[int, int]]) -> bool:
        messages = sum(count for count, _ in outstanding)
        volume = sum(volume for _, volume in outstanding)
        return messages >= self.flow.max_messages or volume >= self.flow.max_bytes

    @property
    def since(self) -> float | None:
        """Arrival of the oldest message that waits."""
        with self._lock:
            return self._waiting[0].arrived if self._waiting else None

    @property
    def count(self) -> int:
        """Messages that wait."""
        with self._lock:
            return sum(waiting.got.messages.num_rows for waiting in self._waiting)

    @property
    def crowded(self) -> bool:
        """Whether flow control has held messages back since the last `take`."""
        return self._crowded

    @property
    def oldest_publish_time(self) -> float | None:
        """Publish time of the oldest message that waits, in seconds since the epoch."""
        with self._lock:
            times = [pc.min(waiting.got.messages.column("publish_time")).value for waiting in self._waiting]
        return min(times) / 1e6 if times else None

    def take(self, max_messages: int, max_bytes: int) -> tuple[Lease | None, list[Received]]:
        """Give away the oldest messages within the limits (at least one), and the lease of theirs that ends first."""
        taken: list[_Waiting] = []
        with self._lock:
            while self._waiting and max_messages > 0 and (max_bytes > 0 or not taken):
                first = self._waiting.pop(0)
                if first.got.messages.num_rows > max_messages:
                    self._waiting.insert(0, replace(first, got=first.got.slice(max_messages)))
                    first = replace(first, got=first.got.slice(0, max_messages))
                taken.append(first)
                max_messages -= first.got.messages.num_rows
                max_bytes -= size(first.got.messages)
            self._crowded = False
        lease = min((each.lease for each in taken), key=lambda lease: (not lease.lapsed, lease.ends), default=None)
        return lease, [each.got for each in taken]

    def settled(self, messages: int) -> None:
        """Messages that came through the door were acknowledged: flow control lets as many more in."""
        with self._lock:
            while messages > 0 and self._outstanding:
                count, volume = self._outstanding.popleft()
                if count > messages:
                    self._outstanding.appendleft((count - messages, volume - volume * messages // count))
                messages -= count

    def due(self, now: float) -> list[pa.RecordBatch]:
        """Receipts of what waits with a lease that is to be extended."""
        with self._lock:
            return [waiting.got.receipts for waiting in self._waiting if waiting.lease.due(now)]

    def extended(self, since: float, now: float, refused: bool = False) -> None:
        """As `Lease.extended`, for what was due at `since`."""
        with self._lock:
            self._waiting = [
                replace(each, lease=each.lease.extended(since, now, refused)) if each.lease.due(since) else each
                for each in self._waiting
            ]

    def close(self) -> list[pa.RecordBatch]:
        """End the stream; the receipts of everything that waited or was under way, to be nacked."""
        self._stream.half_close()
        rest: list[bytes] = []
        with suppress(PubSubError):
            for under_way in islice(iter(lambda: self._stream.take(QUIET), []), _LAST_LOOKS):
                rest += under_way
        rest += self._stream.close()
        with self._lock:
            left = [waiting.got.receipts for waiting in self._waiting]
            if rest:
                left.append(received(rest).receipts)
            self._waiting = []
        return left

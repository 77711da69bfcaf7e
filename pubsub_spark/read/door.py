"""The driver's own StreamingPull: what waits here says that there is something to do now.

It is kept open with small limits. Its messages become the first part of the next batch; they are staged then, and
until then their leases are looked after here (`due`, `extended`). `crowded` says that flow control held messages back:
there are more than the door can serve.

Used by two threads of the driver, Spark's calls and the keeper; every method takes the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from ..backend import Connection
from ..codec.envelope import Received, received, size
from .pull import Flow, Stream

MOST_MESSAGES = 1000
MOST_BYTES = 4 * 2**20


class Door:
    """Messages that have arrived and belong to no batch yet. clock: seconds, monotonic."""

    def __init__(self, connection: Connection, flow: Flow, clock: Callable[[], float]) -> None:
        self.flow = flow
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # who polls; held while waiting
        self._stream = Stream(connection, flow)
        self._waiting: list[tuple[float, Received]] = []  # (lease since, deliveries)
        self._outstanding = 0
        self._outstanding_bytes = 0
        self._reopened = 0
        self._crowded = False
        self.since: float | None = None  # arrival of the oldest message that waits
        self.last = clock()  # arrival of the newest message, or the opening

    def poll(self, timeout: float = 0) -> None:
        """Take in what has arrived; wait up to `timeout` seconds for the first response.

        Raises what ended the stream: ResourceError or ServiceError.
        """
        if not self._turn.acquire(blocking=timeout > 0):
            return  # the other thread is taking in what has come; two at a time would mix up its order
        try:
            self._take_in(self._stream.take(timeout))
        finally:
            self._turn.release()

    def _take_in(self, responses: list[bytes]) -> None:
        with self._lock:
            if self._stream.reopened != self._reopened:  # the service counts what is outstanding for each stream
                self._reopened = self._stream.reopened
                self._outstanding = sum(got.messages.num_rows for _, got in self._waiting)
                self._outstanding_bytes = sum(size(got.messages) for _, got in self._waiting)
            if responses:
                got = received(responses)
                now = self._clock()
                if got.messages.num_rows:
                    self._waiting.append((now, got))
                    self._outstanding += got.messages.num_rows
                    self._outstanding_bytes += size(got.messages)
                    self.since = now if self.since is None else self.since
                    self.last = now
            if self._outstanding >= self.flow.max_messages or self._outstanding_bytes >= self.flow.max_bytes:
                self._crowded = True

    @property
    def count(self) -> int:
        """Messages that wait."""
        with self._lock:
            return sum(got.messages.num_rows for _, got in self._waiting)

    @property
    def crowded(self) -> bool:
        """Whether flow control has held messages back since the last `take`."""
        return self._crowded

    @property
    def oldest_publish_time(self) -> float | None:
        """Publish time of the oldest message that waits, in seconds since the epoch."""
        with self._lock:
            times = [pc.min(got.messages.column("publish_time")).value for _, got in self._waiting]
        return min(times) / 1e6 if times else None

    def take(self, max_messages: int, max_bytes: int) -> tuple[float, list[Received]]:
        """Give away the oldest messages within the limits (at least one); and when the lease of the oldest began."""
        taken: list[Received] = []
        with self._lock:
            since = self._waiting[0][0] if self._waiting else self._clock()
            while self._waiting and max_messages > 0 and (max_bytes > 0 or not taken):
                start, got = self._waiting.pop(0)
                if got.messages.num_rows > max_messages:
                    self._waiting.insert(0, (start, got.slice(max_messages)))
                    got = got.slice(0, max_messages)
                taken.append(got)
                max_messages -= got.messages.num_rows
                max_bytes -= size(got.messages)
            self.since = self._waiting[0][0] if self._waiting else None
            self._crowded = False
        return since, taken

    def acknowledged(self, messages: int, volume: int) -> None:
        """Messages that came through the door were acknowledged: flow control lets as many more in."""
        with self._lock:
            self._outstanding = max(0, self._outstanding - messages)
            self._outstanding_bytes = max(0, self._outstanding_bytes - volume)

    def due(self, now: float) -> list[pa.RecordBatch]:
        """Receipts of what waits with a lease that has run for half its time."""
        with self._lock:
            return [got.receipts for since, got in self._waiting if now - since >= self.flow.deadline / 2]

    def extended(self, now: float, seconds: float) -> None:
        """The leases of what was due were set to `seconds` from `now`."""
        with self._lock:
            half = self.flow.deadline / 2
            start = now + (seconds - self.flow.deadline) / 2
            self._waiting = [(start if now - since >= half else since, got) for since, got in self._waiting]

    def close(self) -> list[pa.RecordBatch]:
        """End the stream; the receipts of everything that waited, to be nacked."""
        rest = self._stream.close()
        with self._lock:
            left = [got.receipts for _, got in self._waiting]
            if rest:
                left.append(received(rest).receipts)
            self._waiting = []
        return left

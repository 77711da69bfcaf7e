"""The driver's own StreamingPull: its buffered messages say that there is a batch to plan now.

It is kept open with small limits. Its messages become part 0 of the next batch, without redeliveries of committed
messages (`drop`). Messages whose lease has ended are no rows, because a task may have been sent them meanwhile. They
are nacked (`take_expired`).

Used by several threads. Every method takes the lock. Only `poll` waits, and then holds another lock, of polls alone.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...backend import Connection
from ...codec.envelope import Received, has_text, received, size
from ...errors import PubSubError, ServiceError
from ..runtime import SYSTEM, Runtime
from .health import StreamHealth
from .lease import Arrivals, Lease, Redelivered
from .streaming_pull import AT_LIMIT, DEFAULT_TIMES, STREAM_BYTES_PER_SECOND, PullTimes, StreamingPull, StreamSettings

MAX_MESSAGES = 1000
MAX_BYTES = 4 * 2**20
_log = logging.getLogger(__name__)
_RATE_SECONDS = 2.0  # over which the rate is measured: a single burst is no backlog
_NEARLY_FULL = 0.75  # of a limit: from here on a service may wait until a whole response fits
_NEARLY_EMPTY = 0.25  # of a limit: below it any response fits


@dataclass(frozen=True)
class _Buffered:
    """The messages that one poll took from the stream."""

    arrival: float
    lease: Lease
    received: Received
    has_keys: bool


@dataclass(eq=False)
class DriverStream:
    """The messages that have arrived and belong to no batch yet.

    Arrivals and leases are times of `Runtime.boottime`, the health those of `Runtime.monotonic`.
    """

    connection: Connection
    settings: StreamSettings
    times: PullTimes = DEFAULT_TIMES
    runtime: Runtime = SYSTEM

    def __post_init__(self) -> None:
        runtime = self.runtime
        self._clock = runtime.boottime
        self._lock = runtime.lock()
        self._polling = runtime.lock()  # held by the thread that polls, also while it waits
        self._buffer: list[_Buffered] = []
        self._expired: list[_Buffered] = []  # to be nacked
        self._outstanding: deque[tuple[int, int]] = deque()  # messages and their bytes, as the service counts them
        self._earlier = 0  # messages of streams that have ended, whose acks are still to come
        self._reopened = 0
        self._flow_controlled = False
        self._returning: list[_Buffered] = []  # being nacked
        self._returned_at = 0.0  # the time of `Runtime.monotonic` when the last were
        # When acks may have let more messages come, of a full stream and of ordering keys. Times of `Runtime.monotonic`
        self._room_since = self._keys_since = 0.0
        self._arrived: deque[tuple[float, int]] = deque()  # when, and bytes of responses, in the last _RATE_SECONDS
        self._arrivals = Arrivals(self._clock())
        self._stream = StreamingPull(
            self.connection, self.settings, has_room=self._has_room, times=self.times, runtime=runtime
        )

    def poll(self, timeout: float = 0) -> None:
        """Buffer the messages that have arrived. Wait up to `timeout` seconds for the first response.

        Raises the error that ended the stream: ResourceError or ServiceError.
        """
        if not self._polling.acquire(blocking=timeout > 0):
            return  # two threads at a time would mix up the order of messages
        try:
            leased = self._arrivals.look(self._clock())  # since when they may be leased
            self._buffer_responses(self._stream.take(timeout), leased)
        finally:
            self._polling.release()

    def _buffer_responses(self, responses: list[bytes], leased: float) -> None:
        with self._lock:
            if self.health.reopened != self._reopened:  # the service counts outstanding messages for each stream
                self._reopened = self.health.reopened
                self._earlier += sum(count for count, _ in self._outstanding)
                self._outstanding.clear()
            if responses:
                self._arrived.append((self._clock(), sum(map(len, responses))))
                self._forget_arrived()
                arrived = received(responses)
                if arrived.messages.num_rows:
                    lease = Lease(leased, self.settings.lease_seconds)
                    has_keys = has_text(arrived.messages.column("ordering_key"))
                    self._buffer.append(_Buffered(self._clock(), lease, arrived, has_keys))
                    self._outstanding.append((arrived.messages.num_rows, sum(map(len, responses))))
                    self._set_expired_aside()
            if self._reaches(_NEARLY_FULL, self._outstanding):
                self._flow_controlled = True

    def _has_room(self) -> bool:
        with self._lock:
            polls = [poll.received.messages for poll in self._buffer]
            return not self._reaches(1, [(messages.num_rows, size(messages)) for messages in polls])

    def _reaches(self, share: float, sizes: Iterable[tuple[int, int]]) -> bool:
        messages, volume = map(sum, zip((0, 0), *sizes, strict=True))
        return messages >= share * self.settings.max_messages or volume >= share * self.settings.max_bytes

    @property
    def health(self) -> StreamHealth:
        return self._stream.health

    @property
    def idle_seconds(self) -> float:
        """The seconds of connection without a message, or since acks of ordering keys, which hold back messages.

        0 until messages whose lease has ended are nacked. Then they are delivered again.
        """
        now = self.runtime.monotonic()
        with self._lock:
            self._set_expired_aside()
            if self._expired or self._returning:
                return 0.0
            return min(self.health.idle_seconds(now), now - max(self._keys_since, self._returned_at))

    @property
    def room_seconds(self) -> float:
        """The seconds since acks that may let more messages come: of a stream near a limit, or of ordering keys."""
        return self.runtime.monotonic() - max(self._room_since, self._keys_since)

    def is_idle(self, seconds: float) -> bool:
        """Return whether no message came for `seconds` of connection, although there was room, and `answers`."""
        return self._is_silent(seconds) and self.answers() and self._is_silent(seconds)

    def _is_silent(self, seconds: float) -> bool:
        return min(self.idle_seconds, self.room_seconds) >= seconds

    def answers(self) -> bool:
        """Return whether the service answers now."""
        return self._stream.streams[0].probe()

    def check_outage(self, limit: float | None) -> None:
        """Raise ServiceError if there was no connection for `limit` seconds (None: never)."""
        failing = self.health.failing_seconds(self.runtime.monotonic())
        if limit is not None and failing >= limit:
            raise ServiceError(
                f"`{self.connection.address}` did not answer for {failing:.0f} s when asked to pull from Subscription "
                f"`{self.settings.subscription}`. Check `endpoint`, the network and whether the server runs. "
                f"({self.health.last_error or 'no connection'})"
            )

    def log_outage(self) -> None:
        """Log the beginning of an outage (after `PullTimes.warn_after`) and its end."""
        match self.health.changed(self.runtime.monotonic()):
            case "lost", seconds:
                _log.warning(
                    "no connection to `%s` for %.0f s, so nothing is read from `%s`. Trying again at least every 10 "
                    "s (last error: %s)",
                    self.connection.address,
                    seconds,
                    self.settings.subscription,
                    self.health.last_error or "no answer",
                )
            case "recovered", seconds:
                _log.warning(
                    "connected to `%s` again after %.0f s. Reading from `%s` continues",
                    self.connection.address,
                    seconds,
                    self.settings.subscription,
                )

    @property
    def oldest_arrival(self) -> float | None:
        """The time on the lease clock when the oldest buffered message arrived."""
        with self._lock:
            return self._buffer[0].arrival if self._buffer else None

    @property
    def message_count(self) -> int:
        """The number of buffered messages."""
        with self._lock:
            return sum(poll.received.messages.num_rows for poll in self._buffer)

    @property
    def is_flow_controlled(self) -> bool:
        """Whether the service may have held messages back since the last `take`, because a limit was nearly reached."""
        return self._flow_controlled

    @property
    def is_full(self) -> bool:
        """Whether the service may hold messages back, because a limit is nearly reached."""
        with self._lock:
            return self._reaches(_NEARLY_FULL, self._outstanding)

    @property
    def is_nearly_empty(self) -> bool:
        """Whether so few messages are outstanding that any response fits."""
        with self._lock:
            return not self._reaches(_NEARLY_EMPTY, self._outstanding)

    @property
    def is_saturated(self) -> bool:
        """Whether there is more than this stream can serve, as far as it shows.

        With quick batches a stream of large messages is never flow-controlled, even with a backlog. It then runs at the
        service's maximum of bytes per second for a stream.
        """
        with self._lock:
            self._forget_arrived()
            volume = sum(volume for _, volume in self._arrived)
        return self._flow_controlled or volume >= AT_LIMIT * STREAM_BYTES_PER_SECOND * _RATE_SECONDS

    def _forget_arrived(self) -> None:
        while self._arrived and self._arrived[0][0] < self._clock() - _RATE_SECONDS:
            self._arrived.popleft()

    @property
    def oldest_publish_time(self) -> float | None:
        """The publish time of the oldest buffered message, in seconds since the epoch."""
        with self._lock:
            times = [pc.min(poll.received.messages.column("publish_time")).value for poll in self._buffer]
        return min(times) / 1e6 if times else None

    def take(self, max_messages: int, max_bytes: int) -> tuple[Lease | None, list[Received]]:
        """Remove and return the oldest messages within the limits (at least one), and the lease that ends first."""
        taken: list[_Buffered] = []
        with self._lock:
            self._set_expired_aside()
            while self._buffer and max_messages > 0 and (max_bytes > 0 or not taken):
                first = self._buffer.pop(0)
                if first.received.messages.num_rows > max_messages:
                    self._buffer.insert(0, replace(first, received=first.received.slice(max_messages)))
                    first = replace(first, received=first.received.slice(0, max_messages))
                taken.append(first)
                max_messages -= first.received.messages.num_rows
                max_bytes -= size(first.received.messages)
            self._flow_controlled = False
        lease = min((poll.lease for poll in taken), key=lambda lease: lease.end, default=None)
        return lease, [poll.received for poll in taken]

    @property
    def has_expired(self) -> bool:
        """Whether there are messages whose lease has ended."""
        with self._lock:
            self._set_expired_aside()
            return bool(self._expired)

    def take_expired(self) -> list[pa.RecordBatch]:
        """Remove and return the receipts of messages whose lease has ended, to be nacked: `record_nacks`.

        Within some seconds after a standstill only those that the service has refused to extend: others would come
        back, and count as expired again, and each nack is an attempt of a dead-letter policy.
        """
        with self._lock:
            self._set_expired_aside()
            is_settled = self._arrivals.is_settled(self._clock())
            self._returning = [poll for poll in self._expired if is_settled or poll.lease.expired]
            self._expired = [poll for poll in self._expired if not (is_settled or poll.lease.expired)]
            return [poll.received.receipts for poll in self._returning]

    def _set_expired_aside(self) -> None:
        """A message of a key is delivered again together with the later ones, which may be here."""
        now, kept = self._clock(), list[_Buffered]()
        follows = any(poll.has_keys for poll in (*self._returning, *self._expired))
        for poll in self._buffer:
            is_expired = poll.lease.is_expired(now) or (follows and poll.has_keys)
            follows |= is_expired and poll.has_keys
            (self._expired if is_expired else kept).append(poll)
        self._buffer = kept

    def drop(self, is_unwanted: Callable[[pa.Array], np.ndarray[Any, np.dtype[np.bool_]]]) -> list[Redelivered]:
        """Remove and return the buffered messages that are unwanted, to be acknowledged at once: `record_acks`.

        is_unwanted: returns a mask of an array of message ids.
        """
        dropped: list[Redelivered] = []
        with self._lock:
            for index, poll in enumerate(self._buffer):
                messages, receipts = poll.received
                unwanted = is_unwanted(messages.column("message_id"))
                if unwanted.any():
                    has_keys = has_text(messages.column("ordering_key"))
                    dropped.append(Redelivered(poll.lease, receipts.filter(pa.array(unwanted)), has_keys))
                    kept = pa.array(~unwanted)
                    wanted = Received(messages.filter(kept), receipts.filter(kept))
                    self._buffer[index] = replace(poll, received=wanted)
            self._buffer = [poll for poll in self._buffer if poll.received.messages.num_rows]
        return dropped

    def record_nacks(self) -> None:
        """Record that the messages of `take_expired` are not outstanding: nacked, or without a lease at least."""
        with self._lock:
            returned = sum(poll.received.receipts.num_rows for poll in self._returning)
            self._returning, self._returned_at = [], self.runtime.monotonic()
        self.record_acks(returned)

    def record_acks(self, messages: int, has_keys: bool = False) -> None:
        """Record acks, some of `messages` of this run's streams: flow control admits as many more of this stream.

        has_keys: whether any has an ordering key.
        """
        with self._lock:
            if has_keys:
                self._keys_since = self.runtime.monotonic()
            if self._reaches(_NEARLY_FULL, self._outstanding):
                self._room_since = self.runtime.monotonic()
            earlier = min(messages, self._earlier)
            self._earlier -= earlier
            messages -= earlier
            while messages > 0 and self._outstanding:
                count, volume = self._outstanding.popleft()
                if count > messages:
                    self._outstanding.appendleft((count - messages, volume - volume * messages // count))
                messages -= count

    def due(self, now: float) -> list[pa.RecordBatch]:
        """Return the receipts of the buffered messages whose lease is to be extended now."""
        with self._lock:
            return [poll.received.receipts for poll in self._buffer if poll.lease.is_due(now)]

    def record_extension(self, sent: float, answered: float, refused: bool = False) -> None:
        """Record the answer to an extension of the leases that were due at `sent`."""
        with self._lock:
            for index, poll in enumerate(self._buffer):
                if poll.arrival <= sent and poll.lease.is_due(sent):
                    self._buffer[index] = replace(poll, lease=poll.lease.extended(sent, answered, refused))

    def close(self) -> list[pa.RecordBatch]:
        """End the stream. Return the receipts of all messages that were buffered or still arriving, to be nacked."""
        self._stream.half_close()
        rest: list[bytes] = []
        with suppress(PubSubError):
            end = self.runtime.monotonic() + self.times.drain_most
            while self.runtime.monotonic() < end and (arriving := self._stream.take(self.times.drain)):
                rest += arriving
        rest += self._stream.close()
        with self._lock:
            left = [poll.received.receipts for poll in (*self._expired, *self._buffer)]
            if rest:
                left.append(received(rest).receipts)
            self._buffer = []
        return left

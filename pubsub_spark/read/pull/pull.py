"""One bounded pull of a task. It ends when its share is full, it has caught up, its period is over, or no message
arrives.

A pull has caught up when all messages of the last `caught_up` seconds were published after it began. At a steady rate
it would otherwise continue to the end of its period, and every message would wait for that.

The pull then half-closes the stream and takes the messages that are still arriving. Otherwise messages that the service
has already sent would be leased for nothing and count as failed deliveries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...backend import Connection
from ...codec.envelope import Received, received, size
from ...errors import PubSubError, ServiceError
from ..runtime import SYSTEM, Runtime
from .lease import Arrivals
from .streaming_pull import DEFAULT_TIMES, PullTimes, StreamingPull, StreamSettings

_DECODE_CHUNK_BYTES = 8 * 2**20  # of responses, which are decoded at a time: each time costs as much as 300 messages


@dataclass(frozen=True)
class PullResult:
    """Why a pull ended: `full`, `caughtUp`, `period` or `idle`.

    bytes: of all responses. seconds: from the start of the pull to its last response. arrived: when that was, in
    seconds since the epoch, or 0. failure: the final error, if messages had arrived before it. A task stages those, and
    the driver stream fails the query. leased: the earliest time of `Runtime.boottime` at which the first message may
    have been delivered, or None without a message.
    """

    ended: str
    failure: PubSubError | None = None
    bytes: int = 0
    seconds: float = 0.0
    arrived: float = 0.0
    leased: float | None = None


@dataclass(eq=False)
class Pull:
    """A pull until a limit of `settings` is reached, `period` seconds are over, or no message came for `idle` seconds.

    Those are seconds of a healthy connection. After its first message it ends earlier: `idle_after_messages` after the
    last, or when it has caught up.

    take: called with the messages as they arrive. Returns those of them that count for the limits. streams: how many
    streams share the limits.
    """

    connection: Connection
    settings: StreamSettings
    period: float
    idle: float
    take: Callable[[Received], pa.RecordBatch]
    streams: int = 1
    times: PullTimes = DEFAULT_TIMES
    runtime: Runtime = SYSTEM

    def __post_init__(self) -> None:
        self._count = self._bytes = 0  # received
        self._kept_count = self._kept_bytes = 0  # those that count for the limits
        self._began = self._last_response = self.runtime.monotonic()
        self._began_micros = int(self.runtime.wall() * 1e6)
        self._end = self._began + self.period
        self._cut_off = self._end + self.period  # of a service that keeps a half-closed stream open
        self._new_since: float | None = None  # since when all messages were published after the pull began
        self._leased: float | None = None
        self._arrivals = Arrivals(self.runtime.boottime())
        self._reached = False  # whether the service was there at any time
        self._ended: str | None = None

    def run(self) -> PullResult:
        """Pull once. Raises ServiceError after the connection's `connect_timeout` if it was never connected."""
        self._stream = StreamingPull(
            self.connection,
            self.settings,
            self.streams,
            lambda: (self._count, self._bytes),
            times=self.times,
            runtime=self.runtime,
        )
        failure: PubSubError | None = None
        try:
            self._receive()
        except PubSubError as error:
            if not self._count:  # otherwise the caller has messages to stage or to nack first
                raise
            failure = error
        finally:
            remaining = self._stream.close()
        self._hand_over(remaining)
        seconds = self._last_response - self._began
        arrived = self.runtime.wall() - (self.runtime.monotonic() - self._last_response) if self._count else 0.0
        return PullResult(self._ended or "idle", failure, self._bytes, seconds, arrived, self._leased)

    def _receive(self) -> None:
        wait = min(self.idle, self.period)
        while True:
            responses = self._stream.take(wait, _DECODE_CHUNK_BYTES)
            now = self.runtime.monotonic()
            self._hand_over(responses, wait)
            if self._ended is not None and (not responses or now >= self._cut_off):
                return
            if not self._is_service_there(now):
                wait = min(self.idle, self._began + self.connection.connect_timeout - now)
                continue
            if self._ended is None:
                has_waited = self._count > 0 or self._stream.health.idle_seconds(now) >= self.idle
                self._ended = self._reason_to_end(now, not responses and has_waited)
                if self._ended is not None:
                    self._stream.half_close()
            wait = self.times.drain if self._ended is not None else self._pause(now)

    def _hand_over(self, responses: list[bytes], waited: float = 0.0) -> None:
        leased = self._arrivals.look(self.runtime.boottime(), waited)
        if not responses:
            return
        self._leased = leased if self._leased is None else self._leased
        self._last_response = self.runtime.monotonic()
        arrived = received(responses)
        count, volume = arrived.messages.num_rows, sum(map(len, responses))
        self._count += count
        self._bytes += volume
        kept = self.take(arrived)
        self._kept_count += kept.num_rows
        self._kept_bytes += volume if kept.num_rows == count else size(kept)
        oldest = pc.min(kept.column("publish_time")).value
        if oldest is not None and oldest < self._began_micros:
            self._new_since = None
        elif oldest is not None and self._new_since is None:
            self._new_since = self._last_response

    def _is_service_there(self, now: float) -> bool:
        """Return whether the service ever answered. The period begins then. Raises ServiceError if it never does."""
        health = self._stream.health
        self._reached = self._reached or self._count > 0 or health.was_connected(now)
        if self._reached or health.connected:
            return True
        if now < self._began + self.connection.connect_timeout:
            self._end, self._cut_off = now + self.period, now + 2 * self.period
            return False
        if self._stream.streams[0].error_of_call() is not None:  # it may answer, and end each stream at once
            address, seconds = self.connection.address, self.connection.connect_timeout
            raise ServiceError(
                f"`{address}` did not answer within {seconds:g} s when asked to pull from Subscription "
                f"`{self.settings.subscription}`. If the driver can reach it, executors have no network access "
                f"(egress) to it: allow that. ({health.last_error or 'no answer'})"
            )
        self._reached = True
        return True

    def _reason_to_end(self, now: float, is_quiet: bool) -> str | None:
        if self._kept_count >= self.settings.max_messages or self._kept_bytes >= self.settings.max_bytes:
            return "full"
        has_caught_up = self._new_since is not None and now >= self._new_since + self.times.caught_up
        if now >= self._end:
            return "period"
        if not has_caught_up and not is_quiet:
            return None
        if self._stream.has_full_stream():
            return "full"
        return "caughtUp" if has_caught_up else "idle"

    def _pause(self, now: float) -> float:
        if self._count:
            pause = min(self.idle, self.times.idle_after_messages)
        else:
            pause = max(0.001, self.idle - self._stream.health.idle_seconds(now))
        if self._stream.has_full_stream():  # a service need not cut a response to fit into the rest of a share
            pause = min(pause, self.times.rest)
        if self._new_since is not None:
            pause = min(pause, max(0.001, self._new_since + self.times.caught_up - now))
        return min(pause, max(0.001, self._end - now))

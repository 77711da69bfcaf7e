"""One bounded pull, for a task: until its share is full, it has caught up, its period is over, or no message has come.

A pull has caught up when all that came for CAUGHT_UP_SECONDS was published after it began. At a steady rate that the
query keeps up with, it would go on to the end of its period otherwise, and every message would wait for that. Service
and machine each have a clock: where this one is slow, a pull ends earlier, and the next one brings the rest.

Unless its share is full it half-closes the stream then and takes the messages that are still arriving: a message that
the service has sent and nobody read would be leased for nothing, and count as a failed delivery.

A pull of several streams is one pull: its limits and its end are those of all of them together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.compute as pc

from ...backend import Connection
from ...codec.envelope import Received, received
from ...errors import PubSubError, ServiceError
from .. import lease_clock
from .parallel_streaming_pull import ParallelStreamingPull
from .streaming_pull import DRAIN_SECONDS, StreamSettings

IDLE_AFTER_MESSAGES_SECONDS = 0.5  # without a response, after which a pull that has brought messages ends
CAUGHT_UP_SECONDS = 0.1  # a chunk of new messages may come in the middle of a backlog; so many of them do not
_DECODE_CHUNK_BYTES = 8 * 2**20  # of responses, which are decoded at a time: each time costs as much as 300 messages


@dataclass(frozen=True)
class PullResult:
    """The number of messages of a pull, and why it ended: `full`, `caughtUp`, `period` or `idle`.

    bytes: of all responses. seconds: from the start of the pull to its last response. failure: the final error after
    which messages were there. A task stages those, and the driver stream fails the query. leased: when on the lease
    clock the first message may have been delivered; None without one.
    """

    messages: int
    ended: str
    reopened: int
    failure: PubSubError | None = None
    bytes: int = 0
    seconds: float = 0.0
    leased: float | None = None


def pull(
    connection: Connection,
    settings: StreamSettings,
    period: float,
    idle: float,
    take: Callable[[Received], object],
    streams: int = 1,
) -> PullResult:
    """Pull until a limit of `settings` is reached, `period` seconds are over, or no message came for `idle` seconds.

    After its first message a pull ends earlier, IDLE_AFTER_MESSAGES_SECONDS after the last, or when it has caught up.

    A pull that was never connected is no idle one: ServiceError after the connection's `connect_timeout`.

    take: called with the messages as they arrive, in their order. streams: how many StreamingPulls share the limits.
    """
    return _Pull(connection, settings, period, idle, take, streams).run()


class _Pull:
    """A pull that is under way: what has come, how long it goes on, and why it ended."""

    def __init__(
        self,
        connection: Connection,
        settings: StreamSettings,
        period: float,
        idle: float,
        take: Callable[[Received], object],
        streams: int,
    ) -> None:
        self._connection, self._settings = connection, settings
        self._period, self._idle, self._take = period, idle, take
        self._count = self._bytes = 0
        self._began = self._last_response = time.monotonic()
        self._began_micros = int(time.time() * 1e6)
        self._end = self._began + period
        self._cut_off = self._end + period  # of a service that keeps a half-closed stream open
        self._new_since: float | None = None  # since when all messages were published after the pull began
        self._leased: float | None = None
        self._nothing_before = lease_clock.now()
        self._reached = False  # whether the service was there at any time
        self._ended: str | None = None
        self._stream = ParallelStreamingPull(connection, settings, streams, lambda: (self._count, self._bytes))

    def run(self) -> PullResult:
        failure: PubSubError | None = None
        rest: list[bytes] = []
        try:
            self._receive()
        except PubSubError as error:
            if not self._count:  # otherwise the caller has messages to stage or to nack first
                raise
            failure = error
        finally:
            rest = self._stream.close()
        if rest:
            self._hand_over(rest)
        seconds = self._last_response - self._began
        ended = self._ended or "idle"
        return PullResult(self._count, ended, self._stream.reopened, failure, self._bytes, seconds, self._leased)

    def _receive(self) -> None:
        wait = min(self._idle, self._period)
        while self._count < self._settings.max_messages and self._bytes < self._settings.max_bytes:
            responses = self._stream.take(wait, _DECODE_CHUNK_BYTES)
            now = time.monotonic()
            if responses:
                self._hand_over(responses)
            self._nothing_before = lease_clock.now()
            if self._ended is not None and (not responses or now >= self._cut_off):
                return
            if not self._is_service_there(now):
                wait = min(self._idle, self._began + self._connection.connect_timeout - now)
                continue
            if self._ended is None:
                self._ended = self._reason_to_end(now, not responses)
                if self._ended is not None:
                    self._stream.half_close()
            wait = DRAIN_SECONDS if self._ended is not None else self._pause(now)
        self._ended = "full"

    def _hand_over(self, responses: list[bytes]) -> None:
        self._leased = self._nothing_before if self._leased is None else self._leased
        self._last_response = time.monotonic()
        arrived = received(responses)
        self._count += arrived.messages.num_rows
        self._bytes += sum(map(len, responses))
        oldest = pc.min(arrived.messages.column("publish_time")).value
        if oldest is not None:
            is_new = oldest >= self._began_micros
            self._new_since = (self._new_since or self._last_response) if is_new else None
        self._take(arrived)

    def _is_service_there(self, now: float) -> bool:
        """Whether the service was there at any time; the period begins with it. ServiceError when it does not come."""
        health = self._stream.health
        self._reached = self._reached or self._count > 0 or health.was_connected(now)
        if self._reached or health.connected:
            return True
        if now < self._began + self._connection.connect_timeout:
            self._end, self._cut_off = now + self._period, now + 2 * self._period
            return False
        if not self._stream.reaches_service():  # it may answer, and end each stream as soon as it is opened
            raise _not_connected(self._connection, self._settings.subscription, health.last_error)
        self._reached = True
        return True

    def _reason_to_end(self, now: float, is_quiet: bool) -> str | None:
        """Why the pull ends now, as in PullResult; None when it goes on. is_quiet: no message came while it waited."""
        has_caught_up = self._new_since is not None and now >= self._new_since + CAUGHT_UP_SECONDS
        if now >= self._end:
            return "period"
        if not has_caught_up and not is_quiet:
            return None
        if self._stream.has_full_stream():
            return "full"
        return "caughtUp" if has_caught_up else "idle"

    def _pause(self, now: float) -> float:
        """The seconds to wait for the next response, before the pull is looked at again."""
        pause = min(self._idle, IDLE_AFTER_MESSAGES_SECONDS) if self._count else self._idle
        if self._new_since is not None:
            pause = min(pause, max(0.001, self._new_since + CAUGHT_UP_SECONDS - now))
        return min(pause, max(0.001, self._end - now))


def _not_connected(connection: Connection, subscription: str, last_error: str) -> ServiceError:
    return ServiceError(
        f"`{connection.address}` did not answer within {connection.connect_timeout:g} s when asked to pull from "
        f"Subscription `{subscription}`. Where the driver can reach it, executors have no network access (egress) to "
        f"it: give them that. ({last_error or 'no answer'})"
    )

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

from ..backend import Connection
from ..codec.envelope import Received, received
from ..errors import PubSubError, ServiceError
from . import lease_clock
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
    count = volume = 0
    began = last_response = time.monotonic()
    began_micros = int(time.time() * 1e6)
    new_since: float | None = None  # time.monotonic() since when all messages were published after the pull began
    leased: float | None = None
    nothing_before = lease_clock.now()

    def hand_over(responses: list[bytes]) -> None:
        nonlocal count, volume, last_response, leased, new_since
        leased = nothing_before if leased is None else leased
        last_response = time.monotonic()
        arrived = received(responses)
        count += arrived.messages.num_rows
        volume += sum(map(len, responses))
        oldest = pc.min(arrived.messages.column("publish_time")).value
        if oldest is not None:
            is_new = oldest >= began_micros
            new_since = (new_since or last_response) if is_new else None
        take(arrived)

    stream = ParallelStreamingPull(connection, settings, streams, lambda: (count, volume))
    ended: str | None = None
    reached = False  # whether the service was there at any time
    failed: PubSubError | None = None
    rest: list[bytes] = []
    try:
        end = began + period
        stop = end + period  # a service that keeps a half-closed stream open is cut off here
        wait = min(idle, period)
        while count < settings.max_messages and volume < settings.max_bytes:
            responses = stream.take(wait, _DECODE_CHUNK_BYTES)
            now = time.monotonic()
            if responses:
                hand_over(responses)
            nothing_before = lease_clock.now()
            if ended is not None and (not responses or now >= stop):
                break
            reached = reached or count > 0 or stream.health.was_connected(now)
            if not reached and not stream.health.connected:
                rest_of_timeout = began + connection.connect_timeout - now
                if rest_of_timeout > 0:
                    end, stop = now + period, now + 2 * period
                    wait = min(idle, rest_of_timeout)
                    continue
                if not stream.reaches_service():  # it may answer, and end each stream as soon as it is opened
                    raise _not_connected(connection, settings.subscription, stream.health.last_error)
                reached = True
            has_caught_up = new_since is not None and now >= new_since + CAUGHT_UP_SECONDS
            if ended is None and (now >= end or has_caught_up or not responses):
                without = "full" if stream.has_full_stream() else "caughtUp" if has_caught_up else "idle"
                ended = "period" if now >= end else without
                stream.half_close()
            pause = min(idle, IDLE_AFTER_MESSAGES_SECONDS) if count else idle
            if new_since is not None:
                pause = min(pause, max(0.001, new_since + CAUGHT_UP_SECONDS - now))
            wait = min(pause, max(0.001, end - now)) if ended is None else DRAIN_SECONDS
        else:
            ended = "full"
    except PubSubError as error:
        if not count:  # otherwise the caller has messages to stage or to nack first
            raise
        failed = error
    finally:
        rest = stream.close()
    if rest:
        hand_over(rest)
    return PullResult(count, ended or "idle", stream.reopened, failed, volume, last_response - began, leased)


def _not_connected(connection: Connection, subscription: str, last_error: str) -> ServiceError:
    return ServiceError(
        f"`{connection.address}` did not answer within {connection.connect_timeout:g} s when asked to pull from "
        f"Subscription `{subscription}`. Where the driver can reach it, executors have no network access (egress) to "
        f"it: give them that. ({last_error or 'no answer'})"
    )

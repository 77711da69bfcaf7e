"""StreamingPull that is kept open: it reopens by itself, and returns the bytes of responses.

The service sends at most 10 MB/s on a stream, so a task may need several. Each has a share of the flow control limits.
On a subscription with message ordering the service sends a key to one stream at a time.

OK and retryable codes reopen a stream silently, with backoff and the same `client_id`, so that the service carries its
state over. So does UNAUTHENTICATED, a few times: a stream may outlive its token. Any other code is raised by `take`. A
stream without responses may be dead, so after `max_silence` it is opened again, but not while there is no room: the
service counts outstanding messages for each stream.

Runs after the fork. Each stream has one thread, which ends with `close`. gRPC reads the requests in a thread of its
own, which also sends heartbeats and probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty
from typing import Any

import grpc

from ...backend import Connection
from ...backend.status import RETRYABLE, RETRYABLE_FOR_STREAM, delays, failure, is_credential_failure
from ..runtime import SYSTEM, Runtime
from . import acks
from .health import StreamHealth

STREAM_BYTES_PER_SECOND = 10e6  # https://cloud.google.com/pubsub/quotas#resource_limits, of each open stream
AT_LIMIT = 0.6  # of that: a stream this fast may have more to send, because opening it takes some of the time
MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 10, 600  # StreamingPullRequest.stream_ack_deadline_seconds
_MOST_BYTES = 256 * 2**20  # that are taken at a time. An Arrow array of strings has up to 2 GiB
_MESSAGES = b"\n"  # the tag of StreamingPullResponse.received_messages. Other fields are no sign of a message
_NEARLY = 0.95  # of a share: messages of a stream are counted by their bytes
_NO_ANSWERS = RETRYABLE - {grpc.StatusCode.RESOURCE_EXHAUSTED} | {  # a quota of calls says nothing about streams
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAUTHENTICATED,  # a stream that it refuses slowly would count as steady meanwhile
}


@dataclass(frozen=True)
class PullTimes:
    """The time limits of streams and pulls, in seconds."""

    heartbeat: float = 30.0  # between two empty requests. The service ends a stream without one for twice as long
    max_silence: float = 120.0  # without a response, before the stream is opened again
    warn_after: float = 10.0  # without a connection
    probe_pause: float = 1.0  # between two probes of a service that does not answer
    probe_timeout: float = 5.0
    room_pause: float = 0.1  # between two checks whether there is room for messages again
    chunk_gap: float = 0.01  # between two responses that are returned together
    drain: float = 0.5  # without a response, before a half-closed stream is cut off. The service ends it sooner
    drain_most: float = 2.0  # after which one is cut off that continues to send
    idle_after_messages: float = 0.5  # without a response, after which a pull that has brought messages ends
    rest: float = 0.05  # without a response, after which the rest of a share that is nearly used up does not come
    caught_up: float = 0.1  # of new messages only, because some may arrive in the middle of a backlog
    nack: float = 10.0  # messages that are not nacked are delivered again when their lease ends
    reopen_pauses: Callable[[], Iterator[float]] = delays  # before a stream is opened again, until it has responded


DEFAULT_TIMES = PullTimes()


@dataclass(frozen=True)
class StreamSettings:
    """The first request of a stream."""

    subscription: str
    client_id: str
    lease_seconds: int
    max_messages: int
    max_bytes: int

    def request(self, taken_messages: int = 0, taken_bytes: int = 0) -> bytes:
        """Return the first StreamingPullRequest, less the messages and bytes of earlier streams of the same pull."""
        from google.pubsub_v1.types import StreamingPullRequest

        message = StreamingPullRequest.pb()(
            subscription=self.subscription,
            client_id=self.client_id,
            stream_ack_deadline_seconds=min(max(self.lease_seconds, MIN_LEASE_SECONDS), MAX_LEASE_SECONDS),
            max_outstanding_messages=max(1, self.max_messages - taken_messages),
            max_outstanding_bytes=max(1, self.max_bytes - taken_bytes),
        )
        return bytes(message.SerializeToString())


class StreamingPull:
    """`count` streams with equal shares of the limits of `settings`, kept open until `close`.

    taken: returns the messages and bytes that were taken so far, which limit a stream that is opened again. Without it,
    each stream has the limits of the first. has_room: whether a stream that has ended may be opened again now.
    """

    def __init__(
        self,
        connection: Connection,
        settings: StreamSettings,
        count: int = 1,
        taken: Callable[[], tuple[int, int]] | None = None,
        has_room: Callable[[], bool] = lambda: True,
        times: PullTimes = DEFAULT_TIMES,
        runtime: Runtime = SYSTEM,
    ) -> None:
        count = min(count, settings.max_messages)
        self._taken, self._times, self._runtime = taken, times, runtime
        self._responses = runtime.queue()  # of bytes, and None for the end of a stream
        self._open = count
        shares = [_share(settings, index, count) for index in range(count)]
        self.streams = [
            Stream(connection, share, self._responses, self._first_request, has_room, times, runtime)
            for share in shares
        ]

    def take(self, timeout: float, chunk_bytes: int = 0) -> list[bytes]:
        """Return the responses that have arrived. [] after `timeout` seconds without any, or if all streams have ended.

        chunk_bytes: wait for this many bytes, within `timeout`, while one response follows the other.

        Raises the first error that ended a stream, ResourceError or ServiceError, in each call after the last response.
        """
        taken = self._take(timeout, chunk_bytes, _MOST_BYTES)
        failure = next((stream.failure for stream in self.streams if stream.failure is not None), None)
        if failure is not None and not taken and self._responses.empty():
            raise failure.with_traceback(None)  # it would grow with each call
        return taken

    def _take(self, timeout: float, chunk_bytes: int = 0, most: float = math.inf) -> list[bytes]:
        taken: list[bytes] = []
        volume, end = 0, self._runtime.monotonic() + timeout
        with suppress(Empty):
            while self._open and volume < most:
                remaining = end - self._runtime.monotonic() if volume < chunk_bytes or not taken else 0
                wait = min(self._times.chunk_gap, remaining) if taken else remaining
                response = self._responses.get(timeout=wait) if wait > 0 else self._responses.get_nowait()
                if response is None:
                    self._open -= 1
                else:
                    taken.append(response)
                    volume += len(response)
        return taken

    def has_full_stream(self) -> bool:
        """Return whether one of the streams has used up its share, as far as that is known."""
        taken = [(stream.settings, *self._taken_of(stream)) for stream in self.streams]
        return any(
            messages >= _NEARLY * share.max_messages or volume >= _NEARLY * share.max_bytes
            for share, messages, volume in taken
        )

    @property
    def health(self) -> StreamHealth:
        """The health of a stream that is connected, if there is one."""
        return min((stream.health for stream in self.streams), key=lambda health: not health.connected)

    def half_close(self) -> None:
        """Tell the service to send no more. Messages that it has sent still arrive."""
        for stream in self.streams:
            stream.half_close()

    def close(self) -> list[bytes]:
        """End the streams and their threads. Return the responses that were not taken."""
        for stream in self.streams:
            stream.cancel()
        for stream in self.streams:
            stream.thread.join()
        return self._take(0)

    def _first_request(self, stream: Stream) -> bytes:
        return stream.settings.request(*self._taken_of(stream))

    def _taken_of(self, stream: Stream) -> tuple[int, int]:
        """Return the messages and bytes taken of one stream. Its share of the bytes tells that of the messages."""
        if self._taken is None:
            return 0, 0
        messages, total = self._taken()
        return (round(messages * stream.received_bytes / total) if total else 0), stream.received_bytes


def _share(settings: StreamSettings, index: int, count: int) -> StreamSettings:
    return replace(
        settings,
        client_id=f"{settings.client_id}-{index}" if count > 1 else settings.client_id,
        max_messages=settings.max_messages // count + (index < settings.max_messages % count),
        max_bytes=max(1, settings.max_bytes // count),
    )


@dataclass(eq=False)
class Stream:
    """One stream of a StreamingPull, with its thread. It reopens until `cancel`.

    responses: the queue of its responses. received_bytes: of all of them. failure: the error that ended the stream.
    """

    connection: Connection
    settings: StreamSettings
    responses: Any
    first_request: Callable[[Stream], bytes]
    has_room: Callable[[], bool]
    times: PullTimes
    runtime: Runtime

    def __post_init__(self) -> None:
        self.received_bytes = 0
        self.failure: Exception | None = None
        self.health = StreamHealth(self.times.warn_after)
        self._closing = self.runtime.event()
        self._half_closed = False
        self._requests = self.runtime.queue()  # of bytes, and None for the half-close
        self._call: Any = None  # None between two streams
        self._last_response = 0.0
        self._silent = False
        self.thread = self.runtime.start(self._run, f"pull {self.settings.client_id}")

    def probe(self) -> bool:
        """Return whether the service answers another call while the stream is open. Recorded in `health`."""
        began, call = self.runtime.monotonic(), self._call
        error = self.error_of_call()
        if error is not None:
            if not self._closing.is_set():
                is_refused = is_credential_failure(error.code(), error.details() or "")
                self.health.failed(began, _in_words(error), is_refused, is_probe=True)
            return False
        if call is None or call is not self._call:  # the answer says nothing about the next stream
            return False
        self.health.answered(self.runtime.monotonic())
        return True

    def error_of_call(self) -> Any:
        """Return the error of a call that changes no lease, or None if the service has answered, even with another."""
        subscription = self.settings.subscription
        request = acks.extend_request(subscription, 0).SerializeToString()
        try:
            self.connection.modify_ack_deadline(subscription, request, self.times.probe_timeout).result()
        except grpc.RpcError as error:
            return error if error.code() in _NO_ANSWERS else None
        return None

    def half_close(self) -> None:
        """See `StreamingPull.half_close`."""
        self._half_closed = True
        self._requests.put(None)

    def cancel(self) -> None:
        """End the stream, and have its thread end."""
        self._closing.set()
        self._requests.put(None)
        call = self._call
        if call is not None:
            call.cancel()

    def _run(self) -> None:
        pauses = self.times.reopen_pauses()
        try:
            while not self._closing.is_set():
                if self._receive() or self._silent:
                    pauses = self.times.reopen_pauses()
                pause = 0.0 if self._half_closed else next(pauses)
                while not (self._closing.wait(pause) or self._half_closed):
                    if self.responses.empty() and self.has_room():
                        break
                    self.health.rested()
                    pause = self.times.room_pause
                if self._closing.is_set() or self._half_closed:
                    break
                self.health.reopened += 1
        except Exception as error:
            self.failure = error
        finally:
            self.responses.put(None)

    def _receive(self) -> bool:
        """Open the stream and queue its responses until it ends. Return whether there were any."""
        requests = self.runtime.queue()
        requests.put(self.first_request(self))
        self._requests = requests
        if self._half_closed:  # just now, and the last stream got the request
            requests.put(None)
        came = self._silent = False
        self._last_response = self.runtime.monotonic()
        self.health.opening(self._last_response)
        self._call = call = self.connection.streaming_pull(self.settings.subscription, self._until_none(requests))
        if self._closing.is_set():
            call.cancel()
        try:
            call.initial_metadata()  # waits for it, or for the end
            if call.is_active():
                self.health.answered(self.runtime.monotonic())
            for response in call:
                self._last_response = self.runtime.monotonic()
                if response.startswith(_MESSAGES):
                    came = True
                    self.health.responded(self._last_response)
                else:
                    self.health.answered(self._last_response, is_served=True)
                self.received_bytes += len(response)
                self.responses.put(response)
            self._call = None
            if not (self._closing.is_set() or self._half_closed or self._silent):
                self.health.failed(self.runtime.monotonic(), "OK: the service has ended the stream")
        except grpc.RpcError as error:
            self._call = None
            code, details = error.code(), error.details() or ""
            if not self._closing.is_set() and not self._silent:
                self.health.failed(self.runtime.monotonic(), _in_words(error), is_credential_failure(code, details))
                if code not in RETRYABLE_FOR_STREAM or self.health.has_failed_credentials():
                    subscription, address = self.settings.subscription, self.connection.address
                    raise failure(code, details, "pull from", "Subscription", subscription, address) from None
        finally:
            self._call = None
            requests.put(None)
        return came

    def _until_none(self, requests: Any) -> Iterator[bytes]:
        """Yield the requests for gRPC to send, until a None, and heartbeats. Cancel the call after `max_silence`.

        Probes the service while it has not answered on the stream, and after `probe_after` without an answer.
        """
        monotonic, times = self.runtime.monotonic, self.times
        heartbeat = monotonic() + times.heartbeat
        while True:
            try:
                request = requests.get(timeout=max(0.0, min(heartbeat - monotonic(), times.probe_pause)))
            except Empty:
                now = monotonic()
                silent = now - self.health.last_answer >= self.connection.probe_after
                if (silent or not self.health.connected) and not self._closing.is_set():
                    self.probe()
                if now < heartbeat:
                    continue
                heartbeat = now + times.heartbeat
                request = b""
                call = self._call
                if call is not None and monotonic() - self._last_response >= times.max_silence:
                    self._silent = True
                    call.cancel()
            if request is None:
                return
            yield request


def _in_words(error: Any) -> str:
    lines = (error.details() or "").splitlines()
    return f"{error.code().name}: {lines[0]}" if lines else str(error.code().name)

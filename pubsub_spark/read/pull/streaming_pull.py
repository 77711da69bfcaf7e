"""StreamingPull that is kept open: it reopens by itself, and returns the bytes of responses.

Retryable codes reopen the stream silently, with backoff and the same `client_id`, so that the service carries its state
over. Any other code is raised to the caller of `take`. A stream without responses may be idle or dead, and only a new
one can tell: after `max_silence` it is opened again, but not while there is no room for its messages. The service
counts outstanding messages for each stream, so a batch of an hour would fill the driver's memory, one stream after the
other. An empty request every `heartbeat` tells the service that the client lives, as Google's clients do.

Runs in tasks and on the driver, after the fork. The one thread of a StreamingPull ends with `close`. gRPC reads the
requests in a thread of its own, which also sends heartbeats and probes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty
from typing import Any

import grpc

from ...backend import Connection
from ...backend.status import RETRYABLE, failure, is_credential_failure
from ..runtime import SYSTEM, Runtime
from . import acks
from .health import StreamHealth
from .times import DEFAULT_TIMES, PullTimes

STREAM_BYTES_PER_SECOND = 10e6  # https://cloud.google.com/pubsub/quotas#resource_limits, of each open stream
AT_LIMIT = 0.6  # of that: a stream this fast may have more to send, because opening it takes some of the time
MIN_LEASE_SECONDS, MAX_LEASE_SECONDS = 10, 600  # StreamingPullRequest.stream_ack_deadline_seconds
_GONE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


@dataclass(frozen=True)
class StreamSettings:
    """The first request of a stream: subscription and client, flow control, the lease of its messages."""

    subscription: str
    client_id: str
    lease_seconds: int
    max_messages: int
    max_bytes: int

    def request(self, taken_messages: int = 0, taken_bytes: int = 0) -> bytes:
        """Return the first StreamingPullRequest. Earlier streams of the same pull have used up part of its limits."""
        from google.pubsub_v1.types import StreamingPullRequest

        message = StreamingPullRequest.pb()(
            subscription=self.subscription,
            client_id=self.client_id,
            stream_ack_deadline_seconds=min(max(self.lease_seconds, MIN_LEASE_SECONDS), MAX_LEASE_SECONDS),
            max_outstanding_messages=max(1, self.max_messages - taken_messages),
            max_outstanding_bytes=max(1, self.max_bytes - taken_bytes),
        )
        return bytes(message.SerializeToString())


class ResponseQueue:
    """The responses of one or more streams, in the order in which they arrived."""

    def __init__(self, streams: int = 1, times: PullTimes = DEFAULT_TIMES, runtime: Runtime = SYSTEM) -> None:
        self._times, self._runtime = times, runtime
        self._queue = runtime.queue()  # of bytes, and None for the end of a stream
        self._open = streams

    def put(self, response: bytes) -> None:
        """Add a response."""
        self._queue.put(response)

    def end(self) -> None:
        """Record that a stream has no more responses."""
        self._queue.put(None)

    @property
    def is_empty(self) -> bool:
        """Whether all responses were taken."""
        return bool(self._queue.empty())

    @property
    def ended(self) -> bool:
        """Whether all responses were taken and there can be no more."""
        return self._open <= 0

    def take(self, timeout: float, chunk_bytes: int = 0) -> list[bytes]:
        """Return the responses that have arrived; see `StreamingPull.take`."""
        taken: list[bytes] = []
        volume, end = 0, self._runtime.monotonic() + timeout
        with suppress(Empty):
            while not self.ended:
                remaining = end - self._runtime.monotonic() if volume < chunk_bytes or not taken else 0
                wait = min(self._times.chunk_gap, remaining) if taken else remaining
                response = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
                if response is None:
                    self._open -= 1
                else:
                    taken.append(response)
                    volume += len(response)
        return taken


class StreamingPull:
    """A StreamingPull that is kept open until `close`.

    first_request: makes the first request of each stream. has_room: whether a stream that has ended may be opened again
    now. responses: where they are queued, if other streams share the queue. health: what has become of the streams so
    far, in times of `Runtime.monotonic`. received_bytes: of all responses. failure: the error that ended the stream.
    """

    def __init__(
        self,
        connection: Connection,
        settings: StreamSettings,
        first_request: Callable[[], bytes] | None = None,
        has_room: Callable[[], bool] = lambda: True,
        responses: ResponseQueue | None = None,
        times: PullTimes = DEFAULT_TIMES,
        runtime: Runtime = SYSTEM,
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._first_request = first_request or settings.request
        self._has_room = has_room
        self._responses = responses or ResponseQueue(1, times, runtime)
        self._times, self._runtime = times, runtime
        self.received_bytes = 0
        self.failure: Exception | None = None
        self._closing = runtime.event()
        self._half_closed = False
        self._requests = runtime.queue()  # of bytes, and None for the half-close
        self._call: Any = None  # None between two streams
        self._last_response = 0.0
        self._silent = False
        self.health = StreamHealth()
        self._thread = runtime.start(self._run, f"pull {settings.client_id}")

    def take(self, timeout: float, chunk_bytes: int = 0) -> list[bytes]:
        """Return the responses that have arrived; [] after `timeout` seconds without any, or if the stream has ended.

        chunk_bytes: wait for this many bytes, within `timeout`, while one response follows the other.

        Raises the error that ended the stream, ResourceError or ServiceError, in each call after the last response.
        """
        taken = self._responses.take(timeout, chunk_bytes)
        if self.failure is not None and not taken and self.ended:
            raise self.failure
        return taken

    @property
    def ended(self) -> bool:
        """Whether there can be no more responses."""
        return self._responses.ended

    def probe(self) -> bool:
        """Return whether the service answers another call while the stream is open; recorded in `health`.

        The call changes no lease. Any answer counts, also an error.
        """
        began, call = self._runtime.monotonic(), self._call
        error = self._error_of_call()
        if error is not None:
            if not self._closing.is_set():
                self.health.failed(began, _in_words(error))
            return False
        if call is None or call is not self._call:  # the answer says nothing about the next stream
            return False
        self.health.answered(self._runtime.monotonic())
        return True

    def reaches_service(self) -> bool:
        """Return whether the service answers a call at all, whatever becomes of the stream."""
        return self._error_of_call() is None

    def _error_of_call(self) -> Any:
        """Return the error of a call that changes no lease, or None if the service has answered, even with an error."""
        subscription = self._settings.subscription
        request = acks.extend_request(subscription, 0).SerializeToString()
        try:
            self._connection.modify_ack_deadline(subscription, request, self._times.probe_timeout).result()
        except grpc.RpcError as error:
            return error if error.code() in _GONE else None
        return None

    def half_close(self) -> None:
        """Tell the service to send no more; messages that it has sent still arrive."""
        self._half_closed = True
        self._requests.put(None)

    def close(self) -> list[bytes]:
        """End the stream and its thread; return the responses that had arrived and were not taken."""
        self.cancel()
        self._thread.join()
        return self._responses.take(0)

    def cancel(self) -> None:
        """End the stream, and have its thread end."""
        self._closing.set()
        self._requests.put(None)
        call = self._call
        if call is not None:
            call.cancel()

    def _run(self) -> None:
        pauses = self._times.reopen_pauses()
        try:
            while not self._closing.is_set():
                if self._receive() or self._silent:
                    pauses = self._times.reopen_pauses()
                pause = 0.0 if self._half_closed else next(pauses)
                while not (self._closing.wait(pause) or self._half_closed or self._is_wanted()):
                    self.health.rested()
                    pause = self._times.room_pause
                if self._closing.is_set() or self._half_closed:
                    break
                self.health.reopened += 1
        except Exception as error:
            self.failure = error
        finally:
            self._responses.end()

    def _is_wanted(self) -> bool:
        """Return whether all responses were taken and there is room for more."""
        return self._responses.is_empty and self._has_room()

    def _receive(self) -> bool:
        """Open the stream and queue its responses until it ends; return whether there were any."""
        requests = self._runtime.queue()
        self._requests = requests
        requests.put(self._first_request())
        if self._half_closed:  # just now, and the last stream got the request
            requests.put(None)
        came = self._silent = False
        self._last_response = self._runtime.monotonic()
        self.health.opening(self._last_response)
        self._call = call = self._connection.streaming_pull(self._settings.subscription, self._until_none(requests))
        if self._closing.is_set():
            call.cancel()
        try:
            call.initial_metadata()  # waits for it, or for the end
            if call.is_active():
                self.health.answered(self._runtime.monotonic())
            for response in call:
                came = True
                self._last_response = self._runtime.monotonic()
                self.health.responded(self._last_response)
                self.received_bytes += len(response)
                self._responses.put(response)
        except grpc.RpcError as error:
            self._call = None
            code, details = error.code(), error.details() or ""
            if not self._closing.is_set() and not self._silent:
                self.health.failed(self._runtime.monotonic(), _in_words(error), is_credential_failure(code, details))
                if code not in RETRYABLE or self.health.has_failed_credentials():
                    subscription, address = self._settings.subscription, self._connection.address
                    raise failure(code, details, "pull from", "Subscription", subscription, address) from None
        finally:
            self._call = None
            requests.put(None)
        return came

    def _until_none(self, requests: Any) -> Iterator[bytes]:
        """Yield the requests for gRPC to send, until a None, and heartbeats. Cancel the call after `max_silence`.

        Probes the service while it has not answered on the stream, and after `probe_after` without an answer.
        """
        monotonic, times = self._runtime.monotonic, self._times
        heartbeat = monotonic() + times.heartbeat
        while True:
            try:
                request = requests.get(timeout=max(0.0, min(heartbeat - monotonic(), times.probe_pause)))
            except Empty:
                now = monotonic()
                silent = now - self.health.last_answer >= self._connection.probe_after
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
    """Return a status for the log and the metrics, in one line."""
    lines = (error.details() or "").splitlines()
    return f"{error.code().name}: {lines[0]}" if lines else str(error.code().name)

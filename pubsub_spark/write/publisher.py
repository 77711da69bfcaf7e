"""The publisher of a task: sends requests, retries them on the service's retryable codes, counts message ids.

Runs in a task. This puts a lock, gRPC's callbacks and a scheduler of retries around `RequestQueue`. The task's own
thread adds requests. gRPC's thread handles responses, and then sends the next requests.

The promise: `finish` returns only when the service has assigned a message id to every message that was sent. A call
whose response was lost is sent again, so a message may be published twice (at-least-once delivery).

Each call has a deadline. After the first request that fails for good, the queued requests of other ordering keys have
`publishTimeout` to be published. An exception on another thread ends the task.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Self

import grpc

from ..backend import Connection
from ..backend.status import RETRYABLE_FOR_PUBLISH, Retries, failure
from ..errors import PubSubError, ServiceError
from ..publish.requests import EncodedRequest
from .metrics import WriteMetrics
from .request_queue import RequestQueue
from .retry_scheduler import RetryScheduler

# The memory of the outstanding requests of a task (`RequestQueue` counts it). Enough for the queued requests of a few
# hundred ordering keys, and little compared with their Arrow batches.
MAX_OUTSTANDING_BYTES = 32 * 2**20
# The deadline of a call, unless half of `publishTimeout` is longer. A call that hangs is sent again after it.
_CALL_TIMEOUT_SECONDS = 30.0
_NO_RESPONSE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_MAX_IDS_IN_ERROR = 3


class Publisher:
    """The publish calls of one task, as a context manager. Use it from one thread."""

    def __init__(self, connection: Connection, max_in_flight: int, publish_timeout: float) -> None:
        self._connection = connection
        self._publish_timeout = publish_timeout
        self._queue = RequestQueue(max_in_flight, MAX_OUTSTANDING_BYTES)
        self._changed = threading.Condition()
        self._attempts: dict[EncodedRequest, Retries] = {}
        self._retry_scheduler = RetryScheduler(self._on_retries_due)
        self._closed = False
        self._error: PubSubError | None = None
        self._give_up_at = math.inf
        self._thread_error: BaseException | None = None
        self._first_ids: list[str] = []
        self._messages = self._bytes = self._requests = self._retries = 0

    def send(self, request: EncodedRequest) -> None:
        """Publish a request, now or when its turn comes. Blocks while flow control asks. Raises the first failure."""
        with self._changed:
            if not self._queue.has_capacity:
                self._wait_for(lambda: self._queue.has_drained or self._error is not None)
            if self._error is None:
                self._queue.add(request)
            sendable = self._take_sendable()
        self._start_calls(sendable)
        if self._error is not None:
            self.finish()

    def finish(self) -> WriteMetrics:
        """Wait until no request is outstanding. Return the metrics, or raise the first failure."""
        with self._changed:
            self._wait_for(lambda: not self._queue.has_outstanding)
            if self._error is not None:
                raise type(self._error)(f"{self._error} {self._confirmed_sentence()}")
            return WriteMetrics(self._messages, self._bytes, self._requests, self._retries)

    def finish_outstanding(self) -> str:
        """Wait until no request is outstanding. Return a sentence about the confirmed messages."""
        with self._changed:
            self._wait_for(lambda: not self._queue.has_outstanding)
            return self._confirmed_sentence()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
        self._retry_scheduler.close()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._thread_error is not None or condition())
        if self._thread_error is not None:
            raise self._thread_error

    def _take_sendable(self) -> list[EncodedRequest]:
        if time.monotonic() >= self._give_up_at:
            self._queue.drop_queued()
        return self._queue.take_sendable()

    def _confirmed_sentence(self) -> str:
        if not self._messages:
            return "No message of this task was confirmed."
        ids = ", ".join(f"`{message_id}`" for message_id in self._first_ids)
        return f"Before that, {self._messages:,} messages of this task were confirmed, the first of them {ids}."

    def _start_calls(self, sendable: list[EncodedRequest]) -> None:
        for request in sendable:
            if self._closed:
                return
            started_at = self._attempts.setdefault(request, Retries(time.monotonic())).started_at
            left = min(started_at + self._publish_timeout, self._give_up_at) - time.monotonic()
            longest = max(_CALL_TIMEOUT_SECONDS, self._publish_timeout / 2)
            call = self._connection.publish(request.topic, request.body, max(0.1, min(left, longest)))
            call.add_done_callback(partial(self._on_response, request))

    def _on_response(self, request: EncodedRequest, call: Any) -> None:
        """Runs on gRPC's thread, which would swallow an exception."""
        try:
            self._handle_response(request, call)
        except BaseException as error:
            self._fail_task(error)

    def _on_retries_due(self, requests: list[EncodedRequest]) -> None:
        try:
            with self._changed:
                if self._closed:
                    return
                for request in reversed(requests):
                    self._queue.retry(request)
                sendable = self._take_sendable()
                self._changed.notify_all()
            self._start_calls(sendable)
        except BaseException as error:
            self._fail_task(error)

    def _fail_task(self, error: BaseException) -> None:
        with self._changed:
            self._thread_error = self._thread_error or error
            self._changed.notify_all()

    def _handle_response(self, request: EncodedRequest, call: Any) -> None:
        ids: list[str] = []
        try:
            response = call.result()
        except grpc.RpcError as error:
            code, detail = error.code(), error.details() or ""
        except grpc.FutureCancelledError:
            code, detail = grpc.StatusCode.CANCELLED, "the call was cancelled"
        else:
            code, detail, ids = grpc.StatusCode.OK, "", _message_ids(response)
        with self._changed:
            if self._closed:
                return
            if code is grpc.StatusCode.OK and len(ids) == request.messages:
                self._confirm(request, ids)
            elif code is grpc.StatusCode.OK:
                sentence = f"`{self._connection.address}` returned {len(ids)} message ids for {request.messages}"
                self._fail(request, ServiceError(f"{sentence} messages published to Topic `{request.topic}`."))
            else:
                self._retry_or_fail(request, code, detail)
            sendable = self._take_sendable()
            self._changed.notify_all()
        self._start_calls(sendable)

    def _confirm(self, request: EncodedRequest, ids: list[str]) -> None:
        self._messages += len(ids)
        self._bytes += len(request.body)
        self._requests += 1
        if len(self._first_ids) < _MAX_IDS_IN_ERROR:
            self._first_ids.extend(ids[: _MAX_IDS_IN_ERROR - len(self._first_ids)])
        del self._attempts[request]
        self._queue.confirm(request)

    def _retry_or_fail(self, request: EncodedRequest, code: grpc.StatusCode, detail: str) -> None:
        attempts, timeout = self._attempts[request], self._publish_timeout
        if code in _NO_RESPONSE and not self._messages:
            timeout = min(timeout, self._connection.connect_timeout)  # the service has not answered this task yet
        retry_until = min(attempts.started_at + timeout, self._give_up_at)
        delay = attempts.pause(time.monotonic(), retry_until) if code in RETRYABLE_FOR_PUBLISH else None
        if delay is None:
            address = self._connection.address
            self._fail(request, failure(code, detail, "publish to", "Topic", request.topic, address))
            return
        self._retries += 1
        self._queue.await_retry()
        self._retry_scheduler.schedule(request, delay)

    def _fail(self, request: EncodedRequest, error: PubSubError) -> None:
        del self._attempts[request]
        self._queue.fail(request)
        if self._error is None:
            self._give_up_at = time.monotonic() + self._publish_timeout
            where = f" Nothing further was sent with ordering key `{request.ordering_key}`."
            self._error = type(error)(f"{error}{where if request.ordering_key else ''}")


def _message_ids(response: bytes) -> list[str]:
    from google.protobuf.message import DecodeError

    try:
        return list(_response_class().FromString(response).message_ids)
    except DecodeError:
        return []


@cache
def _response_class() -> Any:
    from google.pubsub_v1.types import PublishResponse

    return PublishResponse.pb()

"""Publishes requests: several under way, retried on the service's retryable codes, every message id counted.

Runs in a task. `Window` says what may be sent; this puts a lock, gRPC's callbacks and a timer for retries around it.
The task's own thread makes requests and waits while there is no room; answers come in on gRPC's thread, which sends
what has become due.

The promise: `finish` returns only when the service has given a message id for every message that was sent. A call
whose answer was lost is sent again, so a message may be published twice: at least once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Self

import grpc

from ..backend import Connection
from ..backend.status import RETRYABLE_FOR_PUBLISH, delays, failure
from ..errors import PubSubError, ServiceError
from .metrics import WriteMetrics
from .requests import Request
from .window import Window

# Encoded requests that a task holds at most, waiting or under way. Room for the requests of a few hundred ordering
# keys to wait for their turn; little beside the Arrow batches that they were made of.
HELD_BYTES = 32 * 2**20
# A call that hangs longer, and for half of `publishTimeout`, is given up and sent again.
_LONGEST_CALL = 30.0
_NO_ANSWER = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
_IDS_SHOWN = 3


class _Tries:
    """The tries of one request: since when, and how long to wait before the next."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.pauses: Iterator[float] = delays()


class Publisher:
    """The publish calls of one task; a context manager. Use it from one thread."""

    def __init__(self, connection: Connection, max_requests: int, publish_timeout: float) -> None:
        self._connection = connection
        self._publish_timeout = publish_timeout
        self._window = Window(max_requests, HELD_BYTES)
        self._changed = threading.Condition()
        self._tries: dict[Request, _Tries] = {}
        self._timers: set[threading.Timer] = set()
        self._closed = False
        self._error: PubSubError | None = None
        self._first_ids: list[str] = []
        self._messages = self._bytes = self._requests = self._retries = 0

    def send(self, request: Request) -> None:
        """Publish a request, now or when its turn comes; blocks while there is no room. Raises the first failure."""
        with self._changed:
            self._changed.wait_for(lambda: self._window.room or self._error is not None)
            if self._error is None:
                self._window.offer(request)
            due = self._window.due()
        self._start(due)
        if self._error is not None:
            self.finish()

    def finish(self) -> WriteMetrics:
        """Wait until every message has its id. Raises the first failure, after other ordering keys have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._window.busy)
            if self._error is not None:
                raise type(self._error)(f"{self._error} {self._confirmed()}")
            return WriteMetrics(self._messages, self._bytes, self._requests, self._retries)

    def settle(self) -> str:
        """Wait for what is under way, then say in a sentence what was confirmed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._window.busy)
            return self._confirmed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            for timer in self._timers:
                timer.cancel()

    def _confirmed(self) -> str:
        if not self._messages:
            return "No message of this task was confirmed."
        ids = ", ".join(f"`{each}`" for each in self._first_ids)
        return f"Before that, {self._messages:,} messages of this task were confirmed, the first of them {ids}."

    def _start(self, due: list[Request]) -> None:
        for request in due:
            if self._closed:
                return
            left = self._tries.setdefault(request, _Tries()).since + self._publish_timeout - time.monotonic()
            longest = max(_LONGEST_CALL, self._publish_timeout / 2)
            call = self._connection.publish(request.topic, request.body, max(0.1, min(left, longest)))
            call.add_done_callback(partial(self._answered, request))

    def _answered(self, request: Request, call: Any) -> None:
        """Runs on gRPC's thread, once a call."""
        ids: list[str] = []
        try:
            answer = call.result()
        except grpc.RpcError as error:
            code, detail = error.code(), error.details() or ""
        except grpc.FutureCancelledError:
            code, detail = grpc.StatusCode.CANCELLED, "the call was cancelled"
        else:
            code, detail, ids = grpc.StatusCode.OK, "", _message_ids(answer)
        with self._changed:
            if self._closed:
                return
            if code is grpc.StatusCode.OK and len(ids) == request.messages:
                self._succeed(request, ids)
            elif code is grpc.StatusCode.OK:
                sentence = f"`{self._connection.address}` gave {len(ids)} message ids for {request.messages} messages"
                self._give_up(request, ServiceError(f"{sentence} published to Topic `{request.topic}`."))
            else:
                self._retry(request, code, detail)
            due = self._window.due()
            self._changed.notify_all()
        self._start(due)

    def _succeed(self, request: Request, ids: list[str]) -> None:
        self._messages += len(ids)
        self._bytes += len(request.body)
        self._requests += 1
        if len(self._first_ids) < _IDS_SHOWN:
            self._first_ids.extend(ids[: _IDS_SHOWN - len(self._first_ids)])
        del self._tries[request]
        self._window.confirmed(request)

    def _retry(self, request: Request, code: grpc.StatusCode, detail: str) -> None:
        tries, patience = self._tries[request], self._publish_timeout
        if code in _NO_ANSWER and not self._messages:
            patience = min(patience, self._connection.connect_timeout)  # nobody has answered there yet
        pause = next(tries.pauses)
        if code not in RETRYABLE_FOR_PUBLISH or time.monotonic() + pause > tries.since + patience:
            address = self._connection.address
            self._give_up(request, failure(code, detail, "publish to", "Topic", request.topic, address))
            return
        self._retries += 1
        self._window.paused()
        timer = threading.Timer(pause, self._resume, [request])
        timer.daemon = True
        self._timers.add(timer)
        timer.start()

    def _resume(self, request: Request) -> None:
        """Runs on a timer's thread when the pause of a request is over."""
        with self._changed:
            self._timers.discard(threading.current_thread())
            if self._closed:
                return
            self._window.resumed(request)
            due = self._window.due()
        self._start(due)

    def _give_up(self, request: Request, error: PubSubError) -> None:
        del self._tries[request]
        self._window.failed(request)
        if self._error is None:
            where = f" Nothing further was sent with ordering key `{request.ordering_key}`."
            self._error = type(error)(f"{error}{where if request.ordering_key else ''}")


def _message_ids(answer: bytes) -> list[str]:
    """The ids in a serialized PublishResponse; none in an answer that is something else."""
    from google.protobuf.message import DecodeError
    from google.pubsub_v1.types import PublishResponse

    try:
        return list(PublishResponse.pb().FromString(answer).message_ids)
    except DecodeError:
        return []

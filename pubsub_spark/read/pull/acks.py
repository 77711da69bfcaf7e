"""Acknowledge and ModifyAckDeadline for any number of ack ids: Arrow columns to requests, many of them in flight.

Retryable codes are tried again until a deadline. On a subscription with exactly-once delivery the service names the ids
that failed (google.rpc.ErrorInfo): transient failures are sent again, permanent ones are refused. A failed ack is never
an error here: the ids that the service did not accept are the result.

As much is in flight as the link carries (`Window`). Requests of a fixed size and number would time out together on a
slow uplink, again and again.

Limits: https://cloud.google.com/pubsub/quotas#resource_limits (512 KiB a request). Google's client for Node sends 3000
ids. A request costs gRPC 0.1 ms whatever it holds. Failures:
https://cloud.google.com/pubsub/docs/exactly-once-delivery#handle_failures
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...backend import Connection
from ...backend.status import RETRYABLE, Retries, delays
from ...slices import slices
from ..runtime import SYSTEM, Runtime

MAX_IDS = 3000
MAX_BYTES = 512 * 1024
_MERGED_IDS = 2 * MAX_IDS
MAX_IN_FLIGHT = 48  # requests, 25 MB of ids
# Of a request with such a status, ids that ErrorInfo does not name are accepted.
_PARTLY = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION})
MIN_BYTES = 32 * 1024  # a link of 16 kbit/s carries that within half of the timeout of a request
_log = logging.getLogger(__name__)


@dataclass
class Window:
    """The requests that may be in flight, passed from one sender to the next: `requests` of `bytes` each.

    More and larger ones after full requests that were answered within seconds, fewer and smaller ones after slow
    answers.
    """

    requests: int = 2
    bytes: int = MIN_BYTES
    answers: int = 0  # of requests whose ids were accepted, all or some
    fast: float = 3.0  # seconds until an answer: more may be in flight
    slow: float = 10.0  # seconds until an answer: less may be
    timeout: float = 30.0  # seconds until a request is tried again

    def answered(self, seconds: float, size: int) -> None:
        if seconds > self.slow:
            self._shrink()
        elif seconds < self.fast and 2 * size > self.bytes:
            if self.bytes < MAX_BYTES:
                self.bytes = min(MAX_BYTES, 2 * self.bytes)
            else:
                self.requests = min(MAX_IN_FLIGHT, self.requests + 1)

    def timed_out(self) -> None:
        self._shrink(self.requests // 2)

    def _shrink(self, requests: int = 1) -> None:
        if self.requests > 1:
            self.requests = max(1, self.requests - requests)  # several threads may use a window
        else:
            self.bytes = max(MIN_BYTES, self.bytes // 2)


class FailedIds(NamedTuple):
    """The ack ids that the service did not accept: `refused` for good, `unanswered` until the deadline.

    taken: how many of the caller's ids were sent, in their order. complete: whether that is all of them. (That the
    caller's iterator has ended does not say so.)
    """

    refused: pa.Array
    unanswered: pa.Array
    taken: int
    complete: bool

    def not_accepted(self, ack_ids: pa.Array) -> pa.Array:
        """Return the ids that were refused, not answered or not sent. ack_ids: all of the call."""
        return pa.concat_arrays([self.refused, self.unanswered, ack_ids.slice(self.taken).cast(pa.string())])


def acknowledge(
    connection: Connection,
    subscription: str,
    ack_ids: Iterable[pa.Array],
    timeout: float,
    take_for: float = math.inf,
    runtime: Runtime = SYSTEM,
    window: Window | None = None,
    in_order: bool = False,
) -> FailedIds:
    """Acknowledge messages. Return the ack ids that the service did not accept.

    ack_ids: arrays of strings, taken as they are needed. timeout: seconds after which nothing is tried again. take_for:
    seconds after which no more ids are taken, except for a first request. window: of the last call, which this one
    changes. in_order: send one request at a time, because Pub/Sub drops the ack of a key's message that comes before
    that of an earlier one: https://github.com/googleapis/google-cloud-rust/issues/3970
    """
    empty = acknowledge_request(subscription)
    call = connection.acknowledge
    return _Sender(call, empty, ack_ids, timeout, "acks", take_for, runtime, window, in_order).send()


def nack(
    connection: Connection,
    subscription: str,
    receipts: Iterable[pa.RecordBatch],
    timeout: float,
    runtime: Runtime = SYSTEM,
) -> FailedIds:
    """Have the service redeliver messages at once. See `acknowledge`."""
    return extend(connection, subscription, (batch.column("ack_id") for batch in receipts), 0, timeout, runtime)


def extend(
    connection: Connection,
    subscription: str,
    ack_ids: Iterable[pa.Array],
    seconds: int,
    timeout: float,
    runtime: Runtime = SYSTEM,
    window: Window | None = None,
) -> FailedIds:
    """Set the leases of messages to `seconds` from now. See `acknowledge`.

    After the timeout no more ids are taken: requests without time to be answered would only fill the uplink.
    """
    empty = extend_request(subscription, seconds)
    call = connection.modify_ack_deadline
    return _Sender(call, empty, ack_ids, timeout, "leases", timeout, runtime, window).send()


def acknowledge_request(subscription: str) -> Any:
    """Return an AcknowledgeRequest without ids, as a protobuf message."""
    from google.pubsub_v1 import types

    return types.AcknowledgeRequest.pb()(subscription=subscription)


def extend_request(subscription: str, seconds: int) -> Any:
    """Return a ModifyAckDeadlineRequest without ids, as a protobuf message."""
    from google.pubsub_v1 import types

    return types.ModifyAckDeadlineRequest.pb()(subscription=subscription, ack_deadline_seconds=seconds)


def requests(empty: Any, ack_ids: pa.Array, window: Window) -> Iterator[tuple[bytes, pa.Array]]:
    """Yield serialized requests with their ids, each as large as the window is then. empty: one without ids."""
    if not len(ack_ids):
        return
    start = empty.SerializeToString()
    entries = _entries(ack_ids, type(empty))
    _, offsets, content = entries.buffers()
    ends = np.frombuffer(offsets, np.int32, len(entries) + 1)
    serialized = memoryview(content)
    first = 0
    while first < len(entries):
        _, length = next(slices(ends[first:], MAX_IDS, window.bytes - len(start)))
        yield b"".join((start, serialized[ends[first] : ends[first + length]])), ack_ids.slice(first, length)
        first += length


def _entries(ack_ids: pa.Array, kind: type[Any]) -> pa.Array:
    """Return the bytes of each id in a serialized request of this kind, contiguous in memory."""
    lengths = pc.binary_length(ack_ids).dictionary_encode()  # few are different
    samples = [(kind(ack_ids=["x" * length]).SerializeToString(), length) for length in lengths.dictionary.to_pylist()]
    prefixes = [sample[: len(sample) - length] for sample, length in samples]
    # `pa.array`, and any Python value in place of the empty separator, would import pandas, which takes 0.3 s.
    ends = np.cumsum([0, *map(len, prefixes), 0], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(prefixes))]
    texts = pa.Array.from_buffers(pa.binary(), len(prefixes) + 1, buffers)
    return pc.binary_join_element_wise(texts.take(lengths.indices), ack_ids.cast(pa.binary()), texts[len(prefixes)])


class _Request(NamedTuple):
    serialized: bytes
    ids: pa.Array
    retries: Retries

    @property
    def size(self) -> int:
        """Its bytes. Those of the largest request if it has as many ids."""
        return MAX_BYTES if len(self.ids) == MAX_IDS else len(self.serialized)


@dataclass(eq=False)
class _Sender:
    """The requests of one call of `acknowledge` or `extend`, until each is answered or the time is over.

    call, empty: the RPC and its request without ids. ids_name: its ids, in words for the log.
    """

    call: Callable[[str, bytes, float], Any]
    empty: Any
    ack_ids: Iterable[pa.Array]
    timeout: float
    ids_name: str
    take_for: float
    runtime: Runtime
    window: Window | None
    in_order: bool = False

    def __post_init__(self) -> None:
        began, empty = self.runtime.monotonic(), self.empty
        self._deadline, self._take_until = began + self.timeout, began + self.take_for
        self._window = window = self.window or Window()
        # A generator that refers to this object would keep its ids alive.
        fresh = (request for ids in _merged(self.ack_ids) for request in requests(empty, ids, window))
        self._fresh = (_Request(*request, Retries(0.0, delays())) for request in fresh)
        self._in_flight: deque[tuple[Any, float, _Request]] = deque()  # the future, when it was sent, the request
        self._retries: list[tuple[float, _Request]] = []  # the time of each, and the request
        self._refused: list[pa.Array] = []
        self._unanswered: list[pa.Array] = []
        self._taken, self._complete = 0, False
        self._denied, self._reason = 0, ""

    def send(self) -> FailedIds:
        subscription = self.empty.subscription
        while True:
            now = self.runtime.monotonic()
            timeout = max(0.1, min(self._window.timeout, self._deadline - now))
            for request in self._next(now):
                self._in_flight.append((self.call(subscription, request.serialized, timeout), now, request))
            if self._in_flight:
                self._await(*self._in_flight.popleft())
            elif self._retries:
                self.runtime.sleep(min(at for at, _ in self._retries) - now)
            else:
                break
        if self._denied:
            _log.warning("%d %s of `%s` are refused: %s", self._denied, self.ids_name, subscription, self._reason)
        return FailedIds(_joined(self._refused), _joined(self._unanswered), self._taken, self._complete)

    def _next(self, now: float) -> list[_Request]:
        due = [request for at, request in self._retries if at <= now]
        if self.in_order:
            due = [] if self._in_flight else due[:1]
        self._retries = [(at, request) for at, request in self._retries if all(request is not each for each in due)]
        if now < self._take_until or not self._taken:
            most = 1 if self.in_order else self._window.requests
            free = max(0, most - len(self._in_flight) - len(self._retries) - len(due))
            added = list(islice(self._fresh, free))
            self._complete |= len(added) < free
            self._taken += sum(len(request.ids) for request in added)
            due += added
        return due

    def _await(self, future: Any, sent: float, request: _Request) -> None:
        try:
            future.result()
        except grpc.RpcError as error:
            self._sort(error, request)
        else:
            self._window.answers += 1
            self._window.answered(self.runtime.monotonic() - sent, request.size)

    def _sort(self, error: Any, request: _Request) -> None:
        """Sort the ids of a request that failed: sent again after a pause, refused, or unanswered."""
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            self._window.timed_out()
        permanent, transient = _failures(error, request.ids)
        if permanent or transient:
            named = pa.array([*permanent, *transient], pa.string())
            others = request.ids.filter(pc.invert(pc.is_in(request.ids, named))).cast(pa.string())
            again, refused = pa.array(transient, pa.string()), pa.array(permanent, pa.string())
            if error.code() in RETRYABLE:
                again = pa.concat_arrays([again, others])
            elif error.code() not in _PARTLY:
                refused = pa.concat_arrays([refused, others])
            self._window.answers += len(again) < len(request.ids)
            self._refused.append(refused)
            self._send_again(again, request.retries)
        elif error.code() in RETRYABLE:
            self._send_again(request.ids, request.retries)
        elif error.code() is grpc.StatusCode.CANCELLED:  # our own connection is closing
            self._unanswered.append(request.ids)
        else:
            self._denied, self._reason = self._denied + len(request.ids), error.details()
            self._refused.append(request.ids)

    def _send_again(self, ids: pa.Array, retries: Retries) -> None:
        if not len(ids):
            return
        now = self.runtime.monotonic()
        pause = retries.pause(now, self._deadline)
        later, self._retries = (self._retries, []) if self.in_order else ([], self._retries)
        if pause is None:
            self._unanswered += [ids, *(request.ids for _, request in later)]
            self._take_until = now if self.in_order else self._take_until  # later ones would be dropped
        else:
            again = requests(self.empty, ids, self._window)
            self._retries.extend((now + pause, _Request(*parts, retries)) for parts in again)
            self._retries.extend((max(at, now + pause), request) for at, request in later)


def _merged(arrays: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """Yield the ids in larger arrays: an array costs as much as 1000 ids, and ends with a request that is not full."""
    parts: list[pa.Array] = []
    count = 0
    for ids in arrays:
        parts.append(ids)
        count += len(ids)
        if count >= _MERGED_IDS:
            yield pa.concat_arrays(parts) if len(parts) > 1 else ids
            parts, count = [], 0
    if parts:
        yield pa.concat_arrays(parts)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays([ids.cast(pa.string()) for ids in arrays]) if arrays else pa.nulls(0, pa.string())


def _failures(error: Any, ids: pa.Array) -> tuple[list[str], list[str]]:
    """Return the ack ids that ErrorInfo names: permanent failures and transient ones."""
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import ErrorInfo
    from grpc_status import rpc_status

    reasons: dict[str, str] = {}
    try:
        status = rpc_status.from_call(error)
        for detail in status.details if status is not None else ():
            info = ErrorInfo()
            if detail.Unpack(info):
                reasons |= info.metadata
    except (ValueError, DecodeError):  # the details contradict the status, or cannot be parsed
        return [], []
    known = set(ids.to_pylist()) if reasons else set()  # a quota's ErrorInfo has other keys
    named = known.intersection(reasons)
    transient = {each for each in named if reasons[each].startswith("TRANSIENT_")}
    return sorted(named - transient), sorted(transient)  # a set has no order

"""A fake Pub/Sub behind the methods of `Connection`: streams play a script, unary calls answer from a list.

A script has the responses of one stream, then a status code to end with, or silence. All requests are kept: the first
of each stream, acknowledged ids, changed leases. No socket.
"""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import grpc
import pyarrow as pa
from google.pubsub_v1 import types

from pubsub_spark.codec.envelope import received
from pubsub_spark.read.pull.streaming_pull import PullTimes
from pubsub_spark.read.staging.ids import Digests, digests
from pubsub_spark.read.staging.part import PartBuilder

SUBSCRIPTION = "projects/test-project/subscriptions/test-subscription"
SILENCE = None
AT_ONCE = PullTimes(drain=0.01, reopen_pauses=lambda: repeat(0.001))


def ids(*texts: str) -> Digests:
    """Return the digests of deduplication ids."""
    return digests(pa.array(texts, pa.string()))


class StatusError(grpc.RpcError):
    """A status as gRPC raises it."""

    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        super().__init__(code)
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Sequence[tuple[str, bytes]]:
        return ()


class Answer:
    """The future of a unary call."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def result(self) -> bytes:
        if self._error is not None:
            raise self._error
        return b""


class Call:
    """A StreamingPull that plays a script, and then ends with a status or stays silent until it is cancelled."""

    def __init__(self, script: Sequence[Any], requests: Iterator[bytes]) -> None:
        self.requests = requests
        self.cancelled = False
        self.items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for item in script:
            self.say(item)

    def __iter__(self) -> Call:
        return self

    def __next__(self) -> bytes:
        item = self.items.get()
        if isinstance(item, grpc.StatusCode):
            if item is grpc.StatusCode.OK:
                raise StopIteration
            raise StatusError(item)
        return bytes(item)

    def initial_metadata(self) -> tuple[()]:
        return ()

    def is_active(self) -> bool:
        return not self.cancelled

    def say(self, item: Any) -> None:
        self.items.put(item)

    def cancel(self) -> None:
        self.cancelled = True
        self.items.put(grpc.StatusCode.CANCELLED)


@dataclass
class Service:
    """The service, and the one connection to it."""

    scripts: list[Sequence[Any]] = field(default_factory=list)  # of the next streams, then silence
    answers: list[Exception | None] = field(default_factory=list)  # to the next unary calls, then success
    openings: list[Any] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    acked: list[list[str]] = field(default_factory=list)  # ids of each request
    timeouts: list[float] = field(default_factory=list)  # of each of these requests
    modified: list[tuple[int, list[str]]] = field(default_factory=list)  # seconds and ids of each request
    address: str = "fake:443"
    connect_timeout: float = 1.0
    probe_after: float = 1000.0
    call: type[Call] = Call  # of streams
    closed: bool = False

    def streaming_pull(self, subscription: str, requests: Iterator[bytes]) -> Call:
        self.openings.append(types.StreamingPullRequest.pb().FromString(next(requests)))
        self.calls.append(self.call(self.scripts.pop(0) if self.scripts else (), requests))
        return self.calls[-1]

    def acknowledge(self, subscription: str, request: bytes, timeout: float) -> Answer:
        self.timeouts.append(timeout)
        self.acked.append(list(types.AcknowledgeRequest.pb().FromString(request).ack_ids))
        return self._answer()

    def modify_ack_deadline(self, subscription: str, request: bytes, timeout: float) -> Answer:
        message = types.ModifyAckDeadlineRequest.pb().FromString(request)
        self.modified.append((message.ack_deadline_seconds, list(message.ack_ids)))
        return self._answer()

    def _answer(self) -> Answer:
        return Answer(self.answers.pop(0) if self.answers else None)

    @property
    def acked_ids(self) -> list[str]:
        return [ack_id for request in self.acked for ack_id in request]

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def response(texts: Iterable[str], published: float = 1000.0, key: str = "", **attributes: str) -> bytes:
    """Return a StreamingPullResponse: for each text a message with this payload, id `id-text` and ack id `ack-text`."""
    message = types.StreamingPullResponse.pb()()
    for text in texts:
        received = message.received_messages.add(ack_id=f"ack-{text}")
        received.message.data = text.encode()
        received.message.message_id = f"id-{text}"
        received.message.ordering_key = key
        received.message.attributes.update(attributes)
        received.message.publish_time.FromMicroseconds(int(published * 1e6))
    return bytes(message.SerializeToString())


def part(
    texts: Iterable[str],
    ended: str = "idle",
    dropped: Iterable[str] = (),
    part_id: str = "",
    key: str = "",
    **more: Any,
) -> list[Any]:
    """Return the buffers of a staged part: messages and receipts of `response`, receipts of dropped redeliveries."""
    got = received([response(texts, key=key)])
    builder = PartBuilder("lz4")
    builder.add(got.messages, got.receipts)
    again = received([response(dropped)])
    builder.add(again.messages.slice(0, 0), again.receipts)
    return builder.buffers(ended, id=part_id, **more)

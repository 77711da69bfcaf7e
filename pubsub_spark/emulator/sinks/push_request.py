"""The push request of a message, the status codes that acknowledge it, and the window of concurrent requests. Pure.

Five status codes acknowledge a message. Every other answer, or none within the ack deadline, is a nack. The window of
concurrent requests opens slowly: each success adds one, so a full window of successes doubles it. Each failure halves
it. Without a retry policy, the whole subscription pauses after consecutive failures, first for 100 ms and at most for
60 s.

Sources: https://cloud.google.com/pubsub/docs/push and .../payload-unwrapping
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from google.protobuf import timestamp_pb2

from pubsub_spark.emulator.state.message import Message

ACKNOWLEDGES = frozenset({102, 200, 201, 202, 204})

FIRST_WINDOW_REQUESTS = 4  # "a small single-digit window size"
LARGEST_WINDOW_REQUESTS = 3000
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 60.0

# Only these are valid in an HTTP header. An unwrapped push leaves out attributes with other characters.
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
USER_AGENT = "CloudPubSub-Google"  # the service's: receivers recognize its pushes by it
# The envelope of the request itself: a message cannot change it.
_RESERVED_HEADERS = frozenset(
    {"authorization", "connection", "content-length", "host", "transfer-encoding", "user-agent"}
)


@dataclass(frozen=True)
class Endpoint:
    """The endpoint of pushes and their format, from a PushConfig."""

    url: str
    wrapped: bool = True
    version: str = "v1"  # of the format of a wrapped message
    write_metadata: bool = False
    service_account: str = ""
    audience: str = ""

    @property
    def token_audience(self) -> str:
        """The `aud` of the token: the endpoint's URL unless the configuration names another."""
        return self.audience or self.url


@dataclass(frozen=True)
class PushMessage:
    """`delivery_attempt` is 0 without a dead-letter policy."""

    message_id: str
    publish_time: float
    data: bytes
    attributes: Mapping[str, str] = field(default_factory=dict)
    ordering_key: str = ""
    delivery_attempt: int = 0

    @classmethod
    def of(cls, message: Message, attempt: int) -> Self:
        return cls(message.id, message.published, message.data, message.attributes, message.key, attempt)


class Request(NamedTuple):
    headers: dict[str, str]
    body: bytes


def request(endpoint: Endpoint, subscription: str, message: PushMessage) -> Request:
    """Return the POST that delivers a message of `subscription` (full name)."""
    if endpoint.wrapped:
        envelope = _v1beta1_envelope if endpoint.version == "v1beta1" else _envelope
        return Request({"Content-Type": "application/json"}, envelope(subscription, message))
    kind = {"Content-Type": "application/octet-stream"}
    return Request(_headers(kind, subscription, message) if endpoint.write_metadata else kind, message.data)


def _envelope(subscription: str, message: PushMessage) -> bytes:
    published = timestamp(message.publish_time)
    fields: dict[str, Any] = {
        "attributes": dict(message.attributes),
        "data": base64.b64encode(message.data).decode(),
        "messageId": message.message_id,
        "message_id": message.message_id,
        "orderingKey": message.ordering_key,
        "publishTime": published,
        "publish_time": published,
    }
    document: dict[str, Any] = {
        "deliveryAttempt": message.delivery_attempt,
        "message": {name: value for name, value in fields.items() if value},
        "subscription": subscription,
    }
    return json.dumps({name: value for name, value in document.items() if value}).encode()


def _v1beta1_envelope(subscription: str, message: PushMessage) -> bytes:
    """Return the `PubsubEvent` of the API v1beta1, which Google has withdrawn.

    https://github.com/googleapis/google-api-go-client, pubsub/v1beta1a: labels for attributes, milliseconds as a text
    """
    fields: dict[str, Any] = {
        "data": base64.b64encode(message.data).decode(),
        "label": [{"key": name, "strValue": value} for name, value in message.attributes.items()],
        "messageId": message.message_id,
        "publishTime": str(round(message.publish_time * 1000)),
    }
    event = {"subscription": subscription, "message": {name: value for name, value in fields.items() if value}}
    return json.dumps(event).encode()


def _headers(kind: dict[str, str], subscription: str, message: PushMessage) -> dict[str, str]:
    """Return the attributes, and then Pub/Sub's own headers, which no attribute replaces."""
    own = {
        "x-goog-pubsub-subscription-name": subscription,
        "x-goog-pubsub-message-id": message.message_id,
        "x-goog-pubsub-publish-time": timestamp(message.publish_time),
    }
    if message.ordering_key:
        own["x-goog-pubsub-ordering-key"] = message.ordering_key
    headers: dict[str, tuple[str, str]] = {}  # by the name in lower case
    for name, value in (*kind.items(), *message.attributes.items(), *own.items()):
        fits = _HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value)
        if fits and name.lower() not in _RESERVED_HEADERS:
            headers[name.lower()] = (name, value)
    return dict(headers.values())


def timestamp(seconds: float) -> str:
    """Format seconds since 1970 as RFC 3339, with milliseconds unless they are zero."""
    stamp = timestamp_pb2.Timestamp()
    stamp.FromMilliseconds(round(seconds * 1000))
    return str(stamp.ToJsonString())


class Window:
    """The limit of concurrent requests to one endpoint, and the time before which none may start."""

    def __init__(self) -> None:
        self.size = FIRST_WINDOW_REQUESTS
        self.outstanding = 0
        self.resumes_at = 0.0
        self._pause = 0.0

    def room(self, now: float) -> int:
        """Return the number of requests that may start now."""
        return max(0, self.size - self.outstanding) if now >= self.resumes_at else 0

    def started(self) -> None:
        self.outstanding += 1

    def succeeded(self) -> None:
        """Allow one more concurrent request and end the pause."""
        self.outstanding -= 1
        self.size = min(self.size + 1, LARGEST_WINDOW_REQUESTS)
        self._pause = 0.0
        self.resumes_at = 0.0

    def failed(self, now: float, *, pauses: bool) -> None:
        """With `pauses`, also start no request for a while."""
        self.outstanding -= 1
        self.size = max(self.size // 2, 1)
        # Requests in flight that fail together are one failure: the pause grows once it is over.
        if pauses and now >= self.resumes_at:
            self._pause = min(max(self._pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            self.resumes_at = now + self._pause

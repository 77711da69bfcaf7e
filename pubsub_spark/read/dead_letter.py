"""Publishing what cannot be decoded to `deadLetterTopic`, with the reason, before the rows of its batch go on.

Runs in tasks. A task that is tried again publishes again: dead letters come at least once, told apart by the id of the
message that they stand for. Rare, so it goes message by message.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from ..backend import Backend, Connection
from ..backend.wire import published
from ..write.deadletter import ERROR_ATTRIBUTE
from ..write.limits import MAX_VALUE_BYTES, RESERVED_PREFIX

ID_ATTRIBUTE = "pubsub_spark_message_id"
SUBSCRIPTION_ATTRIBUTE = "pubsub_spark_subscription"
_TIMEOUT = 60.0  # seconds for one publish request, retries included
_PER_REQUEST = 100
_REQUEST_BYTES = 5_000_000


def publish(topic: str, subscription: str, messages: pa.RecordBatch, reasons: Sequence[str], backend: Backend) -> None:
    """Publish messages (schema MESSAGES) to a topic (a full name), each with its reason as an attribute.

    Raises ResourceError or ServiceError when Pub/Sub does not take them: then the batch fails and nothing is lost.
    """
    from google.pubsub_v1.types import PublishRequest

    with backend.connect() as connection:
        request = PublishRequest.pb()(topic=topic)
        for row, reason in zip(messages.to_pylist(), reasons, strict=True):
            request.messages.append(_letter(row, reason, subscription))
            if len(request.messages) >= _PER_REQUEST or request.ByteSize() >= _REQUEST_BYTES:
                _send(connection, topic, request)
                request = PublishRequest.pb()(topic=topic)
        if request.messages:
            _send(connection, topic, request)


def _letter(row: dict[str, Any], reason: str, subscription: str) -> Any:
    from google.pubsub_v1.types import PubsubMessage

    own = {key: value for key, value in row["attributes"] if not key.lower().startswith(RESERVED_PREFIX)}
    ours = {
        ERROR_ATTRIBUTE: reason.encode()[:MAX_VALUE_BYTES].decode(errors="ignore"),
        ID_ATTRIBUTE: row["message_id"],
        SUBSCRIPTION_ATTRIBUTE: subscription,
    }
    return PubsubMessage.pb()(data=row["data"], attributes=own | ours)


def _send(connection: Connection, topic: str, request: Any) -> None:
    published(connection, topic, request.SerializeToString(), time.monotonic() + _TIMEOUT)

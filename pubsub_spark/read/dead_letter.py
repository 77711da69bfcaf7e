"""Publishing what cannot be decoded to `deadLetterTopic`, with the reason, before the rows of its batch go on.

Runs in tasks. A task that is tried again publishes again: dead letters come at least once, told apart by the id of the
message that they stand for. `write` makes the dead letters and their requests, which are sent one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa

from ..backend import Backend
from ..backend.wire import published
from ..write.dead_letter import ERROR_ATTRIBUTE, dead_letters
from ..write.limits import MAX_REQUEST_BYTES, MAX_REQUEST_MESSAGES, message_sizes
from ..write.requests import encoded_requests

ID_ATTRIBUTE = "pubsub_spark_message_id"
SUBSCRIPTION_ATTRIBUTE = "pubsub_spark_subscription"
_TIMEOUT = 60.0  # seconds for one publish request, retries included


def publish(topic: str, subscription: str, messages: pa.RecordBatch, reasons: Sequence[str], backend: Backend) -> None:
    """Publish messages (schema MESSAGES) to a topic (a full name), each with its reason as an attribute.

    Raises ResourceError or ServiceError when Pub/Sub does not take them: then the batch fails and nothing is lost.
    """
    ids = messages.column("message_id").to_pylist()
    labels = (
        {ERROR_ATTRIBUTE: reason, ID_ATTRIBUTE: message_id, SUBSCRIPTION_ATTRIBUTE: subscription}
        for reason, message_id in zip(reasons, ids, strict=True)
    )
    letters = dead_letters(messages, enumerate(labels))
    with backend.connect() as connection:
        for request in encoded_requests(
            letters, message_sizes(letters), topic, MAX_REQUEST_MESSAGES, MAX_REQUEST_BYTES
        ):
            published(connection, topic, request.body, time.monotonic() + _TIMEOUT)

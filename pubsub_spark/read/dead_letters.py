"""Publishing undecodable messages to `deadLetterTopic`, with the reason, before Spark has their batch.

Runs in tasks. A retried task publishes again, so dead letters are published at least once. An attribute has the id of
the original message.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ..backend import Backend
from ..publish.dead_letters import ERROR_ATTRIBUTE, dead_letters
from ..publish.limits import MAX_REQUEST_BYTES, MAX_REQUEST_MESSAGES, message_sizes
from ..publish.requests import encoded_requests

ID_ATTRIBUTE = "pubsub_spark_message_id"
SUBSCRIPTION_ATTRIBUTE = "pubsub_spark_subscription"


def publish(
    topic: str,
    subscription: str,
    messages: pa.RecordBatch,
    reasons: Sequence[str],
    backend: Backend,
    timeout: float = 60.0,
) -> None:
    """Publish messages (schema MESSAGES) to a topic (a full name), each with its reason as an attribute.

    timeout: seconds for one request, retries included.

    Raises ResourceError or ServiceError. Then the batch fails and nothing is lost.
    """
    from google.pubsub_v1 import types

    ids = messages.column("message_id").to_pylist()
    labels = (
        {ERROR_ATTRIBUTE: reason, ID_ATTRIBUTE: message_id, SUBSCRIPTION_ATTRIBUTE: subscription}
        for reason, message_id in zip(reasons, ids, strict=True)
    )
    published = dead_letters(messages, enumerate(labels))
    with backend.connect() as connection:
        sizes = message_sizes(published)
        for request in encoded_requests(published, sizes, topic, MAX_REQUEST_MESSAGES, MAX_REQUEST_BYTES):
            parsed = types.PublishRequest.deserialize(request.body)
            connection.admin.publish(topic, parsed.messages, timeout)

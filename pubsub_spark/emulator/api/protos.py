"""The message classes of google.pubsub.v1, without the proto-plus wrapping of the client library.

The client library ships no `pb2` modules; its wrapped classes hand out the protobuf ones behind them.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import duration_pb2, empty_pb2, field_mask_pb2, json_format, timestamp_pb2
from google.pubsub_v1.types import pubsub, schema

Empty: Any = empty_pb2.Empty
Duration: Any = duration_pb2.Duration
Timestamp: Any = timestamp_pb2.Timestamp
FieldMask: Any = field_mask_pb2.FieldMask

AcknowledgeRequest: Any = pubsub.AcknowledgeRequest.pb()
CreateSnapshotRequest: Any = pubsub.CreateSnapshotRequest.pb()
DeleteSnapshotRequest: Any = pubsub.DeleteSnapshotRequest.pb()
DeleteSubscriptionRequest: Any = pubsub.DeleteSubscriptionRequest.pb()
DeleteTopicRequest: Any = pubsub.DeleteTopicRequest.pb()
DetachSubscriptionRequest: Any = pubsub.DetachSubscriptionRequest.pb()
DetachSubscriptionResponse: Any = pubsub.DetachSubscriptionResponse.pb()
GetSnapshotRequest: Any = pubsub.GetSnapshotRequest.pb()
GetSubscriptionRequest: Any = pubsub.GetSubscriptionRequest.pb()
GetTopicRequest: Any = pubsub.GetTopicRequest.pb()
ListSnapshotsRequest: Any = pubsub.ListSnapshotsRequest.pb()
ListSnapshotsResponse: Any = pubsub.ListSnapshotsResponse.pb()
ListSubscriptionsRequest: Any = pubsub.ListSubscriptionsRequest.pb()
ListSubscriptionsResponse: Any = pubsub.ListSubscriptionsResponse.pb()
ListTopicSnapshotsRequest: Any = pubsub.ListTopicSnapshotsRequest.pb()
ListTopicSnapshotsResponse: Any = pubsub.ListTopicSnapshotsResponse.pb()
ListTopicSubscriptionsRequest: Any = pubsub.ListTopicSubscriptionsRequest.pb()
ListTopicSubscriptionsResponse: Any = pubsub.ListTopicSubscriptionsResponse.pb()
ListTopicsRequest: Any = pubsub.ListTopicsRequest.pb()
ListTopicsResponse: Any = pubsub.ListTopicsResponse.pb()
ModifyAckDeadlineRequest: Any = pubsub.ModifyAckDeadlineRequest.pb()
ModifyPushConfigRequest: Any = pubsub.ModifyPushConfigRequest.pb()
PublishRequest: Any = pubsub.PublishRequest.pb()
PublishResponse: Any = pubsub.PublishResponse.pb()
PubsubMessage: Any = pubsub.PubsubMessage.pb()
PullRequest: Any = pubsub.PullRequest.pb()
PullResponse: Any = pubsub.PullResponse.pb()
PushConfig: Any = pubsub.PushConfig.pb()
SeekRequest: Any = pubsub.SeekRequest.pb()
SeekResponse: Any = pubsub.SeekResponse.pb()
Snapshot: Any = pubsub.Snapshot.pb()
StreamingPullRequest: Any = pubsub.StreamingPullRequest.pb()
StreamingPullResponse: Any = pubsub.StreamingPullResponse.pb()
Subscription: Any = pubsub.Subscription.pb()
Topic: Any = pubsub.Topic.pb()
UpdateSnapshotRequest: Any = pubsub.UpdateSnapshotRequest.pb()
UpdateSubscriptionRequest: Any = pubsub.UpdateSubscriptionRequest.pb()
UpdateTopicRequest: Any = pubsub.UpdateTopicRequest.pb()

CommitSchemaRequest: Any = schema.CommitSchemaRequest.pb()
CreateSchemaRequest: Any = schema.CreateSchemaRequest.pb()
DeleteSchemaRequest: Any = schema.DeleteSchemaRequest.pb()
DeleteSchemaRevisionRequest: Any = schema.DeleteSchemaRevisionRequest.pb()
GetSchemaRequest: Any = schema.GetSchemaRequest.pb()
ListSchemaRevisionsRequest: Any = schema.ListSchemaRevisionsRequest.pb()
ListSchemaRevisionsResponse: Any = schema.ListSchemaRevisionsResponse.pb()
ListSchemasRequest: Any = schema.ListSchemasRequest.pb()
ListSchemasResponse: Any = schema.ListSchemasResponse.pb()
RollbackSchemaRequest: Any = schema.RollbackSchemaRequest.pb()
Schema: Any = schema.Schema.pb()
ValidateMessageRequest: Any = schema.ValidateMessageRequest.pb()
ValidateMessageResponse: Any = schema.ValidateMessageResponse.pb()
ValidateSchemaRequest: Any = schema.ValidateSchemaRequest.pb()
ValidateSchemaResponse: Any = schema.ValidateSchemaResponse.pb()

# What protobuf's reader of JSON leaves to Python to complain of, and what is meant.
_PYTHON = (
    (re.compile(r"expected string or bytes-like object, got '[\w.]+'"), "the value must be a text, in quotes"),
    (re.compile(r"'\w+' object (is not iterable|has no attribute '\w+')"), "the value must be a mapping of fields"),
)


def complaint(error: json_format.ParseError) -> str:
    """What a document that cannot be read is refused with, as one sentence; in its other lines are the known fields."""
    text = str(error).partition("\n")[0]
    for pattern, meaning in _PYTHON:
        text = pattern.sub(meaning, text)
    return f"{text.rstrip('.')}."

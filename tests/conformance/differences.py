"""The different answers of our emulator and Google's, step by step, and the source that decides that ours is right.

A difference is either of the status codes (ours, Google's) or of the parts of the answer that differ. The table must be
exact: a step that is listed and does not differ, or differs otherwise, fails. Sources are the API's own documentation
(the protos' comments and cloud.google.com/pubsub/docs), or answers of the service that others have recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Filled in by the service in every Subscription and left out by Google's emulator. The step `a subscription is created`
# and the test of these two check that they are there.
FILLED_IN = {
    "state": "Subscription.state: an output-only field indicating whether the subscription can receive messages",
    "expirationPolicy": "Subscription.expiration_policy: if not set, a default policy with ttl of 31 days will be used",
}


class Codes(NamedTuple):
    """Other status codes."""

    ours: str
    google: str
    because: str


class Parts(NamedTuple):
    """Other contents, in these fields of the answer."""

    fields: frozenset[str]
    because: str


_MASK = "UpdateTopic and UpdateSubscription: everything but what is called immutable can be changed"
_SIZES = "quotas and limits: attributes per message 100, key 256 bytes, value 1024 bytes, ordering key 1024 bytes"
_PAGE = "recorded from the service: `The value for page_size is out of bounds`"
_FILTER = "subscription-message-filter: 256 bytes, evaluated when messages are published, invalid ones are refused"
_DETACH = "DetachSubscription: Pull and StreamingPull requests will return FAILED_PRECONDITION"
_IAM = "google.iam.v1.IAMPolicy is served for topics, subscriptions, snapshots and schemas"

INVALID, OK, FAILED = "INVALID_ARGUMENT", "OK", "FAILED_PRECONDITION"

DIFFERENCES: Mapping[str, Codes | Parts] = {
    "a page of negative size is asked for": Codes(INVALID, OK, _PAGE),
    "a page token is made up": Codes(INVALID, OK, "recorded from the service: `Invalid page token given`"),
    "topics of no project are listed": Codes(INVALID, "UNKNOWN", "ListTopicsRequest.project: format is projects/{id}"),
    "a topic's retention is cleared": Parts(
        frozenset({"messageRetentionDuration"}),
        "Topic.message_retention_duration: if this field is not set, retention is controlled by subscriptions",
    ),
    "a topic's labels are changed": Codes(OK, INVALID, _MASK),
    "a label's key is in capitals": Codes(INVALID, OK, "labels: keys are lower case"),
    "two ordering keys share a request": Codes(
        INVALID, OK, "PubsubMessage.ordering_key: all messages of a PublishRequest must specify the same value"
    ),
    "an attribute begins with goog": Codes(INVALID, OK, "publish overview: attribute keys must not begin with goog"),
    "an attribute has no key": Codes(INVALID, OK, "recorded from the service: attribute keys must be non-empty"),
    "an attribute is longer than 1024 bytes": Codes(INVALID, OK, _SIZES),
    "a message has 101 attributes": Codes(INVALID, OK, _SIZES),
    "an ordering key is longer than 1024 bytes": Codes(INVALID, OK, _SIZES),
    "an ack deadline is below 10": Codes(INVALID, OK, "Subscription.ack_deadline_seconds: the minimum is 10 seconds"),
    "an ack deadline is changed to 5": Codes(
        INVALID, OK, "Subscription.ack_deadline_seconds: the minimum is 10 seconds"
    ),
    "a subscription keeps messages for a month": Codes(
        OK, INVALID, "Subscription.message_retention_duration, current proto: cannot be more than 31 days"
    ),
    "a subscription expires too soon": Codes(INVALID, OK, "expiration_policy.ttl: the minimum allowed value is 1 day"),
    "a dead-letter policy allows 4 attempts": Codes(
        INVALID, "OUT_OF_RANGE", "max_delivery_attempts must be between 5 and 100; the code is documented nowhere"
    ),
    "a push subscription is created": Parts(
        frozenset({"pushConfig"}), "x-goog-version: GetSubscription calls will always return a valid version"
    ),
    "a push version is unknown": Codes(
        INVALID, OK, "PushConfig.attributes: the only supported values of x-goog-version"
    ),
    "a subscription has two ways to deliver": Codes(
        INVALID, OK, "Subscription: at most one of push_config, bigquery_config, ... may be set"
    ),
    "subscriptions of a missing topic are listed": Codes("NOT_FOUND", OK, "recorded from the service"),
    "a subscription's labels are changed": Codes(OK, INVALID, _MASK),
    "a subscription's expiration is changed": Codes(OK, INVALID, _MASK),
    "a lease is prolonged beyond 600 s": Codes(INVALID, OK, "ModifyAckDeadlineRequest: the maximum is 600 seconds"),
    "less than no messages are asked for": Codes(INVALID, OK, "PullRequest.max_messages: must be a positive integer"),
    "a filter is no filter": Codes(INVALID, OK, _FILTER),
    "a filter is longer than 256 bytes": Codes(INVALID, OK, _FILTER),
    "what the filter lets through is pulled": Parts(frozenset({"receivedMessages"}), _FILTER),
    "the key is delivered again from the nacked message on": Parts(
        frozenset({"receivedMessages"}),
        "ordering: redelivers every subsequent message with the same ordering key",
    ),
    "a whole key is acknowledged": Codes(OK, INVALID, "follows from the step before: Google's had nothing to deliver"),
    "exactly-once is asked of a push subscription": Codes(
        INVALID, OK, "exactly-once delivery: push and export subscriptions do not support it"
    ),
    "a snapshot has labels": Parts(frozenset({"labels"}), "CreateSnapshotRequest.labels"),
    "snapshots are listed": Parts(frozenset({"snapshots"}), "Snapshot.labels"),
    "a snapshot's labels are changed": Codes(OK, "UNIMPLEMENTED", "UpdateSnapshot"),
    "an ordered subscription seeks to the past": Codes(OK, "UNIMPLEMENTED", "Seek knows no such exception"),
    "a schema is of Protocol Buffers": Codes(OK, "UNIMPLEMENTED", "Schema.Type.PROTOCOL_BUFFER"),
    "revisions are listed without a view": Parts(
        frozenset({"schemas"}), "ListSchemaRevisionsRequest.view: if not set, returns Schemas without definition"
    ),
    "a binary message with bytes to spare is validated": Codes(
        INVALID, OK, "ValidateMessage: a datum with trailing bytes is not an encoding of the schema"
    ),
    "an incompatible revision is committed": Codes(
        INVALID, OK, "commit a schema revision: the new revision must be compatible in both directions"
    ),
    "a subscription is detached": Codes(OK, "UNIMPLEMENTED", "DetachSubscription"),
    "a detached subscription is pulled": Codes(FAILED, OK, _DETACH),
    "a missing subscription is detached": Codes("NOT_FOUND", "UNIMPLEMENTED", "DetachSubscription"),
    "a push subscription is pulled": Codes(FAILED, OK, "recorded from the service: `not supported for this type`"),
    "a policy is read": Codes(OK, "UNIMPLEMENTED", _IAM),
    "a policy is set": Codes(OK, "UNIMPLEMENTED", _IAM),
    "permissions are tested": Codes(OK, "UNIMPLEMENTED", _IAM),
}

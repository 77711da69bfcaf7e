"""The table of RPCs: which method is answered by which handler, and how.

The handlers of one emulator, made once. Most take a request message and return a response message; those of the hot
calls (Publish, Pull, Acknowledge, ModifyAckDeadline) take and return bytes. StreamingPull, the one stream, is not in
the table: the dispatcher knows it by name. An RPC that stands nowhere is UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.iam.v1 import iam_policy_pb2

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.handlers.iam import IamPolicy
from pubsub_spark.emulator.handlers.publisher import Publisher
from pubsub_spark.emulator.handlers.schemas import SchemaService
from pubsub_spark.emulator.handlers.snapshots import Snapshots
from pubsub_spark.emulator.handlers.subscriber import Subscriber
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.state import wire_format

PUBLISHER = "google.pubsub.v1.Publisher"
SUBSCRIBER = "google.pubsub.v1.Subscriber"
SCHEMA_SERVICE = "google.pubsub.v1.SchemaService"
IAM_POLICY = "google.iam.v1.IAMPolicy"
STREAMING_PULL = f"/{SUBSCRIBER}/StreamingPull"

# RPCs that may take more than a few milliseconds: they compile schemas, or go through a backlog.
_SLOW = frozenset(
    {"CreateSchema", "CommitSchema", "RollbackSchema", "ValidateSchema", "ValidateMessage", "CreateSnapshot", "Seek"}
)
_LARGE_PUBLISH_BYTES = 1_000_000
_MAX_NAME_BYTES = 1000


class Rpc(NamedTuple):
    """How an RPC is answered."""

    handler: Callable[..., Any]  # takes the request's bytes, and the context when it `waits`; returns the response's
    is_slow: Callable[[bytes], bool]  # whether this request belongs on the pool
    waits: bool = False  # the handler is a coroutine function


class Registry:
    """The handlers over one engine."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        self._engine = engine
        self.publisher = Publisher(engine)
        self.subscriber = Subscriber(engine, faults)
        self.snapshots = Snapshots(engine)
        self.schemas = SchemaService(engine)
        self.iam = IamPolicy(engine)

    def table(self) -> dict[str, Rpc]:
        """The RPCs with one request by method, as in `/google.pubsub.v1.Publisher/Publish`."""
        table = {
            f"/{service}/{name}": Rpc(_parsing(request, handler), _always if name in _SLOW else _never)
            for service, rpcs in self._messages().items()
            for name, (request, handler) in rpcs.items()
        }
        subscriber = self.subscriber
        table[f"/{PUBLISHER}/Publish"] = Rpc(self.publisher.publish, self._is_slow_publish)
        table[f"/{SUBSCRIBER}/Pull"] = Rpc(subscriber.pull, _never, waits=True)
        table[f"/{SUBSCRIBER}/Acknowledge"] = Rpc(subscriber.acknowledge, _never)
        table[f"/{SUBSCRIBER}/ModifyAckDeadline"] = Rpc(subscriber.modify_ack_deadline, _never)
        return table

    def _messages(self) -> Mapping[str, Mapping[str, tuple[Any, Callable[[Any], Any]]]]:
        """The handlers that take and return messages, each with its request class, by service and name."""
        publisher, subscriber, snapshots, schemas, iam = (
            self.publisher,
            self.subscriber,
            self.snapshots,
            self.schemas,
            self.iam,
        )
        return {
            PUBLISHER: {
                "CreateTopic": (protos.Topic, publisher.create_topic),
                "UpdateTopic": (protos.UpdateTopicRequest, publisher.update_topic),
                "GetTopic": (protos.GetTopicRequest, publisher.get_topic),
                "ListTopics": (protos.ListTopicsRequest, publisher.list_topics),
                "ListTopicSubscriptions": (protos.ListTopicSubscriptionsRequest, publisher.list_topic_subscriptions),
                "ListTopicSnapshots": (protos.ListTopicSnapshotsRequest, publisher.list_topic_snapshots),
                "DeleteTopic": (protos.DeleteTopicRequest, publisher.delete_topic),
                "DetachSubscription": (protos.DetachSubscriptionRequest, publisher.detach_subscription),
            },
            SUBSCRIBER: {
                "CreateSubscription": (protos.Subscription, subscriber.create_subscription),
                "GetSubscription": (protos.GetSubscriptionRequest, subscriber.get_subscription),
                "UpdateSubscription": (protos.UpdateSubscriptionRequest, subscriber.update_subscription),
                "ListSubscriptions": (protos.ListSubscriptionsRequest, subscriber.list_subscriptions),
                "DeleteSubscription": (protos.DeleteSubscriptionRequest, subscriber.delete_subscription),
                "ModifyPushConfig": (protos.ModifyPushConfigRequest, subscriber.modify_push_config),
                "GetSnapshot": (protos.GetSnapshotRequest, snapshots.get_snapshot),
                "ListSnapshots": (protos.ListSnapshotsRequest, snapshots.list_snapshots),
                "CreateSnapshot": (protos.CreateSnapshotRequest, snapshots.create_snapshot),
                "UpdateSnapshot": (protos.UpdateSnapshotRequest, snapshots.update_snapshot),
                "DeleteSnapshot": (protos.DeleteSnapshotRequest, snapshots.delete_snapshot),
                "Seek": (protos.SeekRequest, snapshots.seek),
            },
            SCHEMA_SERVICE: {
                "CreateSchema": (protos.CreateSchemaRequest, schemas.create_schema),
                "GetSchema": (protos.GetSchemaRequest, schemas.get_schema),
                "ListSchemas": (protos.ListSchemasRequest, schemas.list_schemas),
                "ListSchemaRevisions": (protos.ListSchemaRevisionsRequest, schemas.list_schema_revisions),
                "CommitSchema": (protos.CommitSchemaRequest, schemas.commit_schema),
                "RollbackSchema": (protos.RollbackSchemaRequest, schemas.rollback_schema),
                "DeleteSchemaRevision": (protos.DeleteSchemaRevisionRequest, schemas.delete_schema_revision),
                "DeleteSchema": (protos.DeleteSchemaRequest, schemas.delete_schema),
                "ValidateSchema": (protos.ValidateSchemaRequest, schemas.validate_schema),
                "ValidateMessage": (protos.ValidateMessageRequest, schemas.validate_message),
            },
            IAM_POLICY: {
                "GetIamPolicy": (iam_policy_pb2.GetIamPolicyRequest, iam.get_iam_policy),
                "SetIamPolicy": (iam_policy_pb2.SetIamPolicyRequest, iam.set_iam_policy),
                "TestIamPermissions": (iam_policy_pb2.TestIamPermissionsRequest, iam.test_iam_permissions),
            },
        }

    def _is_slow_publish(self, raw: bytes) -> bool:
        """Whether a Publish is large, or its topic has a schema; one whose topic does not come first may have."""
        name, _ = wire_format.subscription_and_rest(raw[:_MAX_NAME_BYTES])  # a PublishRequest begins alike
        topic = self._engine.broker.topics.get(name)
        has_schema = topic.resource.HasField("schema_settings") if topic else not name
        return has_schema or len(raw) > _LARGE_PUBLISH_BYTES

    def reset(self) -> None:
        """Forget every resource and the time that was moved; open streams end with NOT_FOUND."""
        with self._engine.open():
            self._engine.state.clear()
            self._engine.restart_clock()


def _parsing(request: Any, handler: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    def parse_and_handle(raw: bytes) -> bytes:
        response: bytes = handler(request.FromString(raw)).SerializeToString()
        return response

    return parse_and_handle


def _never(_: bytes) -> bool:
    return False


def _always(_: bytes) -> bool:
    return True

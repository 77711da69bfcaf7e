"""Which RPC is answered by which handler.

The handlers of one emulator, made once, and the table of its RPCs: request class and handler, by service. The hot calls
(Publish, Pull, StreamingPull, Acknowledge, ModifyAckDeadline) are not in the table: they take bytes, and the server
knows them by name. An RPC that stands nowhere is UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from google.iam.v1 import iam_policy_pb2

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.handlers.iam import IamPolicy, Policies
from pubsub_spark.emulator.handlers.publisher import Publisher
from pubsub_spark.emulator.handlers.schemas import SchemaService
from pubsub_spark.emulator.handlers.snapshots import Snapshots
from pubsub_spark.emulator.handlers.subscriber import Subscriber
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.sinks.push_worker import PushWorkers
from pubsub_spark.emulator.state.schema_store import Schemas

PUBLISHER = "google.pubsub.v1.Publisher"
SUBSCRIBER = "google.pubsub.v1.Subscriber"
SCHEMA_SERVICE = "google.pubsub.v1.SchemaService"
IAM_POLICY = "google.iam.v1.IAMPolicy"


class Rpc(NamedTuple):
    """A request class, and the handler that takes one and returns the response."""

    request: Any
    handler: Callable[[Any], Any]


class Registry:
    """The handlers over one engine."""

    def __init__(self, engine: Engine, faults: Faults, push_workers: PushWorkers) -> None:
        self._engine = engine
        self._definitions = Schemas()
        engine.add_listener(push_workers.follow)
        self.publisher = Publisher(engine, self._definitions)
        self.subscriber = Subscriber(engine, faults)
        self.snapshots = Snapshots(engine)
        self.schemas = SchemaService(engine, self._definitions)
        broker = engine.broker
        resources = (broker.topics, broker.subscriptions, broker.snapshots, self._definitions)
        self.iam = IamPolicy(engine, Policies(), resources)

    def table(self) -> Mapping[str, Mapping[str, Rpc]]:
        """The RPCs by service and name."""
        publisher, subscriber, snapshots, schemas, iam = (
            self.publisher,
            self.subscriber,
            self.snapshots,
            self.schemas,
            self.iam,
        )
        return {
            PUBLISHER: {
                "CreateTopic": Rpc(protos.Topic, publisher.create_topic),
                "UpdateTopic": Rpc(protos.UpdateTopicRequest, publisher.update_topic),
                "GetTopic": Rpc(protos.GetTopicRequest, publisher.get_topic),
                "ListTopics": Rpc(protos.ListTopicsRequest, publisher.list_topics),
                "ListTopicSubscriptions": Rpc(protos.ListTopicSubscriptionsRequest, publisher.list_topic_subscriptions),
                "ListTopicSnapshots": Rpc(protos.ListTopicSnapshotsRequest, publisher.list_topic_snapshots),
                "DeleteTopic": Rpc(protos.DeleteTopicRequest, publisher.delete_topic),
                "DetachSubscription": Rpc(protos.DetachSubscriptionRequest, publisher.detach_subscription),
            },
            SUBSCRIBER: {
                "CreateSubscription": Rpc(protos.Subscription, subscriber.create_subscription),
                "GetSubscription": Rpc(protos.GetSubscriptionRequest, subscriber.get_subscription),
                "UpdateSubscription": Rpc(protos.UpdateSubscriptionRequest, subscriber.update_subscription),
                "ListSubscriptions": Rpc(protos.ListSubscriptionsRequest, subscriber.list_subscriptions),
                "DeleteSubscription": Rpc(protos.DeleteSubscriptionRequest, subscriber.delete_subscription),
                "ModifyPushConfig": Rpc(protos.ModifyPushConfigRequest, subscriber.modify_push_config),
                "GetSnapshot": Rpc(protos.GetSnapshotRequest, snapshots.get_snapshot),
                "ListSnapshots": Rpc(protos.ListSnapshotsRequest, snapshots.list_snapshots),
                "CreateSnapshot": Rpc(protos.CreateSnapshotRequest, snapshots.create_snapshot),
                "UpdateSnapshot": Rpc(protos.UpdateSnapshotRequest, snapshots.update_snapshot),
                "DeleteSnapshot": Rpc(protos.DeleteSnapshotRequest, snapshots.delete_snapshot),
                "Seek": Rpc(protos.SeekRequest, snapshots.seek),
            },
            SCHEMA_SERVICE: {
                "CreateSchema": Rpc(protos.CreateSchemaRequest, schemas.create_schema),
                "GetSchema": Rpc(protos.GetSchemaRequest, schemas.get_schema),
                "ListSchemas": Rpc(protos.ListSchemasRequest, schemas.list_schemas),
                "ListSchemaRevisions": Rpc(protos.ListSchemaRevisionsRequest, schemas.list_schema_revisions),
                "CommitSchema": Rpc(protos.CommitSchemaRequest, schemas.commit_schema),
                "RollbackSchema": Rpc(protos.RollbackSchemaRequest, schemas.rollback_schema),
                "DeleteSchemaRevision": Rpc(protos.DeleteSchemaRevisionRequest, schemas.delete_schema_revision),
                "DeleteSchema": Rpc(protos.DeleteSchemaRequest, schemas.delete_schema),
                "ValidateSchema": Rpc(protos.ValidateSchemaRequest, schemas.validate_schema),
                "ValidateMessage": Rpc(protos.ValidateMessageRequest, schemas.validate_message),
            },
            IAM_POLICY: {
                "GetIamPolicy": Rpc(iam_policy_pb2.GetIamPolicyRequest, iam.get_iam_policy),
                "SetIamPolicy": Rpc(iam_policy_pb2.SetIamPolicyRequest, iam.set_iam_policy),
                "TestIamPermissions": Rpc(iam_policy_pb2.TestIamPermissionsRequest, iam.test_iam_permissions),
            },
        }

    def reset(self) -> None:
        """Forget every resource and the time that was moved; open streams end with NOT_FOUND."""
        with self._engine.open() as (broker, _):
            broker.clear()
            self._definitions.clear()
            self._engine.restart_clock()

"""Resources as serialized protobuf messages, for `State.dump` and `State.load`."""

from __future__ import annotations

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.resources import resource_validation
from pubsub_spark.emulator.state.dump import ResourceFormat

RESOURCE_FORMAT = ResourceFormat(
    write=lambda resource: resource.SerializeToString(),
    read={
        "topics": protos.Topic.FromString,
        "subscriptions": protos.Subscription.FromString,
        "snapshots": protos.Snapshot.FromString,
    },
    settings=resource_validation.settings,
)

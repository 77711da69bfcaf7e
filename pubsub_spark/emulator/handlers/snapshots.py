"""The handlers of snapshots, and of Seek to a snapshot or a time."""

from __future__ import annotations

import secrets
from typing import Any

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import already_exists, failed_precondition, invalid, not_found
from pubsub_spark.emulator.handlers.subscriber import find
from pubsub_spark.emulator.resources import field_masks, limits, pagination, resource_validation
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.topic import Snapshot

_MUTABLE = frozenset({"labels", "expire_time"})


class Snapshots:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create_snapshot(self, request: Any) -> Any:
        limits.check_labels(request.labels)
        project = limits.check_name(request.subscription, "subscriptions").partition("/subscriptions/")[0]
        name = limits.check_name(request.name or f"{project}/snapshots/s-{secrets.token_hex(8)}", "snapshots")
        with self._engine.open() as (broker, now):
            if name in broker.snapshots:
                raise already_exists(name)
            subscription = find(broker, request.subscription)
            topic = broker.topic_of(subscription.name)
            if topic is None:
                raise failed_precondition(f"Subscription `{subscription.name}` has no topic to take a snapshot of.")
            expires = broker.snapshot_expiry(subscription, now)
            if expires < now + limits.HOUR:
                raise failed_precondition(
                    "The subscription's backlog is too old: the snapshot would expire in less than one hour."
                )
            resource = protos.Snapshot(name=name, topic=topic.name, labels=request.labels)
            resource.expire_time.FromMilliseconds(int(expires * 1000))
            broker.create_snapshot(name, subscription, expires, now, resource)
            return resource

    def get_snapshot(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            return _find(broker, request.snapshot).resource

    def update_snapshot(self, request: Any) -> Any:
        with self._engine.open() as (broker, now):
            snapshot = _find(broker, request.snapshot.name)
            changed = field_masks.updated(snapshot.resource, request.snapshot, request.update_mask.paths, _MUTABLE)
            resource_validation.check_values(changed)
            limits.check_labels(changed.labels)
            expires = seconds(changed.expire_time)
            if changed.expire_time != snapshot.resource.expire_time:
                if not now < expires <= snapshot.expires:
                    raise invalid("The expire_time of a snapshot can only be moved to an earlier moment in the future.")
            else:
                expires = snapshot.expires  # more precise than in the resource
            broker.update_snapshot(snapshot, changed, expires)
            return changed

    def list_snapshots(self, request: Any) -> Any:
        with self._engine.open() as (broker, _):
            resources, token = pagination.of_project(broker.snapshots, request)
            return protos.ListSnapshotsResponse(snapshots=resources, next_page_token=token)

    def delete_snapshot(self, request: Any) -> Any:
        with self._engine.open() as (broker, now):
            broker.delete_snapshot(_find(broker, request.snapshot), now)
            return protos.Empty()

    def seek(self, request: Any) -> Any:
        target = request.WhichOneof("target")
        if target is None:
            raise invalid("A Seek needs a target: a time or a snapshot.")
        resource_validation.check_values(request)
        with self._engine.open() as (broker, now):
            subscription = find(broker, request.subscription)
            if subscription.resource.detached:
                raise failed_precondition(f"Subscription `{subscription.name}` is detached from its topic.")
            if target == "time":
                broker.seek_to_time(subscription, seconds(request.time), now)
                return protos.SeekResponse()
            snapshot = _find(broker, request.snapshot)
            if broker.origin_of(subscription.name) is not snapshot.topic:
                raise failed_precondition(
                    f"Snapshot `{snapshot.name}` is of another topic than subscription `{subscription.name}`."
                )
            broker.seek_to_snapshot(subscription, snapshot, now)
            return protos.SeekResponse()


def _find(broker: Broker, name: str) -> Snapshot:
    snapshot = broker.snapshots.get(name)
    if snapshot is None:
        raise not_found(limits.check_name(name, "snapshots"))
    return snapshot


def seconds(timestamp: Any) -> float:
    return float(timestamp.seconds + timestamp.nanos / 1e9)

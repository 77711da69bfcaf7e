"""Snapshots and Seek: redelivered messages and refused requests. No socket. The clock moves by hand."""

from __future__ import annotations

from typing import Any

from google.protobuf import field_mask_pb2, timestamp_pb2

from pubsub_spark.emulator.api import protos
from tests.unit.emulator.conftest import DAY, SNAPSHOT, SUBSCRIPTION, TOPIC, data, refused, seconds


def test_topic_retention_serves_a_new_subscription_by_seek(handlers):
    """A new subscription starts empty. Seek brings back messages that the topic retains from before its creation."""
    handlers.topic(message_retention_duration=seconds(600))
    handlers.publish("before")
    handlers.subscription()
    assert [] == handlers.pull()

    handlers.snapshots.seek(protos.SeekRequest(subscription=SUBSCRIPTION, time=timestamp_pb2.Timestamp()))
    assert ["before"] == data(handlers.pull())
    handlers.engine.advance(700)
    handlers.subscription("projects/p/subscriptions/late")
    late = protos.SeekRequest(subscription="projects/p/subscriptions/late", time=timestamp_pb2.Timestamp())
    handlers.snapshots.seek(late)
    assert [] == handlers.pull("projects/p/subscriptions/late")


def test_seek_to_the_future_purges_what_there_is(pair):
    """A Seek to the future acks the backlog. Later messages are delivered, although that time has not come."""
    pair.publish("old")
    time = timestamp_pb2.Timestamp(seconds=int(pair.engine.clock.now()) + DAY)
    pair.snapshots.seek(protos.SeekRequest(subscription=SUBSCRIPTION, time=time))
    pair.publish("new")
    assert ["new"] == data(pair.pull())


def test_snapshot_brings_back_a_backlog(pair):
    """A snapshot brings back all messages that were unacked at its creation and all later ones, also on a sibling
    subscription.
    """
    pair.subscription("projects/p/subscriptions/sibling")
    pair.publish("acked", "unacked")
    pair.ack(pair.pull(most=1)[0])
    pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION))
    pair.publish("later")
    for subscription in (SUBSCRIPTION, "projects/p/subscriptions/sibling"):
        pair.ack(*pair.pull(subscription), subscription=subscription)
        pair.snapshots.seek(protos.SeekRequest(subscription=subscription, snapshot=SNAPSHOT))
        assert ["unacked", "later"] == data(pair.pull(subscription))


def test_snapshot_of_another_topic_does_not_fit(pair):
    """A snapshot and the subscription that seeks to it must be on the same topic."""
    pair.topic(TOPIC + "2")
    pair.subscription("projects/p/subscriptions/other", topic=TOPIC + "2")
    pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION))
    request = protos.SeekRequest(subscription="projects/p/subscriptions/other", snapshot=SNAPSHOT)
    assert "FAILED_PRECONDITION" == refused(lambda: pair.snapshots.seek(request))[0]
    assert "INVALID_ARGUMENT" == refused(lambda: pair.snapshots.seek(protos.SeekRequest(subscription=SUBSCRIPTION)))[0]


def test_snapshot_lives_for_a_week_less_the_age_of_its_backlog(pair):
    """A three days old backlog leaves four days. After that the snapshot is gone."""
    pair.publish("x")
    pair.engine.advance(3 * DAY)
    now = pair.engine.clock.now()
    made = pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION))
    assert abs(made.expire_time.seconds - (now + 4 * DAY)) < 60
    pair.engine.advance(4 * DAY)
    assert "NOT_FOUND" == refused(lambda: pair.snapshots.get_snapshot(protos.GetSnapshotRequest(snapshot=SNAPSHOT)))[0]


def test_snapshot_of_too_old_a_backlog_is_refused(pair):
    """A snapshot that would expire in less than an hour is refused."""
    pair.publish("x")
    pair.engine.advance(7 * DAY - 1800)
    request = protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION)
    assert "FAILED_PRECONDITION" == refused(lambda: pair.snapshots.create_snapshot(request))[0]


def test_snapshot_labels_can_be_changed(pair):
    """A snapshot's labels can be changed, and it can be listed and deleted."""
    pair.snapshots.create_snapshot(
        protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION, labels={"a": "x"})
    )
    pair.snapshots.update_snapshot(
        protos.UpdateSnapshotRequest(
            snapshot=protos.Snapshot(name=SNAPSHOT, labels={"b": "y"}),
            update_mask=field_mask_pb2.FieldMask(paths=["labels"]),
        )
    )
    listed = pair.snapshots.list_snapshots(protos.ListSnapshotsRequest(project="projects/p")).snapshots
    assert [{"b": "y"}] == [dict(snapshot.labels) for snapshot in listed]
    pair.snapshots.delete_snapshot(protos.DeleteSnapshotRequest(snapshot=SNAPSHOT))
    named = pair.publisher.list_topic_snapshots(protos.ListTopicSnapshotsRequest(topic=TOPIC)).snapshots
    assert [] == list(named)


def test_snapshot_is_made_once_and_with_legal_labels(pair):
    """A refused CreateSnapshot neither makes nor replaces a snapshot."""

    def make(**labels: str) -> Any:
        request = protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION, labels=labels)
        return pair.snapshots.create_snapshot(request)

    assert "INVALID_ARGUMENT" == refused(lambda: make(Upper="x"))[0]
    assert {"a": "x"} == dict(make(a="x").labels)
    assert "ALREADY_EXISTS" == refused(make)[0]
    update = protos.UpdateSnapshotRequest(
        snapshot=protos.Snapshot(name=SNAPSHOT, labels={"Upper": "x"}),
        update_mask=field_mask_pb2.FieldMask(paths=["labels"]),
    )
    assert "INVALID_ARGUMENT" == refused(lambda: pair.snapshots.update_snapshot(update))[0]


def test_what_is_wrong_is_told_before_what_exists_and_that_before_what_is_missing(pair):
    """As in the API's documentation, invalid requests are reported before existing resources, and those before missing
    ones.
    """
    none = "projects/p/topics/none"
    pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION))
    again = protos.CreateSnapshotRequest(name=SNAPSHOT, subscription="projects/p/subscriptions/none")

    assert "INVALID_ARGUMENT" == refused(lambda: pair.subscription(topic=none, ack_deadline_seconds=9))[0]
    assert "ALREADY_EXISTS" == refused(lambda: pair.subscription(topic=none))[0]
    assert "NOT_FOUND" == refused(lambda: pair.subscription("projects/p/subscriptions/other", topic=none))[0]
    assert "ALREADY_EXISTS" == refused(lambda: pair.snapshots.create_snapshot(again))[0]


def test_snapshot_needs_a_topic(pair):
    """A subscription whose topic is gone can be drained, but a snapshot of it is refused."""
    pair.publisher.delete_topic(protos.DeleteTopicRequest(topic=TOPIC))
    request = protos.CreateSnapshotRequest(name=SNAPSHOT, subscription=SUBSCRIPTION)
    assert "FAILED_PRECONDITION" == refused(lambda: pair.snapshots.create_snapshot(request))[0]


def test_snapshots_are_listed_by_project_and_in_pages(pair):
    """A project is named in full. Snapshots of another project are not listed."""
    names = [f"{SNAPSHOT}-{index}" for index in range(3)]
    for name in names:
        pair.snapshots.create_snapshot(protos.CreateSnapshotRequest(name=name, subscription=SUBSCRIPTION))

    def listed(project: str = "projects/p", **page: Any) -> Any:
        return pair.snapshots.list_snapshots(protos.ListSnapshotsRequest(project=project, **page))

    first = listed(page_size=2)
    rest = listed(page_token=first.next_page_token)
    assert [names[:2], names[2:]] == [[each.name for each in page.snapshots] for page in (first, rest)]
    assert [] == list(listed("projects/other").snapshots)
    assert "INVALID_ARGUMENT" == refused(lambda: listed("p"))[0]

"""Retention of topics, subscriptions and snapshots, and the effect of a seek, each rule once, over real RPCs."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import duration_pb2, field_mask_pb2, timestamp_pb2

from pubsub_spark.emulator.api import protos
from tests.rpc.conftest import DAY, OTHER, SUB, TOPIC, keyed, refused


def test_new_subscription_starts_empty_and_can_seek_before_its_creation(client, emulator):
    """Messages that the topic retains are delivered to a new subscription only after a Seek."""
    emulator.create_topic(TOPIC, message_retention_duration=3600)
    emulator.publish(TOPIC, b"old")
    emulator.advance(1800)
    emulator.publish(TOPIC, b"young")
    emulator.create_subscription(SUB, TOPIC)

    assert [] == client.pull()
    client.ask("Subscriber/Seek", subscription=SUB, time=timestamp_pb2.Timestamp())
    assert [b"old", b"young"] == client.data()


def test_topic_retention_ends(client, emulator):
    """Messages older than the topic's retention are not restored."""
    emulator.create_topic(TOPIC, message_retention_duration=3600)
    emulator.publish(TOPIC, b"old")
    emulator.advance(3601)
    emulator.create_subscription(SUB, TOPIC)

    client.ask("Subscriber/Seek", subscription=SUB, time=timestamp_pb2.Timestamp())

    assert [] == client.pull()


def test_topic_retention_ends_with_its_topic(client, emulator):
    """The messages of a deleted topic go when the subscription's own retention is over, without a request."""
    emulator.create_topic(TOPIC, message_retention_duration=3600)
    emulator.create_subscription(SUB, TOPIC, message_retention_duration=600)
    emulator.publish(TOPIC, b"a")
    emulator.advance(601)
    assert 1 == emulator.backlog(SUB)

    client.ask("Publisher/DeleteTopic", topic=TOPIC)
    emulator.advance(0)

    assert 0 == emulator.backlog(SUB)


def test_subscription_shows_the_retention_of_its_topic(client, emulator, subscribe):
    """`topic_message_retention_duration` follows the topic, whatever a client says about it."""
    subscribe()
    assert not client.subscription().HasField("topic_message_retention_duration")
    hour = duration_pb2.Duration(seconds=3600)
    mask = field_mask_pb2.FieldMask(paths=["message_retention_duration"])
    topic = protos.Topic(name=TOPIC, message_retention_duration=hour)

    client.ask("Publisher/UpdateTopic", topic=topic, update_mask=mask)

    assert hour == client.subscription().topic_message_retention_duration


def test_seek_to_the_future_spares_what_comes_after(client, emulator, subscribe):
    """A Seek to the future acks the messages published so far, including outstanding ones, and none published later."""
    subscribe()
    emulator.publish(TOPIC, b"a", b"b")
    client.pull(most=1)

    future = timestamp_pb2.Timestamp(seconds=4_000_000_000)
    client.ask("Subscriber/Seek", subscription=SUB, time=future)
    emulator.publish(TOPIC, b"c")

    emulator.advance(11)
    assert [b"c"] == client.data()


def test_snapshot_serves_a_sibling(client, emulator, subscribe):
    """Another subscription of the topic gets the backlog of that moment and all later messages, acked or not."""
    subscribe()
    emulator.create_subscription(OTHER, TOPIC)
    emulator.publish(TOPIC, b"acked", b"open")
    first, _ = client.pull()
    client.ack(first.ack_id)
    snapshot = client.ask("Subscriber/CreateSnapshot", subscription=SUB, name="projects/p/snapshots/moment")
    emulator.publish(TOPIC, b"later")
    client.ack(*(received.ack_id for received in client.pull(OTHER)), subscription=OTHER)

    client.ask("Subscriber/Seek", subscription=OTHER, snapshot=snapshot.name)

    assert TOPIC == snapshot.topic
    assert [b"open", b"later"] == client.data(OTHER)


def test_snapshot_expires_with_its_oldest_message(client, emulator, subscribe):
    """A snapshot lives seven days less the age of its backlog. With less than an hour left it is not created."""
    subscribe(message_retention_duration=31 * DAY)
    emulator.publish(TOPIC, b"a")
    emulator.advance(3 * DAY)

    snapshot = client.ask("Subscriber/CreateSnapshot", subscription=SUB)

    assert re.fullmatch(r"projects/p/snapshots/.+", snapshot.name)
    emulator.advance(4 * DAY - 60)
    assert snapshot == client.ask("Subscriber/GetSnapshot", snapshot=snapshot.name)
    with refused("FAILED_PRECONDITION"):
        client.ask("Subscriber/CreateSnapshot", subscription=SUB)
    emulator.advance(120)
    with refused("NOT_FOUND"):
        client.ask("Subscriber/GetSnapshot", snapshot=snapshot.name)


def test_snapshot_keeps_what_the_subscription_would_not(client, emulator, subscribe):
    """A snapshot keeps its backlog and all later messages for as long as it exists, however short the retention is."""
    subscribe(message_retention_duration={"seconds": 600})
    emulator.publish(TOPIC, b"before")
    snapshot = client.ask("Subscriber/CreateSnapshot", subscription=SUB, name="projects/p/snapshots/moment")
    client.ack(*(received.ack_id for received in client.pull()))
    emulator.publish(TOPIC, b"after")
    client.ack(*(received.ack_id for received in client.pull()))
    emulator.advance(1200)

    client.ask("Subscriber/Seek", subscription=SUB, snapshot=snapshot.name)

    assert [b"before", b"after"] == client.data()


def test_snapshot_outlives_its_topic(client, emulator, subscribe):
    """A snapshot exists until it expires, and brings the backlog back to a subscription of a deleted topic."""
    subscribe()
    emulator.publish(TOPIC, b"a")
    snapshot = client.ask("Subscriber/CreateSnapshot", subscription=SUB, name="projects/p/snapshots/moment")
    client.ack(*(received.ack_id for received in client.pull()))
    client.ask("Publisher/DeleteTopic", topic=TOPIC)
    emulator.create_topic(TOPIC)
    emulator.create_subscription(OTHER, TOPIC)

    assert "_deleted-topic_" == client.ask("Subscriber/GetSnapshot", snapshot=snapshot.name).topic
    with refused("FAILED_PRECONDITION"):
        client.ask("Subscriber/Seek", subscription=OTHER, snapshot=snapshot.name)
    client.ask("Subscriber/Seek", subscription=SUB, snapshot=snapshot.name)
    assert [b"a"] == client.data()


def test_snapshot_moves_to_an_earlier_end_only(client, emulator, subscribe):
    """A snapshot's end can be moved to an earlier time, never the past, by whatever mask path. Then it is deleted."""
    subscribe()
    snapshot = client.ask("Subscriber/CreateSnapshot", subscription=SUB, name="projects/p/snapshots/moment")
    last = snapshot.expire_time.seconds

    def move(seconds: int, path: str = "expire_time") -> Any:
        return client.ask(
            "Subscriber/UpdateSnapshot",
            snapshot={"name": snapshot.name, "expire_time": timestamp_pb2.Timestamp(seconds=seconds)},
            update_mask=field_mask_pb2.FieldMask(paths=[path]),
        )

    for path in ("expire_time", "expire_time.seconds"):
        for seconds in (1, last + 60):
            with refused("INVALID_ARGUMENT"):
                move(seconds, path)
    assert last - 86_400 == move(last - 86_400).expire_time.seconds
    emulator.advance(6 * 86_400 + 60)
    with refused("NOT_FOUND"):
        client.ask("Subscriber/GetSnapshot", snapshot=snapshot.name)


def test_seek_replays_an_ordered_subscription_in_order(client, emulator, subscribe):
    """A seek brings a key again from its beginning, which Google's emulator cannot."""
    subscribe(enable_message_ordering=True, retain_acked_messages=True)
    emulator.publish(TOPIC, *keyed("1", "2", "3"))
    client.ack(*(received.ack_id for received in client.pull()))

    client.ask("Subscriber/Seek", subscription=SUB, time=timestamp_pb2.Timestamp())

    assert [b"1", b"2", b"3"] == client.data()


def test_seek_replays_what_was_acked_behind_a_gap(client, emulator, subscribe):
    """An ack of a key's later message is kept when the earlier ones are acked. A seek before that does not lose it."""
    subscribe(enable_message_ordering=True, retain_acked_messages=True)
    emulator.publish(TOPIC, *keyed("1", "2", "3"))
    _, second, _ = client.pull()
    client.ack(second.ack_id)

    client.ask("Subscriber/Seek", subscription=SUB, time=timestamp_pb2.Timestamp())

    assert [b"1", b"2", b"3"] == client.data()

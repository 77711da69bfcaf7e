"""The events of the state: one for each change. No server. Time moves by hand."""

from __future__ import annotations

import pytest

from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Consumer
from pubsub_spark.emulator.state.events import (
    Acked,
    Cleared,
    Created,
    DeadLettered,
    Deleted,
    Delivered,
    Event,
    Expired,
    Modified,
    Published,
    Released,
    Sought,
    Updated,
    collection,
)
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.subscription import Subscription
from pubsub_spark.emulator.state.topic import Topic

TOPIC, DEAD = "projects/p/topics/topic", "projects/p/topics/dead"
SUB, SNAPSHOT = "projects/p/subscriptions/sub", "projects/p/snapshots/snapshot"
A, B = b"\x0a\x01a", b"\x0a\x01b"


def drained(broker: Broker) -> list[Event]:
    """Return the events since they were last read."""
    events = broker.events.copy()
    broker.events.clear()
    return events


@pytest.fixture
def broker() -> Broker:
    return Broker()


def subscribed(broker: Broker, **settings: object) -> tuple[Topic, Subscription]:
    topic = broker.create_topic(TOPIC)
    subscription = broker.create_subscription(SUB, topic, Settings(**settings), now=0)  # type: ignore[arg-type]
    broker.events.clear()
    return topic, subscription


def test_resources_tell_of_their_lives(broker):
    """A resource's events: created, updated to another resource, deleted."""
    topic = broker.create_topic(TOPIC, "one", retention=0)
    broker.update_topic(topic, "two", retention=600, now=0)
    subscription = broker.create_subscription(SUB, topic, Settings(), 0, "sub")
    broker.configure(subscription, Settings(ack_deadline=20), "changed", now=1)
    snapshot = broker.create_snapshot(SNAPSHOT, subscription, 100, 1, "snapshot")
    broker.update_snapshot(snapshot, "shorter", expires=50)
    broker.detach_subscription(subscription, "detached")
    broker.delete_snapshot(snapshot, now=2)
    broker.delete_subscription(subscription)
    broker.delete_topic(topic)

    assert [
        Created(TOPIC, "one"),
        Updated(TOPIC, "two"),
        Created(SUB, "sub"),
        Updated(SUB, "changed"),
        Created(SNAPSHOT, "snapshot"),
        Updated(SNAPSHOT, "shorter"),
        Updated(SUB, "detached"),
        Deleted(SNAPSHOT),
        Deleted(SUB),
        Deleted(TOPIC),
    ] == drained(broker)
    assert ["topics", "subscriptions", "snapshots"] == [collection(name) for name in (TOPIC, SUB, SNAPSHOT)]


def test_each_request_is_one_event(broker):
    """A request is one event, whatever its number of messages. Messages that fail are not in it."""
    topic, subscription = subscribed(broker)

    broker.publish(topic, [A, B, A], "", now=0)
    batch = broker.take(subscription, Consumer(), now=1)
    one, two, three = batch.numbers
    broker.modify(subscription, batch.numbers, 20, now=1)
    broker.modify(subscription, [three], 0, now=1)
    broker.ack(subscription, [one, three], now=2)
    broker.release(subscription, [two], now=2)
    broker.take(subscription, Consumer(max_messages=1), now=2, size=0)
    broker.ack(subscription, [three], now=2)

    published, *rest = drained(broker)
    assert isinstance(published, Published)
    assert (TOPIC, 3) == (published.topic, len(published.publication))
    assert [
        Delivered(SUB, batch),
        Modified(SUB, batch.numbers, 20),
        Modified(SUB, [three], 0),
        Acked(SUB, [one]),
        Released(SUB, [two]),
    ] == rest


def test_leases_that_pass_are_counted(broker):
    """Leases that expire together are one event with their numbers and the time."""
    topic, subscription = subscribed(broker, ack_deadline=10)
    broker.publish(topic, [A, B], "", now=0)
    batch = broker.take(subscription, Consumer(), now=0)
    broker.events.clear()

    broker.tick(now=10)

    assert [Expired(SUB, [*batch.numbers], 10)] == drained(broker)


def test_dead_letters_are_told_with_their_publication(broker):
    """The dead-letter topic publishes a copy, and the subscription's event lists the forwarded messages."""
    broker.create_topic(DEAD)
    topic, subscription = subscribed(broker, dead_letter_topic=DEAD, dead_letter_attempts=1)
    [number] = broker.publish(topic, [A], "", now=0)
    batch = broker.take(subscription, Consumer(), now=0)
    broker.events.clear()

    broker.modify(subscription, batch.numbers, 0, now=0)

    modified, published, dead = drained(broker)
    assert isinstance(published, Published)
    assert DEAD == published.topic
    assert [Modified(SUB, batch.numbers, 0), DeadLettered(SUB, DEAD, [number], 0)] == [modified, dead]


def test_expired_resources_are_deleted(broker):
    """An unused subscription and a snapshot at its end are deleted, with an event each."""
    _, subscription = subscribed(broker, ttl=100)
    broker.create_snapshot(SNAPSHOT, subscription, 50, now=0)
    broker.events.clear()

    broker.tick(now=100)

    assert [Deleted(SUB), Deleted(SNAPSHOT)] == drained(broker)


def test_seek_tells_the_backlog_that_it_leaves(broker):
    """The event of a Seek has the backlog after it, back in time or forward."""
    topic, subscription = subscribed(broker, retain_acked=True)
    broker.publish(topic, [A, B], "", now=0)
    broker.ack(subscription, broker.take(subscription, Consumer(), now=0).numbers, now=0)
    broker.events.clear()

    broker.seek_to_time(subscription, 0, now=1)
    broker.seek_to_time(subscription, 2, now=1)

    assert [Sought(SUB, 2), Sought(SUB, 0)] == drained(broker)


def test_nothing_is_left_after_clear(broker):
    """`clear` deletes each subscription with an event, and then reports that everything is gone."""
    subscribed(broker)
    broker.clear()

    assert [Deleted(SUB), Cleared()] == drained(broker)

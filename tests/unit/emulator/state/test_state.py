"""The state as a whole: joint deletion, and the contents after a restart. No server. Time moves by hand."""

from __future__ import annotations

import pickle

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.resources import resource_validation
from pubsub_spark.emulator.resources.resource_format import RESOURCE_FORMAT
from pubsub_spark.emulator.state.delivery import Consumer, Delivery
from pubsub_spark.emulator.state.policies import UNTOUCHED, ConcurrentChangeError
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.state import State
from pubsub_spark.schema.schema_types import parse

TOPIC, SUB, SNAPSHOT = "projects/p/topics/topic", "projects/p/subscriptions/sub", "projects/p/snapshots/snapshot"
SCHEMA = "projects/p/schemas/schema"
INT = parse("AVRO", '"int"')


def restarted(state: State) -> State:
    """Return the broker of a process that loaded the dump of another."""
    return State.load(pickle.loads(pickle.dumps(state.dump(RESOURCE_FORMAT))), RESOURCE_FORMAT)


def test_schemas_and_policies_outlive_a_restart():
    """Revisions keep their ids and numbers, deleted ones their numbers, and etags continue."""
    state = State()
    state.schemas.commit(state.schemas.create(SCHEMA, INT, now=1), INT, now=2)
    both = state.schemas.get(SCHEMA)
    assert both is not None
    schema = state.schemas.delete_revision(both, both.revisions[0])
    state.policies.set(SCHEMA, b"policy", b"")

    loaded = restarted(state)

    found = loaded.schemas.get(SCHEMA)
    assert found is not None
    assert [each[:3] for each in schema.revisions] == [each[:3] for each in found.revisions]
    assert '"int"' == found.latest.definition.text
    assert schema.numbers == found.numbers
    assert state.policies.get(SCHEMA) == loaded.policies.get(SCHEMA)
    assert state.policies.set(SCHEMA, b"", b"").etag == loaded.policies.set(SCHEMA, b"", b"").etag


def test_resources_outlive_a_restart():
    """Resources are as the client sees them, with their delivery settings. A deleted topic is not its successor."""
    state = State()
    kept = resource_validation.subscription(protos.Subscription(name=SUB, topic=TOPIC, filter='attributes.a = "b"'))
    broker = state.broker
    topic = broker.create_topic(TOPIC, protos.Topic(name=TOPIC), retention=600)
    subscription = broker.create_subscription(SUB, topic, resource_validation.settings(kept), 0, kept)
    broker.create_snapshot(SNAPSHOT, subscription, 1000, 0, protos.Snapshot(name=SNAPSHOT))
    broker.delete_topic(topic)
    broker.create_topic(TOPIC, protos.Topic(name=TOPIC))

    loaded = restarted(state).broker

    found = loaded.subscriptions[SUB]
    assert kept == found.resource
    assert found.settings.matches is not None
    assert [True, False] == [found.settings.matches({"a": each}) for each in "bc"]
    assert None is loaded.topic_of(SUB)
    assert loaded.snapshots[SNAPSHOT].topic is loaded.origin_of(SUB)
    assert loaded.topics[TOPIC] is not loaded.origin_of(SUB)


def test_leases_in_the_format_of_version_0_1_continue():
    """That version dumped a lease as a frame as long as nothing had happened to it alone."""
    broker = (state := State()).broker
    topic = broker.create_topic(TOPIC, protos.Topic(name=TOPIC))
    subscription = broker.create_subscription(SUB, topic, Settings(), 0, protos.Subscription(name=SUB))
    broker.publish(topic, [b"\x0a\x01a", b"\x0a\x01b"], "", now=1)
    broker.publish(topic, [b"\x0a\x01c"], "", now=2)
    numbers = subscription.take(Consumer(), now=3).numbers
    subscription.modify(numbers, 20, now=4)
    subscription.ack(numbers[:1], now=4)
    dumped = state.dump(RESOURCE_FORMAT)
    one, other = (delivery.message for delivery in subscription._leases.values())
    origins = [(0, one.number - 1, 1, ""), (2, other.number, 2, "")]
    batch = numbers.start, [None, one.frame, other.frame], origins, 24, True, 1

    dumped["broker"]["subscriptions"][0][3].update(deliveries=[], leases=[batch])
    loaded = State.load(dumped, RESOURCE_FORMAT)

    known = [entry for entry in loaded.broker.subscriptions[SUB].deliveries() if isinstance(entry, Delivery)]
    assert [(one, 1, 1, 24), (other, 1, 1, 24)] == [
        (it.message, it.deliveries, it.modacks, it.deadline) for it in known
    ]
    assert (2, 2) == (loaded.broker.subscriptions[SUB].backlog, loaded.broker.subscriptions[SUB].outstanding)
    assert [] == loaded.broker.subscriptions[SUB].ack(numbers[1:], now=5)


def test_policy_goes_with_its_resource():
    """A policy is deleted with its resource, whatever its kind, deleted or expired."""
    state = State()
    topic = state.broker.create_topic(TOPIC)
    state.broker.create_subscription(SUB, topic, Settings(ttl=10), now=0)
    state.schemas.create(SCHEMA, INT, now=0)
    for name in (TOPIC, SUB, SCHEMA):
        state.policies.set(name, b"policy", b"")

    state.broker.delete_topic(topic)
    state.broker.tick(now=10)
    state.schemas.delete(SCHEMA)

    assert {UNTOUCHED} == {state.policies.get(name).etag for name in (TOPIC, SUB, SCHEMA)}
    assert {} == state.policies.by_name


def test_stale_etag_changes_nothing():
    """A caller with an older policy must read it again."""
    state = State()
    first = state.policies.set(TOPIC, b"first", UNTOUCHED)
    with pytest.raises(ConcurrentChangeError):
        state.policies.set(TOPIC, b"other", UNTOUCHED)
    assert first == state.policies.get(TOPIC)

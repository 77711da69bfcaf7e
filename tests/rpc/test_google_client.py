"""Google's own Python client, unchanged, against our emulator."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import PublisherOptions
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.types import Encoding, Schema

from pubsub_spark.emulator import Emulator
from tests.conftest import Names

AVRO = '{"type": "record", "name": "Flight", "fields": [{"name": "id", "type": "int"}]}'


@pytest.fixture
def publisher(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[pubsub_v1.PublisherClient]:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.endpoint)
    client = pubsub_v1.PublisherClient()
    yield client
    client.stop()
    client.transport.close()


@pytest.fixture
def subscriber(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[pubsub_v1.SubscriberClient]:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.endpoint)
    with pubsub_v1.SubscriberClient() as client:
        yield client


@pytest.fixture
def subscription(publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient, names: Names) -> str:
    publisher.create_topic(name=names.topic)
    subscriber.create_subscription(name=names.subscription, topic=names.topic)
    return names.subscription


def test_published_messages_reach_a_callback(emulator, publisher, subscriber, subscription, names):
    """Publish futures resolve to ids, the callback sees data and attributes, and acks arrive."""
    received: queue.Queue[Message] = queue.Queue()
    pulling = subscriber.subscribe(subscription, callback=received.put)
    ids = {publisher.publish(names.topic, b"data", origin="EWR").result(10) for _ in range(3)}
    messages = [received.get(timeout=10) for _ in ids]
    for message in messages:
        message.ack()
    pulling.cancel()
    pulling.result(10)

    assert ids == {message.message_id for message in messages}
    assert [(b"data", {"origin": "EWR"})] * 3 == [(message.data, dict(message.attributes)) for message in messages]
    assert 0 == emulator.backlog(subscription)


def test_nacked_message_comes_back_to_the_callback(publisher, subscriber, subscription, names):
    """A nacked message is delivered to the callback again at once."""
    received: queue.Queue[Message] = queue.Queue()
    pulling = subscriber.subscribe(subscription, callback=received.put)
    publisher.publish(names.topic, b"data").result(10)
    first = received.get(timeout=10)
    first.nack()
    again = received.get(timeout=10)
    again.ack()
    pulling.cancel()
    pulling.result(10)

    assert first.message_id == again.message_id
    assert first.ack_id != again.ack_id


def test_pull_and_acknowledge(emulator, publisher, subscriber, subscription, names):
    """Unary Pull returns at most the requested number, and acked messages are gone."""
    emulator.publish(names.topic, "a", "b", "c")
    pulled = subscriber.pull(subscription=subscription, max_messages=2).received_messages
    subscriber.acknowledge(subscription=subscription, ack_ids=[each.ack_id for each in pulled])

    assert [b"a", b"b"] == [each.message.data for each in pulled]
    assert 1 == emulator.backlog(subscription)


def test_empty_pull_answers_before_its_deadline(subscriber, subscription):
    """Nothing there is an empty answer, not an error."""
    assert not subscriber.pull(subscription=subscription, max_messages=1, timeout=1).received_messages


def test_waiting_pull_sees_a_new_message(emulator, subscriber, subscription, names):
    """A Pull that found nothing answers as soon as a message arrives."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(subscriber.pull, subscription=subscription, max_messages=1)
        emulator.publish(names.topic, "late")
        [held] = waiting.result(10).received_messages

    assert b"late" == held.message.data


def test_modify_ack_deadline_keeps_a_message(emulator, subscriber, subscription, names):
    """An extended lease outlives the subscription's deadline of ten seconds."""
    emulator.publish(names.topic, "a")
    [held] = subscriber.pull(subscription=subscription, max_messages=1).received_messages
    subscriber.modify_ack_deadline(subscription=subscription, ack_ids=[held.ack_id], ack_deadline_seconds=600)
    emulator.advance(599)
    assert not subscriber.pull(subscription=subscription, max_messages=1, timeout=0.5).received_messages
    emulator.advance(2)
    assert subscriber.pull(subscription=subscription, max_messages=1).received_messages


def test_resources_are_created_listed_and_deleted(publisher, subscriber, names):
    """Topics and subscriptions are created and deleted, lists page through them."""
    topics = [f"{names.topic}-{index}" for index in range(5)]
    for topic in topics:
        publisher.create_topic(name=topic)
    project = f"projects/{names.project}"

    assert topics == [topic.name for topic in publisher.list_topics(request={"project": project, "page_size": 2})]
    with pytest.raises(exceptions.AlreadyExists, match="Resource already exists"):
        publisher.create_topic(name=topics[0])
    subscriber.create_subscription(name=names.subscription, topic=topics[0])
    assert [names.subscription] == list(publisher.list_topic_subscriptions(topic=topics[0]))
    publisher.delete_topic(topic=topics[0])
    assert "_deleted-topic_" == subscriber.get_subscription(subscription=names.subscription).topic
    subscriber.delete_subscription(subscription=names.subscription)
    with pytest.raises(exceptions.NotFound, match="Resource not found"):
        subscriber.get_subscription(subscription=names.subscription)


def test_topic_with_a_schema_refuses_what_does_not_fit(emulator, publisher, subscriber, names):
    """BINARY Avro is checked at Publish, all or nothing, and deliveries carry the three schema attributes."""
    schemas = pubsub_v1.SchemaServiceClient(transport=_schema_transport(emulator))
    parent, _, _ = names.schema.partition("/schemas/")
    made = schemas.create_schema(
        parent=parent, schema=Schema(type_=Schema.Type.AVRO, definition=AVRO), schema_id=names.schema_id
    )
    publisher.create_topic(
        request={"name": names.topic, "schema_settings": {"schema": names.schema, "encoding": Encoding.BINARY}}
    )
    subscriber.create_subscription(name=names.subscription, topic=names.topic)
    with pytest.raises(exceptions.InvalidArgument, match="schema"):
        publisher.publish(names.topic, b"\xff\xff").result(10)
    publisher.publish(names.topic, b"\x02").result(10)
    [held] = subscriber.pull(subscription=names.subscription, max_messages=10).received_messages

    assert {
        "googclient_schemaname": names.schema,
        "googclient_schemaencoding": "BINARY",
        "googclient_schemarevisionid": made.revision_id,
    } == dict(held.message.attributes)
    assert [names.schema] == [schema.name for schema in schemas.list_schemas(parent=parent)]


def _schema_transport(emulator: Emulator) -> object:
    return SchemaServiceGrpcTransport(channel=grpc.insecure_channel(emulator.endpoint))


def test_exactly_once_acks_are_answered(emulator, publisher, subscriber, names):
    """`ack_with_response` succeeds. After a transient failure the client retries by itself. A stale id is reported."""
    publisher.create_topic(name=names.topic)
    subscriber.create_subscription(
        request={"name": names.subscription, "topic": names.topic, "enable_exactly_once_delivery": True}
    )
    received: queue.Queue[Message] = queue.Queue()
    pulling = subscriber.subscribe(names.subscription, callback=received.put)
    emulator.publish(names.topic, "a", "b")
    first, second = received.get(timeout=10), received.get(timeout=10)
    emulator.fail_acks(1)
    assert AcknowledgeStatus.SUCCESS == first.ack_with_response().result(20)

    emulator.advance(3600)
    with pytest.raises(AcknowledgeError) as error:
        second.ack_with_response().result(20)
    assert AcknowledgeStatus.INVALID_ACK_ID == error.value.error_code
    assert AcknowledgeStatus.SUCCESS == received.get(timeout=10).ack_with_response().result(20)
    pulling.cancel()
    pulling.result(10)
    assert 0 == emulator.backlog(names.subscription)


def test_keys_stay_in_order(emulator, subscriber, names, monkeypatch):
    """Hundreds of messages under a few keys, some nacked: the first sight of each is in the order of its key."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.endpoint)
    ordering = pubsub_v1.PublisherClient(publisher_options=PublisherOptions(enable_message_ordering=True))
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic, enable_message_ordering=True)
    for number in range(300):
        future = ordering.publish(names.topic, str(number).encode(), ordering_key=f"key-{number % 3}")
    future.result(20)
    seen: dict[str, list[int]] = {f"key-{key}": [] for key in range(3)}
    finished = threading.Event()

    def receive(message: Message) -> None:
        number = int(message.data)
        if number not in seen[message.ordering_key]:
            seen[message.ordering_key].append(number)
            if number % 50 == 0:
                message.nack()
                return
        message.ack()
        if sum(map(len, seen.values())) == 300:
            finished.set()

    pulling = subscriber.subscribe(names.subscription, callback=receive)
    assert finished.wait(30)
    pulling.cancel()
    pulling.result(10)
    ordering.stop()
    ordering.transport.close()
    assert {f"key-{key}": list(range(key, 300, 3)) for key in range(3)} == seen

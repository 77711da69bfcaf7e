"""The delivery rules that are most easily got wrong, each once, over real RPCs.

Push and StreamingPull have files of their own.
"""

from __future__ import annotations

import re

import pytest
from google.protobuf import timestamp_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from pubsub_spark.emulator.api import protos
from tests.rpc.conftest import OTHER, SUB, TOPIC, keyed, refused


def reasons(error):
    """Return the ErrorInfo's reason and its entry of each ack id."""
    [detail] = rpc_status.from_call(error.value).details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    return info.domain, info.reason, dict(info.metadata)


# Exactly-once failures

PERMANENT = "PERMANENT_FAILURE_INVALID_ACK_ID"


def test_exactly_once_failure_names_the_failed_and_acks_the_rest(client, emulator, subscribe):
    """Of a mixed request the valid ids count, and the trailer's ErrorInfo lists only the others."""
    subscribe(enable_exactly_once_delivery=True)
    emulator.publish(TOPIC, b"a", b"b")
    first, second = client.pull()
    client.modack(0, first.ack_id)
    [again] = client.pull()

    with refused("INVALID_ARGUMENT", "Some acknowledgement ids in the request were invalid") as error:
        client.ack(first.ack_id, second.ack_id)

    failed = {first.ack_id: PERMANENT}
    assert ("pubsub.googleapis.com", "EXACTLY_ONCE_ACKID_FAILURE", failed) == reasons(error)
    assert 1 == emulator.backlog(SUB)
    client.ack(again.ack_id)
    assert 0 == emulator.backlog(SUB)


@pytest.mark.parametrize("verb", ["ack", "modack"])
def test_exactly_once_expiry_is_judged_at_the_request(client, emulator, subscribe, verb):
    """An id is stale the moment its deadline has passed, even without a pull since."""
    subscribe(enable_exactly_once_delivery=True)
    emulator.publish(TOPIC, b"a")
    [received] = client.pull()
    emulator.advance(10.5)

    with refused("INVALID_ARGUMENT") as error:
        client.ack(received.ack_id) if verb == "ack" else client.modack(30, received.ack_id)

    assert {received.ack_id: PERMANENT} == reasons(error)[2]


def test_exactly_once_holds_messages_while_outstanding(client, emulator, subscribe):
    """Before its deadline has passed, a message is not delivered again. Nor is it if the deadline is prolonged."""
    subscribe(enable_exactly_once_delivery=True)
    emulator.publish(TOPIC, b"a")
    [received] = client.pull()
    client.modack(60, received.ack_id)
    emulator.advance(59)

    assert [] == client.pull()
    client.ack(received.ack_id)
    emulator.advance(60)
    assert [] == client.pull()


# Ordering


def test_key_waits_while_a_batch_is_outstanding(client, emulator, subscribe):
    """Later messages of an outstanding key are held back. Other keys and keyless messages flow."""
    subscribe(enable_message_ordering=True)
    emulator.publish(TOPIC, *keyed("1", "2"))
    batch = client.pull()
    emulator.publish(TOPIC, *keyed("3"), *keyed("x", key="other"), b"-")

    assert [b"1", b"2"] == [received.message.data for received in batch]
    assert {b"x", b"-"} == set(client.data())
    client.ack(*(received.ack_id for received in batch))
    assert [b"3"] == client.data()


def test_nack_repeats_the_key_from_there_on_including_what_was_acked(client, emulator, subscribe):
    """A nack of the second message repeats the second and the acknowledged third, but not the first."""
    subscribe(enable_message_ordering=True)
    emulator.publish(TOPIC, *keyed("1", "2", "3"))
    first, second, third = client.pull()
    client.ack(first.ack_id, third.ack_id)

    client.modack(0, second.ack_id)

    assert [b"2", b"3"] == client.data()


def test_expiry_repeats_the_key_from_there_on(client, emulator, subscribe):
    """A deadline that passes is like a nack."""
    subscribe(enable_message_ordering=True)
    emulator.publish(TOPIC, *keyed("1", "2", "3"))
    _, second, third = client.pull()
    client.modack(60, second.ack_id, third.ack_id)

    emulator.advance(11)

    assert [b"1", b"2", b"3"] == client.data()


def test_key_is_delivered_without_ordering_too(client, emulator, subscribe):
    """A subscription without ordering gets the key, and messages are independent of each other."""
    subscribe()
    emulator.publish(TOPIC, *keyed("1", "2"))
    [first] = client.pull(most=1)

    assert "k" == first.message.ordering_key
    assert [b"2"] == client.data()


# Filters


def test_filter_cannot_be_changed_not_even_to_itself(client, subscribe):
    """A mask that names the filter is refused, even with the same value."""
    subscribe(filter="attributes:a")

    with refused("INVALID_ARGUMENT", "the 'filter' field in the Subscription is not mutable"):
        client.update("filter", filter="attributes:a")


def test_filtered_message_is_as_good_as_acked(client, emulator, subscribe):
    """A message that the filter keeps out is no backlog, and a Seek does not bring it back."""
    subscribe(filter="NOT attributes:a", retain_acked_messages=True)
    emulator.publish(TOPIC, {"attributes": {"a": ""}}, b"b")

    assert 1 == emulator.backlog(SUB)
    client.ask("Subscriber/Seek", subscription=SUB, time=timestamp_pb2.Timestamp())
    assert [b"b"] == client.data()


# Acknowledging late or twice


def test_late_and_repeated_acks_are_no_error(client, emulator, subscribe):
    """Without exactly-once delivery an ack may be repeated or late. A late one acknowledges nothing."""
    subscribe()
    emulator.publish(TOPIC, b"a")
    [received] = client.pull()
    emulator.advance(11)

    client.ack(received.ack_id)
    client.modack(10, received.ack_id)

    [again] = client.pull()
    client.ack(again.ack_id)
    client.ack(again.ack_id)
    assert 0 == emulator.backlog(SUB)


@pytest.mark.parametrize("ack_id", ["", "x", "a" * 190, "ä"])
def test_malformed_ack_id_is_refused(client, subscribe, ack_id):
    """An id that the service has never issued is an error on unary calls."""
    subscribe()

    with refused("INVALID_ARGUMENT", re.escape(f"(ack_id={ack_id})")):
        client.ack(ack_id)
    with refused("INVALID_ARGUMENT", re.escape(f"(ack_id={ack_id})")):
        client.modack(10, ack_id)


def test_ack_id_of_another_subscription_is_refused(client, emulator, subscribe):
    """Ids are valid for the subscription that issued them."""
    subscribe()
    emulator.create_subscription(OTHER, TOPIC)
    emulator.publish(TOPIC, b"a")
    [received] = client.pull()

    with refused("INVALID_ARGUMENT"):
        client.ack(received.ack_id, subscription=OTHER)

    assert 1 == emulator.backlog(OTHER)


def test_each_delivery_has_an_ack_id_of_its_own(client, emulator, subscribe):
    """A redelivered message has a new id, and the old one acknowledges nothing."""
    subscribe()
    emulator.publish(TOPIC, b"a")
    [first] = client.pull()
    client.modack(0, first.ack_id)
    [second] = client.pull()

    client.ack(first.ack_id)

    assert first.ack_id != second.ack_id
    assert first.message.message_id == second.message.message_id
    assert 1 == emulator.backlog(SUB)


# Delivery attempts, dead letters, retries


def test_attempts_are_counted_under_a_dead_letter_policy_only(client, emulator, subscribe):
    """Without a policy delivery_attempt is 0, also of a message delivered again."""
    subscribe()
    emulator.publish(TOPIC, b"a")
    [first] = client.pull()
    client.modack(0, first.ack_id)
    [second] = client.pull()

    assert (0, 0) == (first.delivery_attempt, second.delivery_attempt)


def test_dead_letter_follows_nacks_and_expiries(client, emulator, subscribe):
    """Nacks and expiries both count. After the last attempt the copy in the dead-letter topic names its origin."""
    grave, dead = "projects/q/topics/grave", "projects/q/subscriptions/dead"
    emulator.create_topic(grave)
    emulator.create_subscription(dead, grave)
    subscribe(dead_letter_policy={"dead_letter_topic": grave, "max_delivery_attempts": 5})
    [message_id] = emulator.publish(TOPIC, {"data": b"a", "attributes": {"k": "v"}, "ordering_key": "o"})
    attempts = []
    for attempt in range(5):
        [received] = client.pull()
        attempts.append(received.delivery_attempt)
        client.modack(0, received.ack_id) if attempt % 2 else emulator.advance(11)

    [buried] = client.pull(dead)

    assert [1, 2, 3, 4, 5] == attempts
    assert [] == client.pull()
    published = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")
    attributes = dict(buried.message.attributes)
    assert published.fullmatch(attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime"))
    assert {
        "k": "v",
        "CloudPubSubDeadLetterSourceSubscription": "all",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "p",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
    } == attributes
    assert (b"a", "o") == (buried.message.data, buried.message.ordering_key)
    assert message_id != buried.message.message_id


def test_retry_policy_doubles_the_wait(client, emulator, subscribe):
    """A failed message waits 10 s, then 20 s. Others are not held up."""
    subscribe(retry_policy={"minimum_backoff": {"seconds": 10}, "maximum_backoff": {"seconds": 600}})
    emulator.publish(TOPIC, b"a")
    for wait in (10, 20, 40):
        [received] = [each for each in client.pull() if each.message.data == b"a"]
        client.modack(0, received.ack_id)
        emulator.publish(TOPIC, b"other")
        assert [b"other"] == client.data()
        emulator.advance(wait - 1)
        assert b"a" not in client.data()
        emulator.advance(2)


# If nothing can be pulled


@pytest.mark.parametrize(
    "settings",
    [
        {"push_config": {"push_endpoint": "http://127.0.0.1:9/"}},
        {"bigquery_config": {"table": "p.d.t"}},
        {"cloud_storage_config": {"bucket": "bucket"}, "ack_deadline_seconds": 600},
        None,
    ],
    ids=["push", "bigquery", "cloud storage", "detached"],
)
def test_subscription_that_is_not_pull_cannot_be_pulled(client, emulator, subscribe, settings):
    """Pull and StreamingPull are refused for push, export and detached subscriptions."""
    subscribe(**(settings or {}))
    if settings is None:
        client.ask("Publisher/DetachSubscription", subscription=SUB)
    first = protos.StreamingPullRequest(subscription=SUB, stream_ack_deadline_seconds=10)
    stream = client.channel.stream_stream(
        "/google.pubsub.v1.Subscriber/StreamingPull", protos.StreamingPullRequest.SerializeToString
    )

    with refused("FAILED_PRECONDITION"):
        client.pull()
    with refused("FAILED_PRECONDITION"):
        next(stream(iter([first]), timeout=10))


def test_detached_subscription_is_empty_and_off_the_topics_list(client, emulator, subscribe):
    """Detaching drops the backlog, marks the subscription, and takes it off its topic's list. Its settings stay."""
    subscribe()
    emulator.publish(TOPIC, b"a")

    client.ask("Publisher/DetachSubscription", subscription=SUB)

    assert client.subscription().detached
    assert 0 == emulator.backlog(SUB)
    assert [] == list(client.ask("Publisher/ListTopicSubscriptions", topic=TOPIC).subscriptions)
    client.ask("Publisher/DeleteTopic", topic=TOPIC)
    assert "_deleted-topic_" == client.subscription().topic


def test_subscription_of_a_deleted_topic_can_be_drained(client, emulator, subscribe):
    """A subscription keeps its messages when its topic is deleted, also when a topic of that name is created later."""
    subscribe()
    emulator.publish(TOPIC, b"a")
    client.ask("Publisher/DeleteTopic", topic=TOPIC)
    emulator.create_topic(TOPIC)
    emulator.publish(TOPIC, b"unrelated")

    assert "_deleted-topic_" == client.subscription().topic
    [received] = client.pull()
    client.ack(received.ack_id)
    assert (b"a", 0) == (received.message.data, emulator.backlog(SUB))

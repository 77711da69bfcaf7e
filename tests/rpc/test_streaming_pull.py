"""Every rule of StreamingPullRequest, asked with raw requests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from tests.conftest import Names
from tests.rpc.conftest import parts


class Stream:
    """One StreamingPull with its requests in hand."""

    def __init__(self, channel: grpc.Channel, **first: Any) -> None:
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.send(**first)
        self.call = channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=protos.StreamingPullRequest.SerializeToString,
            response_deserializer=protos.StreamingPullResponse.FromString,
        )(iter(self._outgoing.get, None), timeout=30)

    def send(self, **request: Any) -> None:
        self._outgoing.put(protos.StreamingPullRequest(**request))

    def half_close(self) -> None:
        self._outgoing.put(None)

    def receive(self, count: int) -> list[Any]:
        """Return the next `count` messages."""
        received: list[Any] = []
        while len(received) < count:
            received += next(self.call).received_messages
        return received

    def error(self) -> grpc.StatusCode:
        """Return the status of the stream's end."""
        with pytest.raises(grpc.RpcError) as error:
            next(self.call)
        self.half_close()
        return error.value.code()


@pytest.fixture
def channel(emulator: Emulator) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(emulator.endpoint) as channel:
        yield channel


@pytest.fixture
def subscription(emulator: Emulator, names: Names) -> str:
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    return names.subscription


def data(received: list[Any]) -> list[bytes]:
    return [each.message.data for each in received]


@pytest.mark.parametrize(
    "first",
    [
        {"stream_ack_deadline_seconds": 10},
        {"subscription": "not a name", "stream_ack_deadline_seconds": 10},
        {"subscription": "{}", "stream_ack_deadline_seconds": 0},
        {"subscription": "{}", "stream_ack_deadline_seconds": 9},
        {"subscription": "{}", "stream_ack_deadline_seconds": 601},
        {"subscription": "{}", "stream_ack_deadline_seconds": 10, "ack_ids": ["not-an-ack-id"]},
        {"subscription": "{}", "stream_ack_deadline_seconds": 10, "modify_deadline_seconds": [1]},
    ],
)
def test_bad_first_request_is_refused(channel, subscription, first):
    """Subscription and a deadline of 10 to 600 seconds are required, and everything must be well formed."""
    if "subscription" in first:
        first = first | {"subscription": first["subscription"].format(subscription)}
    assert grpc.StatusCode.INVALID_ARGUMENT == Stream(channel, **first).error()


def test_unknown_subscription_is_not_found(channel, names):
    """A stream needs a subscription that exists."""
    stream = Stream(channel, subscription=names.subscription, stream_ack_deadline_seconds=10)
    assert grpc.StatusCode.NOT_FOUND == stream.error()


@pytest.mark.parametrize(
    "later",
    [
        {"subscription": "projects/p/subscriptions/any"},
        {"max_outstanding_messages": 1},
        {"max_outstanding_bytes": 1},
        {"stream_ack_deadline_seconds": 9},
        {"stream_ack_deadline_seconds": 601},
        {"ack_ids": ["not-an-ack-id"]},
        {"modify_deadline_ack_ids": ["not-an-ack-id"], "modify_deadline_seconds": [10]},
        {"modify_deadline_ack_ids": ["x"], "modify_deadline_seconds": []},
        {"modify_deadline_ack_ids": ["x"], "modify_deadline_seconds": [-1]},
        {"modify_deadline_ack_ids": ["x"], "modify_deadline_seconds": [601]},
    ],
)
def test_bad_later_request_ends_the_stream(channel, subscription, later):
    """A later request with a field of the first, or a malformed one, ends the stream with INVALID_ARGUMENT."""
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10)
    stream.send(**later)
    assert grpc.StatusCode.INVALID_ARGUMENT == stream.error()


def test_acks_on_the_stream_count(emulator, channel, subscription, names):
    """Messages acked on the stream leave the backlog. The next message proves that the ack was read."""
    emulator.publish(names.topic, "a")
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10, max_outstanding_messages=1)
    [first] = stream.receive(1)
    emulator.publish(names.topic, "b")
    stream.send(ack_ids=[first.ack_id])

    assert [b"b"] == data(stream.receive(1))
    assert 1 == emulator.backlog(subscription)
    stream.call.cancel()


def test_every_response_tells_the_properties(emulator, channel, names):
    """The exactly-once and ordering settings are sent with the messages."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(
        names.subscription, names.topic, enable_exactly_once_delivery=True, enable_message_ordering=True
    )
    emulator.publish(names.topic, "a")
    stream = Stream(channel, subscription=names.subscription, stream_ack_deadline_seconds=10)
    properties = next(stream.call).subscription_properties
    stream.call.cancel()

    assert properties.exactly_once_delivery_enabled
    assert properties.message_ordering_enabled


def test_last_deadline_for_an_ack_id_counts(emulator, channel, subscription, names):
    """One request may have several changes of one message. They are applied in their order."""
    emulator.publish(names.topic, "a", "b")
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=60)
    first, second = stream.receive(2)
    stream.send(
        modify_deadline_ack_ids=[first.ack_id, first.ack_id, first.ack_id, second.ack_id],
        modify_deadline_seconds=[20, 600, 20, 0],
    )
    assert [b"b"] == data(stream.receive(1))
    emulator.advance(20)

    assert [b"a"] == data(stream.receive(1))
    stream.call.cancel()


def test_outstanding_messages_hold_back_the_rest(emulator, channel, subscription, names):
    """No more than the limit is out. A nack makes room as an ack does."""
    emulator.publish(names.topic, *"abc")
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10, max_outstanding_messages=2)
    first, _ = stream.receive(2)
    assert [0, 1, 1] == sorted(record.deliveries for record in emulator.messages(subscription))
    stream.send(modify_deadline_ack_ids=[first.ack_id], modify_deadline_seconds=[0])

    assert 1 == len(stream.receive(1))
    stream.call.cancel()


def test_outstanding_bytes_hold_back_the_rest(emulator, channel, subscription, names):
    """Once the outstanding bytes reach the limit nothing more is sent."""
    emulator.publish(names.topic, *"abc")
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10, max_outstanding_bytes=1)
    [first] = stream.receive(1)
    assert [0, 0, 1] == sorted(record.deliveries for record in emulator.messages(subscription))
    stream.send(ack_ids=[first.ack_id])

    assert 1 == len(stream.receive(1))
    stream.call.cancel()


def test_stream_deadline_decides_about_redelivery(emulator, channel, subscription, names):
    """The stream's deadline replaces the subscription's, and a later request changes it for later messages."""
    emulator.publish(names.topic, "a")
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=60)
    [first] = stream.receive(1)
    emulator.advance(59)
    assert [1] == [record.deliveries for record in emulator.messages(subscription)]
    emulator.advance(1)
    [again] = stream.receive(1)

    assert first.message.message_id == again.message.message_id
    assert first.ack_id != again.ack_id
    stream.call.cancel()


def test_half_closed_stream_ends_after_its_acks(emulator, channel, subscription, names):
    """A client that half-closes its stream gets its end with OK. Its last acks count, and nothing more is sent."""
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10)
    emulator.publish(names.topic, "a")
    [received] = stream.receive(1)
    stream.send(ack_ids=[received.ack_id])
    stream.half_close()

    assert grpc.StatusCode.OK is stream.call.code()
    emulator.publish(names.topic, "b")
    assert ["b"] == [bytes(record.data).decode() for record in emulator.messages(subscription) if not record.acked]
    assert 0 == emulator.streams()


def test_cancelled_stream_takes_no_message(emulator, channel, subscription, names):
    """A message published after the server heard of a cancel goes to another consumer at once."""
    gone = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=600)
    emulator.publish(names.topic, "a")
    gone.receive(1)
    gone.call.cancel()
    while emulator.streams():  # the cancel is on its way
        threading.Event().wait(0.001)
    emulator.publish(names.topic, "b")
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10)

    assert [b"b"] == data(stream.receive(1))
    stream.call.cancel()


def test_deleted_subscription_ends_its_streams(emulator, channel, subscription):
    """The deletion of a subscription ends its open streams with NOT_FOUND."""
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10)
    delete = channel.unary_unary("/google.pubsub.v1.Subscriber/DeleteSubscription")
    delete(protos.DeleteSubscriptionRequest(subscription=subscription).SerializeToString())

    assert grpc.StatusCode.NOT_FOUND == stream.error()


def test_streams_are_closed_at_will(emulator, channel, subscription, names):
    """`close_streams` ends the open streams. A new stream works."""
    emulator.publish(names.topic, "a")
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10)
    [held] = stream.receive(1)

    assert 1 == emulator.close_streams()
    assert grpc.StatusCode.UNAVAILABLE == stream.error()
    again = Stream(
        channel,
        subscription=subscription,
        stream_ack_deadline_seconds=10,
        modify_deadline_ack_ids=[held.ack_id],
        modify_deadline_seconds=[0],
    )
    assert [b"a"] == data(again.receive(1))
    again.call.cancel()


def test_ordered_fault_meets_the_next_stream(emulator, channel, subscription):
    """`fail` is for `count` calls. The call after them succeeds."""
    emulator.fail("StreamingPull", "PERMISSION_DENIED", message="no")
    refused = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10)

    assert grpc.StatusCode.PERMISSION_DENIED == refused.error()
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=5)
    assert grpc.StatusCode.INVALID_ARGUMENT == stream.error()


def test_exactly_once_stream_confirms(emulator, channel, names):
    """Acks and deadlines are answered id by id. Stale ids are distinguished."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic, enable_exactly_once_delivery=True)
    emulator.publish(names.topic, "a", "b")
    stream = Stream(channel, subscription=names.subscription, stream_ack_deadline_seconds=10)
    first, _ = stream.receive(2)
    emulator.advance(10)
    again = stream.receive(2)
    stream.send(ack_ids=[again[0].ack_id, first.ack_id])
    confirmation = next(stream.call).acknowledge_confirmation

    assert [again[0].ack_id] == list(confirmation.ack_ids)
    assert [first.ack_id] == list(confirmation.invalid_ack_ids)

    emulator.fail_acks(1)
    stream.send(modify_deadline_ack_ids=[again[1].ack_id], modify_deadline_seconds=[600])
    confirmation = next(stream.call).modify_ack_deadline_confirmation
    assert [again[1].ack_id] == list(confirmation.temporary_failed_ack_ids)
    stream.call.cancel()


def test_nothing_piles_up(emulator, channel, subscription, names):
    """After a hundred streams no consumer is left waiting, and leases and agenda are empty."""
    emulator.publish(names.topic, "a")
    for _ in range(100):
        stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10)
        stream.receive(1)
        stream.half_close()
        stream.call.cancel()
        while emulator.streams():
            threading.Event().wait(0.001)
        emulator.advance(10)
    broker = parts(emulator).engine.broker
    kept = broker.subscriptions[subscription]

    assert not kept.consumers.connected
    assert not kept.consumers.waiting
    assert len(kept._leases._deadlines) <= 3
    assert len(broker._agenda) <= 70


def test_stream_is_open_before_there_is_a_message(channel, subscription):
    """The initial metadata are sent at once, so a client knows that it was accepted."""
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=10)
    assert () == tuple(stream.call.initial_metadata())
    stream.call.cancel()


def test_what_falls_due_soon_after_an_advance_comes_then(channel, emulator, subscription, names):
    """Time continues from its new value: a lease with a moment left ends in a moment, even without a request."""
    emulator.publish(names.topic, b"a")
    stream = Stream(channel, subscription=subscription, stream_ack_deadline_seconds=60)
    stream.receive(1)
    emulator.advance(59.7)

    assert [b"a"] == data(stream.receive(1))
    stream.half_close()

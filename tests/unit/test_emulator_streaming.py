"""What becomes of a stream's last response when the stream breaks. No socket: gRPC's part is played by the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pubsub_spark.emulator import protos, streaming
from pubsub_spark.emulator.broker import Broker
from pubsub_spark.emulator.clock import Clock
from pubsub_spark.emulator.delivery import Delivery
from pubsub_spark.emulator.desk import Desk
from pubsub_spark.emulator.faults import Faults
from pubsub_spark.emulator.oidc import Signer
from pubsub_spark.emulator.pusher import Pushers
from pubsub_spark.emulator.services import Services
from pubsub_spark.emulator.streaming import Stream

TOPIC, SUBSCRIPTION = "projects/p/topics/topic", "projects/p/subscriptions/sub"


class Call:
    """The RPC as a stream sees it."""

    def __init__(self) -> None:
        self.end: Callable[[], None] = lambda: None

    def is_active(self) -> bool:
        return True

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.end = callback
        return True

    def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Nothing: nobody reads them here."""


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(Broker(), Clock())
    yield desk
    desk.close()


def opened(desk: Desk, call: Call, **settings: Any) -> Iterator[bytes]:
    """The responses of a stream on a subscription that has one message."""
    services = Services(desk, Faults(), Pushers(desk, Signer()))
    services.publisher.create_topic(protos.Topic(name=TOPIC))
    services.subscriber.create_subscription(protos.Subscription(name=SUBSCRIPTION, topic=TOPIC, **settings))
    request = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(data=b"x")])
    services.publisher.publish(request.SerializeToString())
    first = protos.StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=600)
    return Stream(desk, services.subscriber, iter([first.SerializeToString()]), call).responses()


def only_delivery(desk: Desk) -> Delivery:
    [entry] = set(desk.broker.subscriptions[SUBSCRIPTION].deliveries())  # an unsent one waits and is leased
    assert isinstance(entry, Delivery)
    return entry


def test_response_that_was_just_handed_over_stays_leased(desk):
    """gRPC has it and may have written it, so the client may hold the message."""
    responses = opened(desk, Call())
    next(responses)
    responses.close()  # type: ignore[attr-defined]

    assert only_delivery(desk).holder is not None


def test_response_that_was_stuck_is_handed_back(desk, monkeypatch):
    """gRPC never asked for another one: flow control held it, and the client never read it."""
    monkeypatch.setattr(streaming, "_STUCK", 0.0)
    responses = opened(desk, Call())
    next(responses)
    responses.close()  # type: ignore[attr-defined]

    assert only_delivery(desk).holder is None
    assert 0 == only_delivery(desk).failures


def test_end_that_is_heard_a_moment_late_is_the_end(desk, monkeypatch):
    """gRPC gives up a response that was stuck, and asks for the next one before it tells that the stream is over."""
    monkeypatch.setattr(streaming, "_STUCK", 0.0)
    monkeypatch.setattr(streaming, "_HELD", 0.0)
    monkeypatch.setattr(streaming, "_MOMENT", 5.0)
    call = Call()
    responses = opened(desk, call)
    next(responses)
    desk.broker.publish(desk.broker.topics[TOPIC], [b""], "", desk.now())
    threading.Timer(0.01, call.end).start()

    assert [] == list(responses)
    subscription = desk.broker.subscriptions[SUBSCRIPTION]
    assert [None, None] == [getattr(entry, "holder", None) for entry in set(subscription.deliveries())]


def test_exactly_once_is_not_risked_for_it(desk, monkeypatch):
    """Not before its deadline, says exactly-once delivery, and nobody knows what the client has read."""
    monkeypatch.setattr(streaming, "_STUCK", 0.0)
    responses = opened(desk, Call(), enable_exactly_once_delivery=True)
    next(responses)
    responses.close()  # type: ignore[attr-defined]

    assert only_delivery(desk).holder is not None


def test_response_that_gRPC_read_to_the_end_stays_leased(desk, monkeypatch):
    """It asked for the next one, so the last one was written."""
    monkeypatch.setattr(streaming, "_STUCK", 0.0)
    call = Call()
    responses = opened(desk, call)
    next(responses)
    call.end()

    assert [] == list(responses)
    assert only_delivery(desk).holder is not None


def test_ended_stream_takes_nothing(desk):
    """The end was heard before the first message was asked for."""
    call = Call()
    responses = opened(desk, call)
    next(responses)
    call.end()
    list(responses)
    desk.advance(600)

    assert 0 == desk.broker.subscriptions[SUBSCRIPTION].connected
    assert 1 == only_delivery(desk).deliveries

"""What becomes of a stream's last response when the stream breaks. No socket: the call's part is played by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pubsub_spark.emulator import protos
from pubsub_spark.emulator.broker import Broker
from pubsub_spark.emulator.clock import Clock
from pubsub_spark.emulator.delivery import Delivery
from pubsub_spark.emulator.desk import Desk
from pubsub_spark.emulator.faults import Faults
from pubsub_spark.emulator.oidc import Signer
from pubsub_spark.emulator.pusher import Pushers
from pubsub_spark.emulator.refusal import Refusal
from pubsub_spark.emulator.services import Services
from pubsub_spark.emulator.streaming import Stream

TOPIC, SUBSCRIPTION = "projects/p/topics/topic", "projects/p/subscriptions/sub"


class Call:
    """The RPC as a stream sees it: takes so many responses, and then the client is gone."""

    def __init__(self, takes: int = 0, remaining: float | None = None) -> None:
        self.sent: list[Any] = []
        self.begun = 0
        self.finished: list[Refusal | None] = []
        self.ends: list[Callable[[], None]] = []
        self.is_over = False
        self._takes = takes
        self._remaining = remaining

    def time_remaining(self) -> float | None:
        return self._remaining

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.ends.append(callback)
        return not self.is_over

    def begin(self) -> None:
        self.begun += 1

    def send(self, message: bytes) -> bool:
        written = len(self.sent) < self._takes
        if written:
            self.sent.append(protos.StreamingPullResponse.FromString(message))
        if len(self.sent) == self._takes:
            for each in self.ends:
                each()
        return written

    def finish(self, refusal: Refusal | None = None) -> None:
        self.finished.append(refusal)

    def attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Refusal as refusal:
            self.finish(refusal)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk(Broker(), Clock())
    yield desk
    desk.close()


def run(desk: Desk, call: Call, **settings: Any) -> None:
    """A stream on a subscription that has one message; its sending thread is this one."""
    services = Services(desk, Faults(), Pushers(desk, Signer()))
    services.publisher.create_topic(protos.Topic(name=TOPIC))
    services.subscriber.create_subscription(protos.Subscription(name=SUBSCRIPTION, topic=TOPIC, **settings))
    request = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(data=b"x")])
    services.publisher.publish(request.SerializeToString())
    first = protos.StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=600)
    streams: set[Stream] = set()
    Stream(desk, services.subscriber, call, lambda send: send(), streams).receive(first.SerializeToString())
    assert not streams


def only_entry(desk: Desk) -> Any:
    [entry] = set(desk.broker.subscriptions[SUBSCRIPTION].deliveries())  # an unsent one waits and is leased
    return entry


def test_response_that_was_written_stays_leased(desk):
    """The client left later, and may hold the message."""
    call = Call(takes=1)
    run(desk, call)

    assert 1 == len(call.sent)
    assert only_entry(desk).holder is not None
    assert [None] == call.finished


@pytest.mark.parametrize("exactly_once", [False, True])
def test_response_that_was_not_written_is_handed_back(desk, exactly_once):
    """Nobody can have read it, so it waits for somebody else at once, and counts as no failure."""
    run(desk, Call(), enable_exactly_once_delivery=exactly_once)

    entry = only_entry(desk)
    assert isinstance(entry, Delivery)
    assert entry.holder is None
    assert 0 == entry.failures


def test_call_that_is_over_takes_nothing(desk):
    """The end came before the stream could ask to be told of it."""
    call = Call()
    call.is_over = True
    run(desk, call)

    assert [] == call.sent
    assert 0 == desk.broker.subscriptions[SUBSCRIPTION].connected
    assert not isinstance(only_entry(desk), Delivery) or 0 == only_entry(desk).deliveries


def test_passed_deadline_ends_the_stream(desk):
    """The client's, which it keeps itself; a stream that it forgot is not kept for ever."""
    call = Call(takes=5, remaining=0.0)
    run(desk, call)

    [refusal] = call.finished
    assert refusal is not None
    assert "DEADLINE_EXCEEDED" == refusal.code
    assert 0 == desk.broker.subscriptions[SUBSCRIPTION].connected

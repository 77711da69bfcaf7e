"""What becomes of a stream's last response when the stream breaks. No socket: the call's part is played by the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.handlers.streaming_pull import Stream
from pubsub_spark.emulator.rpc.registry import Registry
from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.sinks.oidc import Signer
from pubsub_spark.emulator.sinks.push_worker import PushWorkers
from pubsub_spark.emulator.state.delivery import Delivery
from pubsub_spark.emulator.state.state import State

TOPIC, SUBSCRIPTION = "projects/p/topics/topic", "projects/p/subscriptions/sub"


class Call:
    """The RPC as a stream sees it: takes so many responses, and then the client is gone."""

    def __init__(self, takes: int = 0, remaining: float | None = None) -> None:
        self.sent: list[Any] = []
        self.begun = 0
        self.finished: list[RpcError | None] = []
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

    def finish(self, error: RpcError | None = None) -> None:
        self.finished.append(error)

    def attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except RpcError as error:
            self.finish(error)


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(State(), Clock())
    yield engine
    engine.close()


def run(engine: Engine, call: Call, **settings: Any) -> None:
    """A stream on a subscription that has one message; its sending thread is this one."""
    services = Registry(engine, Faults(), PushWorkers(engine, Signer()))
    services.publisher.create_topic(protos.Topic(name=TOPIC))
    services.subscriber.create_subscription(protos.Subscription(name=SUBSCRIPTION, topic=TOPIC, **settings))
    request = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(data=b"x")])
    services.publisher.publish(request.SerializeToString())
    first = protos.StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=600)
    streams: set[Stream] = set()
    Stream(engine, services.subscriber, call, lambda send: send(), streams).receive(first.SerializeToString())
    assert not streams


def only_entry(engine: Engine) -> Any:
    [entry] = set(engine.broker.subscriptions[SUBSCRIPTION].deliveries())  # an unsent one waits and is leased
    return entry


def test_response_that_was_written_stays_leased(engine):
    """The client left later, and may hold the message."""
    call = Call(takes=1)
    run(engine, call)

    assert 1 == len(call.sent)
    assert only_entry(engine).holder is not None
    assert [None] == call.finished


@pytest.mark.parametrize("exactly_once", [False, True])
def test_response_that_was_not_written_is_handed_back(engine, exactly_once):
    """Nobody can have read it, so it waits for somebody else at once, and counts as no failure."""
    run(engine, Call(), enable_exactly_once_delivery=exactly_once)

    entry = only_entry(engine)
    assert isinstance(entry, Delivery)
    assert entry.holder is None
    assert 0 == entry.failures


def test_call_that_is_over_takes_nothing(engine):
    """The end came before the stream could ask to be told of it."""
    call = Call()
    call.is_over = True
    run(engine, call)

    assert [] == call.sent
    assert 0 == engine.broker.subscriptions[SUBSCRIPTION].connected
    assert not isinstance(only_entry(engine), Delivery) or 0 == only_entry(engine).deliveries


def test_passed_deadline_ends_the_stream(engine):
    """The client's, which it keeps itself; a stream that it forgot is not kept for ever."""
    call = Call(takes=5, remaining=0.0)
    run(engine, call)

    [error] = call.finished
    assert error is not None
    assert "DEADLINE_EXCEEDED" == error.code
    assert 0 == engine.broker.subscriptions[SUBSCRIPTION].connected

"""The last response of a stream when the stream breaks. The test plays the transport's part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.handlers.streaming_pull import Stream
from pubsub_spark.emulator.rpc.registry import Registry
from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.state.delivery import Delivery
from pubsub_spark.emulator.state.state import State

TOPIC, SUBSCRIPTION = "projects/p/topics/topic", "projects/p/subscriptions/sub"


class Call:
    """The transport as a stream sees it. It accepts `accepts` responses, and then the client is gone."""

    def __init__(self, first: bytes, accepts: int) -> None:
        self.sent: list[Any] = []
        self._requests = [first]
        self._accepts = accepts

    async def receive(self) -> bytes | None:
        if self._requests:
            return self._requests.pop()
        await asyncio.get_running_loop().create_future()
        return None

    async def begin(self) -> None: ...

    async def room(self) -> None: ...

    async def send(self, response: bytes) -> None:
        if len(self.sent) < self._accepts:
            self.sent.append(protos.StreamingPullResponse.FromString(response))
        else:
            await asyncio.get_running_loop().create_future()


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(State(), Clock())
    yield engine
    engine.close()


def run(engine: Engine, accepts: int, **settings: Any) -> list[Any]:
    """Return the responses of a stream on a subscription with one message. The client leaves when nothing happens."""
    services = Registry(engine, Faults())
    services.publisher.create_topic(protos.Topic(name=TOPIC))
    services.subscriber.create_subscription(protos.Subscription(name=SUBSCRIPTION, topic=TOPIC, **settings))
    request = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(data=b"x")])
    services.publisher.publish(request.SerializeToString())
    first = protos.StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=600)
    streams: set[Stream] = set()
    call = Call(first.SerializeToString(), accepts)

    async def leave() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Stream(engine, services.subscriber, call, streams).run(), 0.05)

    asyncio.run(leave())
    assert not streams
    assert not engine.broker.subscriptions[SUBSCRIPTION].consumers.connected
    return call.sent


def only_entry(engine: Engine) -> Any:
    [entry] = set(engine.broker.subscriptions[SUBSCRIPTION].deliveries())  # an unsent one waits and is leased
    return entry


def test_response_that_was_written_stays_leased(engine):
    """The messages of a written response stay leased after the client left, because it may have them."""
    assert 1 == len(run(engine, accepts=1))
    assert only_entry(engine).holder is not None


@pytest.mark.parametrize("exactly_once", [False, True])
def test_response_that_was_not_written_is_handed_back(engine, exactly_once):
    """The messages of an unwritten response go to the next consumer at once, and no failure is counted."""
    run(engine, accepts=0, enable_exactly_once_delivery=exactly_once)

    entry = only_entry(engine)
    assert isinstance(entry, Delivery)
    assert entry.holder is None
    assert 0 == entry.failures

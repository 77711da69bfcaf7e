"""The services without a server, which tests share: handlers with a clock that moves by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from google.protobuf import duration_pb2

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.registry import Registry
from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.state.state import State

TOPIC = "projects/p/topics/topic"
SUBSCRIPTION = "projects/p/subscriptions/subscription"
SNAPSHOT = "projects/p/snapshots/snapshot"
DAY = 86_400


class Handlers(Registry):
    """The services, and shortcuts for verbs that tests use often."""

    def __init__(self) -> None:
        self.engine = Engine(State(), Clock())
        self.faults = Faults()
        super().__init__(self.engine, self.faults)

    def topic(self, name: str = TOPIC, **settings: Any) -> Any:
        return self.publisher.create_topic(protos.Topic(name=name, **settings))

    def subscription(self, name: str = SUBSCRIPTION, topic: str = TOPIC, **settings: Any) -> Any:
        return self.subscriber.create_subscription(protos.Subscription(name=name, topic=topic, **settings))

    def publish(self, *data: str, topic: str = TOPIC, **fields: Any) -> list[str]:
        messages = [protos.PubsubMessage(data=each.encode(), **fields) for each in data]
        raw = self.publisher.publish(protos.PublishRequest(topic=topic, messages=messages).SerializeToString())
        return list(protos.PublishResponse.FromString(raw).message_ids)

    def pull(self, subscription: str = SUBSCRIPTION, most: int = 100) -> list[Any]:
        request = protos.PullRequest(subscription=subscription, max_messages=most, return_immediately=True)
        raw = asyncio.run(self.subscriber.pull(request.SerializeToString(), RpcContext("Pull")))
        return list(protos.PullResponse.FromString(raw).received_messages)

    def begin_pull(self) -> Future[bytes]:
        """Start a Pull that waits for a message, in a thread of its own."""
        begun = threading.Event()

        class Context:
            peer = ""

            @property
            def deadline(self) -> None:
                begun.set()

        request = protos.PullRequest(subscription=SUBSCRIPTION, max_messages=1).SerializeToString()
        pull = ThreadPoolExecutor(1).submit(lambda: asyncio.run(self.subscriber.pull(request, Context())))
        begun.wait()
        with self.engine.open():  # the lock is free now, so the Pull released it
            return pull

    def delete_subscription(self) -> None:
        self.subscriber.delete_subscription(protos.DeleteSubscriptionRequest(subscription=SUBSCRIPTION))

    def ack(self, *held: Any, subscription: str = SUBSCRIPTION) -> None:
        request = protos.AcknowledgeRequest(subscription=subscription, ack_ids=[each.ack_id for each in held])
        self.subscriber.acknowledge(request.SerializeToString())

    def modify(self, seconds: int, *held: Any, subscription: str = SUBSCRIPTION) -> None:
        request = protos.ModifyAckDeadlineRequest(
            subscription=subscription, ack_ids=[each.ack_id for each in held], ack_deadline_seconds=seconds
        )
        self.subscriber.modify_ack_deadline(request.SerializeToString())


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    handlers = Handlers()
    yield handlers
    handlers.engine.close()


@pytest.fixture
def pair(handlers: Handlers) -> Handlers:
    """Return a topic with a subscription."""
    handlers.topic()
    handlers.subscription()
    return handlers


def refused(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(RpcError) as error:
        call()
    return error.value.code, error.value.message


def seconds(amount: float) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=int(amount))


def data(held: list[Any]) -> list[str]:
    return [each.message.data.decode() for each in held]

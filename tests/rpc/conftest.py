"""Fixtures of tests over RPCs: a client that calls any RPC by name, and commands of `pubsub-spark` in this process."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import field_mask_pb2
from typer.testing import CliRunner, Result

from pubsub_spark.cli import app
from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos, routes
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.driver.planner import Budget
from tests.conftest import Names
from tests.engine import Engine

TOPIC, SUB, OTHER = "projects/p/topics/news", "projects/p/subscriptions/all", "projects/p/subscriptions/other"
DAY = 86_400
COMMAND = [sys.executable, "-c", "from pubsub_spark.cli import app; app()"]

Run = Callable[..., Result]

_ROUTES = {route.rpc.rpartition(".")[2]: route for route in routes.routes()}


def parts(emulator: Emulator) -> Any:
    """Return the parts of a running emulator, for tests of state that no RPC shows."""
    return emulator._running


class Client:
    """Every RPC by name, with arguments as fields of its request. Frequent ones have short forms."""

    def __init__(self, endpoint: str) -> None:
        self.channel = grpc.insecure_channel(endpoint, [("grpc.max_receive_message_length", -1)])

    def ask(self, rpc: str, **fields: Any) -> Any:
        route = _ROUTES[rpc]
        method = self.channel.unary_unary(route.rpc, route.request.SerializeToString, route.response.FromString)
        return method(route.request(**fields), timeout=10)

    def publish(self, *messages: dict[str, Any]) -> Any:
        return self.ask("Publisher/Publish", topic=TOPIC, messages=[protos.PubsubMessage(**each) for each in messages])

    def pull(self, subscription: str = SUB, most: int = 1000) -> list[Any]:
        """Return the messages that are available now."""
        request = {"subscription": subscription, "max_messages": most, "return_immediately": True}
        return list(self.ask("Subscriber/Pull", **request).received_messages)

    def data(self, subscription: str = SUB, most: int = 1000) -> list[bytes]:
        return [received.message.data for received in self.pull(subscription, most)]

    def ack(self, *ack_ids: str, subscription: str = SUB) -> Any:
        return self.ask("Subscriber/Acknowledge", subscription=subscription, ack_ids=ack_ids)

    def modack(self, seconds: int, *ack_ids: str, subscription: str = SUB) -> Any:
        request = {"subscription": subscription, "ack_ids": ack_ids, "ack_deadline_seconds": seconds}
        return self.ask("Subscriber/ModifyAckDeadline", **request)

    def update(self, *paths: str, **fields: Any) -> Any:
        """Call UpdateSubscription with this mask."""
        mask = field_mask_pb2.FieldMask(paths=paths)
        subscription = protos.Subscription(name=SUB, **fields)
        return self.ask("Subscriber/UpdateSubscription", subscription=subscription, update_mask=mask)

    def subscription(self, name: str = SUB) -> Any:
        return self.ask("Subscriber/GetSubscription", subscription=name)


@pytest.fixture
def client(emulator: Emulator) -> Iterator[Client]:
    client = Client(emulator.endpoint)
    yield client
    client.channel.close()


@pytest.fixture
def subscribe(emulator: Emulator) -> Callable[..., None]:
    """Create the topic and a subscription to it, with these settings."""

    def create(**settings: Any) -> None:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUB, TOPIC, **settings)

    return create


def keyed(*texts: str, key: str = "k") -> list[dict[str, Any]]:
    """Return messages of one ordering key."""
    return [{"data": text.encode(), "ordering_key": key} for text in texts]


@contextmanager
def refused(code: str, sentence: str = "") -> Iterator[Any]:
    """Check that the block's RPC is refused with this code and a message that has the sentence in it."""
    with pytest.raises(grpc.RpcError) as error:
        yield error
    assert grpc.StatusCode[code] == error.value.code(), error.value.details()
    assert re.search(sentence, error.value.details())


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for the effect of other threads."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come about"
        time.sleep(0.005)


def shown_on(terminal: int) -> str:
    """Return the output written to a terminal that no other process has open."""
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while read := os.read(terminal, 65536):
            shown += read
    os.close(terminal)
    return shown.decode()


def leased(emulator: Emulator, subscription: str = SUB) -> int:
    """Return the number of messages that a consumer holds."""
    return sum(message.ack_deadline is not None for message in emulator.messages(subscription))


@pytest.fixture
def options(emulator: Emulator, names: Names) -> ReadOptions:
    """Return the options of a query with short waits."""
    return ReadOptions(
        subscription_id=names.subscription,
        endpoint=emulator.endpoint,
        idle_timeout=0.1,
        max_fetch_period=0.5,
        connect_timeout=5.0,
    )


@pytest.fixture
def query(emulator: Emulator, names: Names, options: ReadOptions, tmp_path: Path) -> Iterator[Engine]:
    """Return a query on a plain subscription that is not started."""
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    engine = Engine(emulator, options, str(tmp_path), budget=Budget(10_000, 10**8))
    yield engine
    if engine.session is not None:
        engine.crash()


@pytest.fixture
def environment(emulator: Emulator) -> dict[str, str]:
    """Return the variables of a shell that evaluated the output of `pubsub-spark emulator`."""
    return {**os.environ, "PUBSUB_EMULATOR_HOST": emulator.endpoint, "GOOGLE_CLOUD_PROJECT": "my-project"}


def invoke(words: Iterable[str], environment: Mapping[str, str], code: int = 0, stdin: str = "") -> Result:
    """Run a command of `pubsub-spark` in this process. Return its output. Asserts that its exit code is `code`."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        result = CliRunner().invoke(app, [*words], env=environment, input=stdin)
    finally:
        for number, handler in handlers.items():  # `tail` and `redrive` set their own
            signal.signal(number, handler)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert code == result.exit_code, result.output
    return result


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    """Return `run(word, ..., code=0, stdin="")`, which is `invoke` on the emulator of the test."""
    return lambda *words, code=0, stdin="": invoke(words, environment, code, stdin)


def said(run: Run, *words: str, stdin: str = "") -> Any:
    """Return the JSON that a command prints."""
    return json.loads(run(*words, "--json", stdin=stdin).stdout)

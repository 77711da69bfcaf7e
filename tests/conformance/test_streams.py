"""StreamingPull, scenario by scenario, against both emulators: the end of a stream, and the messages before it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos

PATIENCE = 1.0  # seconds that a stream has for its responses
P = "projects/streams"


class Ending(NamedTuple):
    """The end of a stream (OPEN: it had to be cancelled), and the data before it."""

    code: str
    data: tuple[bytes, ...] = ()


class Scene:
    """A topic and a subscription of its own on one emulator, and a stream from it."""

    def __init__(self, endpoint: str, name: str) -> None:
        self._channel = grpc.insecure_channel(endpoint)
        self.topic, self.subscription = f"{P}/topics/{name}", f"{P}/subscriptions/{name}"
        self.call("Publisher/CreateTopic", protos.Topic(name=self.topic))

    def call(self, rpc: str, request: Any) -> bytes:
        raw: bytes = self._channel.unary_unary(f"/google.pubsub.v1.{rpc}")(request.SerializeToString(), timeout=10)
        return raw

    def subscribe(self, **settings: Any) -> None:
        request = protos.Subscription(name=self.subscription, topic=self.topic, **settings)
        self.call("Subscriber/CreateSubscription", request)

    def publish(self, *data: bytes) -> None:
        messages = [protos.PubsubMessage(data=each) for each in data]
        self.call("Publisher/Publish", protos.PublishRequest(topic=self.topic, messages=messages))

    def stream(self, then: Callable[[Any], dict[str, Any] | None] = lambda _: None, **first: Any) -> Ending:
        """Open a stream. `then` makes the second request out of the first response (None: there was none in time)."""
        opening = {"subscription": self.subscription, "stream_ack_deadline_seconds": 10} | first
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        requests.put(protos.StreamingPullRequest(**opening).SerializeToString())
        call = self._channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(iter(requests.get, None))
        responses: queue.Queue[Any] = queue.Queue()
        call.add_done_callback(lambda _: responses.put(None))
        self._read(call, responses)
        data: list[bytes] = []
        asked = False
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            response = None
            with suppress(queue.Empty):
                response = responses.get(timeout=0.3)
                if response is None:
                    break
                data += [received.message.data for received in response.received_messages]
            if not asked and (following := then(response)) is not None:
                requests.put(protos.StreamingPullRequest(**following).SerializeToString())
                asked = True
        code = call.code().name if call.done() else "OPEN"
        call.cancel()
        requests.put(None)
        self._channel.close()
        return Ending(code, tuple(data))

    def _read(self, call: Any, responses: queue.Queue[Any]) -> None:
        def read() -> None:
            with suppress(grpc.RpcError):
                for raw in call:
                    responses.put(protos.StreamingPullResponse.FromString(raw))

        threading.Thread(target=read, daemon=True).start()


def first_ack_id(response: Any) -> str:
    return response.received_messages[0].ack_id if response is not None else ""


def no_subscription(scene: Scene) -> Ending:
    return scene.stream(subscription="")


def missing_subscription(scene: Scene) -> Ending:
    return scene.stream()


def short_deadline(scene: Scene) -> Ending:
    scene.subscribe()
    return scene.stream(stream_ack_deadline_seconds=5)


def no_deadline(scene: Scene) -> Ending:
    scene.subscribe()
    return scene.stream(stream_ack_deadline_seconds=0)


def subscription_again(scene: Scene) -> Ending:
    scene.subscribe()
    return scene.stream(lambda _: {"subscription": scene.subscription})


def unequal_lists(scene: Scene) -> Ending:
    scene.subscribe()
    scene.publish(b"a")
    return scene.stream(lambda response: {"modify_deadline_ack_ids": [first_ack_id(response)]})


def negative_deadline(scene: Scene) -> Ending:
    scene.subscribe()
    scene.publish(b"a")
    return scene.stream(
        lambda response: {"modify_deadline_ack_ids": [first_ack_id(response)], "modify_deadline_seconds": [-1]}
    )


def limit_set_later(scene: Scene) -> Ending:
    scene.subscribe()
    return scene.stream(lambda _: {"max_outstanding_messages": 5})


def made_up_ack_id(scene: Scene) -> Ending:
    scene.subscribe()
    return scene.stream(lambda _: {"ack_ids": ["made-up"]})


def nack(scene: Scene) -> Ending:
    scene.subscribe()
    scene.publish(b"a")
    return scene.stream(
        lambda response: {"modify_deadline_ack_ids": [first_ack_id(response)], "modify_deadline_seconds": [0]}
    )


def ack(scene: Scene) -> Ending:
    scene.subscribe()
    scene.publish(b"a")
    return scene.stream(lambda response: {"ack_ids": [first_ack_id(response)]})


def limit_on_messages(scene: Scene) -> Ending:
    scene.subscribe()
    scene.publish(b"a", b"b", b"c")
    return scene.stream(max_outstanding_messages=2)


def deleted_meanwhile(scene: Scene) -> Ending:
    scene.subscribe()

    def delete(_: Any) -> None:
        with suppress(grpc.RpcError):
            scene.call(
                "Subscriber/DeleteSubscription", protos.DeleteSubscriptionRequest(subscription=scene.subscription)
            )

    return scene.stream(delete)


def push_subscription(scene: Scene) -> Ending:
    scene.subscribe(push_config=protos.PushConfig(push_endpoint="http://127.0.0.1:9/"))
    return scene.stream()


# Ours, then Google's if that differs, and the reason why ours is right.
ENDINGS: dict[Callable[[Scene], Ending], tuple[Ending, Ending | None, str]] = {
    no_subscription: (Ending("INVALID_ARGUMENT"), None, ""),
    missing_subscription: (Ending("NOT_FOUND"), None, ""),
    subscription_again: (Ending("INVALID_ARGUMENT"), None, ""),
    unequal_lists: (Ending("INVALID_ARGUMENT", (b"a",)), None, ""),
    negative_deadline: (Ending("INVALID_ARGUMENT", (b"a",)), None, ""),
    made_up_ack_id: (Ending("INVALID_ARGUMENT"), None, ""),
    nack: (Ending("OPEN", (b"a", b"a")), None, ""),
    ack: (Ending("OPEN", (b"a",)), None, ""),
    deleted_meanwhile: (Ending("NOT_FOUND"), None, ""),
    push_subscription: (Ending("FAILED_PRECONDITION"), None, ""),
    short_deadline: (Ending("INVALID_ARGUMENT"), None, ""),
    no_deadline: (Ending("INVALID_ARGUMENT"), None, ""),
    limit_set_later: (
        Ending("INVALID_ARGUMENT"),
        Ending("OPEN"),
        "StreamingPullRequest.max_outstanding_messages: set on a subsequent request, the stream will be aborted",
    ),
    limit_on_messages: (
        Ending("OPEN", (b"a", b"b")),
        Ending("OPEN", (b"a", b"b", b"c")),
        "StreamingPullRequest.max_outstanding_messages: the server stops sending more messages",
    ),
}


@pytest.fixture(scope="module")
def ours():
    with Emulator() as emulator:
        yield emulator.endpoint


@pytest.mark.parametrize("scenario", ENDINGS, ids=lambda scenario: scenario.__name__)
def test_stream_ends_alike(ours, google, scenario):
    """Code and messages are those of Google's emulator, except for the differences of the table."""
    expected, googles, because = ENDINGS[scenario]

    with ThreadPoolExecutor(2) as pool:
        endings = pool.map(lambda endpoint: scenario(Scene(endpoint, scenario.__name__)), [ours, google])

    assert bool(because) == (googles is not None)
    assert [expected, googles or expected] == list(endings)

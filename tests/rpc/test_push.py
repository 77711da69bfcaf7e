"""Push subscriptions, from Publish to the endpoint and back: a web server of the test's own is the endpoint."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from collections import deque
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from socketserver import StreamRequestHandler, ThreadingTCPServer

import grpc
import pytest
import requests
from google.auth import jwt
from google.auth.transport.requests import Request
from google.oauth2 import id_token

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.emulator import EmulatorFailedError
from pubsub_spark.emulator.runtime import unanswered
from pubsub_spark.emulator.runtime.unanswered import Answer
from pubsub_spark.emulator.sinks import push_request
from pubsub_spark.emulator.sinks.poster import Poster
from pubsub_spark.emulator.sinks.push_request import FIRST_WINDOW_REQUESTS
from tests.rpc.conftest import parts, wait_until

TOPIC, SUB = "projects/p/topics/news", "projects/p/subscriptions/pushed"


class Endpoint:
    """A web server that keeps its requests and answers as configured, by default 200."""

    def __init__(self):
        self.requests = []
        self.answers: deque[int] = deque()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0
        self.most_waiting = 0
        self.changed = threading.Condition()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                endpoint.arrived(self.path, dict(self.headers.items()), body)
                endpoint.gate.wait(20)
                with endpoint.changed:
                    endpoint.waiting -= 1
                    answer = endpoint.answers.popleft() if endpoint.answers else 200
                self.send_response_only(answer)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments):
                """Write no log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?key=1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def arrived(self, path, headers, body):
        with self.changed:
            self.requests.append((path, headers, body))
            self.waiting += 1
            self.most_waiting = max(self.most_waiting, self.waiting)
            self.changed.notify_all()

    def wait_for(self, count, seconds=10):
        """Return the first `count` requests, once they have arrived."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= count, seconds), self.requests
            return self.requests[:count]

    def data(self):
        return [json.loads(body)["message"].get("data") for _, _, body in self.requests]

    def close(self):
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def endpoint():
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture
def push(emulator, endpoint):
    """Create the topic and a subscription that pushes to the endpoint."""

    def create(push_config=None, **settings):
        emulator.create_topic(TOPIC)
        config = {"push_endpoint": endpoint.url} | (push_config or {})
        emulator.create_subscription(SUB, TOPIC, push_config=config, **settings)

    return create


@pytest.fixture
def call(emulator):
    """Yield an RPC by name."""
    with grpc.insecure_channel(emulator.endpoint) as channel:

        def ask(rpc, request):
            return channel.unary_unary(f"/google.pubsub.v1.{rpc}")(request.SerializeToString(), timeout=10)

        yield ask


def acked(emulator):
    return [message.acked for message in emulator.messages(SUB)]


def test_message_is_pushed_and_acked(emulator, endpoint, push):
    """A published message arrives as the documented JSON, and a 200 acknowledges it."""
    push()
    [message_id] = emulator.publish(TOPIC, {"data": b"hello", "attributes": {"k": "v"}})

    [(path, headers, body)] = endpoint.wait_for(1)

    assert "/hook?key=1" == path
    assert ("application/json", "CloudPubSub-Google") == (headers["Content-Type"], headers["User-Agent"])
    document = json.loads(body)
    assert SUB == document["subscription"]
    assert ("aGVsbG8=", {"k": "v"}) == (document["message"]["data"], document["message"]["attributes"])
    assert message_id == document["message"]["messageId"] == document["message"]["message_id"]
    wait_until(lambda: [True] == acked(emulator))


def test_push_follows_the_response_to_its_publish(emulator, endpoint, push, monkeypatch):
    """A message is leased to be pushed, and is sent when the response to its Publish was written."""
    monkeypatch.setattr(unanswered, "MAX_SECONDS", 60)
    push()
    running, answer = parts(emulator), Answer()
    request = protos.PublishRequest(topic=TOPIC, messages=[protos.PubsubMessage(data=b"x")])
    running.services.publisher.publish(request.SerializeToString(), answer)
    wait_until(lambda: len(answer.barriers) == 1)

    assert [] == endpoint.requests
    running.engine.unanswered.written(answer)
    endpoint.wait_for(1)


def test_the_oldest_format_has_labels_and_milliseconds(emulator, endpoint, push):
    """With x-goog-version v1beta1 a push is the PubsubEvent of that API."""
    push({"attributes": {"x-goog-version": "v1beta1"}})
    [message_id] = emulator.publish(TOPIC, {"data": b"hello", "attributes": {"k": "v"}})

    [(_, _, body)] = endpoint.wait_for(1)

    event = json.loads(body)
    published = int(event["message"].pop("publishTime"))
    assert time.time() - 60 < published / 1000 <= time.time()
    message = {"data": "aGVsbG8=", "label": [{"key": "k", "strValue": "v"}], "messageId": message_id}
    assert {"subscription": SUB, "message": message} == event
    wait_until(lambda: [True] == acked(emulator))


def test_backlog_is_pushed_from_the_start(emulator, endpoint, push, call):
    """The backlog of a pull subscription is pushed once it becomes a push subscription."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC)
    emulator.publish(TOPIC, b"a", b"b")

    config = protos.PushConfig(push_endpoint=endpoint.url)
    call("Subscriber/ModifyPushConfig", protos.ModifyPushConfigRequest(subscription=SUB, push_config=config))

    endpoint.wait_for(2)
    assert {"YQ==", "Yg=="} == set(endpoint.data())


def test_pushes_go_on_after_a_restart(endpoint, tmp_path):
    """A push subscription kept in a data directory is pushed, including the messages from before the end."""
    with Emulator(data_dir=tmp_path) as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUB, TOPIC, push_config={"push_endpoint": endpoint.url})
    with Emulator(data_dir=tmp_path) as emulator:
        emulator.publish(TOPIC, b"after")

        [(_, _, body)] = endpoint.wait_for(1)
        assert "YWZ0ZXI=" == json.loads(body)["message"]["data"]


def test_refused_message_comes_again(emulator, endpoint, push):
    """An answer that does not acknowledge is a nack: the message is pushed again."""
    endpoint.answers.extend([500, 203])
    push()
    emulator.publish(TOPIC, b"a")

    endpoint.wait_for(3)

    wait_until(lambda: [True] == acked(emulator))
    assert ["YQ=="] * 3 == endpoint.data()
    assert [2] == [message.failures for message in emulator.messages(SUB)]


@pytest.mark.parametrize("code", [102, 201, 202, 204])
def test_other_codes_acknowledge_too(emulator, endpoint, push, code):
    """102, 201, 202 and 204 are as good as 200."""
    endpoint.answers.append(code)
    push()
    emulator.publish(TOPIC, b"a")

    endpoint.wait_for(1)

    wait_until(lambda: [True] == acked(emulator))


def test_pause_after_failures_ends_when_time_is_moved(emulator, endpoint, push):
    """An endpoint that keeps failing is left alone for longer and longer. `advance` ends the wait."""
    endpoint.answers.extend([500] * 10)
    push()
    emulator.publish(TOPIC, b"a")
    for count in range(1, 11):
        endpoint.wait_for(count)
        wait_until(lambda: len(endpoint.requests) == emulator.messages(SUB)[0].failures)
        emulator.advance(60)

    endpoint.wait_for(11)
    wait_until(lambda: [True] == acked(emulator))


def test_pushes_start_slowly(emulator, endpoint, push):
    """No more than a small window of requests is under way before the first of them has succeeded."""
    endpoint.gate.clear()
    push()
    emulator.publish(TOPIC, *(b"%d" % i for i in range(3 * FIRST_WINDOW_REQUESTS)))
    endpoint.wait_for(FIRST_WINDOW_REQUESTS)
    assert FIRST_WINDOW_REQUESTS == sum(message.deliveries for message in emulator.messages(SUB))

    endpoint.gate.set()

    wait_until(lambda: all(acked(emulator)))
    assert 3 * FIRST_WINDOW_REQUESTS == len(endpoint.requests)


def test_dead_letter_policy_counts_attempts(emulator, endpoint, push):
    """Each push has the number of its attempt. After the last one the message goes to the dead-letter topic."""
    grave, dead = "projects/p/topics/grave", "projects/p/subscriptions/dead"
    emulator.create_topic(grave)
    emulator.create_subscription(dead, grave)
    endpoint.answers.extend([500] * 5)
    policy = {"dead_letter_topic": grave, "max_delivery_attempts": 5}
    push(dead_letter_policy=policy, retry_policy={"minimum_backoff": {}, "maximum_backoff": {}})
    emulator.publish(TOPIC, b"a")

    endpoint.wait_for(5)

    wait_until(lambda: 1 == emulator.backlog(dead))
    assert [1, 2, 3, 4, 5] == [json.loads(body)["deliveryAttempt"] for _, _, body in endpoint.requests]
    assert 0 == emulator.backlog(SUB)


def test_ordered_messages_are_pushed_one_after_the_other(emulator, endpoint, push):
    """Messages of one key are under way one at a time, in order, and one that fails is repeated before the next."""
    endpoint.answers.extend([200, 500])
    push(enable_message_ordering=True)
    emulator.publish(TOPIC, *({"data": b"%d" % i, "ordering_key": "k"} for i in range(3)))

    wait_until(lambda: [True] * 3 == acked(emulator))

    assert ["MA==", "MQ==", "MQ==", "Mg=="] == endpoint.data()
    assert 1 == endpoint.most_waiting
    assert {"k"} == {json.loads(body)["message"]["orderingKey"] for _, _, body in endpoint.requests}


def test_unwrapped_push_carries_data_and_headers(emulator, endpoint, push):
    """Without the wrapper the body is the data. With write_metadata attributes and metadata are headers."""
    push({"no_wrapper": {"write_metadata": True}})
    [message_id] = emulator.publish(TOPIC, {"data": b"hello", "attributes": {"k": "v"}, "ordering_key": "o"})

    [(_, headers, body)] = endpoint.wait_for(1)

    assert b"hello" == body
    headers = {name.lower(): value for name, value in headers.items()}
    assert ("v", SUB, message_id, "o") == (
        headers["k"],
        headers["x-goog-pubsub-subscription-name"],
        headers["x-goog-pubsub-message-id"],
        headers["x-goog-pubsub-ordering-key"],
    )


def test_token_is_verified_with_the_served_keys(emulator, endpoint, push):
    """google-auth verifies the token of a push if it knows the URL of the emulator's keys."""
    push({"oidc_token": {"service_account_email": "push@p.iam.gserviceaccount.com"}})
    emulator.publish(TOPIC, b"a")

    [(_, headers, _)] = endpoint.wait_for(1)

    scheme, _, token = headers["Authorization"].partition(" ")
    address = f"http://{emulator.endpoint}/oauth2"
    with requests.Session() as session:
        claims = id_token.verify_token(token, Request(session), endpoint.url, certs_url=f"{address}/v1/certs")
        [key] = session.get(f"{address}/v3/certs", timeout=10).json()["keys"]
    assert ("Bearer", "push@p.iam.gserviceaccount.com") == (scheme, claims["email"])
    assert jwt.decode_header(token)["kid"] == key["kid"]


def test_filter_keeps_messages_from_the_endpoint(emulator, endpoint, push):
    """A push subscription pushes the messages that pass its filter."""
    push(filter='attributes.k = "v"')
    emulator.publish(TOPIC, b"no", {"data": b"yes", "attributes": {"k": "v"}})

    endpoint.wait_for(1)

    wait_until(lambda: 0 == emulator.backlog(SUB))
    assert ["eWVz"] == endpoint.data()


def test_slow_endpoint_is_a_nack(emulator, endpoint, push):
    """An answer after the ack deadline acknowledges nothing. The message is pushed again."""
    endpoint.gate.clear()
    push(ack_deadline_seconds=10)
    emulator.publish(TOPIC, b"a")
    endpoint.wait_for(1)

    emulator.advance(11)

    endpoint.wait_for(2)
    endpoint.gate.set()
    wait_until(lambda: [True] == acked(emulator))
    assert [1] == [message.failures for message in emulator.messages(SUB)]


@contextmanager
def answering(*parts, pause=0.0):
    """Yield the URL of a server that answers with these parts. With a pause it sends the last one without end."""

    class Handler(StreamRequestHandler):
        def handle(self):
            while self.rfile.readline().strip():
                pass
            with suppress(OSError):
                for part in chain(parts, repeat(parts[-1]) if pause else ()):
                    self.wfile.write(part)
                    time.sleep(pause)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.parametrize(
    "parts",
    [(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"x")],
    ids=["headers", "body"],
)
def test_answer_that_drips_is_none(parts):
    """The timeout is for the whole body instead of each piece. Headers end after a hundred lines."""
    begin = time.monotonic()
    with answering(*parts, pause=0.01) as url, closing(Poster(url, 1)) as poster:
        assert 0 == poster.post({}, b"", timeout=0.3)
        assert time.monotonic() - begin < 3


def test_nobody_listens_yet(emulator, endpoint, push, call):
    """An endpoint that refuses connections is retried. A new endpoint gets the message."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC, push_config={"push_endpoint": "http://127.0.0.1:9/"})
    emulator.publish(TOPIC, b"a")
    wait_until(lambda: emulator.messages(SUB)[0].failures > 0)

    config = protos.PushConfig(push_endpoint=endpoint.url)
    call("Subscriber/ModifyPushConfig", protos.ModifyPushConfigRequest(subscription=SUB, push_config=config))

    endpoint.wait_for(1)
    wait_until(lambda: [True] == acked(emulator))


@pytest.mark.parametrize("end", ["pull", "detach", "delete"])
def test_pushing_ends(emulator, endpoint, push, call, end):
    """A subscription that becomes pull, is detached or deleted is not pushed from then on."""
    push()
    requests = {
        "pull": ("Subscriber/ModifyPushConfig", protos.ModifyPushConfigRequest(subscription=SUB)),
        "detach": ("Publisher/DetachSubscription", protos.DetachSubscriptionRequest(subscription=SUB)),
        "delete": ("Subscriber/DeleteSubscription", protos.DeleteSubscriptionRequest(subscription=SUB)),
    }

    call(*requests[end])

    wait_until(lambda: not any(thread.name == f"push {SUB}" for thread in threading.enumerate()))
    emulator.publish(TOPIC, b"a")
    assert [] == endpoint.requests


def test_subscription_that_pushes_nothing_expires(emulator, endpoint, push):
    """Only a push that succeeds is use: neither waiting for messages nor an endpoint that refuses them all is."""
    endpoint.answers.extend([500] * 100)
    push(expiration_policy={"ttl": 86_400})
    gone = weakref.ref(parts(emulator).engine.broker.subscriptions[SUB])
    emulator.publish(TOPIC, b"a")
    endpoint.wait_for(1)
    emulator.advance(50_000)
    endpoint.wait_for(2)

    emulator.advance(50_000)

    with pytest.raises(RpcError, match="Resource not found"):
        emulator.backlog(SUB)
    wait_until(lambda: gc.collect() >= 0 and gone() is None)


def test_pulling_takes_over_what_was_not_pushed(emulator, endpoint, push, call):
    """Switching to pull keeps the messages: those that the endpoint refused are pulled."""
    endpoint.answers.extend([500] * 100)
    push()
    emulator.publish(TOPIC, b"a")
    endpoint.wait_for(1)

    call("Subscriber/ModifyPushConfig", protos.ModifyPushConfigRequest(subscription=SUB))

    raw = call("Subscriber/Pull", protos.PullRequest(subscription=SUB, max_messages=1))
    assert b"a" == protos.PullResponse.FromString(raw).received_messages[0].message.data


def test_push_subscription_cannot_be_pulled(push, call):
    """Pull of a push subscription is refused."""
    push()

    with pytest.raises(grpc.RpcError) as refused:
        call("Subscriber/Pull", protos.PullRequest(subscription=SUB, max_messages=1))

    assert grpc.StatusCode.FAILED_PRECONDITION == refused.value.code()


def test_emulator_stops_while_an_endpoint_is_slow(endpoint):
    """A request under way does not keep the emulator from stopping."""
    endpoint.gate.clear()
    with Emulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUB, TOPIC, push_config={"push_endpoint": endpoint.url})
        emulator.publish(TOPIC, b"a")
        endpoint.wait_for(1)
        begin = time.monotonic()

    assert time.monotonic() - begin < 5


def test_exception_of_a_push_ends_the_emulator(endpoint, monkeypatch):
    """A bug of ours on a push thread is not silent: the next caller of the emulator gets the error."""

    def fail(*_):
        raise RuntimeError("a mistake")

    monkeypatch.setattr(push_request, "request", fail)
    emulator = Emulator().start()
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC, push_config={"push_endpoint": endpoint.url})
    emulator.publish(TOPIC, "x")

    def has_failed():
        try:
            emulator.backlog(SUB)
        except EmulatorFailedError:
            return True
        return False

    wait_until(has_failed)
    with pytest.raises(EmulatorFailedError):
        emulator.stop()

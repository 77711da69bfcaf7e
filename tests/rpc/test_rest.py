"""The JSON API and the port that it shares with gRPC, over real connections."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import os
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.handlers import subscriber as handlers
from pubsub_spark.emulator.runtime import unanswered
from tests.rpc.certificate import self_signed
from tests.rpc.conftest import parts, wait_until

TOPIC, SUB = "projects/p/topics/news", "projects/p/subscriptions/all"
SCHEMA = "projects/p/schemas/news"


@pytest.fixture
def emulator():
    with Emulator(record=True) as emulator:
        yield emulator


@pytest.fixture
def rest(emulator):
    """Ask the JSON API and return the status and the parsed body."""
    connection = http.client.HTTPConnection(emulator.host, emulator.port, timeout=20)

    def ask(verb, path, body=None, **headers):
        text = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request(verb, path, text, headers)
        response = connection.getresponse()
        content = response.read()
        is_json = response.getheader("Content-Type", "").startswith("application/json")
        return response.status, json.loads(content) if is_json else content.decode()

    yield ask
    connection.close()


def set_up(emulator, **settings):
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUB, TOPIC, **settings)


def error(code, status, message):
    return code, {"error": {"code": code, "message": message, "status": status}}


def said_to(emulator, request):
    """Return all bytes received by a client that sends these bytes and then half-closes."""
    with socket.create_connection((emulator.host, emulator.port), timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_page_of_another_site_publishes_nothing(rest, emulator):
    """A browser sends a form's POST for any page, and its Origin shows that. An unknown host name is accepted."""
    set_up(emulator)
    path, body = f"/v1/{TOPIC}:publish", {"messages": [{"data": "aGVsbG8="}]}

    foreign = rest("POST", path, body, **{"Content-Type": "text/plain"}, Origin="http://evil.example.com")
    named = rest("POST", path, body, Host="host.docker.internal:8085")

    assert (403, 200) == (foreign[0], named[0])
    assert "because it is another site than" in foreign[1]
    assert 1 == emulator.backlog(SUB)


def test_root_says_ok(rest):
    """The path that health checks of containers ask for is answered as Google's emulator answers it."""
    assert (200, "Ok\n") == rest("GET", "/")
    assert (200, "Ok\n") == rest("GET", "/healthz")
    assert (200, "") == rest("HEAD", "/")
    assert (404, "Not Found\n") == rest("GET", "/nothing")
    assert (404, "Not Found\n") == rest("POST", f"/v1/{TOPIC}:explode", {})


def test_get_may_have_a_body(rest):
    """The body of a GET is ignored instead of being read as the next request."""
    assert (200, "Ok\n") == rest("GET", "/", b"hello")
    assert (200, {}) == rest("GET", "/v1/projects/p/topics", b"hello")
    assert (200, "Ok\n") == rest("GET", "/")


def test_request_may_name_its_server(rest, emulator):
    """Clients that take the emulator for a proxy ask by the whole address."""
    emulator.create_topic(TOPIC)

    assert (200, {"name": TOPIC}) == rest("GET", f"http://pubsub.googleapis.com/v1/{TOPIC}")
    assert (200, "Ok\n") == rest("GET", f"http://{emulator.endpoint}")


def test_every_refusal_is_plain_text(rest, emulator):
    """A refused method or a broken request is answered in plain text, not with an HTML page."""
    assert (501, "Unsupported method ('OPTIONS')\n") == rest("OPTIONS", f"/v1/{TOPIC}")
    head, _, body = said_to(emulator, b"nonsense\r\n\r\n").partition(b"\r\n\r\n")
    assert b"HTTP/1.1 400 Bad Request" == head.partition(b"\r\n")[0]
    assert b"Invalid HTTP request received." == body


def test_message_goes_round(rest, emulator):
    """Create, publish, pull and acknowledge, all in JSON, over one connection."""
    assert (200, {"name": TOPIC}) == rest("PUT", f"/v1/{TOPIC}", {})
    status, subscription = rest("PUT", f"/v1/{SUB}", {"topic": TOPIC, "ackDeadlineSeconds": 20})
    assert (200, 20, "604800s") == (
        status,
        subscription["ackDeadlineSeconds"],
        subscription["messageRetentionDuration"],
    )
    message = {"data": base64.b64encode(b"hello").decode(), "attributes": {"k": "v"}}
    _, published = rest("POST", f"/v1/{TOPIC}:publish", {"messages": [message]})

    _, pulled = rest("POST", f"/v1/{SUB}:pull", {"maxMessages": 10})

    [received] = pulled["receivedMessages"]
    assert message == {name: received["message"][name] for name in message}
    assert published["messageIds"] == [received["message"]["messageId"]]
    assert (200, {}) == rest("POST", f"/v1/{SUB}:acknowledge", {"ackIds": [received["ackId"]]})
    assert 0 == emulator.backlog(SUB)


def test_errors_are_those_of_grpc(rest, emulator):
    """Status, code and message are the same for each kind of request."""
    emulator.create_topic(TOPIC)

    assert error(404, "NOT_FOUND", "Resource not found (resource=none).") == rest("GET", "/v1/projects/p/topics/none")
    conflict = error(409, "ALREADY_EXISTS", "Resource already exists in the project (resource=news).")
    assert conflict == rest("PUT", f"/v1/{TOPIC}", {})
    status, body = rest("PUT", "/v1/projects/p/topics/ab", {})
    assert (400, "INVALID_ARGUMENT") == (status, body["error"]["status"])


@pytest.mark.parametrize(
    "mask",
    [
        "ackDeadlineSeconds,retainAckedMessages",
        "ack_deadline_seconds,retain_acked_messages",
        "ackDeadlineSeconds,retain_acked_messages",
    ],
)
def test_masks_are_of_either_case(rest, emulator, mask):
    """A PATCH names fields in camel case, snake case or both. An unknown one is refused and changes nothing."""
    set_up(emulator)
    change = {"subscription": {"ackDeadlineSeconds": 30, "retainAckedMessages": True}}

    status, changed = rest("PATCH", f"/v1/{SUB}", change | {"updateMask": mask})

    assert (200, 30, True) == (status, changed["ackDeadlineSeconds"], changed["retainAckedMessages"])
    assert 400 == rest("PATCH", f"/v1/{SUB}", change | {"updateMask": "ackDeadlineSeconds,colour"})[0]


def test_unknown_field_is_refused(rest):
    """A field that the request does not have is an error in the service's words, and nothing is done."""
    sentence = 'Invalid JSON payload received. Unknown name "lables": Cannot find field.'

    assert error(400, "INVALID_ARGUMENT", sentence) == rest("PUT", f"/v1/{TOPIC}", {"lables": {}})
    assert 404 == rest("GET", f"/v1/{TOPIC}")[0]


def test_exactly_once_failure_has_its_details(rest, emulator):
    """The reason that clients read per ack id is in `error.details`."""
    set_up(emulator, enable_exactly_once_delivery=True)
    emulator.publish(TOPIC, b"a")
    _, pulled = rest("POST", f"/v1/{SUB}:pull", {"maxMessages": 1})
    ack_id = pulled["receivedMessages"][0]["ackId"]
    emulator.advance(11)

    status, body = rest("POST", f"/v1/{SUB}:acknowledge", {"ackIds": [ack_id]})

    [detail] = body["error"]["details"]
    assert (400, "INVALID_ARGUMENT") == (status, body["error"]["status"])
    assert "type.googleapis.com/google.rpc.ErrorInfo" == detail["@type"]
    assert "EXACTLY_ONCE_ACKID_FAILURE" == detail["reason"]
    assert {ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"} == detail["metadata"]


def test_message_that_does_not_match_its_schema_has_its_details(rest, emulator):
    """The reason of the service, the index of the message and the revision are in `error.details`."""
    emulator.create_schema(SCHEMA, "AVRO", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
    emulator.create_topic(TOPIC, schema=SCHEMA, encoding="JSON")
    data = [base64.b64encode(text).decode() for text in (b'{"a": 1}', b'{"a": "\xc3\xa4"}')]

    status, body = rest("POST", f"/v1/{TOPIC}:publish", {"messages": [{"data": each} for each in data]})

    [detail] = body["error"]["details"]
    assert (400, "INVALID_ARGUMENT") == (status, body["error"]["status"])
    assert body["error"]["message"].startswith("Invalid data in message: Message failed schema validation. Message 1 ")
    assert ("INVALID_JSON_AVRO_MESSAGE", "pubsub.googleapis.com") == (detail["reason"], detail["domain"])
    assert "1" == detail["metadata"]["messageIndex"]
    assert "revision_id=" in detail["metadata"]["revisionInfo"]


def test_exactly_once_failure_has_room_for_every_ack_id(rest, emulator):
    """Hundreds of ids fail together, and each is named."""
    set_up(emulator, enable_exactly_once_delivery=True)
    emulator.publish(TOPIC, *[b"a"] * 1000)
    _, pulled = rest("POST", f"/v1/{SUB}:pull", {"maxMessages": 1000})
    ack_ids = [received["ackId"] for received in pulled["receivedMessages"]]
    emulator.advance(11)

    status, body = rest("POST", f"/v1/{SUB}:acknowledge", {"ackIds": ack_ids})

    assert (400, "INVALID_ARGUMENT") == (status, body["error"]["status"])
    assert set(ack_ids) == set(body["error"]["details"][0]["metadata"])


def test_waiting_pull_gets_the_message_that_comes(rest, emulator):
    """A Pull that finds nothing waits, and answers when a message is published."""
    set_up(emulator)
    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(rest, "POST", f"/v1/{SUB}:pull", {"maxMessages": 1})
        wait_until(lambda: any(call.rpc == "Pull" for call in emulator.calls))
        emulator.publish(TOPIC, b"a")

        status, body = pulled.result(timeout=10)

    assert (200, "YQ==") == (status, body["receivedMessages"][0]["message"]["data"])


def test_pull_that_waits_receives_what_rest_publishes(rest, emulator, monkeypatch):
    """The response to a Publish over REST lets its message go: a Pull that waits receives it at once."""
    monkeypatch.setattr(unanswered, "MAX_SECONDS", 60)
    set_up(emulator)
    with ThreadPoolExecutor(1) as pool, socket.create_connection((emulator.host, emulator.port), timeout=10) as pulling:
        begin_pull(emulator, pulling)
        answer = pool.submit(response_body, pulling)

        assert 200 == rest("POST", f"/v1/{TOPIC}:publish", {"messages": [{"data": "YQ=="}]})[0]

        assert b"YQ==" in answer.result(timeout=10)


def test_empty_pull_answers_before_clients_give_up(rest, emulator, monkeypatch):
    """Nothing comes, and the answer is there before the time that HTTP clients wait, which is a minute."""
    assert handlers.PULL_WAIT_SECONDS < 60
    monkeypatch.setattr(handlers, "PULL_WAIT_SECONDS", 0.5)
    set_up(emulator)
    begin = time.monotonic()

    assert (200, {}) == rest("POST", f"/v1/{SUB}:pull", {"maxMessages": 1})

    assert 0.5 <= time.monotonic() - begin < 5


def begin_pull(emulator, connection):
    """Ask for a message on this connection, and see the Pull begin."""
    body = b'{"maxMessages": 1}'
    head = f"POST /v1/{SUB}:pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    wait_until(lambda: any(call.rpc == "Pull" for call in emulator.calls))


def response_body(connection):
    """Read a whole response: its head and its body can arrive apart."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.read()


def deliveries_after_pull(emulator):
    """Return how often a message was delivered that was published after the end of the last Pull."""
    broker = parts(emulator).engine.broker
    wait_until(lambda: not broker.subscriptions[SUB].consumers.connected, seconds=5)  # its own limit is 10
    emulator.publish(TOPIC, b"a")
    return [message.deliveries for message in emulator.messages(SUB)]


def test_client_that_left_takes_no_message(emulator):
    """A Pull whose connection is gone is cancelled: a message published later is not leased."""
    set_up(emulator)

    with socket.create_connection((emulator.host, emulator.port)) as connection:
        begin_pull(emulator, connection)

    assert [0] == deliveries_after_pull(emulator)


def test_client_that_left_over_tls_takes_no_message():
    """A client that has left takes no message over TLS, either."""
    key, certificate = self_signed()
    trust = ssl.create_default_context(cadata=certificate.decode())
    with Emulator(tls=(key, certificate), record=True) as emulator:
        set_up(emulator)

        with (
            socket.create_connection((emulator.host, emulator.port)) as connection,
            trust.wrap_socket(connection, server_hostname="127.0.0.1") as encrypted,
        ):
            begin_pull(emulator, encrypted)

        assert [0] == deliveries_after_pull(emulator)


def test_next_request_may_come_during_a_pull(emulator):
    """A client that sends its next request while its Pull waits has not left: both are answered, in their order."""
    set_up(emulator)

    with socket.create_connection((emulator.host, emulator.port), timeout=10) as connection:
        begin_pull(emulator, connection)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        emulator.publish(TOPIC, b"a")
        answers = b"".join(iter(lambda: connection.recv(65_536), b""))

    assert b"receivedMessages" in answers
    assert answers.endswith(b"\r\n\r\nOk\n")


def test_client_that_says_no_more_is_answered(emulator):
    """A client may half-close after its request, as `nc -N` does: any RPC but a waiting Pull is answered."""
    set_up(emulator)
    body = b'{"messages": [{"data": "YQ=="}]}'
    head = f"POST /v1/{TOPIC}:publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"

    answers = {said_to(emulator, head.encode() + body).partition(b"\r\n")[0] for _ in range(20)}

    assert {b"HTTP/1.1 200 OK"} == answers
    assert 20 == emulator.backlog(SUB)


def test_body_may_come_in_chunks_or_compressed(rest):
    """Java's client compresses its requests, others send them in chunks."""
    labels = json.dumps({"labels": {"a": "b"}}).encode()

    compressed = rest("PUT", f"/v1/{TOPIC}", gzip.compress(labels), **{"Content-Encoding": "gzip"})
    assert (200, {"name": TOPIC, "labels": {"a": "b"}}) == compressed
    broken = rest("PUT", f"/v1/{TOPIC}", b"no gzip", **{"Content-Encoding": "gzip"})
    assert 400 == broken[0]


def test_chunked_body_is_read(emulator):
    """A request of unknown length ends with an empty chunk."""
    connection = http.client.HTTPConnection(emulator.host, emulator.port, timeout=20)
    connection.request("PUT", f"/v1/{TOPIC}", iter([b'{"labels":', b' {"a": "b"}}']), encode_chunked=True)
    first = connection.getresponse()

    assert (200, {"a": "b"}) == (first.status, json.loads(first.read())["labels"])
    connection.close()


@pytest.mark.parametrize(
    ("reason", "headers", "body"),
    [
        ("exceeds the limit: 10485760 bytes.", {"Content-Length": "10485761"}, b""),
        ("Invalid HTTP request received.", {"Content-Length": "-1"}, b""),
        ("Invalid HTTP request received.", {"Transfer-Encoding": "gzip, chunked"}, b"2\r\n{}\r\n0\r\n\r\n"),
        ("Invalid HTTP request received.", {"Transfer-Encoding": "chunked"}, b"x\r\n"),
        ("Invalid HTTP request received.", {"Transfer-Encoding": "chunked"}, b"-1\r\n"),
        ("Invalid HTTP request received.", {"Transfer-Encoding": "chunked"}, b"+2\r\n{}\r\n0\r\n\r\n"),
        ("Invalid HTTP request received.", {"Transfer-Encoding": "chunked"}, b"0x2\r\n{}\r\n0\r\n\r\n"),
        ("Invalid HTTP request received.", {"Transfer-Encoding": "chunked"}, b"2\r\n{} \r\n0\r\n\r\n"),
    ],
)
def test_body_that_cannot_be_read_ends_the_connection(emulator, reason, headers, body):
    """A connection is closed after a body that cannot be read: where its next request begins is unknown."""
    lines = [f"PUT /v1/{TOPIC} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    with socket.create_connection((emulator.host, emulator.port), timeout=20) as connection:
        # In one piece: a body that arrives after the server has closed resets the connection, and the response is lost.
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        response = http.client.HTTPResponse(connection)
        response.begin()

        assert (400, "close") == (response.status, response.getheader("Connection"))
        assert reason in response.read().decode()


@pytest.mark.parametrize(
    "rest_of_request",
    [
        b"Content-Length: 200\r\n\r\n",
        b"Content-Length: 200\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
    ],
)
def test_request_that_breaks_off_is_not_done(emulator, rest_of_request):
    """A client that ends in the middle of its body has not asked yet, even if the received part is also a request."""
    answer = said_to(emulator, f"PUT /v1/{TOPIC} HTTP/1.1\r\nHost: localhost\r\n".encode() + rest_of_request)

    assert b"HTTP/1.1 400 Bad Request" == answer.partition(b"\r\n")[0]
    assert [] == emulator.calls


def test_policy_is_read_and_written(rest, emulator):
    """IAM's methods are at the resource's path: GET to read, POST to write and to test."""
    emulator.create_topic(TOPIC)
    bindings = [{"role": "roles/pubsub.viewer", "members": ["allUsers"]}]

    assert (200, {"etag": "ACAB"}) == rest("GET", f"/v1/{TOPIC}:getIamPolicy")
    status, policy = rest("POST", f"/v1/{TOPIC}:setIamPolicy", {"policy": {"bindings": bindings}})
    assert (200, 1, bindings) == (status, policy["version"], policy["bindings"])
    stale = {"policy": {"etag": "ACAB"}}
    assert (409, "ABORTED") == (
        (answer := rest("POST", f"/v1/{TOPIC}:setIamPolicy", stale))[0],
        answer[1]["error"]["status"],
    )
    asked = {"permissions": ["pubsub.topics.publish", "pubsub.subscriptions.consume"]}
    assert (200, {"permissions": asked["permissions"][:1]}) == rest("POST", f"/v1/{TOPIC}:testIamPermissions", asked)


def test_faults_and_records_do_not_care_about_the_way(rest, emulator):
    """A request in JSON is recorded with its Google headers, and meets the fault that was ordered for its RPC."""
    emulator.create_topic(TOPIC)
    emulator.fail("GetTopic", "UNAVAILABLE", message="down for a moment")

    assert error(503, "UNAVAILABLE", "down for a moment") == rest("GET", f"/v1/{TOPIC}")
    assert (200, {"name": TOPIC}) == rest("GET", f"/v1/{TOPIC}", **{"X-Goog-Request-Params": "topic=news"})

    assert ["GetTopic", "GetTopic"] == [call.rpc for call in emulator.calls]
    assert ("x-goog-request-params", "topic=news") in emulator.calls[1].metadata


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-Goog-Name", "caf\xe9"), ("X-Goog-Name$", "a"), ("X-Goog-Ext-1-bin", "AAAA")],
)
def test_header_that_grpc_has_no_place_for_stays_behind(rest, emulator, name, value):
    """A header that cannot be gRPC metadata is dropped. The request and its other headers stay."""
    assert (200, {}) == rest("GET", "/v1/projects/p/topics", **{"X-Goog-User-Project": "p", name: value})

    assert [("x-goog-user-project", "p")] == [each for each in emulator.calls[0].metadata if each[0].startswith("x-")]


def test_grpc_and_rest_share_the_port(rest, emulator):
    """A topic that was created over gRPC is read over HTTP, at the same address."""
    with grpc.insecure_channel(emulator.endpoint) as channel:
        create = channel.unary_unary("/google.pubsub.v1.Publisher/CreateTopic")
        create(protos.Topic(name=TOPIC).SerializeToString(), timeout=10)

    assert (200, {"name": TOPIC}) == rest("GET", f"/v1/{TOPIC}")


def test_large_requests_and_answers_pass_the_front(emulator):
    """Requests and responses of ten megabytes pass the listener unharmed."""
    set_up(emulator)
    data = os.urandom(9_900_000)
    unlimited = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(emulator.endpoint, unlimited) as channel:
        publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        messages = [protos.PubsubMessage(data=data)]
        publish(protos.PublishRequest(topic=TOPIC, messages=messages).SerializeToString(), timeout=20)
        pull = channel.unary_unary("/google.pubsub.v1.Subscriber/Pull")
        raw = pull(protos.PullRequest(subscription=SUB, max_messages=1).SerializeToString(), timeout=20)

    assert data == protos.PullResponse.FromString(raw).received_messages[0].message.data


def test_silent_connection_harms_nobody(rest, emulator):
    """A port probe that says nothing, and one that hangs, keep no one else waiting."""
    with socket.create_connection((emulator.host, emulator.port)):
        socket.create_connection((emulator.host, emulator.port)).close()

        assert (200, "Ok\n") == rest("GET", "/")


def test_protobuf_over_http(emulator):
    """A topic goes in and out as a serialized message, through the port."""
    connection = http.client.HTTPConnection(emulator.host, emulator.port, timeout=20)
    body = protos.Topic(labels={"a": "b"}).SerializeToString()
    connection.request("PUT", f"/v1/{TOPIC}?alt=proto", body, {"Content-Type": "application/x-protobuf"})
    response = connection.getresponse()

    assert (200, "application/x-protobuf") == (response.status, response.getheader("Content-Type"))
    assert protos.Topic(name=TOPIC, labels={"a": "b"}) == protos.Topic.FromString(response.read())
    connection.close()


def test_answers_in_json_say_so(emulator):
    """Answers and errors have one media type, with its character set."""
    connection = http.client.HTTPConnection(emulator.host, emulator.port, timeout=20)
    seen = []
    for verb in ("GET", "PUT", "GET"):
        connection.request(verb, f"/v1/{TOPIC}")
        response = connection.getresponse()
        response.read()
        seen.append((response.status, response.getheader("Content-Type")))
    connection.close()

    said = "application/json; charset=utf-8"
    assert [(404, said), (200, said), (200, said)] == seen

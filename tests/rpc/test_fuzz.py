"""The emulator answers any request with a status, never INTERNAL or UNKNOWN, never hangs, and survives."""

from __future__ import annotations

import http.client
import threading
from typing import Any

import grpc
import pytest
from google.protobuf.message import EncodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pubsub_spark.emulator import Emulator
from pubsub_spark.emulator.api import protos, routes
from tests.rpc.conftest import OTHER, SUB, TOPIC, Client

SNAPSHOT, SCHEMA = "projects/p/snapshots/moment", "projects/p/schemas/point"
ROUTES = {route.rpc: route for route in routes.routes()}
TEXTS = [
    *("", "a", "é", "a" * 300, "\x00", "projects/p", "projects//", "projects/p/topics/a", "projects/p/topics/googol"),
    *(TOPIC, SUB, OTHER, SNAPSHOT, SCHEMA, f"{SCHEMA}@", f"{SCHEMA}@00000000", "_deleted-topic_", "_deleted-schema_"),
    *("attributes:a", 'attributes.a = "b"', "NOT", '"', "roles/viewer", "allUsers", "{}", '{"type": "int"}'),
    *('syntax = "proto3"; message M { int32 x = 1; }', "message", "p.d.t", "bucket", "gs://bucket", "suffix/"),
    *("http://127.0.0.1:9/", "http://127.0.0.1:9/é?", "http://127.0.0.1:x/", "http://[", "https:///", "ftp://a/"),
    *(
        "v1",
        "v9",
        "x-goog-version",
        "googkey",
        "labels",
        "ack_deadline_seconds",
        "filter",
        "a.b",
        "dead_letter_policy.x",
    ),
]
# Values that get a request past the first checks, by field.
LIKELY = {
    "project": "projects/p",
    "parent": "projects/p",
    "topic": TOPIC,
    "subscription": SUB,
    "snapshot": SNAPSHOT,
    "schema": SCHEMA,
    "resource": TOPIC,
    "dead_letter_topic": TOPIC,
    "GetSchemaRequest.name": SCHEMA,
    "CommitSchemaRequest.name": SCHEMA,
    "RollbackSchemaRequest.name": SCHEMA,
    "ListSchemaRevisionsRequest.name": SCHEMA,
    "ValidateMessageRequest.name": SCHEMA,
    "CreateSnapshotRequest.name": SNAPSHOT,
    "Topic.name": TOPIC,
    "Subscription.name": SUB,
    "Snapshot.name": SNAPSHOT,
    "Schema.name": SCHEMA,
}
INTEGERS = [0, 1, -1, 2, 5, 9, 10, 100, 600, 601, 1000, 1001, 2**31 - 1, -(2**31)]
LONGS = [*INTEGERS, 86_400, 604_800, 2_678_400, 4_000_000_000, 2**63 - 1, -(2**63)]
BYTES = [b"", b"a", b"\x02", b'{"x": 1}', b"\xff" * 20, bytes(2000)]
# The codes that an error may have. INTERNAL, UNKNOWN and DEADLINE_EXCEEDED would mean that something broke or hung.
REFUSALS = {"INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "FAILED_PRECONDITION", "UNIMPLEMENTED", "ABORTED"}
FUZZ = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)


def values(field, depth):
    kinds: dict[int, list[Any]] = {
        field.TYPE_STRING: TEXTS,
        field.TYPE_BYTES: BYTES,
        field.TYPE_BOOL: [False, True],
        field.TYPE_INT32: INTEGERS,
        field.TYPE_INT64: LONGS,
        field.TYPE_DOUBLE: [0.0, -1.5, float("inf"), float("nan")],
    }
    if field.message_type is not None:
        return messages(field.message_type, depth - 1) if depth else None
    if field.enum_type is not None:
        return st.sampled_from([0, 1, 2, 3, 99])
    return st.sampled_from(kinds[field.type])


@st.composite
def messages(draw, descriptor, depth=4):
    """A dict that is a request of this type: any fields, any values that often matter."""
    fields: dict[str, Any] = {}
    for field in descriptor.fields:
        likely = LIKELY.get(f"{descriptor.name}.{field.name}", LIKELY.get(field.name))
        if likely is not None and field.type == field.TYPE_STRING and draw(st.integers(0, 3)):
            fields[field.name] = likely
            continue
        strategy = values(field, depth)
        if strategy is None or not draw(st.booleans()):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entries = draw(st.lists(messages(field.message_type, depth), max_size=3))
            fields[field.name] = {entry.get("key", ""): entry.get("value", "") for entry in entries}
        elif field.name == "paths" and draw(st.booleans()):
            known = [
                each.name for name in ("Topic", "Subscription") for each in getattr(protos, name).DESCRIPTOR.fields
            ]
            fields[field.name] = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2))
        elif isinstance(field.default_value, list):
            fields[field.name] = draw(st.lists(strategy, max_size=3))
        else:
            fields[field.name] = draw(strategy)
    return fields


@pytest.fixture(scope="module")
def emulator():
    """Yield one emulator for all, with resources to hit."""
    with Emulator() as emulator:
        emulator.create_schema(SCHEMA, "AVRO", '{"type": "int"}')
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUB, TOPIC)
        emulator.publish(TOPIC, *(b"a" for _ in range(10)))
        yield emulator


@pytest.fixture(scope="module")
def client(emulator):
    client = Client(emulator.endpoint)
    yield client
    client.channel.close()


def code_of(call):
    try:
        call()
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


@pytest.mark.parametrize("rpc", sorted(ROUTES))
def test_any_request_is_answered(client, rpc):
    """Requests of every RPC, put together from values that often matter."""
    route = ROUTES[rpc]
    method = client.channel.unary_unary(rpc, request_serializer=bytes)

    @settings(FUZZ, max_examples=40)
    @given(messages(route.request.DESCRIPTOR))
    def ask(fields):
        try:
            request = route.request(**fields)
        except (ValueError, TypeError, EncodeError):
            return
        if rpc.endswith("/Pull"):
            request.return_immediately = True
        code = code_of(lambda: method(request.SerializeToString(), timeout=10))
        assert code == "OK" or code in REFUSALS, (code, request)

    ask()


@pytest.mark.parametrize("rpc", ["Publish", "Pull", "Acknowledge", "ModifyAckDeadline", "CreateTopic", "Seek"])
def test_any_bytes_are_answered(client, rpc):
    """Bytes that may be a request or not."""
    [full] = [each for each in ROUTES if each.endswith(f"/{rpc}")]
    method = client.channel.unary_unary(full, request_serializer=bytes)
    parts = [b"\x0a", b"\x12", b"\x1a", b"\x22", b"\x2a", b"\x08\x01", b"\x10\x01", b"\x00", b"\xff", b"\x05", b"\x80"]
    name = TOPIC.encode()
    parts += [b"\x0a" + bytes([len(name)]) + name, b"\x12\x03\x0a\x01a", b"\x12\x00", b"\x0b", b"\x0c", b"\x7f" * 9]

    @settings(FUZZ, max_examples=80)
    @given(st.lists(st.sampled_from(parts), max_size=6))
    def ask(parts):
        code = code_of(lambda: method(b"".join(parts), timeout=15))
        assert code == "OK" or code in REFUSALS, (code, parts)

    ask()


def test_any_stream_is_answered(client):
    """Two requests of any content on a stream end it with an error, or leave it open until it is cancelled."""
    stream = client.channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull", request_serializer=bytes)
    fields = messages(protos.StreamingPullRequest.DESCRIPTOR)

    @settings(FUZZ, max_examples=100)
    @given(st.lists(fields, min_size=1, max_size=2))
    def ask(requests):
        requests[0]["subscription"] = requests[0].get("subscription") or SUB
        raws = [protos.StreamingPullRequest(**each).SerializeToString() for each in requests]
        ended = threading.Event()
        call = stream(iter(raws), timeout=10)
        call.add_done_callback(lambda _: ended.set())
        ended.wait(0.02)
        call.cancel()
        assert ended.wait(5)
        code = call.code().name
        assert code in {"OK", "CANCELLED"} or code in REFUSALS, (code, requests)

    ask()


def test_any_http_is_answered(emulator):
    """Requests that are hardly HTTP or JSON get a status below 500, or the connection is closed."""
    verbs = st.sampled_from(["GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "X"])
    ends = [
        "",
        ":publish",
        ":pull",
        ":seek",
        ":commit",
        "/subscriptions",
        "?pageSize=x",
        "?view=7",
        "?a.b=c",
        "%00",
        "%ff",
    ]
    paths = st.tuples(st.sampled_from(["/", "/v1/", "//", "/v1//", "/v1/projects/p/"]), st.sampled_from(TEXTS[9:14]))
    bodies = st.sampled_from(
        [b"", b"{}", b"[]", b"{", b"\xff", b'{"messages": [{"data": "YQ=="}, 7]}', b'{"time": "x"}']
    )

    @settings(FUZZ, max_examples=100)
    @given(verbs, paths, st.sampled_from(ends), bodies)
    def ask(verb, path, end, body):
        connection = http.client.HTTPConnection(emulator.host, emulator.port, timeout=15)
        connection.request(verb, "".join(path) + end, body)
        status = connection.getresponse().status
        connection.close()
        assert status < 500 or verb in ("OPTIONS", "X"), (status, verb, path, end, body)

    ask()


def test_emulator_lives_on(emulator, client):
    """The emulator still serves after all the other tests of this file."""
    client.ask("Publisher/CreateTopic", name="projects/p/topics/after-all")
    emulator.create_subscription("projects/p/subscriptions/after-all", "projects/p/topics/after-all")
    emulator.publish("projects/p/topics/after-all", b"well")

    assert [b"well"] == client.data("projects/p/subscriptions/after-all")

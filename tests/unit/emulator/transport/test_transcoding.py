"""The v1 JSON API without a socket: the RPC of each request, and the form of responses and errors."""

from __future__ import annotations

import json

import pytest
from google.protobuf import any_pb2, json_format, timestamp_pb2
from google.pubsub_v1.types import pubsub, schema
from google.rpc import error_details_pb2, status_pb2

from pubsub_spark.emulator.api import routes
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.transport import transcoding

TOPIC = "projects/p/topics/t1"


def read(verb: str, path: str, query: str = "", body: str = "") -> transcoding.Call:
    route = routes.find(verb, path)
    assert route is not None, f"no route for {verb} {path}"
    return transcoding.read(route, path, query, body.encode())


@pytest.mark.parametrize(
    ("rpc", "verb", "path"),
    [
        ("Publisher/CreateTopic", "PUT", "/v1/projects/p/topics/t1"),
        ("Publisher/UpdateTopic", "PATCH", "/v1/projects/p/topics/t1"),
        ("Publisher/Publish", "POST", "/v1/projects/p/topics/t1:publish"),
        ("Publisher/GetTopic", "GET", "/v1/projects/p/topics/t1"),
        ("Publisher/ListTopics", "GET", "/v1/projects/p/topics"),
        ("Publisher/ListTopics", "GET", "/v1/projects/example.com:p/topics"),
        ("Publisher/ListTopicSubscriptions", "GET", "/v1/projects/p/topics/t1/subscriptions"),
        ("Publisher/ListTopicSnapshots", "GET", "/v1/projects/p/topics/t1/snapshots"),
        ("Publisher/DeleteTopic", "DELETE", "/v1/projects/p/topics/t1"),
        ("Publisher/DetachSubscription", "POST", "/v1/projects/p/subscriptions/s1:detach"),
        ("Subscriber/CreateSubscription", "PUT", "/v1/projects/p/subscriptions/s1"),
        ("Subscriber/GetSubscription", "GET", "/v1/projects/p/subscriptions/s1"),
        ("Subscriber/UpdateSubscription", "PATCH", "/v1/projects/p/subscriptions/s1"),
        ("Subscriber/ListSubscriptions", "GET", "/v1/projects/p/subscriptions"),
        ("Subscriber/DeleteSubscription", "DELETE", "/v1/projects/p/subscriptions/s1"),
        ("Subscriber/ModifyAckDeadline", "POST", "/v1/projects/p/subscriptions/s1:modifyAckDeadline"),
        ("Subscriber/Acknowledge", "POST", "/v1/projects/p/subscriptions/s1:acknowledge"),
        ("Subscriber/Pull", "POST", "/v1/projects/p/subscriptions/s1:pull"),
        ("Subscriber/ModifyPushConfig", "POST", "/v1/projects/p/subscriptions/s1:modifyPushConfig"),
        ("Subscriber/GetSnapshot", "GET", "/v1/projects/p/snapshots/n1"),
        ("Subscriber/ListSnapshots", "GET", "/v1/projects/p/snapshots"),
        ("Subscriber/CreateSnapshot", "PUT", "/v1/projects/p/snapshots/n1"),
        ("Subscriber/UpdateSnapshot", "PATCH", "/v1/projects/p/snapshots/n1"),
        ("Subscriber/DeleteSnapshot", "DELETE", "/v1/projects/p/snapshots/n1"),
        ("Subscriber/Seek", "POST", "/v1/projects/p/subscriptions/s1:seek"),
        ("SchemaService/CreateSchema", "POST", "/v1/projects/p/schemas"),
        ("SchemaService/GetSchema", "GET", "/v1/projects/p/schemas/s1@abcd1234"),
        ("SchemaService/ListSchemas", "GET", "/v1/projects/p/schemas"),
        ("SchemaService/ListSchemaRevisions", "GET", "/v1/projects/p/schemas/s1:listRevisions"),
        ("SchemaService/CommitSchema", "POST", "/v1/projects/p/schemas/s1:commit"),
        ("SchemaService/RollbackSchema", "POST", "/v1/projects/p/schemas/s1:rollback"),
        ("SchemaService/DeleteSchemaRevision", "DELETE", "/v1/projects/p/schemas/s1@abcd1234:deleteRevision"),
        ("SchemaService/DeleteSchema", "DELETE", "/v1/projects/p/schemas/s1"),
        ("SchemaService/ValidateSchema", "POST", "/v1/projects/p/schemas:validate"),
        ("SchemaService/ValidateMessage", "POST", "/v1/projects/p/schemas:validateMessage"),
        ("IAMPolicy/GetIamPolicy", "GET", "/v1/projects/p/topics/t1:getIamPolicy"),
        ("IAMPolicy/SetIamPolicy", "POST", "/v1/projects/p/subscriptions/s1:setIamPolicy"),
        ("IAMPolicy/TestIamPermissions", "POST", "/v1/projects/p/snapshots/n1:testIamPermissions"),
    ],
)
def test_every_rpc_has_its_place(rpc, verb, path):
    """Each RPC except the stream is found under the verb and path of the documentation."""
    route = routes.find(verb, path)

    assert route is not None
    assert rpc == route.rpc.rpartition(".")[2]


@pytest.mark.parametrize(
    ("verb", "path"),
    [("GET", "/v2/projects/p/topics"), ("POST", "/v1/projects/p/topics/t1"), ("GET", "/v1/projects/p/topics/t1/")],
)
def test_other_places_have_no_rpc(verb, path):
    """A path or verb without an annotation has no RPC."""
    assert routes.find(verb, path) is None


def test_body_is_the_request_and_the_path_names_the_resource():
    """`body: "*"` reads the whole request. The name comes from the path, whatever the body has."""
    call = read("PUT", f"/v1/{TOPIC}", body='{"name": "other", "labels": {"a": "b"}}')

    assert pubsub.Topic.pb()(name=TOPIC, labels={"a": "b"}) == call.request


def test_patch_names_the_resource_inside():
    """`{topic.name=...}` fills a field of a field, and a mask is camelCase."""
    body = '{"topic": {"messageRetentionDuration": "600s"}, "updateMask": "messageRetentionDuration,schemaSettings"}'

    call = read("PATCH", f"/v1/{TOPIC}", body=body)

    assert TOPIC == call.request.topic.name
    assert 600 == call.request.topic.message_retention_duration.seconds
    assert ["message_retention_duration", "schema_settings"] == list(call.request.update_mask.paths)


def test_body_can_be_one_field():
    """`body: "schema"` reads one field. The others are query parameters."""
    body = '{"type": "AVRO", "definition": "{}"}'

    call = read("POST", "/v1/projects/p/schemas", "schemaId=s1", body)

    expected = schema.Schema.pb()(type_=2, definition="{}")
    assert schema.CreateSchemaRequest.pb()(parent="projects/p", schema=expected, schema_id="s1") == call.request


def test_query_fills_what_path_and_body_do_not():
    """Query parameters are fields in either spelling, nested ones with a dot, enums by name or number."""
    assert 5 == read("GET", "/v1/projects/p/topics", "pageSize=5&key=abc&prettyPrint=false").request.page_size
    assert 5 == read("GET", "/v1/projects/p/topics", "page_size=5").request.page_size
    assert 1 == read("GET", "/v1/projects/p/schemas", "view=BASIC").request.view
    assert 1 == read("GET", "/v1/projects/p/schemas", "view=1").request.view
    policy = read("GET", f"/v1/{TOPIC}:getIamPolicy", "options.requestedPolicyVersion=3").request
    assert 3 == policy.options.requested_policy_version


def test_path_is_percent_decoded():
    """An id may hold `%`, `+` and `~`. An encoded slash stays encoded."""
    assert "projects/p/topics/a%+~b" == read("GET", "/v1/projects/p/topics/a%25+%7Eb").request.topic
    assert "projects/p/topics/a%2Fb" == read("GET", "/v1/projects/p/topics/a%2fb").request.topic


@pytest.mark.parametrize(
    ("reason", "body"),
    [
        ('Invalid JSON payload received. Unknown name "x": Cannot find field.', '{"x": 1}'),
        ("Invalid JSON payload received. Expecting property name", "{"),
        ("Invalid JSON payload received. It must be an object.", "[]"),
        ("Invalid JSON payload received. Invalid value at 'data' (TYPE_BYTES)", '{"messages": [{"data": "?"}]}'),
        ("Invalid JSON payload received. ", '{"messages": 1}'),
        ("Invalid JSON payload received. It is nested too deeply.", '{"a":' * 100_000),
        ("Invalid JSON payload received. ", '{"messages": [{"publishTime": "yesterday"}]}'),
        (
            "Invalid JSON payload received. Failed to parse messages field: Failed to parse attributes field: "
            "the value must be a text, in quotes.",
            '{"messages": [{"attributes": {"a": 1}}]}',
        ),
    ],
)
def test_unreadable_body_is_refused(reason, body):
    """A body that is not the JSON of the request is refused with the reason, with the service's words for unknown
    fields.
    """
    with pytest.raises(RpcError) as refused:
        read("POST", f"/v1/{TOPIC}:publish", body=body)

    assert str(refused.value).startswith(reason)
    assert not str(refused.value).endswith("..")


@pytest.mark.parametrize("query", ["x=1", "topic.x=1", "topic.topic=1", "pageSize=many"])
def test_unreadable_parameter_is_refused(query):
    """A parameter without a field, or without a value of its field, is refused."""
    with pytest.raises(RpcError, match=r"Invalid JSON payload received\."):
        read("GET", f"/v1/{TOPIC}/subscriptions", query)


def test_answer_is_proto_json():
    """Bytes are base64, durations `600s`, names camelCase, and defaults are left out."""
    call = read("POST", "/v1/projects/p/subscriptions/s1:pull", body='{"maxMessages": 1}')
    message = pubsub.PubsubMessage.pb()(data=b"\xff", publish_time=timestamp_pb2.Timestamp(seconds=1))
    received = pubsub.ReceivedMessage.pb()(ack_id="a", message=message)

    answer = json.loads(transcoding.answer(call, pubsub.PullResponse.pb()(received_messages=[received])))

    message = {"data": "/w==", "publishTime": "1970-01-01T00:00:01Z"}
    assert {"receivedMessages": [{"ackId": "a", "message": message}]} == answer


def test_enums_are_names_unless_numbers_are_asked_for():
    """The Python client's REST transport requests numbers. All others get names."""
    state = schema.Schema.pb()(type_=2)

    names = read("GET", "/v1/projects/p/schemas/s1")
    numbers = read("GET", "/v1/projects/p/schemas/s1", "%24alt=json%3Benum-encoding%3Dint")

    assert {"type": "AVRO"} == json.loads(transcoding.answer(names, state))
    assert {"type": 2} == json.loads(transcoding.answer(numbers, state))


def test_failure_has_code_message_status_and_details():
    """An error is the documented JSON. Details of a known type are written out, others are left out."""
    known, unknown = any_pb2.Any(), any_pb2.Any(type_url="type.googleapis.com/my.Own", value=b"x")
    known.Pack(error_details_pb2.ErrorInfo(reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com"))
    details = status_pb2.Status(code=3, message="no", details=[unknown, known]).SerializeToString()

    status, body = transcoding.failure("INVALID_ARGUMENT", "no", details)

    detail = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "EXACTLY_ONCE_ACKID_FAILURE",
        "domain": "pubsub.googleapis.com",
    }
    expected = {"code": 400, "message": "no", "status": "INVALID_ARGUMENT", "details": [detail]}
    assert (400, {"error": expected}) == (status, json.loads(body))


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "FAILED_PRECONDITION"),
        (400, "OUT_OF_RANGE"),
        (404, "NOT_FOUND"),
        (409, "ALREADY_EXISTS"),
        (409, "ABORTED"),
        (501, "UNIMPLEMENTED"),
        (503, "UNAVAILABLE"),
        (504, "DEADLINE_EXCEEDED"),
    ],
)
def test_code_has_its_http_status(status, code):
    """Each code of gRPC has the HTTP status of Google's APIs. Details are optional."""
    assert (status, {"error": {"code": status, "message": "m", "status": code}}) == (
        transcoding.failure(code, "m")[0],
        json.loads(transcoding.failure(code, "m")[1]),
    )


ANSWER = {"topics": [{"name": "t", "labels": {"a": "1", "b": "2"}, "kmsKeyName": "k"}], "nextPageToken": "x"}


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ("", ANSWER),
        ("*", ANSWER),
        ("nextPageToken", {"nextPageToken": "x"}),
        ("next_page_token,topics/name", {"topics": [{"name": "t"}], "nextPageToken": "x"}),
        ("topics(name,kmsKeyName)", {"topics": [{"name": "t", "kmsKeyName": "k"}]}),
        ("topics(name, labels/b)", {"topics": [{"name": "t", "labels": {"b": "2"}}]}),
        ("topics.labels.a", {"topics": [{"labels": {"a": "1"}}]}),
        ("topics/messageRetentionDuration", {"topics": [{}]}),
        ("topics,topics/name", {"topics": ANSWER["topics"]}),
    ],
)
@pytest.mark.parametrize("dollar", ["", "$"])
def test_answer_is_the_part_that_is_asked_for(fields, left, dollar):
    """Fields may be in either spelling, nested with a slash, a dot or in parentheses. A star selects all."""
    response = json_format.ParseDict(ANSWER, pubsub.ListTopicsResponse.pb()())

    call = read("GET", "/v1/projects/p/topics", f"{dollar}fields={fields}")

    assert left == json.loads(transcoding.answer(call, response))


def test_answer_has_white_space_unless_told_otherwise():
    """An answer has white space unless `prettyPrint`, with or without the dollar, is false."""
    response = pubsub.Topic.pb()(name=TOPIC, kms_key_name="k")

    pretty, plain = (read("GET", f"/v1/{TOPIC}", query) for query in ("", "$prettyPrint=false"))

    assert b'{\n  "name": "projects/p/topics/t1",\n  "kmsKeyName": "k"\n}' == transcoding.answer(pretty, response)
    assert b'{"name":"projects/p/topics/t1","kmsKeyName":"k"}' == transcoding.answer(plain, response)


@pytest.mark.parametrize(
    "fields", ["x", "topics/x", "topics/name/x", "topics(name", "topics)", ",", "topics/", "(a" * 9, "topics(" * 9000]
)
def test_part_that_there_is_none_of_is_refused(fields):
    """A selection of unknown fields is refused with an error message."""
    with pytest.raises(RpcError, match=r"Error expanding 'fields' parameter\. .*\.$") as refused:
        read("GET", "/v1/projects/p/topics", f"fields={fields}")

    assert "INVALID_ARGUMENT" == refused.value.code


def test_a_serialized_message_is_answered_by_another():
    """The body's type is that of its media type. `alt=proto` sets the response's, with the selected fields."""
    route = routes.find("PUT", f"/v1/{TOPIC}")
    assert route is not None
    body = pubsub.Topic.pb()(kms_key_name="k").SerializeToString()
    call = transcoding.read(route, f"/v1/{TOPIC}", "alt=proto&fields=name", body, "application/x-protobuf")

    assert (TOPIC, "k") == (call.request.name, call.request.kms_key_name)
    assert pubsub.Topic.pb()(name=TOPIC).SerializeToString() == transcoding.answer(call, call.request)
    assert "application/x-protobuf" == transcoding.media_type(call)
    with pytest.raises(RpcError, match="no serialized google"):
        transcoding.read(route, f"/v1/{TOPIC}", "", b"{}", "application/protobuf; charset=utf-8")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [("$alt=media", "json or proto"), ("alt=xml", "json or proto"), ("callback=f", "would let any web page read")],
)
def test_answer_in_another_form_is_refused(query, sentence):
    """The request is refused, because any answer would be mistaken for that form."""
    with pytest.raises(RpcError, match=sentence) as refused:
        read("GET", f"/v1/{TOPIC}", query)

    assert "INVALID_ARGUMENT" == refused.value.code

"""SchemaService, and the effect of a schema on Publish. No socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from google.protobuf import field_mask_pb2

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.handlers.schemas import BASIC, FULL
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.registry import Registry
from pubsub_spark.emulator.runtime.clock import Clock
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.state.state import State

SCHEMA = "projects/p/schemas/schema"
TOPIC = "projects/p/topics/topic"
SUBSCRIPTION = "projects/p/subscriptions/subscription"
PROTOBUF, AVRO = 1, 2
JSON, BINARY = 1, 2
ONE = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
TWO = (
    '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"},'
    ' {"name": "b", "type": "string", "default": ""}]}'
)
OTHER = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}'
MESSAGE = 'syntax = "proto3"; message M { int32 a = 1; }'


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(State(), Clock())
    yield engine
    engine.close()


@pytest.fixture
def services(engine: Engine) -> Registry:
    return Registry(engine, Faults())


def create(services: Registry, definition: str = ONE, kind: int = AVRO, schema_id: str = "schema") -> Any:
    schema = protos.Schema(type_=kind, definition=definition)
    return services.schemas.create_schema(
        protos.CreateSchemaRequest(parent="projects/p", schema_id=schema_id, schema=schema)
    )


def commit(services: Registry, definition: str, kind: int = AVRO) -> Any:
    schema = protos.Schema(name=SCHEMA, type_=kind, definition=definition)
    return services.schemas.commit_schema(protos.CommitSchemaRequest(name=SCHEMA, schema=schema))


def test_imports_are_refused_unless_allowed(engine, services):
    """Pub/Sub documents that imports are not supported. The emulator may allow the well-known types, but no others."""
    timed, other = (
        f'syntax = "proto3"; import "{name}"; message M {{ int32 a = 1; }}'
        for name in ("google/protobuf/timestamp.proto", "other.proto")
    )
    lenient = Registry(engine, Faults(), allow_well_known_imports=True)

    for definition in (timed, other):
        code, sentence = refused(partial(create, services, definition, PROTOBUF))
        assert "INVALID_ARGUMENT" == code
        assert "Pub/Sub supports no imports. Write its types as nested messages, or let the emulator" in sentence
    create(services, MESSAGE, PROTOBUF)
    assert "`google/protobuf/timestamp.proto`" in refused(lambda: commit(services, timed, PROTOBUF))[1]
    assert timed == create(lenient, timed, PROTOBUF, "timed").definition
    assert "and only `google/protobuf/any.proto`" in refused(lambda: create(lenient, other, PROTOBUF, "other"))[1]


def get(services: Registry, name: str = SCHEMA, view: int = 0) -> Any:
    return services.schemas.get_schema(protos.GetSchemaRequest(name=name, view=view))


def revisions(services: Registry) -> list[str]:
    request = protos.ListSchemaRevisionsRequest(name=SCHEMA)
    return [schema.revision_id for schema in services.schemas.list_schema_revisions(request).schemas]


def refused(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(RpcError) as error:
        call()
    return error.value.code, error.value.message


def topic(services: Registry, **settings: Any) -> None:
    settings = {"schema": SCHEMA, "encoding": BINARY} | settings
    services.publisher.create_topic(protos.Topic(name=TOPIC, schema_settings=settings))
    services.subscriber.create_subscription(protos.Subscription(name=SUBSCRIPTION, topic=TOPIC))


def publish(services: Registry, *data: bytes) -> None:
    messages = [protos.PubsubMessage(data=each) for each in data]
    services.publisher.publish(protos.PublishRequest(topic=TOPIC, messages=messages).SerializeToString())


def delivered(services: Registry) -> list[dict[str, str]]:
    request = protos.PullRequest(subscription=SUBSCRIPTION, max_messages=10, return_immediately=True)
    raw = asyncio.run(services.subscriber.pull(request.SerializeToString(), RpcContext("Pull")))
    received = protos.PullResponse.FromString(raw).received_messages
    return [dict(each.message.attributes) for each in received]


def test_views_have_their_defaults(services):
    """By default GetSchema returns everything and the lists omit the definition. Each accepts the other view."""
    made = create(services)
    lists = services.schemas.list_schemas
    [listed] = lists(protos.ListSchemasRequest(parent="projects/p")).schemas
    [full] = lists(protos.ListSchemasRequest(parent="projects/p", view=FULL)).schemas

    assert made == get(services) == full
    assert 8 == len(made.revision_id)
    assert ONE == made.definition
    assert made.revision_create_time.seconds > 0
    assert listed == get(services, view=BASIC)
    assert "" == listed.definition


def test_revisions_are_listed_newest_first(services):
    """A rollback is a new revision with the old definition. Each can be read by its id."""
    first = create(services)
    second = commit(services, TWO)
    third = services.schemas.rollback_schema(protos.RollbackSchemaRequest(name=SCHEMA, revision_id=first.revision_id))

    assert [third.revision_id, second.revision_id, first.revision_id] == revisions(services)
    assert 3 == len(set(revisions(services)))
    assert ONE == third.definition
    assert TWO == get(services, f"{SCHEMA}@{second.revision_id}").definition


def test_last_revision_cannot_be_deleted(services):
    """The only revision of a schema cannot be deleted. One of several can, and is then not found."""
    first = create(services)
    second = commit(services, TWO)
    delete = services.schemas.delete_schema_revision
    left = delete(protos.DeleteSchemaRevisionRequest(name=f"{SCHEMA}@{second.revision_id}"))

    assert first.revision_id == left.revision_id
    assert "NOT_FOUND" == refused(lambda: get(services, f"{SCHEMA}@{second.revision_id}"))[0]
    request = protos.DeleteSchemaRevisionRequest(name=f"{SCHEMA}@{first.revision_id}")
    assert ("INVALID_ARGUMENT", "Cannot delete last revision. Please use DeleteSchema.") == refused(
        lambda: delete(request)
    )


def test_pages_of_revisions_go_on_when_one_is_deleted_or_added(services):
    """A token marks a point in time, so no revision is left out or listed twice."""
    made = [create(services).revision_id, *(commit(services, TWO).revision_id for _ in range(3))]
    token, seen = "", []
    for page in range(4):
        request = protos.ListSchemaRevisionsRequest(name=SCHEMA, page_size=1, page_token=token)
        listed = services.schemas.list_schema_revisions(request)
        seen += [revision.revision_id for revision in listed.schemas]
        token = listed.next_page_token
        if page == 0:
            commit(services, ONE)
            name = f"{SCHEMA}@{made[-1]}"
            services.schemas.delete_schema_revision(protos.DeleteSchemaRevisionRequest(name=name))

    assert made[::-1] == seen


@pytest.mark.parametrize(
    ("definition", "kind"),
    [(OTHER, AVRO), (MESSAGE, PROTOBUF), ("{", AVRO), ("", 0)],
    ids=["incompatible", "another type", "unreadable", "without type"],
)
def test_unfit_revisions_are_refused(services, definition, kind):
    """Unfit revisions are refused, and no revision is added."""
    create(services)
    assert "INVALID_ARGUMENT" == refused(lambda: commit(services, definition, kind))[0]
    assert 1 == len(revisions(services))


def test_schema_has_at_most_twenty_revisions(services):
    """A schema with twenty revisions accepts another only after one was deleted."""
    create(services)
    for index in range(19):
        commit(services, TWO if index % 2 else ONE)
    assert "INVALID_ARGUMENT" == refused(lambda: commit(services, ONE))[0]


def test_definition_has_at_most_300_kb(services):
    """A definition of more than 300 KB is refused, as the documentation says."""
    assert "schema_definition_size" in refused(lambda: create(services, " " * 307_201))[1]


@pytest.mark.parametrize(
    ("encoding", "message", "fits"),
    [(BINARY, b"\x02", True), (BINARY, b"\x02\x00", False), (JSON, b'{"a": 1}', True), (JSON, b"{}", False)],
)
def test_messages_are_validated_in_both_encodings(services, encoding, message, fits):
    """A message is validated by the schema's name and by its text. Trailing bytes do not fit."""
    create(services)
    for spec in ({"name": SCHEMA}, {"schema": protos.Schema(type_=AVRO, definition=ONE)}):
        request = protos.ValidateMessageRequest(parent="projects/p", message=message, encoding=encoding, **spec)
        if fits:
            assert protos.ValidateMessageResponse() == services.schemas.validate_message(request)
        else:
            assert "INVALID_ARGUMENT" == refused(partial(services.schemas.validate_message, request))[0]


def test_protocol_buffers_are_schemas_too(services):
    """A Protocol Buffers definition is validated, and so is a message of it."""
    create(services, MESSAGE, PROTOBUF)
    request = protos.ValidateMessageRequest(parent="projects/p", message=b"\x08\x01", encoding=BINARY, name=SCHEMA)
    assert protos.ValidateMessageResponse() == services.schemas.validate_message(request)


def test_message_names_the_newest_revision_that_it_fits(services):
    """Revisions are tried newest first. A message that fits none refuses the whole request."""
    first = create(services)
    second = commit(services, TWO)
    third = services.schemas.rollback_schema(protos.RollbackSchemaRequest(name=SCHEMA, revision_id=first.revision_id))
    topic(services)
    publish(services, b"\x02", b"\x02\x02x")

    assert [third.revision_id, second.revision_id] == [
        each["googclient_schemarevisionid"] for each in delivered(services)
    ]
    assert "INVALID_ARGUMENT" == refused(lambda: publish(services, b"\x02", b"no"))[0]
    assert [] == delivered(services)


@pytest.mark.parametrize(
    ("kind", "definition", "encoding", "good", "bad", "reason", "problem"),
    [
        (AVRO, ONE, BINARY, b"\x02", b"\x02\x00", "INVALID_BINARY_AVRO_MESSAGE", "1 byte"),
        (AVRO, ONE, JSON, b'{"a": 1}', b'{"a": "x"}', "INVALID_JSON_AVRO_MESSAGE", "a"),
        (PROTOBUF, MESSAGE, BINARY, b"\x08\x01", b"\xff", "INVALID_BINARY_PROTO_MESSAGE", ""),
        (PROTOBUF, MESSAGE, JSON, b'{"a": 1}', b"[]", "INVALID_JSON_PROTO_MESSAGE", ""),
    ],
)
def test_refusal_names_message_revision_and_reason(services, kind, definition, encoding, good, bad, reason, problem):
    """The error message identifies the message and the cause. The ErrorInfo has the service's reason."""
    revision = create(services, definition, kind).revision_id
    topic(services, encoding=encoding)

    with pytest.raises(RpcError) as error:
        publish(services, good, bad, good)

    checked = f"Message 1 of the request does not match revision {revision} of `{SCHEMA}`: "
    start, _, why = error.value.message.partition(checked)
    assert ("INVALID_ARGUMENT", reason) == (error.value.code, error.value.reason)
    assert "Invalid data in message: Message failed schema validation. " == start
    assert why
    assert problem in why
    assert {
        "message": "Message failed schema validation",
        "messageIndex": "1",
        "revisionInfo": f"Could not validate message with any schema revision for schema: {SCHEMA}, last checked "
        f"revision: revision_id={revision} failed with status: {why}",
    } == error.value.metadata
    assert [] == delivered(services)


def test_validation_of_a_message_has_the_reason_of_a_publish(services):
    """ValidateMessage fails as Publish does, without an index."""
    create(services)
    request = protos.ValidateMessageRequest(parent="projects/p", message=b"{}", encoding=JSON, name=SCHEMA)
    with pytest.raises(RpcError, match=r"^Invalid data in message: Message failed schema validation\. .*`a`") as error:
        services.schemas.validate_message(request)

    assert "INVALID_JSON_AVRO_MESSAGE" == error.value.reason
    assert {"message": "Message failed schema validation"} == error.value.metadata


def test_range_without_a_revision_is_named(services):
    """A topic whose only allowed revision was deleted accepts no message."""
    first = create(services)
    commit(services, TWO)
    topic(services, first_revision_id=first.revision_id, last_revision_id=first.revision_id)
    name = f"{SCHEMA}@{first.revision_id}"
    services.schemas.delete_schema_revision(protos.DeleteSchemaRevisionRequest(name=name))

    sentence = f"No revision of `{SCHEMA}` is between the first and the last that the topic allows."
    assert ("INVALID_ARGUMENT", sentence) == refused(lambda: publish(services, b"\x02"))


def test_range_of_revisions_limits_what_fits(services):
    """Only revisions from the first to the last named by the topic are tried."""
    first = create(services)
    commit(services, TWO)
    topic(services, first_revision_id=first.revision_id, last_revision_id=first.revision_id)
    publish(services, b"\x02")
    assert "INVALID_ARGUMENT" == refused(lambda: publish(services, b"\x02\x02x"))[0]


def test_topic_needs_a_schema_that_exists_and_an_encoding(services):
    """A missing schema or revision is NOT_FOUND. A missing encoding is INVALID_ARGUMENT."""
    assert "NOT_FOUND" == refused(lambda: topic(services))[0]
    create(services)
    assert "NOT_FOUND" == refused(lambda: topic(services, first_revision_id="00000000"))[0]
    assert "INVALID_ARGUMENT" == refused(lambda: topic(services, encoding=0))[0]
    assert "INVALID_ARGUMENT" == refused(lambda: topic(services, schema="_deleted-schema_"))[0]


def test_deleted_schema_poisons_its_topic(services):
    """The topic shows the deletion, and accepts nothing until its settings change."""
    create(services)
    topic(services)
    services.schemas.delete_schema(protos.DeleteSchemaRequest(name=SCHEMA))
    kept = services.publisher.get_topic(protos.GetTopicRequest(topic=TOPIC))

    assert "NOT_FOUND" == refused(lambda: get(services))[0]
    assert "_deleted-schema_" == kept.schema_settings.schema
    assert ("NOT_FOUND", "Schema associated with topic deleted.") == refused(lambda: publish(services, b"\x02"))
    services.publisher.update_topic(
        protos.UpdateTopicRequest(
            topic=protos.Topic(name=TOPIC), update_mask=field_mask_pb2.FieldMask(paths=["schema_settings"])
        )
    )
    publish(services, b"anything")
    assert [{}] == delivered(services)

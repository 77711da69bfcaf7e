"""The rules of schemas and their revisions that are easiest to get wrong, each once, over real RPCs."""

from __future__ import annotations

import re

import pytest

from pubsub_spark.emulator.api import protos
from tests.rpc.conftest import SUB, TOPIC, refused

SCHEMA = "projects/p/schemas/point"
V1 = '{"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}'
V2 = (
    '{"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}, '
    '{"name": "y", "type": "int", "default": 0}]}'
)


def commit(client, definition):
    schema = protos.Schema(name=SCHEMA, type_=2, definition=definition)
    return client.ask("SchemaService/CommitSchema", name=SCHEMA, schema=schema).revision_id


def test_rollback_is_a_new_revision(client, emulator):
    """The old definition is restored under an id of its own, as the latest."""
    emulator.create_schema(SCHEMA, "AVRO", V1)
    first = client.ask("SchemaService/GetSchema", name=SCHEMA).revision_id
    second = commit(client, V2)

    third = client.ask("SchemaService/RollbackSchema", name=SCHEMA, revision_id=first)

    latest = client.ask("SchemaService/GetSchema", name=SCHEMA)
    assert V1 == third.definition == latest.definition
    assert third.revision_id == latest.revision_id
    assert 3 == len({first, second, third.revision_id})
    assert all(re.fullmatch(r"[0-9a-f]{8}", each) for each in (first, second, third.revision_id))


def test_message_names_the_revision_that_matched(client, emulator):
    """Revisions are tried newest first. The delivered attributes name the one that fits."""
    emulator.create_schema(SCHEMA, "AVRO", V1)
    first = client.ask("SchemaService/GetSchema", name=SCHEMA).revision_id
    second = commit(client, V2)
    emulator.create_topic(TOPIC, SCHEMA, "JSON")
    emulator.create_subscription(SUB, TOPIC)

    client.publish({"data": b'{"x": 1}'}, {"data": b'{"x": 1, "y": 2}'})

    attributes = [dict(received.message.attributes) for received in client.pull()]
    common = {"googclient_schemaname": SCHEMA, "googclient_schemaencoding": "JSON"}
    assert [common | {"googclient_schemarevisionid": each} for each in (first, second)] == attributes


def test_revisions_outside_the_range_are_not_tried(client, emulator):
    """A topic that allows the first revision alone refuses messages that only fit the second."""
    emulator.create_schema(SCHEMA, "AVRO", V1)
    first = client.ask("SchemaService/GetSchema", name=SCHEMA).revision_id
    commit(client, V2)
    settings = {"schema": SCHEMA, "encoding": 1, "first_revision_id": first, "last_revision_id": first}
    client.ask("Publisher/CreateTopic", name=TOPIC, schema_settings=settings)

    client.publish({"data": b'{"x": 1}'})
    with refused("INVALID_ARGUMENT"):
        client.publish({"data": b'{"x": 1, "y": 2}'})


def test_deleted_revision_is_a_bound_still(client, emulator):
    """A topic that begins with the second revision refuses messages of the first, even after the second is deleted."""
    emulator.create_schema(SCHEMA, "AVRO", V2)
    second = commit(client, V1)
    settings = {"schema": SCHEMA, "encoding": 1, "first_revision_id": second}
    client.ask("Publisher/CreateTopic", name=TOPIC, schema_settings=settings)
    commit(client, V1)
    client.ask("SchemaService/DeleteSchemaRevision", name=f"{SCHEMA}@{second}")

    client.publish({"data": b'{"x": 1}'})
    with refused("INVALID_ARGUMENT"):
        client.publish({"data": b'{"x": 1, "y": 2}'})


@pytest.mark.parametrize(
    ("rpc", "fields"),
    [
        ("DeleteSchema", {}),
        ("ListSchemaRevisions", {}),
        ("CommitSchema", {"schema": protos.Schema(type_=2, definition=V2)}),
    ],
)
def test_revision_is_not_its_schema(client, emulator, rpc, fields):
    """A call on a whole schema refuses the name of one revision."""
    emulator.create_schema(SCHEMA, "AVRO", V1)
    name = f"{SCHEMA}@{commit(client, V2)}"

    with refused("INVALID_ARGUMENT", "Invalid resource name given"):
        client.ask(f"SchemaService/{rpc}", name=name, **fields)

    assert 2 == len(client.ask("SchemaService/ListSchemaRevisions", name=SCHEMA).schemas)


def test_rollback_says_to_what(client, emulator):
    """A rollback without a revision id is refused."""
    emulator.create_schema(SCHEMA, "AVRO", V1)
    with refused("INVALID_ARGUMENT", "The revision to roll back to must be given"):
        client.ask("SchemaService/RollbackSchema", name=SCHEMA)


def test_deleted_schema_poisons_publishing(client, emulator):
    """The topic names `_deleted-schema_`, and publishing to it fails."""
    emulator.create_schema(SCHEMA, "AVRO", V1)
    emulator.create_topic(TOPIC, SCHEMA, "JSON")

    client.ask("SchemaService/DeleteSchema", name=SCHEMA)

    assert "_deleted-schema_" == client.ask("Publisher/GetTopic", topic=TOPIC).schema_settings.schema
    with refused("NOT_FOUND"):
        client.publish({"data": b'{"x": 1}'})

"""Names and contents of exported objects, made from messages alone."""

from __future__ import annotations

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.sinks.destination import DestinationError, TopicSchema
from pubsub_spark.emulator.sinks.ingestion_format import HEADER
from pubsub_spark.emulator.sinks.object_format import encoder, object_name
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.message import Message
from pubsub_spark.schema import schema_types

SUB = "projects/p/subscriptions/lake"
ONE = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "int", "logicalType": "date"}}]}'
TWO = ONE.replace("]}", ', {"name": "b", "type": ["null", "string"], "default": null}]}')


def config(**fields: Any) -> Any:
    return protos.CloudStorageConfig(bucket="bucket", **fields)


def message(data: bytes, number: int = 10**16, key: str = "", **attributes: str) -> Message:
    body = protos.PubsubMessage(data=data, attributes=attributes, ordering_key=key).SerializeToString()
    [frame] = wire_format.message_frames([body], number, wire_format.publish_time_field(1.5))
    return Message(number, 1.5, key, frame)


def rows(content: bytes) -> list[Any]:
    return list(fastavro.reader(BytesIO(content)))


def topic_schema(*texts: str, encoding: str = "BINARY") -> TopicSchema:
    definitions = [schema_types.parse("AVRO", text) for text in texts]
    return TopicSchema({f"r{index}": each for index, each in enumerate(definitions)}, definitions[-1], encoding)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "2023-09-25T04:10:00+00:00_id"),
        ({"filename_prefix": "log/", "filename_suffix": ".avro"}, "log/2023-09-25T04:10:00+00:00_id.avro"),
        ({"filename_datetime_format": "YYYY/MM/DD-hh_mm_ss"}, "2023/09/25-04_10_00_id"),
        ({"filename_datetime_format": "YY:MM:DDhhmmssZ"}, "23:09:25041000Z_id"),
        ({"filename_datetime_format": "YYYY-MM-DDThh_mm_ss-"}, "2023-09-25T04_10_00-id"),
    ],
)
def test_names_are_made_of_prefix_datetime_and_suffix(fields, name):
    """The datetime is that of the first message, in UTC and in the configured format."""
    assert name == object_name(config(**fields), 1695615000.0, "id")


def test_text_is_lines():
    """Each message is its data and a newline, whatever the data are."""
    encoded = encoder(config(text_config={}))([message(b"a"), message(b""), message(b"b\nc")], SUB, None)

    assert (b"a\n\nb\nc\n", ()) == encoded


def test_avro_has_the_data():
    """Without metadata a record has the data alone."""
    encoded = encoder(config(avro_config={}))([message(b"a\xff")], SUB, None)

    assert [{"data": b"a\xff"}] == rows(encoded.content)


def test_avro_has_the_metadata():
    """With metadata a record has subscription, id, time and attributes, including the ordering key."""
    encoded = encoder(config(avro_config={"write_metadata": True}))([message(b"a", key="k", x="y")], SUB, None)

    [row] = rows(encoded.content)
    assert (SUB, "10000000000000000", b"a") == (row["subscription_name"], row["message_id"], row["data"])
    assert ({"x": "y", "ordering_key": "k"}, 1.5) == (row["attributes"], row["publish_time"].timestamp())
    assert "PubsubMessageWithMetadata" in encoded.content.decode(errors="ignore")


@pytest.mark.parametrize(("encoding", "data"), [("BINARY", b"\x04"), ("JSON", b'{"a": 2}')])
def test_topic_schema_makes_the_columns(encoding, data):
    """Messages of any revision are records of the latest one, in either encoding."""
    encode = encoder(config(avro_config={"use_topic_schema": True, "write_metadata": True}))
    old = message(data, googclient_schemarevisionid="r0")

    encoded = encode([old, message(b"no")], SUB, topic_schema(ONE, TWO, encoding=encoding))

    [row] = rows(encoded.content)
    assert [1] == list(encoded.misfits)
    assert ("1970-01-03", None, SUB) == (row["a"].isoformat(), row["b"], row["subscription_name"])


def test_record_that_the_latest_revision_cannot_read_is_left_out():
    """The topic's range may end before the revision of a message, so a field without a default can be missing."""
    encode = encoder(config(avro_config={"use_topic_schema": True}))
    none = '{"type": "record", "name": "R", "fields": []}'

    encoded = encode([message(b"", googclient_schemarevisionid="r0"), message(b"\x04")], SUB, topic_schema(none, ONE))

    assert ([0], 1) == (list(encoded.misfits), len(rows(encoded.content)))


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def fixed(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": 1, **more}


# situation: the fields of a record in the namespace `x`, refused or misread by fastavro's parser
ODD_SCHEMAS: dict[str, list[Any]] = {
    "symbols of any script": [field("a", {"type": "enum", "name": "E", "symbols": ["ä"]}), field("b", ["null", "E"])],
    "a null namespace": [field("a", fixed("F", namespace=None)), field("b", ["null", "x.F"])],
    "outside of all namespaces": [field("a", fixed("F", namespace="")), field("b", ["null", {"type": "F"}])],
    "decimal of an impossible scale": [
        field("a", {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 12}),
        field("b", ["null", "bytes"]),
    ],
}


@pytest.mark.parametrize("situation", ODD_SCHEMAS)
def test_file_of_a_schema_that_fastavro_refuses(situation):
    """A schema that Java's Avro reads makes a file: a header with the schema, and the records in one block."""
    fields = ODD_SCHEMAS[situation]
    text = json.dumps({"type": "record", "name": "R", "namespace": "x", "doc": "kept", "fields": fields})
    data = b"\x02\x07\x00" if "decimal" in situation else b"\x00\x00"

    encoded = encoder(config(avro_config={"use_topic_schema": True}))([message(data)] * 2, SUB, topic_schema(text))

    assert [] == encoded.misfits
    content = BytesIO(encoded.content)
    header: Any = fastavro.schemaless_reader(content, HEADER, None)
    schema = schema_types.parse("AVRO", header["meta"]["avro.schema"].decode())
    assert schema.first_invalid([data], "BINARY") is None
    assert "kept" == json.loads(schema.text)["doc"]
    assert bytes([4, 4 * len(data)]) + data * 2 + header["sync"] == content.read()


def test_default_of_a_new_field_is_its_value():
    """In older records a new field has the reader's default, whatever its type."""
    defaults = {
        "raw": ("bytes", "\u00ff", b"\xff"),
        "price": ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0007", Decimal("0.07")),
        "deep": (
            {"type": "map", "values": ["null", {"type": "array", "items": fixed("F")}]},
            {"k": ["ÿ"]},
            {"k": [b"\xff"]},
        ),
        "inner": ({"type": "record", "name": "N", "fields": [field("n", "int", default=3)]}, {}, {"n": 3}),
    }
    two = json.loads(ONE)
    two["fields"] += [field(name, type_, default=default) for name, (type_, default, _) in defaults.items()]
    encode = encoder(config(avro_config={"use_topic_schema": True}))

    encoded = encode([message(b"\x04", googclient_schemarevisionid="r0")], SUB, topic_schema(ONE, json.dumps(two)))

    [row] = rows(encoded.content)
    assert {name: value for name, (_, __, value) in defaults.items()} == {name: row[name] for name in defaults}


def test_a_topic_without_schema_has_data():
    """useTopicSchema has no effect on a topic without a schema."""
    encoded = encoder(config(avro_config={"use_topic_schema": True}))([message(b"a")], SUB, None)

    assert [{"data": b"a"}] == rows(encoded.content)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("PROTOCOL_BUFFER", 'syntax = "proto3"; message M { int32 a = 1; }'),
        ("AVRO", '"int"'),
        ("AVRO", json.dumps({"type": "record", "name": "R", "fields": [{"name": "message_id", "type": "int"}]})),
    ],
)
def test_schemas_that_objects_cannot_have(type_, text):
    """A schema of another kind, or with the fields of the metadata, is a mismatch of the whole subscription."""
    definition = schema_types.parse(type_, text)
    encode = encoder(config(avro_config={"use_topic_schema": True, "write_metadata": True}))

    with pytest.raises(DestinationError) as error:
        encode([message(b"a")], SUB, TopicSchema({}, definition, "BINARY"))
    assert "SCHEMA_MISMATCH" == error.value.state

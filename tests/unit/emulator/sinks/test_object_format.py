"""Names and contents of exported objects, from messages alone."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro
import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.sinks.destination import DestinationError, TopicSchema
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
    """The datetime is that of the first message, in UTC and in the format that was asked for."""
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
    """With metadata it has subscription, id, time and attributes, among which the ordering key is."""
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
    """The topic's range may end before the revision of a message, whose field without a default is not there."""
    encode = encoder(config(avro_config={"use_topic_schema": True}))
    none = '{"type": "record", "name": "R", "fields": []}'

    encoded = encode([message(b"", googclient_schemarevisionid="r0"), message(b"\x04")], SUB, topic_schema(none, ONE))

    assert ([0], 1) == (list(encoded.misfits), len(rows(encoded.content)))


def test_a_topic_without_schema_has_data():
    """useTopicSchema is for a topic that has one."""
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

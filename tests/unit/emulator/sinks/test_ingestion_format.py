"""The messages of ingested objects."""

from __future__ import annotations

import json
from io import BytesIO

import fastavro
import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.sinks.destination import TopicSchema
from pubsub_spark.emulator.sinks.ingestion_format import messages
from pubsub_spark.emulator.sinks.object_format import encoder
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.message import Message
from pubsub_spark.schema import schema_types


def settings(**fields):
    topic = protos.Topic(ingestion_data_source_settings={"cloud_storage": fields})
    return topic.ingestion_data_source_settings.cloud_storage


def message(data):
    frames = wire_format.message_frames(
        [protos.PubsubMessage(data=data).SerializeToString()], 1, wire_format.publish_time_field(1.5)
    )
    return Message(1, 1.5, "", frames[0])


def avro(schema, records):
    content = BytesIO()
    fastavro.writer(content, schema, records)
    return content.getvalue()


def test_text_between_delimiters():
    """Lines are messages, the last with or without its delimiter. So is text between other delimiters."""
    assert [b"a", b"b"] == [each.data for each in messages(settings(text_format={}), b"a\nb\n")]
    assert [b"a", b"b\n"] == [each.data for each in messages(settings(text_format={"delimiter": "||"}), b"a||b\n")]
    assert [] == list(messages(settings(text_format={}), b""))


def test_avro_records_are_messages_in_binary():
    """Each record of a file is the datum that a subscriber with the schema reads."""
    fields = [{"name": "n", "type": ["null", "int"]}, {"name": "s", "type": "string"}]
    content = avro({"type": "record", "name": "R", "fields": fields}, [{"n": 7, "s": "x"}, {"n": None, "s": ""}])

    assert [b"\x02\x0e\x02x", b"\x00\x00"] == [each.data for each in messages(settings(avro_format={}), content)]


def test_exported_names_beyond_ascii_are_ingested():
    """An export of a schema with names and symbols of any script is ingested as the messages that were exported."""
    fields = [
        {"name": "straße", "type": {"type": "enum", "name": "Ä", "symbols": ["ÖL", "GAS"]}},
        {"name": "größe", "type": ["null", {"type": "record", "name": "Ü", "fields": [{"name": "é", "type": "int"}]}]},
    ]
    text = json.dumps({"type": "record", "name": "Größe", "namespace": "ü.b-c", "fields": fields})
    schema = TopicSchema({}, schema_types.parse("AVRO", text), "BINARY")
    data = [b"\x00\x02\x06", b"\x02\x00"]
    config = protos.CloudStorageConfig(avro_config={"use_topic_schema": True})

    exported = encoder(config)([message(each) for each in data], "projects/p/subscriptions/s", schema)

    assert () == tuple(exported.misfits)
    assert data == [each.data for each in messages(settings(avro_format={}), exported.content)]


def test_pubsub_avro_has_its_data_and_attributes_back():
    """Data and attributes from an export are ingested as they were published."""
    fields = [
        {"name": "data", "type": "bytes"},
        {"name": "attributes", "type": {"type": "map", "values": "string"}},
        {"name": "message_id", "type": "string"},
    ]
    content = avro(
        {"type": "record", "name": "M", "fields": fields}, [{"data": b"x", "attributes": {"a": "b"}, "message_id": "7"}]
    )

    assert [(b"x", {"a": "b"})] == list(messages(settings(pubsub_avro_format={}), content))


def test_other_formats_are_refused():
    """Content of another format is refused."""
    with pytest.raises(ValueError):
        list(messages(settings(avro_format={}), b"no avro at all"))
    other = avro({"type": "record", "name": "M", "fields": [{"name": "x", "type": "int"}]}, [{"x": 1}])
    with pytest.raises(ValueError, match="type"):  # fastavro raises a class of its own here
        list(messages(settings(avro_format={}), other.replace(b'"type"', b'"typo"')))
    with pytest.raises(ValueError, match="no `data`"):
        list(messages(settings(pubsub_avro_format={}), other))
    fields = [{"name": "data", "type": "bytes"}, {"name": "attributes", "type": {"type": "map", "values": "int"}}]
    numbers = avro({"type": "record", "name": "M", "fields": fields}, [{"data": b"x", "attributes": {"a": 1}}])
    with pytest.raises(ValueError, match="no map of texts"):
        list(messages(settings(pubsub_avro_format={}), numbers))

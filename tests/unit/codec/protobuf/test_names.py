"""Fields named like the methods of Python's messages. A message of such a schema lacks these methods."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from pubsub_spark.codec import protobuf as codec
from pubsub_spark.codec.protobuf import ptars_schema
from pubsub_spark.codec.protobuf.decode import ProtobufDecoder
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.page import forms, payloads
from pubsub_spark.emulator.sinks import bigquery_rows
from pubsub_spark.emulator.sinks.destination import TopicSchema
from pubsub_spark.emulator.state import message as stored
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.protobuf import ProtobufDefinition, parse

NAMES = sorted({*dir(Message), *dir(Empty()), "Extensions"})


def fields(label: str, type_: str) -> str:
    return " ".join(f"{label} {type_} {name} = {number};" for number, name in enumerate(NAMES, 1))


TEXTS = {
    "optional": f'syntax = "proto3"; message M {{ {fields("optional", "int32")} }}',
    "required": f'syntax = "proto2"; message M {{ {fields("required", "int32")} }}',
    "repeated": f'syntax = "proto3"; message M {{ {fields("repeated", "int32")} }}',
    "nested": f'syntax = "proto3"; message M {{ message N {{ int32 ByteSize = 1; }} {fields("", "N")} }}',
    "oneof": f'syntax = "proto3"; message M {{ oneof choice {{ {fields("", "int32")} }} }}',
    "far": f'syntax = "proto3"; message M {{ {fields("", "int32")} optional int32 last = 536870911; }}',
}
VALUES = {"repeated": [5], "nested": {"ByteSize": 5}}
ROWS = {kind: dict.fromkeys(NAMES[:1] if kind == "oneof" else NAMES, VALUES.get(kind, 5)) for kind in TEXTS}


@pytest.fixture(params=TEXTS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def definition(kind: str) -> ProtobufDefinition:
    return parse(TEXTS[kind])


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_a_row_is_read_and_written(definition, kind, encoding: Encoding):
    """Rows are converted to messages and back, next to a malformed one. The emulator accepts the written messages."""
    type_ = codec.value_type(definition)
    rows = pa.array([ROWS[kind]] * 3, type_)
    written = codec.encoder(definition, encoding, type_, False)(rows).to_pylist()

    value, error = codec.decoder(definition, definition, encoding)(pa.array([*written, b"\xff"], pa.binary()))

    assert [*rows.to_pylist(), None] == value.to_pylist()
    assert [True, True, True, False] == error.is_null().to_pylist()
    assert definition.first_invalid(written, encoding) is None
    assert 1 == definition.first_invalid([written[0], b"\xff"], encoding)


def test_json_in_an_uncommon_form_is_read(definition, kind):
    """Numbers such as `5.0`, which `json_format` reads, are read by their JSON names."""
    names = {field.name: field.json_name for field in definition.message.fields}
    row = {names[name]: value for name, value in ROWS[kind].items()}
    text = json.dumps(row).replace("5", "5.0").encode()
    expected = definition.message_class(**ROWS[kind])

    assert expected == definition.read(text, "JSON")
    definition.validate(text, "JSON")
    value, error = codec.decoder(definition, definition, "JSON")(pa.array([text] * 2, pa.binary()))
    assert [None] * 2 == error.to_pylist()
    assert pa.array([ROWS[kind]] * 2, value.type).to_pylist() == value.to_pylist()


def test_a_row_is_read_from_message_objects(definition, kind, monkeypatch):
    """A row is read from message objects, as with schemas of high field numbers."""
    monkeypatch.setattr(ptars_schema, "batch_reader", lambda _: None)
    decoder = ProtobufDecoder(definition)

    message = definition.message_class(**ROWS[kind])
    value, error = decoder.decode(pa.array([type(message).SerializeToString(message)]))

    assert [None] == error.to_pylist()
    assert ROWS[kind] == {name: value[0][name].as_py() for name in ROWS[kind]}


def test_an_unknown_field_is_refused(definition, kind):
    """Validation finds a field that the schema does not have."""
    data = definition.message_class.SerializeToString(definition.message_class(**ROWS[kind]))

    definition.validate(data, "BINARY")
    with pytest.raises(InvalidMessage, match="field number 536870910, which the schema does not know"):
        definition.validate(data + b"\xf2\xff\xff\xff\x0f\x00", "BINARY")


def test_a_missing_required_field_is_named():
    """Both encodings name the field, and so does one message among many."""
    definition = parse(TEXTS["required"])
    row = {name: 5 for name in NAMES if name != "HasField"}
    data = definition.message_class.SerializePartialToString(definition.message_class(**row))

    with pytest.raises(InvalidMessage, match="`HasField` is required"):
        definition.validate(data, "BINARY")
    _, error = codec.decoder(definition, definition, "BINARY")(pa.array([data], pa.binary()))
    assert ["Field `HasField` is required and missing"] == error.to_pylist()


def test_the_emulator_shows_fills_in_and_exports_a_message(definition, kind):
    """The page's payload and form, and the row of a BigQuery subscription, have every field."""
    data = definition.message_class.SerializeToString(definition.message_class(**ROWS[kind]))
    names = {field.name: field.json_name for field in definition.message.fields}

    shown = payloads.decoded(data, payloads.SchemaOfMessage("1", definition, "BINARY"))
    columns = dict.fromkeys(ROWS[kind], {"repeated": "REPEATED", "nested": "RECORD"}.get(kind, "INTEGER"))
    config = protos.BigQueryConfig(table="p.d.t", use_topic_schema=True, drop_unknown_fields=True)
    read = bigquery_rows.reader(config, columns, TopicSchema({}, definition, "BINARY"))
    [frame] = wire_format.message_frames([protos.PubsubMessage(data=data).SerializeToString()], 1, b"")
    exported = read(stored.Message(1, 1.5, "", frame), "projects/p/subscriptions/all")

    row = ROWS[kind]
    assert {names[name]: value for name, value in row.items()} == {names[name]: shown[names[name]] for name in row}
    assert row == {name: exported[name] for name in row}
    filled_in = {names[name]: json.dumps(value) for name, value in row.items()}
    assert data == forms.payload(definition, "BINARY", filled_in)

"""Types of a schema's own with the names of well-known types: ordinary messages and enums, in both encodings."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from pubsub_spark.codec import protobuf as codec
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.protobuf import parse
from pubsub_spark.schema.protobuf.json_mapping import WELL_KNOWN, WRAPPERS
from tests.unit.codec.protobuf.definitions import read

NAMES = sorted(name.rpartition(".")[2] for name in (*WELL_KNOWN, *WRAPPERS, "google.protobuf.Empty"))
_FIELDS = "string value = 1; repeated int64 seconds = 2; map<string, int32> fields = 3;"
_MESSAGE = {"value": "x", "seconds": [5, 6], "fields": [("k", 7)]}


def root(name: str) -> str:
    return f'syntax = "proto3"; package google.protobuf; message {name} {{ {_FIELDS} }}'


def nested(name: str) -> str:
    return (
        f'syntax = "proto3"; package google; message protobuf {{ message {name} {{ {_FIELDS} }} '
        f"{name} one = 1; repeated {name} many = 2; map<string, {name}> named = 3; }}"
    )


_TEXTS = {"root": root, "nested": nested}
_ROWS = {"root": _MESSAGE, "nested": {"one": _MESSAGE, "many": [_MESSAGE] * 2, "named": [("n", _MESSAGE)]}}


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
@pytest.mark.parametrize("place", _TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_message_of_the_name_is_an_ordinary_message(name, place, encoding: Encoding):
    """It is a struct of its own fields and a JSON object, and the emulator validates it as such."""
    definition = parse(_TEXTS[place](name))
    type_ = codec.value_type(definition)
    rows = pa.array([_ROWS[place]] * 2, type_)

    written = codec.encoder(definition, encoding, type_, False)(rows).to_pylist()
    value, error = codec.decoder(definition, definition, encoding)(pa.array(written, pa.binary()))

    assert [None, None] == error.to_pylist()
    assert rows.to_pylist() == value.to_pylist()
    for payload in written:
        definition.validate(payload, encoding)


@pytest.mark.parametrize("place", _TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_its_json_in_an_uncommon_form_is_read(name, place):
    """Numbers such as `5.0` are read by `json_format`, which must not treat it as the well-known type."""
    text = _TEXTS[place](name)
    message = {"value": "x", "seconds": [5.0, 6.0], "fields": {"k": 7.0}}
    whole = {"root": message, "nested": {"one": message, "many": [message] * 2, "named": {"n": message}}}[place]

    assert [_ROWS[place]] == read(text, json.dumps(whole).encode(), encoding="JSON")
    parse(text).validate(json.dumps(whole).encode(), "JSON")
    with pytest.raises(InvalidMessage):
        parse(text).validate(b'{"one": "1970-01-01T00:00:00Z"}', "JSON")


def test_an_enum_of_the_name_is_an_ordinary_enum():
    """A `NullValue` with other names is an ordinary enum. Null is not one of its values."""
    text = (
        'syntax = "proto3"; package google; message protobuf '
        "{ enum NullValue { A = 0; B = 1; } NullValue e = 1; repeated NullValue es = 2; }"
    )
    definition = parse(text)
    type_ = codec.value_type(definition)
    rows = pa.array([{"e": "B", "es": ["A", "B"]}], type_)

    written = codec.encoder(definition, "JSON", type_, False)(rows).to_pylist()

    assert [{"e": "B", "es": ["A", "B"]}] == [json.loads(payload) for payload in written]
    assert [*rows.to_pylist(), {"e": "A", "es": []}, {"e": "B", "es": []}] == read(
        text, *written, b'{"e": null}', b'{"e": 1.0}', encoding="JSON"
    )


def test_a_time_with_other_numbers_is_not_the_well_known_one():
    """Spark reads it as a timestamp because of its fields' names. In JSON it is an object."""
    text = (
        'syntax = "proto3"; package google; message protobuf '
        "{ message Timestamp { int64 seconds = 2; int32 nanos = 1; } Timestamp t = 1; }"
    )
    [row, again] = read(text, b'{"t": {"seconds": "1", "nanos": 5000}}', b'{"t": {"seconds": 1.0}}', encoding="JSON")

    assert "1970-01-01T00:00:01.000005+00:00" == row["t"].isoformat()
    assert "1970-01-01T00:00:01+00:00" == again["t"].isoformat()
    definition = parse(text)
    type_ = codec.value_type(definition)
    [payload] = codec.encoder(definition, "JSON", type_, False)(pa.array([row], type_)).to_pylist()
    assert {"t": {"seconds": "1", "nanos": 5000}} == json.loads(payload)


@pytest.mark.parametrize(
    "text",
    [
        'syntax = "proto3"; package pubsub_spark_envelope; message Envelope { string a = 1; }',
        'syntax = "proto3"; package pubsub_spark_envelope.Envelope; message M { string a = 1; }',
        'syntax = "proto3"; message pubsub_spark_envelope { string a = 1; }',
        'syntax = "proto3"; package pubsub_spark_ptars; message Root { string a = 1; }',
        'syntax = "proto3"; package pubsub_spark_envelope; message Envelope { repeated Envelope messages = 1; }',
    ],
)
def test_a_schema_may_have_the_names_of_this_package(text):
    """The envelope around the messages of a batch uses a package that the schema does not have."""
    definition = parse(text)

    assert definition.first_invalid([b"", b""], "BINARY") is None
    assert 1 == definition.first_invalid([b"", b"\xff"], "BINARY")
    if "Envelope messages" not in text:
        assert [{"a": "x"}, {"a": "x"}] == read(text, b"\x0a\x01x", b"\x0a\x01x")

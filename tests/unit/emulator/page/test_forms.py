"""Forms made of Avro and Protobuf schemas, and their payloads."""

from __future__ import annotations

import json

import pytest

from pubsub_spark.emulator.page.forms import fields_of, payload
from pubsub_spark.emulator.page.payloads import SchemaOfMessage, decoded
from pubsub_spark.schema import schema_types
from pubsub_spark.schema.definition import InvalidMessage

AVRO = schema_types.parse(
    "AVRO",
    json.dumps(
        {
            "type": "record",
            "name": "Flight",
            "fields": [
                {"name": "carrier", "type": "string"},
                {"name": "delay", "type": ["null", "int"], "default": None},
                {
                    "name": "state",
                    "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]},
                    "default": "OFF",
                },
                {"name": "legs", "type": {"type": "array", "items": "long"}},
                {"name": "late", "type": "boolean"},
                {"name": "gate", "type": ["string", "int"], "default": "none"},
            ],
        }
    ),
)
FLIGHT = {"carrier": "UA", "delay": "7", "state": "ON", "legs": "[1, 2]", "late": "true", "gate": '{"int": 3}'}


@pytest.fixture(scope="module")
def protobuf():
    return schema_types.parse(
        "PROTOCOL_BUFFER",
        """syntax = "proto3";
        message Flight {
          string carrier = 1; int64 delay = 2; repeated int32 legs = 3; bool late = 4; enum State { OFF = 0; ON = 1; }
          State state = 5; bytes tail_number = 6; Flight next = 7; map<string, int32> m = 8;
        }""",
    )


def test_avro_fields():
    """Each field of a record has its kind. A field that allows null is optional."""
    fields = {field.name: field for field in fields_of(AVRO) or ()}

    assert [
        ("text", False),
        ("number", True),
        ("choice", False),
        ("json", False),
        ("choice", False),
        ("json", False),
    ] == [(field.kind, field.is_optional) for field in fields.values()]
    assert (("ON", "OFF"), "OFF") == (fields["state"].choices, fields["state"].default)
    assert '{"string": "none"}' == fields["gate"].default


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_avro_payload(encoding):
    """A subscriber reads the filled-in values, in either encoding."""
    data = payload(AVRO, encoding, FLIGHT)

    assert {
        "carrier": "UA", "delay": {"int": 7}, "state": "ON", "legs": [1, 2], "late": True, "gate": {"int": 3},
    } == decoded(data, SchemaOfMessage("r", AVRO, encoding))  # fmt: skip
    empty = decoded(payload(AVRO, encoding, FLIGHT | {"delay": ""}), SchemaOfMessage("r", AVRO, encoding))
    assert empty["delay"] is None


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_protobuf_payload(protobuf, encoding):
    """Fields have their JSON names. Empty ones are not set, and 64 bits stay 64 bits."""
    filled_in = {"carrier": "UA", "delay": "9007199254740993", "legs": "[1]", "late": "true", "state": "ON"}
    more = {"tailNumber": "aGk=", "next": '{"carrier": "AA"}', "m": '{"a": 1}'}

    data = payload(protobuf, encoding, filled_in | more)
    message = protobuf.read(data, encoding)

    assert ("UA", 9007199254740993, [1], True, 1) == (
        message.carrier, message.delay, list(message.legs), message.late, message.state,
    )  # fmt: skip
    assert (b"hi", "AA", {"a": 1}) == (message.tail_number, message.next.carrier, dict(message.m))
    assert ("json", "map") in {(field.kind, field.type) for field in fields_of(protobuf) or ()}


@pytest.mark.parametrize(
    ("filled_in", "sentence"),
    [
        ({"delay": "soon"}, "Field `delay` must be a number, got `soon`"),
        ({"legs": "[1"}, "Field `legs` must be JSON, got `[1`"),
        ({"late": "perhaps"}, "Field `late` must be true or false, got `perhaps`"),
        ({"state": ""}, "Field `state` is missing"),
        ({"delay": "1.5"}, "Field `delay`"),
    ],
)
def test_what_does_not_fit_is_a_sentence(filled_in, sentence):
    """A value that does not fit the schema is refused with an error that names the field."""
    with pytest.raises(InvalidMessage) as error:
        payload(AVRO, "BINARY", FLIGHT | filled_in)

    assert str(error.value).startswith(sentence)


def test_schema_without_fields_has_no_form():
    """A schema that is not a record is filled in as raw data."""
    assert fields_of(schema_types.parse("AVRO", '"string"')) is None

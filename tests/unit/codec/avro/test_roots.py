"""Schemas whose root is not a record: a struct all the same, in both directions and either encoding."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pubsub_spark.codec.avro import decoder, encoder
from pubsub_spark.schema import avro
from pubsub_spark.schema.avro.cursors import MIN_VECTORISED_ROWS

RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}

# situation: (schema, messages and JSON texts, the values of the column)
ROOTS: dict[str, tuple[Any, list[bytes], list[bytes], list[Any]]] = {
    "long": ("long", [b"\x02", b"\x03"], [b"1", b"-2"], [{"value": 1}, {"value": -2}]),
    "string": ("string", [b"\x04hi", b"\x00"], [b'"hi"', b'""'], [{"value": "hi"}, {"value": ""}]),
    "array": (
        {"type": "array", "items": "int"},
        [b"\x02\x02\x00", b"\x00"],
        [b"[1]", b"[]"],
        [{"value": [1]}, {"value": []}],
    ),
    "optional string": (
        ["null", "string"],
        [b"\x00", b"\x02\x04hi"],
        [b"null", b'{"string":"hi"}'],
        [{"value": None}, {"value": "hi"}],
    ),
    "union": (
        ["int", "string"],
        [b"\x00\x02", b"\x02\x04hi"],
        [b'{"int":1}', b'{"string":"hi"}'],
        [{"member0": 1, "member1": None}, {"member0": None, "member1": "hi"}],
    ),
    "optional record": (["null", RECORD], [b"\x00", b"\x02\x02"], [b"null", b'{"R":{"a":1}}'], [None, {"a": 1}]),
}


@pytest.mark.parametrize("count", [1, MIN_VECTORISED_ROWS], ids=["few", "many"])
@pytest.mark.parametrize("situation", ROOTS)
def test_root_is_read_as_a_struct(situation, count):
    """A root that is not a struct is its field `value`. An optional record may be null without an error."""
    declared, binary, text, expected = ROOTS[situation]
    definition = avro.parse(json.dumps(declared))

    for encoding, messages in (("BINARY", binary), ("JSON", text)):
        values, errors = decoder(definition, definition, encoding)(pa.array(messages * count, pa.binary()))  # type: ignore[arg-type]
        values.validate(full=True)
        assert expected * count == values.to_pylist()
        assert 2 * count == errors.null_count


@pytest.mark.parametrize("count", [1, MIN_VECTORISED_ROWS], ids=["few", "many"])
@pytest.mark.parametrize("situation", ROOTS)
def test_bad_message_is_told_from_null(situation, count):
    """A message that cannot be read is null with a reason, even if null is a valid value."""
    declared, binary, _, expected = ROOTS[situation]
    definition = avro.parse(json.dumps(declared))

    values, errors = decoder(definition, definition, "BINARY")(pa.array([*binary * count, b"\x89"], pa.binary()))

    assert [*expected * count, None] == values.to_pylist()
    assert [2 * count] == [place for place, error in enumerate(errors.to_pylist()) if error]


@pytest.mark.parametrize("situation", sorted(ROOTS.keys() - {"optional record"}))
def test_struct_is_written_as_the_root(situation):
    """Writing the column that was read returns the same messages."""
    declared, binary, text, expected = ROOTS[situation]
    definition = avro.parse(json.dumps(declared))
    type_ = decoder(definition, definition, "BINARY")(pa.array([], pa.binary()))[0].type
    rows = pa.array(expected, type_)

    assert binary == encoder(definition, "BINARY", type_, False)(rows).to_pylist()
    assert text == encoder(definition, "JSON", type_, False)(rows).to_pylist()


def test_optional_record_is_written_from_its_columns():
    """A DataFrame's row is never null, so the columns are the record."""
    definition = avro.parse(json.dumps(["null", RECORD]))
    rows = pa.array([{"a": 1}], pa.struct([pa.field("a", pa.int32())]))

    assert [b"\x02\x02"] == encoder(definition, "BINARY", rows.type, False)(rows).to_pylist()

"""JSON messages that are read and written many at a time, with the same result as one at a time."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pubsub_spark.codec.avro import decoder, encoder
from pubsub_spark.codec.avro.json import compile_reader, compile_writer
from pubsub_spark.schema import avro

SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "d", "type": "double"},
        {"name": "f", "type": ["null", "float"]},
        {"name": "s", "type": ["string", "null"]},
        {"name": "b", "type": {"type": "fixed", "name": "B", "size": 2}},
        {"name": "e", "type": ["null", {"type": "enum", "name": "E", "symbols": ["X", "Y"]}]},
        {"name": "a", "type": {"type": "array", "items": ["null", {"type": "array", "items": "long"}]}},
        {"name": "m", "type": {"type": "map", "values": ["null", "boolean", "bytes"]}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
COMMON: dict[str, Any] = {
    "i": -7,
    "d": 2,
    "f": {"float": 0.1},
    "s": {"string": 'é "%s" \n'},
    "b": "\u0000ÿ",
    "e": {"E": "Y"},
    "a": [None, {"array": [1, 2]}, {"array": []}],
    "m": {"k": None, "%": {"boolean": True}, "": {"bytes": "ÿ"}},
    "t": 1_700_000_000_123,
}
NULLS: dict[str, Any] = {**COMMON, "f": None, "s": None, "e": None, "a": [], "m": {}}
# situation: the replacement for the common form in a message, some right, some wrong
UNCOMMON: dict[str, dict[str, Any] | bytes] = {
    "NaN as text": {"d": "NaN"},
    "beyond a float": {"f": {"float": 1e300}},
    "33 bits": {"i": 2**31},
    "a boolean": {"i": True},
    "a fraction": {"i": 1.0},
    "text as a number": {"d": "1"},
    "a boolean number": {"d": False},
    "an integer beyond a double": {"d": 10**400},
    "half of a surrogate pair": {"s": {"string": "\ud800"}},
    "a null with a tag": {"s": {"string": None}},
    "no tag": {"s": "x"},
    "two tags": {"s": {"string": "x", "null": None}},
    "another tag": {"s": {"int": 1}},
    "three bytes": {"b": "abc"},
    "no byte": {"b": "Ā1"},
    "no symbol": {"e": {"E": "Z"}},
    "no array": {"a": {}},
    "no item": {"a": [{"array": [None]}]},
    "no map": {"m": []},
    "no value": {"m": {"k": 1}},
    "a key that is half of a pair": {"m": {"\ud800": None}},
    "an unknown field": {"x": 1},
    "not UTF-8": b"\xff",
    "nothing": b"",
    "no object": b"[]",
    "two objects": b"{}{}",
    "NaN": json.dumps({**COMMON, "d": float("nan")}).encode(),
    "a field twice": json.dumps(COMMON).replace('"i": -7', '"i": 1, "i": 2').encode(),
    "white space": b"\n " + json.dumps(COMMON, indent=1).encode() + b"\r\n",
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(COMMON).encode(),
    "a missing null": json.dumps({key: value for key, value in COMMON.items() if key != "f"}).encode(),
}


def text(replaced: dict[str, Any] | bytes) -> bytes:
    return replaced if isinstance(replaced, bytes) else json.dumps({**COMMON, **replaced}).encode()


def test_messages_in_the_common_form_are_read_at_once(monkeypatch):
    """None of the messages goes through fastavro. A malformed one among them does not change the others."""
    definition = avro.parse(json.dumps(SCHEMA))
    written: list[Any] = []
    write = definition.datum.write

    def recorded(datum: Any) -> bytes:
        written.append(datum)
        return write(datum)

    monkeypatch.setattr(definition.datum, "write", recorded)
    texts = [json.dumps(COMMON).encode(), json.dumps(NULLS).encode()] * 300

    value, error = decoder(definition, definition, "JSON")(pa.array([*texts, b"{"], pa.binary()))

    assert [] == written
    assert [600] == [row for row, reason in enumerate(error.to_pylist()) if reason]
    assert value.null_count == 1


@pytest.mark.parametrize("situation", UNCOMMON)
def test_an_uncommon_message_is_read_as_if_it_were_alone(situation):
    """A message in an uncommon form, right or wrong, is read the same among common ones as alone."""
    definition = avro.parse(json.dumps(SCHEMA))
    decode = decoder(definition, definition, "JSON")
    common, uncommon = json.dumps(COMMON).encode(), text(UNCOMMON[situation])
    expected = [repr(column.to_pylist()) for column in decode(pa.array([common, uncommon, common], pa.binary()))]

    value, error = decode(pa.array([common] * 400 + [uncommon] + [common] * 400, pa.binary()))

    assert expected == [repr(column.slice(399, 3).to_pylist()) for column in (value, error)]
    assert error.slice(401).null_count == error.slice(0, 400).null_count == 400


def test_many_messages_are_written_as_one_is():
    """The JSON of a row does not depend on how many rows there are."""
    definition = avro.parse(json.dumps(SCHEMA))
    texts = [json.dumps(each).encode() for each in (COMMON, NULLS, {**COMMON, "d": "-Infinity"}, {**COMMON, "d": 1e-7})]
    rows, error = decoder(definition, definition, "JSON")(pa.array(texts * 100, pa.binary()))
    encode = encoder(definition, "JSON", rows.type, False)

    assert len(rows) == error.null_count
    one_by_one, together = ([json.loads(made) for made in encode(some).to_pylist()] for some in (rows[:4], rows))
    assert one_by_one * 100 == together


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (["int", "long"], {"v": {"int": 1}}),
        (["float", "null", "double"], {"v": {"double": 0.1}}),
        (["null"], {"v": None}),
        ({"type": "record", "name": "N", "fields": []}, {"v": {}}),
    ],
)
def test_what_columns_cannot_tell_is_read_one_by_one(type_, message):
    """A union of two widths of a number is one column, so the column does not identify the branch."""
    declared = {"type": "record", "name": "R", "fields": [{"name": "v", "type": type_}]}
    definition = avro.parse(json.dumps(declared))
    decode = decoder(definition, definition, "JSON")
    texts = pa.array([json.dumps(message).encode()] * 100, pa.binary())
    rows, error = decode(texts)

    assert 100 == error.null_count
    assert decode(texts.slice(0, 1))[0].to_pylist() * 100 == rows.to_pylist()


@pytest.mark.parametrize("rows", [1, 100])
@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_names_of_any_script_are_read_and_written(rows, encoding):
    """Fields, symbols and types may have names that only Java's Avro accepts."""
    enum = {"type": "enum", "name": "É", "symbols": ["ä", "日本"]}
    inner = {"type": "record", "name": "I", "namespace": '.x"', "fields": [{"name": "é", "type": "a-b.$c.É"}]}
    fixed = {"type": "fixed", "name": "F", "namespace": None, "size": 1}
    fields = [{"name": "höhe", "type": enum}, {"name": "u", "type": ["null", inner, fixed]}]
    declared = {"type": "record", "name": "Größe", "namespace": "a-b.$c", "fields": fields}
    definition = avro.parse(json.dumps(declared))
    messages = [
        {"höhe": "日本", "u": {'.x".I': {"é": "ä"}}},
        {"höhe": "ä", "u": {"a-b.$c.F": "x"}},
        {"höhe": "ä", "u": None},
    ]
    texts = pa.array([json.dumps(message).encode() for message in messages] * rows, pa.binary())

    value, error = decoder(definition, definition, "JSON")(texts)
    written = encoder(definition, encoding, value.type, False)(value)

    assert len(texts) == error.null_count
    assert {"höhe": "日本", "u": {"member0": {"é": "ä"}, "member1": None}} == value[0].as_py()
    assert definition.first_invalid(written.to_pylist(), encoding) is None
    assert value == decoder(definition, definition, encoding)(written)[0]
    assert encoding == "BINARY" or messages * rows == [json.loads(text) for text in written.to_pylist()]


def test_plans_print_and_compare():
    """The reader says how each field is read, and the writer how it is written."""
    fields = [
        {"name": "i", "type": "int"},
        {"name": "s", "type": ["null", "string", {"type": "map", "values": "float"}]},
    ]
    one, other = (
        avro.parse(json.dumps({"type": "record", "name": "R", "fields": some})) for some in (fields, fields[:1])
    )

    assert repr(compile_reader(other).plan) == (
        "Then(plan=Objects(fields=((('i',), Then(plan=Leaf(json_type=DataType(int32), "
        "of=integers(DataType(int32), False)), of=without_nulls())),), "
        "build=structs(('i',)), size=1, unknown_names=False), of=without_nulls())"
    )
    assert repr(compile_writer(one)).endswith(
        "(('i', plain), ('s', union_texts((('{\"string\":', strings), ('{\"map\":', maps(strings, floats))))))))"
    )
    for compile_plan in compile_reader, compile_writer:
        assert compile_plan(one) == compile_plan(one) != compile_plan(other)

"""The features of legal schemas in decode, encode and validation, with fastavro as the reference."""

from __future__ import annotations

import io
import json
from datetime import datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from pubsub_spark.codec.avro import decoder, encoder
from pubsub_spark.schema import avro
from pubsub_spark.schema.definition import Encoding, InvalidMessage


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def record(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def logical(type_: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": logical_type, **more}


_DECIMAL = logical("fixed", "decimal", name="D", size=5, precision=10, scale=3)
_LONG_DECIMAL = logical("fixed", "decimal", name="L", size=16, precision=38)
_DURATION = logical("fixed", "duration", name="P", size=12)
_NESTED = ["null", {"type": "array", "items": ["null", {"type": "map", "values": ["null", "int", "string"]}]}]
_NOON = datetime(1969, 7, 20, 12, 0, 0, 250_000)
# situation: (type of the field `a`, its datum for fastavro, its JSON, its value as a column)
FIELDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "a decimal as fixed": (_DECIMAL, Decimal("-1234567.891"), "ÿ¶iý-", Decimal("-1234567.891")),
    "a decimal of 38 digits as fixed": (
        _LONG_DECIMAL,
        Decimal("-1"),
        "ÿ" * 16,
        Decimal("-1"),
    ),
    "a duration": (_DURATION, b"\1\0\0\0" * 3, "\1\0\0\0" * 3, b"\1\0\0\0" * 3),
    "a local timestamp in milliseconds": (logical("long", "local-timestamp-millis"), _NOON, -14_212_799_750, _NOON),
    "a local timestamp in microseconds": (logical("long", "local-timestamp-micros"), _NOON, -14_212_799_750_000, _NOON),
    "a local timestamp in nanoseconds": (logical("long", "local-timestamp-nanos"), -1, -1, -1),
    "unions in unions' arrays and maps": (
        _NESTED,
        [None, {"k": None, "i": 7, "s": "x"}, {}],
        {"array": [None, {"map": {"k": None, "i": {"int": 7}, "s": {"string": "x"}}}, {"map": {}}]},
        [
            None,
            [("k", None), ("i", {"member0": 7, "member1": None}), ("s", {"member0": None, "member1": "x"})],
            [],
        ],
    ),
    "a union of optional logical types": (["null", _DECIMAL], Decimal("0.001"), {"D": "\0\0\0\0\1"}, Decimal("0.001")),
    "an enum in a union of one": ([{"type": "enum", "name": "E", "symbols": ["A", "B"]}], "B", {"E": "B"}, "B"),
}


def _written(schema: Any, datum: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, schema, datum)
    return data.getvalue()


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
@pytest.mark.parametrize("situation", FIELDS)
def test_a_message_is_validated_read_and_written(situation, encoding: Encoding):
    """A message is read alone and among many. The bytes of a row are fastavro's."""
    type_, datum, shown, expected = FIELDS[situation]
    schema = record("R", field("a", type_))
    definition = avro.parse(json.dumps(schema))
    binary = _written(schema, {"a": datum})
    data = binary if encoding == "BINARY" else json.dumps({"a": shown}).encode()

    for count in (1, 50):
        assert definition.first_invalid([data] * count, encoding) is None
        assert count == definition.first_invalid([data] * count + [data[:-1]], encoding)
        rows, error = decoder(definition, definition, encoding)(pa.array([data] * count, pa.binary()))
        assert count == error.null_count
        assert [{"a": expected}] * count == rows.to_pylist()
        assert [binary] * count == encoder(definition, "BINARY", rows.type, False)(rows).to_pylist()
        [text] = {*encoder(definition, "JSON", rows.type, False)(rows).to_pylist()}
        assert {"a": shown} == json.loads(text)


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_record_that_contains_itself_is_validated(encoding: Encoding):
    """A record may contain itself directly or through lists, maps and other records. Only depth limits its messages."""
    leaf_of = record("N", field("back", ["null", "R"]))
    fields = [("next", ["null", "R"]), ("many", {"type": "array", "items": "R"}), ("n", ["null", leaf_of])]
    schema = record("R", *(field(name, type_) for name, type_ in fields), field("by", {"type": "map", "values": "R"}))
    definition = avro.parse(json.dumps(schema))
    leaf: Any = {"next": None, "many": [], "n": None, "by": {}}
    datum = {"next": leaf, "many": [leaf, leaf], "n": {"back": leaf}, "by": {"k": leaf}}
    shown = {"next": {"R": leaf}, "many": [leaf, leaf], "n": {"N": {"back": {"R": leaf}}}, "by": {"k": leaf}}
    data = _written(schema, datum) if encoding == "BINARY" else json.dumps(shown).encode()

    for count in (1, 50):
        assert definition.first_invalid([data] * count, encoding) is None
        assert count == definition.first_invalid([data] * count + [data[:-1]], encoding)
    assert _written(schema, datum) == definition.datum.write(definition.read_json(json.dumps(shown).encode()))
    with pytest.raises(InvalidMessage, match="nested too deeply"):
        definition.validate(b"\x02" * 100_000 if encoding == "BINARY" else b'{"next": {"R": ' * 100_000, encoding)


_OLD = record(
    "Old",
    field("was", "int"),
    field("kind", {"type": "enum", "name": "K", "symbols": ["A"]}),
    field("inner", record("I", field("x", "int"))),
    namespace="n",
)
_NEW = record(
    "New",
    field("inner", record("J", field("y", "long", aliases=["x"]), field("z", "string", default="z"), aliases=["n.I"])),
    field("now", ["null", "long"], aliases=["was"], default=None),
    field("kind", {"type": "enum", "name": "L", "symbols": ["B", "A"], "aliases": ["K"], "default": "B"}),
    field("price", _DECIMAL, default="\0\0\0\0\7"),
    field("list", {"type": "array", "items": "L"}, default=["A"]),
    field("late", ["null", "J"], default={"y": 5}),
    namespace="n",
    aliases=["Old"],
)


def test_names_of_a_revision_are_found_by_aliases():
    """Aliases of records, enums and fields apply, also nested. A new field has its default, also if its type is
    aliased.
    """
    old, new = avro.parse(json.dumps(_OLD)), avro.parse(json.dumps(_NEW))
    message = _written(_OLD, {"was": 7, "kind": "A", "inner": {"x": 3}})
    expected: dict[str, Any] = {
        "inner": {"y": 3, "z": "z"},
        "now": 7,
        "kind": "A",
        "price": Decimal("0.007"),
        "list": ["A"],
        "late": {"y": 5, "z": "z"},
    }

    for count in (1, 50):
        rows, error = decoder(old, new, "BINARY")(pa.array([message] * count, pa.binary()))
        assert count == error.null_count
        assert [expected] * count == rows.to_pylist()
    fields = [
        each for each in _NEW["fields"] if each["name"] not in ("price", "late")
    ]  # as fastavro has no defaults of
    read: Any = fastavro.schemaless_reader(io.BytesIO(message), _OLD, {**_NEW, "fields": fields})  # bytes and records
    assert {name: expected[name] for name in read} == read
    written = encoder(new, "BINARY", rows.type, False)(rows).to_pylist()
    assert new.first_invalid(written, "BINARY") is None

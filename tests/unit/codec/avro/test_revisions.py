"""Messages of one revision read with another: a table, confirmed by fastavro where the specification has the rule."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from pubsub_spark.codec.avro import decoder
from pubsub_spark.schema import avro
from pubsub_spark.schema.avro.cursors import MIN_VECTORISED_ROWS

MANY = MIN_VECTORISED_ROWS + 6


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """Return a record of `(name, type)` or `(name, type, attributes)`."""
    declared = [{"name": field[0], "type": field[1], **(field[2] if len(field) > 2 else {})} for field in fields]
    return {"type": "record", "name": name, "fields": declared, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def logical(type_: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": name, **more}


A = {"a": 7}
INNER = record(("x", "int"), name="Inner")

# situation: (writer, reader, value written, value read)
PAIRS: dict[str, tuple[Any, Any, Any, Any]] = {
    "same": (record(("a", "int")), record(("a", "int")), A, A),
    "added with default": (
        record(("a", "int")),
        record(("a", "int"), ("b", "int", {"default": 5})),
        A,
        {"a": 7, "b": 5},
    ),
    "added in front": (
        record(("a", "int")),
        record(("b", "string", {"default": "x"}), ("a", "int")),
        A,
        {"b": "x", "a": 7},
    ),
    "added null": (
        record(("a", "int")),
        record(("a", "int"), ("b", ["null", "int"], {"default": None})),
        A,
        {"a": 7, "b": None},
    ),
    "added union's default is of its first branch": (
        record(("a", "int")),
        record(("a", "int"), ("b", ["int", "null"], {"default": 5})),
        A,
        {"a": 7, "b": 5},
    ),
    "added bytes": (
        record(("a", "int")),
        record(("a", "int"), ("b", "bytes", {"default": "\u00ff"})),
        A,
        {"a": 7, "b": b"\xff"},
    ),
    "added array": (
        record(("a", "int")),
        record(("a", "int"), ("b", {"type": "array", "items": "int"}, {"default": [1, 2]})),
        A,
        {"a": 7, "b": [1, 2]},
    ),
    "added record, whose field has a default of its own": (
        record(("a", "int")),
        record(
            ("a", "int"),
            ("b", record(("x", "int"), ("y", "string", {"default": "z"}), name="B"), {"default": {"x": 1}}),
        ),
        A,
        {"a": 7, "b": {"x": 1, "y": "z"}},
    ),
    "removed": (record(("a", "int"), ("gone", "string")), record(("a", "int")), {"a": 7, "gone": "bye"}, A),
    "removed, between others": (
        record(("a", "int"), ("gone", {"type": "map", "values": "string"}), ("b", "long")),
        record(("a", "int"), ("b", "long")),
        {"a": 7, "gone": {"k": "v"}, "b": 8},
        {"a": 7, "b": 8},
    ),
    "reordered": (
        record(("a", "int"), ("b", "string")),
        record(("b", "string"), ("a", "int")),
        {"a": 7, "b": "x"},
        {"b": "x", "a": 7},
    ),
    "renamed by alias": (record(("a", "int")), record(("z", "int", {"aliases": ["y", "a"]})), A, {"z": 7}),
    "record renamed by alias": (
        record(("a", "int"), name="Old"),
        record(("a", "int"), name="New", aliases=["Old"]),
        A,
        A,
    ),
    "int to long": (record(("a", "int")), record(("a", "long")), A, A),
    "int to float": (record(("a", "int")), record(("a", "float")), A, {"a": 7.0}),
    "int to double": (record(("a", "int")), record(("a", "double")), A, {"a": 7.0}),
    "long to float": (record(("a", "long")), record(("a", "float")), {"a": 2**40}, {"a": float(2**40)}),
    "long to double": (record(("a", "long")), record(("a", "double")), {"a": -5}, {"a": -5.0}),
    "float to double": (record(("a", "float")), record(("a", "double")), {"a": 0.5}, {"a": 0.5}),
    "string to bytes": (record(("a", "string")), record(("a", "bytes")), {"a": "é"}, {"a": "é".encode()}),
    "bytes to string": (record(("a", "bytes")), record(("a", "string")), {"a": b"ok"}, {"a": "ok"}),
    "enum gained a symbol": (record(("a", enum("X"))), record(("a", enum("Y", "X"))), {"a": "X"}, {"a": "X"}),
    "enum lost a symbol, with default": (
        record(("a", enum("X", "Y"))),
        record(("a", enum("X", default="X"))),
        {"a": "Y"},
        {"a": "X"},
    ),
    "became nullable": (record(("a", "int")), record(("a", ["null", "int"])), A, A),
    "became nullable and wider": (record(("a", "int")), record(("a", ["null", "long"])), A, A),
    "no longer nullable": (record(("a", ["null", "int"])), record(("a", "int")), A, A),
    "null stays null": (record(("a", ["null", "int"])), record(("a", ["int", "null"])), {"a": None}, {"a": None}),
    "union's branches reordered": (
        record(("a", ["int", "string"])),
        record(("a", ["string", "int"])),
        A,
        {"a": {"member0": None, "member1": 7}},
    ),
    "union from a plain type": (
        record(("a", "string")),
        record(("a", ["int", "string"])),
        {"a": "x"},
        {"a": {"member0": None, "member1": "x"}},
    ),
    "union's branch promoted": (
        record(("a", ["null", "int"])),
        record(("a", ["null", "string", "double"])),
        A,
        {"a": {"member0": None, "member1": 7.0}},
    ),
    "array's items": (
        record(("a", {"type": "array", "items": "int"})),
        record(("a", {"type": "array", "items": ["null", "long"]})),
        {"a": [1, 2, 3]},
        {"a": [1, 2, 3]},
    ),
    "map's values": (
        record(("a", {"type": "map", "values": INNER})),
        record(("a", {"type": "map", "values": record(("y", "int", {"default": 3}), ("x", "long"), name="Inner")})),
        {"a": {"k": {"x": 1}}},
        {"a": [("k", {"y": 3, "x": 1})]},
    ),
    "nested": (
        record(("a", record(("b", INNER), name="Middle"))),
        record(("a", record(("b", record(("x", "double"), name="Inner")), name="Middle"))),
        {"a": {"b": {"x": 4}}},
        {"a": {"b": {"x": 4.0}}},
    ),
}


def read(writer: Any, reader: Any, values: list[Any]) -> tuple[list[Any], list[str | None]]:
    parsed = fastavro.parse_schema(writer)
    data = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        data.append(out.getvalue())
    decode = decoder(avro.parse(json.dumps(writer)), avro.parse(json.dumps(reader)), "BINARY")
    found, errors = decode(pa.array(data, pa.binary()))
    return found.to_pylist(), errors.to_pylist()


@pytest.mark.parametrize("count", [1, MANY], ids=["one", "many"])
@pytest.mark.parametrize("situation", PAIRS)
def test_old_message_is_read_as_the_new_revision(situation, count):
    """A message of the old revision is read with the reader's revision, alone and among many."""
    writer, reader, written, expected = PAIRS[situation]

    assert ([expected] * count, [None] * count) == read(writer, reader, [written] * count)


# fastavro leaves the default of bytes a string and of a record as it stands, and does not say which branch was taken.
NOT_FASTAVROS = {
    "added bytes",
    "added record, whose field has a default of its own",
    *(situation for situation, pair in PAIRS.items() if "member" in repr(pair[3])),
}


@pytest.mark.parametrize("situation", sorted(PAIRS.keys() - NOT_FASTAVROS))
def test_fastavro_reads_the_same(situation):
    """The table's expectations are those of the specification. fastavro has the same results."""
    writer, reader, written, expected = PAIRS[situation]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), written)
    out.seek(0)

    found: Any = fastavro.schemaless_reader(out, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    if situation == "map's values":  # Arrow shows a map as pairs
        found["a"] = list(found["a"].items())
    assert expected == found


# situation: (writer, reader, a value that reads, a value that does not, the reason)
PARTLY: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "symbol that the reader lacks": (
        record(("a", enum("X", "Y"))),
        record(("a", enum("X"))),
        {"a": "X"},
        {"a": "Y"},
        "Field `a` has the symbol `Y`, which enum `E` of the reader lacks",
    ),
    "null where the reader has none": (
        record(("a", ["null", "int"])),
        record(("a", "int")),
        A,
        {"a": None},
        "Field `a` was written as `null` and cannot be read as `int`",
    ),
    "branch that the reader lacks": (
        record(("a", ["int", "string"])),
        record(("a", ["null", "int"])),
        A,
        {"a": "x"},
        "Field `a` was written as `string`, and the reader's union has no branch for it",
    ),
    "bytes that are no text": (
        record(("a", "bytes")),
        record(("a", "string")),
        {"a": b"x"},
        {"a": b"\xff"},
        "Field `a` is not valid UTF-8",
    ),
    "decimal that has fewer digits now": (
        record(("a", logical("bytes", "decimal", precision=6))),
        record(("a", logical("bytes", "decimal", precision=2))),
        {"a": Decimal(99)},
        {"a": Decimal(100)},
        "Field `a` is a decimal of more than 2 digits",
    ),
}


@pytest.mark.parametrize("situation", PARTLY)
def test_only_the_message_without_a_rule_fails(situation):
    """Only the message with a value that has no rule is an error. Its neighbours are read."""
    writer, reader, good, bad, reason = PARTLY[situation]

    found, errors = read(writer, reader, [good] * 10 + [bad] + [good] * MANY)

    assert [reason] == [error for error in errors if error]
    assert reason == errors[10]
    assert [10] == [index for index, value in enumerate(found) if value is None]


# situation: (writer, reader, a message, the reason that every message gets)
NEVER: dict[str, tuple[Any, Any, bytes, str]] = {
    "field without a default": (
        record(("a", "int")),
        record(("a", "int"), ("b", "int")),
        b"\x0e",
        "Field `b` was not written and has no default",
    ),
    "field with a default of no bytes, which is no decimal": (
        record(("a", "int")),
        record(("a", "int"), ("b", logical("bytes", "decimal", precision=9), {"default": ""})),
        b"\x0e",
        'Field `b` takes its default `""`, which Spark cannot hold: it is a decimal of no bytes',
    ),
    "field with a default of too many digits": (
        record(("a", "int")),
        record(("a", "int"), ("b", logical("bytes", "decimal", precision=2), {"default": "\u0001\u0001"})),
        b"\x0e",
        r'Field `b` takes its default `"\u0001\u0001"`, which Spark cannot hold: '
        "it is a decimal of more than 2 digits",
    ),
    "field with a default beyond Spark's time": (
        record(("a", "int")),
        record(("a", "int"), ("b", logical("long", "timestamp-millis"), {"default": 2**63 - 1})),
        b"\x0e",
        "Field `b` takes its default `9223372036854775807`, which Spark cannot hold: "
        "it is a timestamp of value 9223372036854775807, beyond Spark's range",
    ),
    "field with such a default inside its default": (
        record(("a", "int")),
        record(
            ("a", "int"),
            (
                "b",
                {"type": "array", "items": record(("t", logical("long", "timestamp-millis")), name="B")},
                {"default": [{"t": 2**63 - 1}]},
            ),
        ),
        b"\x0e",
        'Field `b` takes its default `[{"t": 9223372036854775807}]`, which Spark cannot hold: '
        "Field `[0].t` is a timestamp of value 9223372036854775807, beyond Spark's range",
    ),
    "another type": (
        record(("a", "int")),
        record(("a", "string")),
        b"\x0e",
        "Field `a` was written as `int` and cannot be read as `string`",
    ),
    "narrower": (
        record(("a", "long")),
        record(("a", "int")),
        b"\x0e",
        "Field `a` was written as `long` and cannot be read as `int`",
    ),
    "other scale": (
        record(("a", logical("bytes", "decimal", precision=9, scale=2))),
        record(("a", logical("bytes", "decimal", precision=9, scale=3))),
        b"\x02\x07",
        "Field `a` was written as decimal(9, 2) and cannot be read as decimal(9, 3)",
    ),
    "inside": (
        record(("a", {"type": "array", "items": INNER})),
        record(("a", {"type": "array", "items": record(("x", "boolean"), name="Inner")})),
        b"\x02\x0e\x00",
        "Field `a.x` was written as `int` and cannot be read as `boolean`",
    ),
}


@pytest.mark.parametrize("situation", NEVER)
def test_every_message_of_an_unreadable_revision_says_why(situation):
    """For a pair without a rule no message is read. Each has the reason, and nothing is raised."""
    writer, reader, message, reason = NEVER[situation]
    decode = decoder(avro.parse(json.dumps(writer)), avro.parse(json.dumps(reader)), "BINARY")

    found, errors = decode(pa.array([message] * MANY, pa.binary()))

    assert MANY == found.null_count
    assert [reason] * MANY == errors.to_pylist()


@pytest.mark.parametrize("count", [1, MANY], ids=["one", "many"])
@pytest.mark.parametrize("kind", ["timestamp", "local-timestamp"])
@pytest.mark.parametrize(
    ("written", "wanted", "number", "expected"),
    [
        ("millis", "micros", 1_700_000_000_123, 1_700_000_000_123_000),
        ("micros", "millis", 1_700_000_000_123_456, 1_700_000_000_123_456),
        ("nanos", "micros", 1_700_000_000_123_456_789, 1_700_000_000_123_456),
        ("nanos", "millis", -1, -1),
        ("micros", "nanos", 1_700_000_000_123_456, 1_700_000_000_123_456_000),
        ("millis", "nanos", -1, -1_000_000),
    ],
)
def test_timestamp_keeps_its_instant_in_another_unit(kind, written, wanted, number, expected, count):
    """The instant stays the same in the column's microseconds (or nanoseconds). It is not a thousandth of it."""
    writer = record(("a", logical("long", f"{kind}-{written}")))
    reader = record(("a", logical("long", f"{kind}-{wanted}")))
    data = pa.array([avro_long(number)] * count, pa.binary())

    value, errors = decoder(avro.parse(json.dumps(writer)), avro.parse(json.dumps(reader)), "BINARY")(data)

    assert count == errors.null_count
    assert [expected] * count == value.field("a").cast(pa.int64()).to_pylist()


def avro_long(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    return out.getvalue()


@pytest.mark.parametrize("count", [1, MANY], ids=["one", "many"])
def test_two_fields_with_one_alias_are_read_from_one(count):
    """A reader that has the old field, and another one by its alias, gets the value twice."""
    writer = record(("a", "int"))
    reader = record(("a", "int"), ("b", "long", {"aliases": ["a"]}))

    assert ([{"a": 7, "b": 7}] * count, [None] * count) == read(writer, reader, [A] * count)


def test_field_that_only_the_writer_has_may_be_what_spark_cannot_hold():
    """A recursive field that the reader has removed is skipped."""
    node = record(("next", ["null", "Node"]), name="Node")
    writer, reader = record(("list", node), ("a", "int")), record(("a", "int"))

    written = {"list": {"next": {"next": {"next": None}}}, "a": 7}
    assert ([A] * MANY, [None] * MANY) == read(writer, reader, [written] * MANY)

"""Protocol Buffers payloads as columns: types, values, presence, revisions, and malformed payloads."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from pubsub_spark.codec import protobuf as codec
from pubsub_spark.codec.protobuf import ptars_schema
from pubsub_spark.codec.protobuf.column_tree import SCALARS, build_column_tree
from pubsub_spark.codec.protobuf.decode import ProtobufDecoder
from pubsub_spark.codec.spark_types import struct_type
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.protobuf import parse
from tests.unit.codec.protobuf.definitions import proto2, proto3, read

DOCS = Path(__file__).parents[4] / "docs" / "types.md"


def table() -> list[tuple[str, str]]:
    """Return `(field, Spark's type)` for every field in the table of docs/types.md. A type in words has no backticks
    there.
    """
    section = DOCS.read_text().partition("## Protocol Buffers")[2].partition("###")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    return [(field, type_.strip()) for fields, type_ in rows for field in re.findall("`([^`]*)`", fields)]


@pytest.mark.parametrize(("field", "type_"), table())
def test_types_are_those_of_the_table(field, type_):
    """Each line of docs/types.md is the code's translation."""
    definition = parse(proto3(field if " f = 1" in field else f"{field} f = 1;"))

    if type_ == "refused":
        with pytest.raises(SchemaError, match=r"^Field `f.*` makes message `p\.M` contain itself"):
            codec.value_type(definition)
    elif type_ == "dropped":
        assert [] == list(codec.value_type(definition))
    else:
        [column] = struct_type(codec.value_type(definition))
        assert ("f", type_.strip("`"), True) == (column.name, column.dataType.simpleString(), column.nullable)


def test_the_table_is_all_there():
    """The table of docs/types.md has every scalar type, and every other kind of field."""
    assert 30 < len(table())
    assert set(SCALARS.values()) < {field for field, _ in table()}


@pytest.mark.parametrize(
    ("fields", "type_"),
    [
        ("int32 nanos = 3; int64 seconds = 4;", "struct<nanos:int,seconds:bigint>"),
        ("int64 seconds = 4; int32 nanos = 3;", "timestamp"),
        ("int64 seconds = 1; int64 nanos = 2;", "struct<seconds:bigint,nanos:bigint>"),
        ("int64 seconds = 1;", "struct<seconds:bigint>"),
    ],
)
def test_a_timestamp_goes_by_its_fields(fields, type_):
    """A message is a timestamp by the name, order and types of its two fields, as in Spark. Their numbers do not
    matter.
    """
    [column] = struct_type(codec.value_type(parse(proto3(f"message Timestamp {{ {fields} }} Timestamp f = 1;"))))

    assert type_ == column.dataType.simpleString()


def test_the_arrow_type_is_what_spark_makes_of_it():
    """The Arrow type is the one that Spark derives from its own type, including names and nullability of elements, keys
    and values.
    """
    body = "required int32 a = 1; message N { required string x = 1; } repeated N ns = 2; map<string, N> mn = 3; "
    body += "optional google.protobuf.Timestamp at = 4; repeated google.protobuf.Duration ds = 5; required N n = 6;"
    type_ = codec.value_type(parse(proto2(body)))

    assert pa.schema(list(type_)) == to_arrow_schema(struct_type(type_), timezone="UTC")
    assert [False, True, True, True, True, False] == [field.nullable for field in type_]


def test_columns_are_in_the_order_of_the_definition():
    """Columns are in the order of the definition, not of the field numbers."""
    text = proto3("string z = 9; string a = 3; string m = 5;")

    assert ["z", "a", "m"] == [field.name for field in codec.value_type(parse(text))]
    assert [{"z": "Z", "a": "A", "m": ""}] == read(text, b"\x1a\x01A\x4a\x01Z")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("M child = 1;", "Field `child` makes message `p.M` contain itself (`p.M` → `p.M`)"),
        (
            "message A { repeated B b = 1; } message B { map<string, A> a = 1; } A top = 1;",
            "Field `top.b[].a{}` makes message `p.M.A` contain itself (`p.M.A` → `p.M.B` → `p.M.A`)",
        ),
        (
            "".join(f"message N{n} {{ N{n + 1} a = 1; }}" for n in range(95)) + "message N95 {int32 x=1;} N0 a = 1;",
            "deep",
        ),
        (
            "".join(f"message N{n} {{ N{n + 1} a = 1; N{n + 1} b = 2; }}" for n in range(40))
            + "message N40 { int32 x = 1; } N0 a = 1;",
            "Message `p.M` unfolds into more than 10,000 columns",
        ),
    ],
)
def test_types_without_an_end_are_refused(body, sentence):
    """Types that contain themselves are refused with the path. So are hostile types that end too late."""
    with pytest.raises(SchemaError) as refused:
        build_column_tree(parse(proto3(body)).message)

    assert sentence in str(refused.value)


def test_messages_without_fields_are_dropped():
    """Spark has no empty struct. A message left without columns is also dropped."""
    text = proto3(
        "message E {} message N { E e = 1; } E e = 1; N n = 2; repeated N ns = 3; map<int32, E> m = 4; int32 i = 5;"
    )

    assert ["i"] == [field.name for field in codec.value_type(parse(text))]
    assert [{"i": 7}] == read(text, b"\x0a\x00\x12\x02\x0a\x00\x28\x07")


def test_a_message_without_columns_has_rows():
    """A message without columns has as many rows as there are payloads, and a broken payload still has its reason."""
    text = proto3("")

    assert [{}, "The message breaks off in a number at byte 0", {}] == read(text, b"", b"\xff", b"\x08\x01")


@pytest.mark.parametrize(
    ("field", "absent"),
    [
        ("int32 f = 1;", 0),
        ("string f = 1;", ""),
        ("bytes f = 1;", b""),
        ("bool f = 1;", False),
        ("double f = 1;", 0.0),
        ("enum E { A = 0; B = 1; } E f = 1;", "A"),
        ("optional int32 f = 1;", None),
        ("optional string f = 1;", None),
        ("oneof c { int32 f = 1; }", None),
        ("google.protobuf.Timestamp f = 1;", None),
        ("google.protobuf.Int32Value f = 1;", None),
        ("google.protobuf.Struct f = 1;", None),
        ("message N { int32 x = 1; } N f = 1;", None),
        ("repeated int32 f = 1;", []),
        ("map<int32, int32> f = 1;", []),
    ],
)
def test_what_stands_for_an_absent_field(field, absent):
    """An absent field is zero if the wire cannot tell, null if it can, and empty if it is repeated."""
    assert [{"f": absent}] == read(proto3(field), b"")


@pytest.mark.parametrize(
    ("field", "absent"),
    [
        ("optional int32 f = 1;", None),
        ("optional int32 f = 1 [default = -5];", -5),
        ("optional uint32 f = 1 [default = 4294967295];", -1),
        ("optional uint64 f = 1 [default = 18446744073709551615];", -1),
        ('optional string f = 1 [default = "x"];', "x"),
        ('optional bytes f = 1 [default = "\\377"];', b"\xff"),
        ("optional double f = 1 [default = -inf];", float("-inf")),
        ("enum E { A = 1; B = 2; } optional E f = 1;", None),
        ("enum E { A = 1; B = 2; } optional E f = 1 [default = B];", "B"),
    ],
)
def test_proto2_declares_what_stands_for_an_absent_field(field, absent):
    """In proto2 an absent field has its declared default, or null."""
    assert [{"f": absent}] == read(proto2(field), b"")


def test_a_default_is_not_what_is_there():
    """A zero that was written is zero instead of the field's default."""
    assert [{"f": 0}] == read(proto2("optional int32 f = 1 [default = -5];"), b"\x08\x00")


def test_present_is_not_absent():
    """The zero of a field with presence is a value."""
    text = proto3("optional int32 i = 1; google.protobuf.Int32Value w = 2; message N { string x = 1; } N n = 3;")

    assert [{"i": 0, "w": {"value": 0}, "n": {"x": ""}}] == read(text, b"\x08\x00\x12\x00\x1a\x00")


@pytest.mark.parametrize(
    ("field", "payload", "value"),
    [
        ("int32 f = 1;", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", -1),
        ("int32 f = 1;", b"\x08\xff\xff\xff\xff\x0f", -1),
        ("int32 f = 1;", b"\x08\x81\x80\x80\x80\x80\x01", 1),
        ("int32 f = 1;", b"\x08\x81\x80\x00", 1),
        ("uint32 f = 1;", b"\x08\xff\xff\xff\xff\x0f", -1),
        ("fixed32 f = 1;", b"\x0d\xfe\xff\xff\xff", -2),
        ("uint64 f = 1;", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", -1),
        ("fixed64 f = 1;", b"\x09" + b"\xff" * 8, -1),
        ("sint32 f = 1;", b"\x08\x03", -2),
        ("sint64 f = 1;", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", -(2**63)),
        ("sfixed32 f = 1;", b"\x0d\x00\x00\x00\x80", -(2**31)),
        ("bool f = 1;", b"\x08\x80\x80\x80\x80\x10", True),
        ("int32 f = 1;", b"\x08\x01\x08\x02", 2),
        ("string f = 1;", b"\x0a\x03\xe2\x82\xac", "€"),
        ("repeated int32 f = 1;", b"\x0a\x02\x01\x02\x08\x03\x0a\x00\x0a\x01\x04", [1, 2, 3, 4]),
        ("repeated int32 f = 1 [packed = false];", b"\x0a\x02\x01\x02\x08\x03", [1, 2, 3]),
        ("repeated fixed32 f = 1;", b"\x0a\x04\x01\x00\x00\x00\x0d\x02\x00\x00\x00", [1, 2]),
        ("repeated string f = 1;", b"\x0a\x01a\x0a\x00", ["a", ""]),
        ("enum E { A = 0; B = -2; } E f = 1;", b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "B"),
        ("enum E { A = 0; } E f = 1;", b"\x08\x07", "UNKNOWN_ENUM_VALUE_E_7"),
        ("enum E { A = 0; } repeated E f = 1;", b"\x0a\x02\x00\x07", ["A", "UNKNOWN_ENUM_VALUE_E_7"]),
        ("enum E { option allow_alias = true; A = 0; B = 1; C = 1; } E f = 1;", b"\x08\x01", "B"),
        ("map<string, int32> f = 1;", b"\x0a\x05\x0a\x01a\x10\x01" * 2, [("a", 1)]),
        ("map<string, int32> f = 1;", b"\x0a\x05\x0a\x01a\x10\x01\x0a\x05\x10\x02\x0a\x01a", [("a", 2)]),
        ("map<string, int32> f = 1;", b"\x0a\x00", [("", 0)]),
        ("map<int32, int32> f = 1;", b"\x0a\x04\x08\x01\x18\x02\x0a\x02\x08\x03", [(3, 0)]),
        (
            "map<bool, google.protobuf.Timestamp> f = 1;",
            b"\x0a\x02\x08\x01",
            [(True, dt.datetime(1970, 1, 1, tzinfo=dt.UTC))],
        ),
        ("message N { int32 x = 1; } map<int32, N> f = 1;", b"\x0a\x02\x08\x05", [(5, {"x": 0})]),
        ("message N { int32 x = 1; int32 y = 2; } N f = 1;", b"\x0a\x02\x08\x01\x0a\x02\x10\x02", {"x": 1, "y": 2}),
        ("message N { repeated int32 x = 1; } N f = 1;", b"\x0a\x02\x08\x01\x0a\x02\x08\x02", {"x": [1, 2]}),
        ("google.protobuf.Int64Value f = 1;", b"\x0a\x02\x08\x01\x0a\x00", {"value": 1}),
        ("string f = 1;", b"\x08\x01", ""),
        ("int32 f = 1;", b"\x08\x01\x0a\x01\x02\x0b\x0c\x13\x08\x09\x14", 1),
        ("google.protobuf.Struct f = 1;", b"\x0a\x07\x0a\x05\x0a\x01a\x12\x00", '{"a": null}'),
        ("google.protobuf.Value f = 1;", b"\x0a\x09\x11\x00\x00\x00\x00\x00\x00\xf8\x3f", "1.5"),
        (
            "google.protobuf.Struct f = 1;",
            b"\x0a\x07\x0a\x05\x0a\x01a\x12\x00\x0a\x07\x0a\x05\x0a\x01b\x12\x00",
            '{"a": null, "b": null}',
        ),
        (
            "message Timestamp { oneof c { int64 seconds = 1; int32 nanos = 2; } } Timestamp f = 1;",
            b"\x0a\x04\x08\x01\x10\x02",
            {"seconds": None, "nanos": 2},
        ),
    ],
)
def test_the_wire_is_read_as_protobuf_reads_it(field, payload, value):
    """Truncation, sign, zigzag, packing, merging, last wins, wrong wire types and groups as unknown fields."""
    assert [{"f": value}] == read(proto3(field), payload)


@pytest.mark.parametrize(
    ("payload", "row"),
    [
        (b"\x08\x01\x12\x01x", {"a": None, "b": "x", "n": None}),
        (b"\x12\x01x\x08\x01", {"a": 1, "b": None, "n": None}),
        (b"\x1a\x02\x08\x01\x08\x01\x1a\x02\x10\x02", {"a": None, "b": None, "n": {"x": 0, "y": 2}}),
        (b"\x1a\x02\x08\x01\x1a\x02\x10\x02", {"a": None, "b": None, "n": {"x": 1, "y": 2}}),
    ],
)
def test_of_a_oneof_the_last_is_set(payload, row):
    """The last member of a oneof that is set wins. A message set before another member starts empty."""
    text = proto3("oneof c { int32 a = 1; string b = 2; N n = 3; } message N { int32 x = 1; int32 y = 2; }")

    assert [row] == read(text, payload)


@pytest.mark.parametrize(
    ("field", "payload", "value"),
    [
        ("optional E f = 1;", b"\x08\x05", None),
        ("optional E f = 1;", b"\x08\x02\x08\x05", "B"),
        ("repeated E f = 1;", b"\x08\x02\x08\x05\x08\x01", ["B", "A"]),
        ("repeated E f = 1;", b"\x0a\x03\x02\x05\x01", ["B", "A"]),
        ("map<int32, E> f = 1;", b"\x0a\x04\x08\x01\x10\x05\x0a\x04\x08\x02\x10\x02", [(2, "B")]),
    ],
)
def test_a_closed_enum_has_only_its_own_numbers(field, payload, value):
    """Other numbers of a proto2 enum are unknown fields. A map entry with such a value is unknown as a whole."""
    assert [{"f": value}] == read(proto2("enum E { Z = 0; A = 1; B = 2; } " + field), payload)


@pytest.mark.parametrize(
    ("seconds", "nanos", "value"),
    [
        (0, 0, dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        (5, 1_999, dt.datetime(1970, 1, 1, 0, 0, 5, 1, tzinfo=dt.UTC)),
        (-1, 999_999_999, dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)),
        (-62_135_596_800, 0, dt.datetime(1, 1, 1, tzinfo=dt.UTC)),
        (253_402_300_799, 999_999_999, dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)),
    ],
)
def test_a_timestamp_is_microseconds_in_utc(seconds, nanos, value):
    """A timestamp has microseconds, in UTC. Finer digits are cut."""
    definition = parse(proto3("google.protobuf.Timestamp f = 1; repeated google.protobuf.Timestamp fs = 2;"))
    message: Any = definition.message_class(f={"seconds": seconds, "nanos": nanos}, fs=[{"seconds": seconds}])

    [row] = read(definition.text, message.SerializeToString())

    assert value == row["f"]
    assert [value.replace(microsecond=0)] == row["fs"]


def test_a_timestamp_that_comes_twice_is_merged():
    """A timestamp that occurs twice is merged like any message: seconds of one, nanos of the other."""
    [row] = read(proto3("google.protobuf.Timestamp f = 1;"), b"\x0a\x02\x08\x05\x0a\x03\x10\x88\x27")

    assert dt.datetime(1970, 1, 1, 0, 0, 5, 5, tzinfo=dt.UTC) == row["f"]


@pytest.mark.parametrize(
    ("seconds", "nanos", "micros"), [(1, 500_000_000, 1_500_000), (-1, -500_000_000, -1_500_000), (0, -1_999, -1)]
)
def test_a_duration_is_a_day_time_interval(seconds, nanos, micros):
    """A duration is a day-time interval in microseconds, cut towards zero."""
    definition = parse(proto3("google.protobuf.Duration f = 1;"))
    message: Any = definition.message_class(f={"seconds": seconds, "nanos": nanos})

    assert [{"f": dt.timedelta(microseconds=micros)}] == read(definition.text, message.SerializeToString())


def test_a_key_that_is_no_text_among_those_that_are():
    """A proto2 map is read even if only some keys are UTF-8, although upb cannot compare such keys with each other."""
    text = 'syntax = "proto2"; message M { map<string, int32> m = 1; }'
    payload = b"\x0a\x05\x0a\x01a\x10\x01" + b"\x0a\x05\x0a\x01\xff\x10\x01"

    assert ["Field `m{}` is not valid UTF-8", {"m": []}] == read(text, payload, b"")


def test_no_payloads_are_no_rows_of_the_declared_type():
    """No payloads are an empty column of the declared type."""
    decoder = ProtobufDecoder(parse(proto3("int32 i = 1; repeated string s = 2;")))
    value, error = decoder.decode(pa.array([], pa.binary()))

    assert (decoder.type, pa.string(), 0, 0) == (value.type, error.type, len(value), len(error))


def test_payloads_of_any_size_are_rows():
    """Payloads of any size are rows. One may be larger than a block."""
    large = b"\x0a\x80\x80\x80\x08" + bytes(16 << 20)
    rows = read(proto3("bytes b = 1;"), b"\x0a\x01x", large, b"\x0a\x01y")

    assert [1, 16 << 20, 1] == [len(row["b"]) for row in rows]


@pytest.mark.parametrize("number", [1 << 18, 536_870_911])
def test_field_numbers_may_be_as_high_as_they_are(number):
    """ptars would need gigabytes for the highest field numbers, so such schemas are read from Python objects."""
    definition = parse(proto3(f"string s = {number}; repeated N ns = 2; message N {{ int32 x = 1; }}"))
    message: Any = definition.message_class(s="x", ns=[{"x": 1}, {}])

    assert [{"s": "x", "ns": [{"x": 1}, {"x": 0}]}, "The message breaks off in a number at byte 0"] == read(
        definition.text, message.SerializeToString(), b"\xff"
    )


V1 = "string name = 1; int32 count = 2; enum E { A = 0; } E e = 3; message N { string x = 1; } N n = 4;"
V2 = """
string title = 1; int64 added = 7; enum E { A = 0; B = 1; } E e = 3; message N { string x = 1; bool y = 2; } N n = 4;
"""


@pytest.mark.parametrize(
    ("writer", "reader", "fields", "row"),
    [
        (V1, V2, {"name": "x", "count": 3}, {"title": "x", "added": 0, "e": "A", "n": None}),
        (V1, V2, {"n": {"x": "q"}}, {"title": "", "added": 0, "e": "A", "n": {"x": "q", "y": False}}),
        (V2, V1, {"title": "x", "added": 9}, {"name": "x", "count": 0, "e": "A", "n": None}),
        (V2, V1, {"e": 1, "n": {"y": True}}, {"name": "", "count": 0, "e": "UNKNOWN_ENUM_VALUE_E_1", "n": {"x": ""}}),
        ("int32 a = 1;", "optional int32 b = 2;", {"a": 1}, {"b": None}),
        ("int32 a = 1;", "int64 a = 1;", {"a": -1}, {"a": -1}),
        ("string a = 1;", "bytes a = 1;", {"a": "x"}, {"a": b"x"}),
        ("int32 a = 1;", "string a = 1;", {"a": 1}, {"a": ""}),
        ("int32 a = 1;", "repeated int32 a = 1;", {"a": 1}, {"a": [1]}),
        ("repeated int32 a = 1;", "oneof c { int32 b = 2; }", {"a": [1, 2]}, {"b": None}),
    ],
)
@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_revisions_meet_by_field_number(writer, reader, fields, row, encoding):
    """For added, removed, renamed and widened fields, bytes are read as protobuf reads them, JSON by the writer's
    names.
    """
    from google.protobuf import json_format

    message: Any = parse(proto3(writer)).message_class(**fields)
    payload = message.SerializeToString() if encoding == "BINARY" else json_format.MessageToJson(message).encode()

    assert [row] == read(proto3(reader), payload, encoding=encoding, writer=proto3(writer))


class PanicException(BaseException):
    """A panic in Rust, as Python sees it: a BaseException that is not an Exception."""


@pytest.mark.parametrize("failure", [PanicException("boom"), ValueError("cannot")])
def test_what_ptars_cannot_read_is_read_from_objects(failure, monkeypatch):
    """A message that upb has written and ptars cannot read is read by the slower row reader instead of lost."""

    class Failing:
        def list_to_record_batch(self, payloads: list[bytes]) -> pa.RecordBatch:
            raise failure

    monkeypatch.setattr(ptars_schema, "batch_reader", lambda _: Failing())
    decoder = ProtobufDecoder(parse(proto3("int32 i = 1;")))

    value, error = decoder.decode(pa.array([b"\x08\x01", b"", b"\xff"], pa.binary()))

    assert [{"i": 1}, {"i": 0}, None] == value.to_pylist()
    assert [None, None, "The message breaks off in a number at byte 0"] == error.to_pylist()


def test_an_interrupt_is_not_swallowed(monkeypatch):
    """A KeyboardInterrupt inside ptars is raised. Only its panics are handled."""

    class Interrupted:
        def list_to_record_batch(self, payloads: list[bytes]) -> pa.RecordBatch:
            raise KeyboardInterrupt

    monkeypatch.setattr(ptars_schema, "batch_reader", lambda _: Interrupted())
    decoder = ProtobufDecoder(parse(proto3("int32 i = 1;")))

    with pytest.raises(KeyboardInterrupt):
        decoder.decode(pa.array([b""], pa.binary()))

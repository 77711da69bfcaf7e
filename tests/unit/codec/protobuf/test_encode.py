"""Rows as Protocol Buffers payloads: columns that fit, values that do not, and the resulting bytes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pubsub_spark.codec.protobuf import encoder, ptars_schema, value_type
from pubsub_spark.codec.protobuf.encode import ProtobufEncoder
from pubsub_spark.errors import DataError, SchemaError
from pubsub_spark.schema.protobuf import parse
from tests.unit.codec.protobuf.definitions import proto2, proto3


def write(text: str, rows: list[Any] | pa.StructArray, type_: pa.DataType | None = None) -> list[Any]:
    """Return the messages, as protobuf reads the written bytes. The rows have the schema's type by default."""
    definition = parse(text)
    rows = rows if isinstance(rows, pa.Array) else pa.array(rows, type_ or value_type(definition))
    payloads = encoder(definition, "BINARY", rows.type, False)(rows)
    assert pa.binary() == payloads.type
    return [definition.message_class.FromString(payload) for payload in payloads.to_pylist()]


def column(type_: pa.DataType, *values: Any) -> pa.StructArray:
    """Return rows of one column, `f`."""
    return pa.StructArray.from_arrays([pa.array(values, type_)], ["f"])


@pytest.mark.parametrize(
    ("field", "type_", "value", "written"),
    [
        ("int32 f = 1;", pa.int32(), -5, -5),
        ("int32 f = 1;", pa.int8(), -5, -5),
        ("int32 f = 1;", pa.date32(), dt.date(1970, 1, 3), 2),
        ("sfixed64 f = 1;", pa.int16(), -5, -5),
        ("int64 f = 1;", pa.int64(), -(2**63), -(2**63)),
        ("uint32 f = 1;", pa.int32(), -1, 2**32 - 1),
        ("uint32 f = 1;", pa.int64(), 2**32 - 1, 2**32 - 1),
        ("fixed64 f = 1;", pa.int64(), -1, 2**64 - 1),
        ("uint64 f = 1;", pa.decimal128(20, 0), Decimal(2**64 - 1), 2**64 - 1),
        ("float f = 1;", pa.float32(), 1.5, 1.5),
        ("double f = 1;", pa.float32(), 1.5, 1.5),
        ("double f = 1;", pa.int32(), 7, 7.0),
        ("bool f = 1;", pa.bool_(), True, True),
        ("string f = 1;", pa.large_string(), "é", "é"),
        ("bytes f = 1;", pa.large_binary(), b"\xff", b"\xff"),
        ("enum E { A = 0; B = -3; } E f = 1;", pa.string(), "B", -3),
        ("enum E { A = 0; } E f = 1;", pa.int32(), 7, 7),
        ("enum E { option allow_alias = true; A = 0; B = 1; C = 1; } E f = 1;", pa.string(), "C", 1),
        ("repeated sint32 f = 1;", pa.list_(pa.int32()), [1, -1], [1, -1]),
        ("repeated string f = 1;", pa.large_list(pa.string()), ["a", ""], ["a", ""]),
    ],
)
def test_a_column_that_fits_is_written(field, type_, value, written):
    """A column may have the schema's own type, a narrower one, or the type that `upcast.unsigned.ints` makes of it."""
    [message, absent] = write(proto3(field), column(type_, value, None))

    assert written == message.f
    assert b"" == absent.SerializeToString()


@pytest.mark.parametrize(
    ("field", "type_", "sentence"),
    [
        ("int32 f = 1;", pa.int64(), "Column `f` is `bigint`, the schema wants `int`"),
        ("int32 f = 1;", pa.string(), "Column `f` is `string`, the schema wants `int`"),
        ("float f = 1;", pa.float64(), "Column `f` is `double`, the schema wants `float`"),
        ("string f = 1;", pa.binary(), "Column `f` is `binary`, the schema wants `string`"),
        ("uint64 f = 1;", pa.decimal128(20, 2), "Column `f` is `decimal(20,2)`, the schema wants `bigint`"),
        ("repeated int32 f = 1;", pa.int32(), "Column `f` is `int`, the schema wants `array<int>`"),
        ("repeated int32 f = 1;", pa.list_(pa.string()), "Column `f[]` is `string`, the schema wants `int`"),
        (
            "map<string, int32> f = 1;",
            pa.map_(pa.int32(), pa.int32()),
            "Column `f{}` is `int`, the schema wants `string`",
        ),
        ("message N { int32 x = 1; } N f = 1;", pa.int32(), "Column `f` is `int`, the schema wants `struct<x:int>`"),
        (
            "message N { int32 x = 1; } repeated N f = 1;",
            pa.list_(pa.struct([("x", pa.bool_())])),
            "Column `f[].x` is `boolean`, the schema wants `int`",
        ),
        (
            "google.protobuf.Timestamp f = 1;",
            pa.timestamp("us"),
            "Column `f` is `timestamp_ntz`, the schema wants `timestamp`",
        ),
        (
            "google.protobuf.Duration f = 1;",
            pa.int64(),
            "Column `f` is `bigint`, the schema wants `interval day to second`",
        ),
        (
            "google.protobuf.Struct f = 1;",
            pa.struct([("a", pa.int32())]),
            "Column `f` is `struct<a:int>`, the schema wants `string`",
        ),
    ],
)
def test_a_column_that_does_not_fit_is_refused_at_once(field, type_, sentence):
    """A column that does not fit is refused before any row, with path, type and expected type in Spark's words."""
    with pytest.raises(SchemaError) as refused:
        encoder(parse(proto3(field)), "BINARY", pa.struct([("f", type_)]), False)

    assert sentence == str(refused.value)


def test_extra_columns_are_refused_unless_ignored():
    """One error names all extra columns, those of each level together, with their paths."""
    definition = parse(proto3("int32 a = 1; message N { int32 x = 1; } N n = 2;"))
    inner = pa.struct([("x", pa.int32()), ("y", pa.int64())])
    type_ = pa.struct([("a", pa.int32()), ("b", pa.int64()), ("c", pa.int64()), ("n", inner)])
    rows = pa.array([{"a": 1, "b": 2, "c": 3, "n": {"x": 4, "y": 5}}], type_)

    with pytest.raises(SchemaError) as refused:
        encoder(definition, "BINARY", type_, False)
    [payload] = encoder(definition, "BINARY", type_, True)(rows).to_pylist()

    assert (
        "The schema has no field for `b`, `c`: drop it, or set ignoreExtraColumns=true; "
        "The schema has no field for `n.y`: drop it, or set ignoreExtraColumns=true" == str(refused.value)
    )
    assert b"\x08\x01\x12\x02\x08\x04" == payload


def test_missing_columns_are_absent_fields():
    """A field without a column is absent. If the schema requires it, that is an error."""
    text = proto2("required int32 a = 1; optional string b = 2; message N { required int32 x = 1; } optional N n = 3;")

    [message] = write(text, [{"a": 1}], pa.struct([("a", pa.int32())]))

    assert b"\x08\x01" == message.SerializeToString()
    for type_, path in (
        (pa.struct([("b", pa.string())]), "a"),
        (pa.struct([("a", pa.null())]), "a"),
        (pa.struct([("a", pa.int32()), ("n", pa.struct([("y", pa.null())]))]), "n.x"),
    ):
        with pytest.raises(SchemaError, match=f"^Column `{path}` is missing: the schema requires it$"):
            encoder(parse(text), "BINARY", type_, True)


def test_a_required_message_without_fields_cannot_be_written():
    """No column can hold a message without fields. Without `required` it is left out."""
    with pytest.raises(SchemaError, match=r"^Field `e` is required, and a message without fields cannot be a column$"):
        encoder(parse(proto2("message E {} required E e = 1;")), "BINARY", pa.struct([]), False)


def test_columns_are_found_without_case():
    """A column matches the field of its own name first, then the only other spelling. Others have no field."""
    text = proto3("int32 camelCase = 1; int32 ID = 2; int32 id = 3;")

    [message] = write(text, [{"CAMELCASE": 1, "id": 3}], pa.struct([("CAMELCASE", pa.int32()), ("id", pa.int32())]))

    assert (1, 0, 3) == (message.camelCase, message.ID, message.id)
    for names in (["Id"], ["camelCase", "Id"], ["CAMELCASE", "Id", "camelCase"], ["CAMELCASE", "camelcase"]):
        with pytest.raises(SchemaError, match=r"no field for `(Id|CAMELCASE)`"):
            encoder(parse(text), "BINARY", pa.struct([(name, pa.int32()) for name in names]), False)


@pytest.mark.parametrize(
    ("text", "rows", "sentence"),
    [
        (
            proto3("uint32 f = 1;"),
            column(pa.int64(), 0, 2**32),
            "Row 1: column `f` is 4294967296, out of the range of `uint32`",
        ),
        (
            proto3("uint32 f = 1;"),
            column(pa.int64(), None, -1),
            "Row 1: column `f` is -1, out of the range of `uint32`",
        ),
        (
            proto3("uint64 f = 1;"),
            column(pa.decimal128(20, 0), Decimal(2**64)),
            "Row 0: column `f` is 18446744073709551616, out of the range of `uint64`",
        ),
        (
            proto3("enum E { A = 0; B = 1; } E f = 1;"),
            column(pa.string(), "A", None, "C"),
            "Row 2: column `f` is `C`, and enum `E` has only `A`, `B`",
        ),
        (
            proto2("enum E { A = 1; } optional E f = 1;"),
            column(pa.int32(), 1, 7),
            "Row 1: column `f` is 7, which enum `E` does not have",
        ),
        (
            proto3("repeated int32 f = 1;"),
            column(pa.list_(pa.int32()), [1], None, [], [2, 3, None]),
            "Row 3: column `f[]` is null, and protobuf has no null inside lists and maps",
        ),
        (
            proto3("map<string, int32> f = 1;"),
            column(pa.map_(pa.string(), pa.int32()), [("a", 1)], [("b", 2), ("c", None)]),
            "Row 1: column `f{}` is null, and protobuf has no null inside lists and maps",
        ),
        (
            proto2("required int32 f = 1;"),
            column(pa.int32(), 1, None),
            "Row 1: column `f` is null, and the field is required",
        ),
        (
            proto3("google.protobuf.Timestamp f = 1;"),
            column(pa.timestamp("us", "UTC"), 0, 253_402_300_800_000_000),
            "Row 1: column `f` is 253402300800000000 microseconds, more than its field holds",
        ),
        (
            proto3("google.protobuf.Duration f = 1;"),
            column(pa.duration("us"), 0, -315_576_000_001_000_000),
            "Row 1: column `f` is -315576000001000000 microseconds, more than its field holds",
        ),
        (
            proto3("google.protobuf.Struct f = 1;"),
            column(pa.string(), "{}", "[1]"),
            "Row 1: column `f` is no `Struct`: ",
        ),
        (
            proto3("google.protobuf.Value f = 1;"),
            column(pa.string(), "[1.5]", "[1e400]"),
            "Row 1: column `f` is no `Value`: The message does not fit: 1e400 is not a finite number",
        ),
        (proto3("int32 f = 1;"), pa.array([{"f": 1}, None], pa.struct([("f", pa.int32())])), "Row 1: the row is null"),
        (
            proto3("oneof c { int32 a = 1; string b = 2; int32 d = 3; }"),
            pa.array(
                [{"a": 1}, {"b": "x"}, {"a": 1, "d": 2}],
                pa.struct([("a", pa.int32()), ("b", pa.string()), ("d", pa.int32())]),
            ),
            "Row 2: column `a` has a value, and so has `d`: oneof `c` has one",
        ),
    ],
)
def test_a_value_that_does_not_fit_names_row_and_column(text, rows, sentence):
    """The error for a value that does not fit names row, column and reason."""
    with pytest.raises(DataError) as refused:
        write(text, rows)

    assert str(refused.value).startswith(sentence)
    assert not isinstance(refused.value, SchemaError)


DEEP = proto2(
    "message N { required int32 x = 1; map<string, Leaf> leaves = 2; } "
    "message Leaf { enum E { A = 0; } repeated E es = 1; } repeated N ns = 1;"
)
LEAVES = pa.map_(pa.string(), pa.struct([("es", pa.list_(pa.string()))]))
DEEP_TYPE = pa.struct([("ns", pa.list_(pa.struct([("x", pa.int32()), ("leaves", LEAVES)])))])
GOOD = {"ns": [{"x": 1, "leaves": [("a", {"es": ["A"]}), ("b", {"es": []})]}, {"x": 2, "leaves": None}]}


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"ns": [{"x": 1}, {"x": None}]}, "Row 3: column `ns[].x` is null, and the field is required"),
        (
            {"ns": [{"x": 1, "leaves": [("a", {"es": ["A", "B"]})]}]},
            "Row 3: column `ns[].leaves{}.es[]` is `B`, and enum `E`",
        ),
        ({"ns": [{"x": 1, "leaves": [("a", None)]}]}, "Row 3: column `ns[].leaves{}` is null"),
    ],
)
@pytest.mark.parametrize("offset", [0, 1])
def test_deep_inside_the_row_is_still_known(bad, sentence, offset):
    """An error names its row through lists of messages with maps of messages with lists, with empty rows between,
    sliced or not.
    """
    rows = pa.array([GOOD] * offset + [GOOD, {"ns": []}, GOOD, bad, GOOD], DEEP_TYPE).slice(offset)
    with pytest.raises(DataError) as refused:
        write(DEEP, rows)

    assert str(refused.value).startswith(sentence)


def test_what_lies_below_a_null_is_not_looked_at():
    """A null struct may hide anything: a null in a required field, a value out of range, a bad name."""
    inner = pa.StructArray.from_arrays(
        [pa.array([None, 1], pa.int32()), pa.array(["NO", "A"]), pa.array([-1, 5], pa.int64())],
        ["a", "e", "u"],
        mask=pa.array([True, False]),
    )
    text = proto2(
        "enum E { A = 0; } optional N n = 1; "
        "message N { required int32 a = 1; optional E e = 2; optional uint32 u = 3; }"
    )

    absent, message = write(text, pa.StructArray.from_arrays([inner], ["n"]))

    assert not absent.HasField("n")
    assert (1, 0, 5) == (message.n.a, message.n.e, message.n.u)


def test_slices_are_written_as_they_are():
    """Offsets of columns, lists, maps and bits do not shift the written values."""
    text = proto3(
        "bool b = 1; repeated int32 l = 2; map<string, int32> m = 3; string s = 5; "
        "message N { optional bool x = 1; } N n = 4;"
    )
    rows = [
        {
            "b": i % 3 == 0,
            "l": list(range(i % 4)),
            "m": [(f"k{i}", i)],
            "n": {"x": i % 2 == 0} if i % 5 else None,
            "s": "x" * i,
        }
        for i in range(20)
    ]
    array = pa.array(rows, value_type(parse(text)))

    whole, part = write(text, array), write(text, array.slice(7, 8))

    assert [message.SerializeToString() for message in whole[7:15]] == [message.SerializeToString() for message in part]


def test_bytes_are_canonical():
    """As in protobuf's own output, fields are in the order of numbers, and zeros are left out where the wire cannot
    tell.
    """
    definition = parse(
        proto3(
            "string z = 9; int32 a = 2; repeated int32 r = 4; optional int32 o = 3; map<string, int32> m = 5; "
            "double d = 6; google.protobuf.Timestamp t = 7; message N { int32 y = 2; int32 x = 1; } N n = 1;"
        )
    )
    rows: list[dict[str, Any]] = [
        {
            "z": "Z",
            "a": -1,
            "r": [0, 1],
            "o": 0,
            "n": {"y": 2, "x": 1},
            "m": [("", 0)],
            "d": -0.0,
            "t": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        },
        {
            "z": "",
            "a": 0,
            "r": [],
            "o": None,
            "n": {},
            "m": [],
            "d": 0.0,
            "t": dt.datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=dt.UTC),
        },
    ]
    array = pa.array(rows, value_type(definition))

    payloads = encoder(definition, "BINARY", array.type, False)(array).to_pylist()

    assert [definition.message_class.FromString(payload).SerializeToString() for payload in payloads] == payloads


def test_no_rows_are_no_payloads():
    """No rows are an empty column of the declared type. Rows without any column are empty messages."""
    definition = parse(proto3("int32 a = 1; repeated N ns = 2; message N { string x = 1; }"))
    write_rows = encoder(definition, "BINARY", value_type(definition), False)

    assert pa.array([], pa.binary()) == write_rows(pa.array([], value_type(definition)))
    assert pa.array([b"", b""]) == encoder(definition, "BINARY", pa.struct([("q", pa.int32())]), True)(
        pa.array([{"q": 1}, {"q": 2}], pa.struct([("q", pa.int32())]))
    )


def test_nested_messages_may_have_no_columns():
    """A struct with only nulls or extra columns is a message that is present and empty."""
    text = proto3("message N { int32 x = 1; } N n = 1; repeated N ns = 2;")
    type_ = pa.struct([("n", pa.struct([("x", pa.null())])), ("ns", pa.list_(pa.struct([("x", pa.null())])))])

    there, absent = write(text, [{"n": {}, "ns": [{}, {}]}, {"n": None, "ns": None}], type_)

    assert (True, 2) == (there.HasField("n"), len(there.ns))
    assert b"" == absent.SerializeToString()


class PanicException(BaseException):
    """A panic in Rust, as Python sees it: a BaseException that is not an Exception."""


def test_a_panic_is_an_error_of_the_data(monkeypatch):
    """A panic of ptars is a DataError, for example if a batch makes more bytes than an Arrow array can hold."""

    class Panicking:
        def record_batch_to_array(self, batch: pa.RecordBatch) -> pa.BinaryArray:
            raise PanicException("byte array offset overflow")

    monkeypatch.setattr(ptars_schema, "payload_writer", lambda _: Panicking())
    protobuf_encoder = ProtobufEncoder(parse(proto3("int32 f = 1;")), "BINARY", pa.struct([("f", pa.int32())]))

    with pytest.raises(
        DataError, match=r"^The 2 rows of an Arrow batch cannot be written at once: ptars panicked: byte array offset"
    ):
        protobuf_encoder.encode(column(pa.int32(), 1, 2))

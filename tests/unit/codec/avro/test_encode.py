"""Rows to Avro: values that fit, values that are filled in, and the error message of each refusal."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pubsub_spark.codec.avro import decoder, encoder, value_type
from pubsub_spark.codec.avro.encode import compile_rows
from pubsub_spark.errors import DataError, SchemaError
from pubsub_spark.schema import avro


def definition(*fields: Any) -> avro.AvroDefinition:
    """Return the definition of a record of `(name, type)` or `(name, type, default)`."""
    declared = [
        {"name": field[0], "type": field[1], **({"default": field[2]} if len(field) > 2 else {})} for field in fields
    ]
    return avro.parse(json.dumps({"type": "record", "name": "R", "fields": declared}))


def rows(values: list[Any], *fields: pa.Field) -> pa.StructArray:
    return pa.array(values, pa.struct(fields))


def encode(schema: avro.AvroDefinition, array: pa.StructArray, ignore_extra: bool = False) -> list[bytes]:
    return list(encoder(schema, "BINARY", array.type, ignore_extra)(array).to_pylist())


def read(schema: avro.AvroDefinition, messages: list[bytes]) -> list[Any]:
    values, errors = decoder(schema, schema, "BINARY")(pa.array(messages, pa.binary()))
    assert [None] * len(messages) == errors.to_pylist()
    return list(values.to_pylist())


def test_lists_of_nulls_in_a_map_are_encoded():
    """Arrow casts a map of such lists to too few nulls."""
    schema = definition(("m", {"type": "map", "values": {"type": "array", "items": "null"}}))
    values = [{"m": [("a", [None]), ("b", [None] * 4)]}, {"m": [("c", [None] * 4)]}, {"m": []}]
    array = rows(values, pa.field("m", pa.map_(pa.string(), pa.list_(pa.null()))))

    assert values == read(schema, encode(schema, array))


def test_columns_are_found_by_name_in_any_order():
    """The DataFrame's column order does not matter. If the name is unique, its case does not matter either."""
    schema = definition(("id", "long"), ("Name", "string"))

    array = rows([{"NAME": "x", "id": 5}], pa.field("NAME", pa.string()), pa.field("id", pa.int64()))
    assert [{"id": 5, "Name": "x"}] == read(schema, encode(schema, array))


def test_a_column_is_of_one_field_alone():
    """Of fields that differ only in case, a column matches only its own spelling. Any other spelling matches none."""
    schema = definition(("id", ["null", "string"], None), ("ID", ["null", "string"], None))

    array = rows([{"ID": "x"}], pa.field("ID", pa.string()))
    assert [{"id": None, "ID": "x"}] == read(schema, encode(schema, array))
    with pytest.raises(SchemaError, match="no field for `Id`"):
        encode(schema, rows([{"Id": "x"}], pa.field("Id", pa.string())))


def test_missing_column_takes_its_default_or_null():
    """A missing column takes its default. An optional field without a default is null."""
    schema = definition(
        ("a", "int"), ("b", "string", "none"), ("c", ["null", "long"]), ("d", {"type": "array", "items": "int"}, [1])
    )

    array = rows([{"a": 1}, {"a": 2}], pa.field("a", pa.int32()))
    expected = {"b": "none", "c": None, "d": [1]}
    assert [{"a": 1, **expected}, {"a": 2, **expected}] == read(schema, encode(schema, array))


def test_narrower_columns_are_widened():
    """Widening loses nothing: smallint to long, float to double, one decimal to a larger one."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}
    schema = definition(("a", "long"), ("b", "double"), ("c", price), ("d", "int"))
    fields = (
        pa.field("a", pa.int16()),
        pa.field("b", pa.float32()),
        pa.field("c", pa.decimal128(8, 2)),
        pa.field("d", pa.int8()),
    )

    array = rows([{"a": -3, "b": 0.5, "c": Decimal("-1.25"), "d": 7}], *fields)
    assert [{"a": -3, "b": 0.5, "c": Decimal("-1.2500"), "d": 7}] == read(schema, encode(schema, array))


def test_timestamps_of_any_session_zone_keep_their_instant():
    """Timestamps arrive in the session's time zone. Milliseconds are rounded down."""
    schema = definition(
        ("micros", {"type": "long", "logicalType": "timestamp-micros"}),
        ("millis", {"type": "long", "logicalType": "timestamp-millis"}),
    )
    zoned = pa.timestamp("us", tz="America/New_York")
    array = pa.StructArray.from_arrays(
        [pa.array([-1, 1_500], pa.int64()).cast(zoned), pa.array([-1, 1_500], pa.int64()).cast(zoned)],
        fields=[pa.field("micros", zoned), pa.field("millis", zoned)],
    )

    values, _ = decoder(schema, schema, "BINARY")(pa.array(encode(schema, array)))
    assert [-1, 1_500] == values.field("micros").cast(pa.int64()).to_pylist()
    assert [-1_000, 1_000] == values.field("millis").cast(pa.int64()).to_pylist()


@pytest.mark.parametrize(
    ("found", "declared", "sentence"),
    [
        (pa.string(), "long", "Column `a` is `string`, the schema wants `bigint`"),
        (pa.int64(), "int", "Column `a` is `bigint`, the schema wants `int`"),
        (pa.float64(), "float", "Column `a` is `double`, the schema wants `float`"),
        (
            pa.timestamp("us"),
            {"type": "long", "logicalType": "timestamp-micros"},
            "is `timestamp_ntz`, the schema wants `timestamp`",
        ),
        (pa.int64(), {"type": "int", "logicalType": "date"}, "Column `a` is `bigint`, the schema wants `date`"),
        (pa.list_(pa.string()), {"type": "array", "items": "int"}, "Column `a[]` is `string`, the schema wants `int`"),
        (
            pa.map_(pa.string(), pa.string()),
            {"type": "map", "values": "int"},
            "Column `a{}` is `string`, the schema wants `int`",
        ),
        (
            pa.map_(pa.int32(), pa.int32()),
            {"type": "map", "values": "int"},
            "is `map<int,int>`, the schema wants `map<string,int>`",
        ),
        (pa.string(), ["int", "string"], "is `string`, the schema wants `struct<member0:int,member1:string>`"),
        (
            pa.decimal128(12, 2),
            {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
            "Column `a` is `decimal(12,2)`, the schema wants `decimal(10,2)`",
        ),
    ],
)
def test_column_that_does_not_fit_is_refused_at_once(found, declared, sentence):
    """A column that does not fit is refused before any row, with its path, its type and the expected type."""
    with pytest.raises(SchemaError) as refused:
        encoder(definition(("a", declared)), "BINARY", pa.struct([pa.field("a", found)]), False)

    assert sentence in str(refused.value)


def test_missing_column_without_a_default_is_refused():
    """The error message names the column and its expected type."""
    with pytest.raises(SchemaError, match=r"Column `b\.c` is missing: the schema wants `int`"):
        encoder(
            definition(("b", {"type": "record", "name": "B", "fields": [{"name": "c", "type": "int"}]})),
            "BINARY",
            pa.struct([pa.field("b", pa.struct([]))]),
            False,
        )


def test_missing_column_with_a_default_that_spark_cannot_hold_is_refused():
    """The error message names the column, the default and the remedy."""
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9}

    with pytest.raises(SchemaError) as refused:
        encoder(definition(("a", "int"), ("b", price, "")), "BINARY", pa.struct([pa.field("a", pa.int32())]), False)
    assert (
        'Column `b` is missing and takes its default `""`, which Spark cannot hold: it is a decimal of no bytes. '
        "Add the column" == str(refused.value)
    )


def test_all_columns_that_do_not_fit_are_told_at_once():
    """One error names the extra columns, those of a wrong type and the missing ones, also within a struct."""
    inner = {"type": "record", "name": "B", "fields": [{"name": "c", "type": "int"}, {"name": "d", "type": "int"}]}
    found = pa.struct([("a", pa.string()), ("b", pa.struct([("c", pa.string())])), ("x", pa.int32())])

    with pytest.raises(SchemaError) as refused:
        encoder(definition(("a", "int"), ("b", inner), ("e", "long")), "BINARY", found, False)
    assert (
        "The schema has no field for `x`: drop it, or set ignoreExtraColumns=true; "
        "Column `a` is `string`, the schema wants `int`; Column `b.c` is `string`, the schema wants `int`; "
        "Column `b.d` is missing: the schema wants `int` and has no default for it; "
        "Column `e` is missing: the schema wants `bigint` and has no default for it" == str(refused.value)
    )


def test_extra_columns_are_refused_by_their_paths_or_ignored():
    """One error names all extra columns, grouped by level. With ignoreExtraColumns they are left out."""
    inner = {"type": "record", "name": "B", "fields": [{"name": "c", "type": "int"}]}
    schema = definition(("a", "int"), ("b", ["null", inner]))
    inside = pa.struct([pa.field("c", pa.int32()), pa.field("x", pa.int32())])
    array = rows(
        [{"a": 1, "b": {"c": 2, "x": 3}, "y": 4, "z": 5}],
        pa.field("a", pa.int32()),
        pa.field("b", inside),
        pa.field("y", pa.int32()),
        pa.field("z", pa.int32()),
    )

    with pytest.raises(SchemaError) as refused:
        encode(schema, array)
    assert (
        "The schema has no field for `y`, `z`: drop it, or set ignoreExtraColumns=true; "
        "The schema has no field for `b.x`: drop it, or set ignoreExtraColumns=true" == str(refused.value)
    )
    assert [{"a": 1, "b": {"c": 2}}] == read(schema, encode(schema, array, ignore_extra=True))


B = {"type": "record", "name": "B", "fields": [{"name": "c", "type": "int"}]}
UNION = [B, "null", "string"]
MEMBERS = pa.struct(
    [
        pa.field("member0", pa.struct([pa.field("c", pa.int32()), pa.field("x", pa.int32())])),
        pa.field("member1", pa.string()),
    ]
)


@pytest.mark.parametrize(
    ("declared", "type_", "path"),
    [
        (UNION, MEMBERS, "member0.x"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "u", "type": UNION}]},
            pa.struct([pa.field("u", MEMBERS)]),
            "u.member0.x",
        ),
        ({"type": "array", "items": UNION}, pa.struct([pa.field("value", pa.list_(MEMBERS))]), "value[].member0.x"),
    ],
)
def test_extra_column_inside_a_member_of_a_union_is_refused(declared, type_, path):
    """Nothing is dropped silently, wherever the union is."""
    with pytest.raises(SchemaError, match=rf"no field for `{re.escape(path)}`: drop it"):
        encoder(avro.parse(json.dumps(declared)), "BINARY", type_, False)


def test_first_null_in_a_required_field_names_row_and_column():
    """A nullable column may be written to a required field. A null in it is an error of that row."""
    schema = definition(
        ("a", {"type": "array", "items": {"type": "record", "name": "B", "fields": [{"name": "c", "type": "int"}]}})
    )
    type_ = pa.list_(pa.struct([pa.field("c", pa.int32())]))
    good, bad = {"a": [{"c": 1}, {"c": 2}]}, {"a": [{"c": 1}, {"c": None}]}

    assert [good, good] == read(schema, encode(schema, rows([good, good], pa.field("a", type_))))
    with pytest.raises(DataError, match=r"Row 20002: column `a\[\].c` is null, the schema wants a value"):
        encode(schema, rows([{"a": []}, good] * 10_001 + [bad, good], pa.field("a", type_)))


def test_null_inside_a_null_struct_is_no_error():
    """The contents of a null struct are ignored, whatever lies in Arrow's memory there."""
    inner = {
        "type": "record",
        "name": "B",
        "fields": [{"name": "c", "type": "int"}, {"name": "d", "type": {"type": "map", "values": "int"}}],
    }
    schema = definition(("b", ["null", inner]))
    type_ = pa.struct([pa.field("c", pa.int32()), pa.field("d", pa.map_(pa.string(), pa.int32()))])

    values = [{"b": None}, {"b": {"c": 1, "d": [("k", 2)]}}, {"b": None}]
    assert values == read(schema, encode(schema, rows(values, pa.field("b", type_))))


@pytest.mark.parametrize(
    ("declared", "type_", "bad", "sentence"),
    [
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            pa.string(),
            "B",
            "Row 1: column `a` is `B`, which is no symbol of enum `E`",
        ),
        (
            {"type": "fixed", "name": "F", "size": 2},
            pa.binary(),
            b"abc",
            "Row 1: column `a` has 3 bytes, the schema wants 2",
        ),
    ],
)
def test_value_that_does_not_fit_names_row_and_column(declared, type_, bad, sentence):
    """A value of the right type that the schema does not allow is an error with row and column."""
    good = "A" if type_ == pa.string() else b"ab"

    with pytest.raises(DataError) as refused:
        encode(definition(("a", declared)), rows([{"a": good}, {"a": bad}], pa.field("a", type_)))
    assert sentence == str(refused.value)


@pytest.mark.parametrize(("members", "number"), [((1, "x"), 2), ((None, None), 0)])
def test_union_of_several_types_takes_exactly_one_member(members, number):
    """Two members are an error of the row. So are no members if null is not a branch."""
    struct = pa.struct([pa.field("member0", pa.int32()), pa.field("member1", pa.string())])
    good, bad = {"member0": 1, "member1": None}, {"member0": members[0], "member1": members[1]}

    with pytest.raises(DataError, match=f"Row 1: column `a` has {number} members that are not null"):
        encode(definition(("a", ["int", "string"])), rows([{"a": good}, {"a": bad}], pa.field("a", struct)))


def test_union_with_null_takes_no_member_as_null():
    """A null struct and a struct of nulls are both written as null."""
    struct = pa.struct([pa.field("member0", pa.int32()), pa.field("member1", pa.string())])
    schema = definition(("a", ["int", "null", "string"]))

    values = [{"a": {"member0": None, "member1": "x"}}, {"a": None}, {"a": {"member0": None, "member1": None}}]
    found = read(schema, encode(schema, rows(values, pa.field("a", struct))))
    assert [values[0], {"a": None}, {"a": None}] == found


def test_column_of_nothing_but_null_fits_an_optional_field():
    """Spark's void column, as `lit(None)` makes it, fits an optional field."""
    schema = definition(("a", ["null", "string"]))

    assert [{"a": None}] == read(schema, encode(schema, rows([{"a": None}], pa.field("a", pa.null()))))


def test_no_rows_are_no_messages():
    """An empty batch encodes to an empty array."""
    assert [] == encode(definition(("a", "int")), rows([], pa.field("a", pa.int32())))


def test_plan_prints_and_compares():
    """The writer names the function and the parameters of each column."""
    schema = definition(
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("code", ["null", {"type": "enum", "name": "E", "symbols": ["A"]}]),
        ("many", {"type": "array", "items": "double"}),
        ("flag", "boolean", True),
    )
    columns = value_type(schema)

    assert repr(compile_rows(schema.root, columns)) == (
        "rows(structs((('.at', 0, scalars(integers(1000))), ('.code', 1, "
        "nullable(scalars(symbols('E', ('A',))), 1, 0)), ('.many', 2, "
        "lists(scalars(floats(float64)))), ('.flag', 3, scalars(booleans)))))"
    )
    fewer = pa.struct([field for field in columns if field.name != "flag"])
    assert "('.flag', None, constant(b'\\x01'))" in repr(compile_rows(schema.root, fewer))
    assert compile_rows(schema.root, columns) == compile_rows(schema.root, columns) != compile_rows(schema.root, fewer)

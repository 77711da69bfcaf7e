"""Rows as JSON, by the conventions of Spark's `to_json`. tests/spark compares with Spark itself."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark

from pubsub_spark.write.json import to_json, unsupported

VIENNA = pa.timestamp("us", tz="Europe/Vienna")
NESTED = pa.struct(
    [
        ("text", pa.string()),
        ("number", pa.int64()),
        ("ratio", pa.float64()),
        ("bytes", pa.binary()),
        ("list", pa.list_(pa.struct([("a", pa.string()), ("b", pa.bool_())]))),
        ("map", pa.map_(pa.string(), pa.int32())),
    ]
)
nested = st.fixed_dictionaries(
    {
        "text": st.none() | st.text(),
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "ratio": st.none() | st.floats(),
        "bytes": st.none() | st.binary(max_size=10),
        "list": st.none()
        | st.lists(
            st.none() | st.fixed_dictionaries({"a": st.none() | st.text(max_size=3), "b": st.none() | st.booleans()}),
            max_size=3,
        ),
        "map": st.none()
        | st.dictionaries(st.text(max_size=3), st.none() | st.integers(-9, 9), max_size=3).map(
            lambda found: list(found.items())
        ),
    }
)


def one(value, kind):
    """The JSON of a row with one column `v`."""
    return to_json(pa.StructArray.from_arrays([pa.array([value], kind)], ["v"]))[0].as_py()


def expected(row):
    """What to_json makes of a row, said in Python objects."""
    if row is None:
        return None
    found = {}
    for name, value in row.items():
        if value is None:
            continue
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        elif isinstance(value, float) and not math.isfinite(value):
            value = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        elif name == "map":
            value = dict(value)
        elif name == "list":
            value = [expected(element) for element in value]
        found[name] = value
    return found


@settings(deadline=None, max_examples=100)
@given(st.lists(st.none() | nested, max_size=5), st.integers(0, 2))
def test_every_row_is_its_object(rows, skipped):
    """Null fields are left out, null elements and map values are not; a null row is null; slices are themselves."""
    found = to_json(pa.array(rows, NESTED).slice(skipped)).to_pylist()

    assert [expected(row) for row in rows[skipped:]] == [text if text is None else json.loads(text) for text in found]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, pa.bool_(), "true"),
        (-1, pa.int8(), "-1"),
        (1.0, pa.float64(), "1.0"),
        (0.1, pa.float32(), "0.1"),
        (decimal.Decimal("12.340"), pa.decimal128(10, 3), "12.340"),
        ('a"b\\c\n\x01/ä', pa.string(), '"a\\"b\\\\c\\n\\u0001/ä"'),
        ("a", pa.large_string(), '"a"'),
        (b"\xff", pa.large_binary(), '"/w=="'),
        (datetime.date(2026, 1, 31), pa.date32(), '"2026-01-31"'),
        (datetime.datetime(2026, 1, 31, 12), pa.timestamp("us"), '"2026-01-31T12:00:00.000"'),
        (
            datetime.datetime(2026, 1, 31, 12, 0, 0, 123999, datetime.UTC),
            pa.timestamp("us", tz="UTC"),
            '"2026-01-31T12:00:00.123Z"',
        ),
        (datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC), VIENNA, '"2026-01-31T13:00:00.000+01:00"'),
        (datetime.datetime(2026, 7, 31, 12, tzinfo=datetime.UTC), VIENNA, '"2026-07-31T14:00:00.000+02:00"'),
        ([(1, "a")], pa.map_(pa.int32(), pa.string()), '{"1":"a"}'),
        ([(datetime.date(2026, 1, 31), 1)], pa.map_(pa.date32(), pa.int32()), '{"2026-01-31":1}'),
        ([('"q"', 1)], pa.map_(pa.string(), pa.int32()), '{"\\"q\\"":1}'),
        ([], pa.list_(pa.int32()), "[]"),
        ({}, pa.struct([]), "{}"),
    ],
)
def test_text_of_each_type(value, kind, text):
    """Exactly the characters that Spark writes."""
    assert f'{{"v":{text}}}' == one(value, kind)


def test_a_row_of_nulls_is_an_empty_object():
    """As in Spark, a row without values is `{}`."""
    assert "{}" == one(None, pa.string())


def test_a_field_name_is_escaped():
    """Column names may hold anything."""
    row = pa.StructArray.from_arrays([pa.array([1])], ['say "hi"'])

    assert '{"say \\"hi\\"":1}' == to_json(row)[0].as_py()


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (spark.DayTimeIntervalType(), "`c` is `interval day to second`, which has no JSON: cast it to string"),
        (spark.ArrayType(spark.YearMonthIntervalType()), "`c.element` is `interval year to month`, which has no JSON"),
        (spark.StructType([spark.StructField("f", spark.VariantType())]), "`c.f` is `variant`"),
        (
            spark.MapType(spark.ArrayType(spark.LongType()), spark.LongType()),
            "`c` has keys of `array<bigint>`, which are no names of a JSON object",
        ),
    ],
)
def test_what_has_no_json_is_named(kind, complaint):
    """Said on the driver, with the path."""
    assert any(complaint in problem for problem in unsupported("c", kind))

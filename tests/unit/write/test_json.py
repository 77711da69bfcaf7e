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

from pubsub_spark.errors import DataError, RowError
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
    """Return the JSON of a row with one column `v`."""
    return to_json(pa.StructArray.from_arrays([pa.array([value], kind)], ["v"]))[0].as_py()


def expected(row):
    """Return the Python objects that to_json makes of a row."""
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
    """Null fields are left out, null elements and map values are not. A null row is null. Slices are themselves."""
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
        (datetime.time(10, 20), pa.time64("ns"), '"10:20:00"'),
        (datetime.time(10, 20, 30, 500_000), pa.time64("ns"), '"10:20:30.5"'),
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
        ([('"q"', 1)], pa.map_(pa.large_string(), pa.int32()), '{"\\"q\\"":1}'),
        ([], pa.list_(pa.int32()), "[]"),
        ({}, pa.struct([]), "{}"),
        (-5364662400000000, pa.timestamp("us", tz="America/New_York"), '"1799-12-31T19:03:58.000-04:56:02"'),
        (-62135596800000000, pa.timestamp("us", tz="UTC"), '"0001-01-01T00:00:00.000Z"'),
        (253402300799999999, pa.timestamp("us", tz="UTC"), '"9999-12-31T23:59:59.999Z"'),
        (datetime.date.min, pa.date32(), '"0001-01-01"'),
        (datetime.date.max, pa.date32(), '"9999-12-31"'),
    ],
)
def test_text_of_each_type(value, kind, text):
    """Exactly the characters that Spark writes."""
    assert f'{{"v":{text}}}' == one(value, kind)


@pytest.mark.parametrize(
    ("zone", "shift"),
    [
        ("Z", "Z"),
        ("UTC", "Z"),
        ("UT", "Z"),
        ("GMT+8", "+08:00"),
        ("UTC+01:00", "+01:00"),
        ("UT-0330", "-03:30"),
        ("+8", "+08:00"),
        ("+05:30", "+05:30"),
        ("-3:5", "-03:05"),
        ("+08:00:00", "+08:00"),
        ("PST", "-08:00"),
        ("EST", "-05:00"),
        ("Asia/Tokyo", "+09:00"),
    ],
)
def test_zones_that_java_knows(zone, shift):
    """A session may name its zone as Spark and Java do."""
    text = one(0, pa.timestamp("us", tz=zone))

    assert text.endswith(f'.000{shift}"}}')


@pytest.mark.parametrize("zone", ["Nowhere/Else", "+08:00:30", "+99"])
def test_a_zone_that_nobody_knows(zone):
    """The error about an unknown time zone names it and the setting."""
    with pytest.raises(DataError, match=r"^The session's time zone `.*` is not known.* `spark.sql.session.timeZone`"):
        one(0, pa.timestamp("us", tz=zone))


LATE, UTC = 253402300800000000, pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("kind", "rows", "named"),
    [
        (UTC, [0, None, LATE, 0], "v"),
        (UTC, [0, 0, -(2**63)], "v"),
        (UTC, [0, 0, 2**63 - 1], "v"),
        (pa.timestamp("us", tz="+01:00"), [0, 0, LATE - 1], "v"),
        (pa.timestamp("us"), [0, 0, LATE], "v"),
        (pa.date32(), [0, 0, 2932897], "v"),
        (pa.date32(), [0, 0, -719163], "v"),
        (pa.struct([("a", UTC), ("b", UTC)]), [None, {"a": 0}, {"a": 0, "b": LATE}], "v.b"),
        (pa.list_(pa.struct([("a", UTC)])), [[{"a": 0}] * 3, [], [{"a": 0}, {"a": LATE}]], "v[].a"),
        (pa.map_(pa.string(), UTC), [[("a", 0), ("b", 0)], None, [("c", LATE)]], "v{}"),
        (pa.map_(UTC, pa.string()), [[(0, "a")], None, [(LATE, "b")]], "v{}"),
    ],
)
def test_years_that_iso_8601_does_not_have(kind, rows, named):
    """Spark's days and times may lie outside the years 1 to 9999. Row and column are named, also in a slice."""
    column = pa.array([rows[0], *rows], kind).slice(1)

    with pytest.raises(RowError) as caught:
        to_json(pa.StructArray.from_arrays([column], ["v"]))
    assert 2 == caught.value.row
    assert (
        f"column `{named}` is outside the years 1 to 9999, the range of JSON's dates and times"
        == caught.value.complaint
    )


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
    """A type without a JSON form is refused on the driver, with its path."""
    assert any(complaint in problem for problem in unsupported("c", kind))

"""Rows as JSON objects, by the conventions of Spark's `to_json`, column by column.

Null fields are left out, null elements and map values are written. Binary is base64. A timestamp is ISO 8601 with
milliseconds and the session's zone, `2026-01-31T12:00:00.000Z`. NaN and the infinities are strings. Doubles such as
`1e+20` are `1.0E20` in Java. A date or time outside the years 1 to 9999 has no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from ..codec.json import writer
from ..codec.json.writer import Write
from ..codec.rows import Unwritable
from ..errors import DataError
from .time_zones import to_arrow_zone

# Types that to_json has no portable text for, or Arrow no plain one.
_UNSUPPORTED = (
    spark.DayTimeIntervalType,
    spark.YearMonthIntervalType,
    spark.CalendarIntervalType,
    spark.UserDefinedType,
)
_UNSUPPORTED_NAMES = frozenset({"VariantType", "GeographyType", "GeometryType"})  # not in every Spark that we run on
_DAYS_IN_RANGE = (-719_162, 2_932_896)  # the years 1 to 9999
_MICROSECONDS_IN_RANGE = (_DAYS_IN_RANGE[0] * 86_400_000_000, (_DAYS_IN_RANGE[1] + 1) * 86_400_000_000 - 1)
_OUTSIDE = "is outside the years 1 to 9999, the range of JSON's dates and times"


def unsupported(path: str, kind: spark.DataType) -> Iterator[str]:
    """Yield a phrase for each part of a column that cannot be written as JSON."""
    if isinstance(kind, spark.StructType):
        for field in kind.fields:
            yield from unsupported(f"{path}.{field.name}", field.dataType)
    elif isinstance(kind, spark.ArrayType):
        yield from unsupported(f"{path}.element", kind.elementType)
    elif isinstance(kind, spark.MapType):
        yield from unsupported(f"{path}.key", kind.keyType)
        yield from unsupported(f"{path}.value", kind.valueType)
        if isinstance(kind.keyType, spark.StructType | spark.ArrayType | spark.MapType):
            yield f"`{path}` has keys of `{kind.keyType.simpleString()}`, which are no names of a JSON object"
    elif isinstance(kind, _UNSUPPORTED) or type(kind).__name__ in _UNSUPPORTED_NAMES:
        yield f"`{path}` is `{kind.simpleString()}`, which has no JSON: cast it to string"


def to_json(rows: pa.StructArray) -> pa.StringArray:
    """Return the JSON object of each row, null for a null row. Raises RowError for a date or time without text."""
    try:
        return _struct(rows)
    except Unwritable as unwritable:
        raise unwritable.row_error() from None


def _json(values: pa.Array) -> pa.StringArray:
    for is_kind, write in _WRITERS:
        if is_kind(values.type):
            return write(values)
    raise AssertionError(f"Spark makes no Arrow column of {values.type}")


def _struct(values: pa.StructArray) -> pa.StringArray:
    return writer.objects([(field.name, values.field(i), _json) for i, field in enumerate(values.type)], values)


def _date(values: pa.Array) -> pa.StringArray:
    _check_years(values.cast(pa.int32()), *_DAYS_IN_RANGE)
    return writer.quoted(values)


def _time(values: pa.Array) -> pa.StringArray:
    text = values.cast(pa.time64("ns")).cast(pa.string())  # nine decimals, but Spark leaves out the last zeros
    return writer.joined('"', pc.ascii_rtrim(pc.ascii_rtrim(text, "0"), "."), '"')


def _timestamp(values: pa.Array) -> pa.StringArray:
    if values.type.tz is None:
        return writer.joined('"', _to_millis(values), '"')
    local = _local(values)
    text = _to_millis(local)
    offsets = pc.subtract(local.cast(pa.int64()), values.cast(pa.int64())).dictionary_encode()
    texts = pa.array([_offset(offset // 1_000_000) for offset in offsets.dictionary.to_pylist()], pa.string())
    return writer.joined('"', text, texts.take(offsets.indices), '"')


def _local(values: pa.Array) -> pa.Array:
    zone = values.type.tz
    try:
        return pc.local_timestamp(values.cast(pa.timestamp("us", tz=to_arrow_zone(zone))))
    except pa.ArrowInvalid:
        problem = f"The session's time zone `{zone}` is not known"
        example = "a region such as `Europe/Vienna` or an offset such as `+01:00`"
        raise DataError(f"{problem}. Set `spark.sql.session.timeZone` to {example}.") from None


def _to_millis(local: pa.Array) -> pa.Array:
    _check_years(local.cast(pa.int64()), *_MICROSECONDS_IN_RANGE)
    floored = pc.floor_temporal(local, unit="millisecond").cast(pa.timestamp("ms"))
    return pc.strftime(floored, "%Y-%m-%dT%H:%M:%S")


def _check_years(values: pa.Array, first: int, last: int) -> None:
    outside = pc.or_(pc.less(values, first), pc.greater(values, last))
    if pc.any(outside).as_py():
        raise Unwritable(pc.index(outside, True).as_py(), _OUTSIDE)


def _offset(seconds_east: int) -> str:
    """Return the offset from UTC in ISO 8601, with the seconds that some zones had before 1900."""
    if not seconds_east:
        return "Z"
    minutes, seconds = divmod(abs(seconds_east), 60)
    text = f"{'-' if seconds_east < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{seconds:02}" if seconds else text


_is = pa.types
_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Write], ...] = (
    (_is.is_null, writer.plain),
    (_is.is_boolean, writer.plain),
    (_is.is_integer, writer.plain),
    (_is.is_decimal, writer.plain),
    (_is.is_floating, writer.floats),
    (_is.is_string, writer.strings),
    (_is.is_large_string, lambda values: writer.strings(values.cast(pa.string()))),
    (_is.is_binary, writer.base64),
    (_is.is_large_binary, writer.base64),
    (_is.is_date, _date),
    (_is.is_timestamp, _timestamp),
    (_is.is_time, _time),
    (_is.is_struct, _struct),
    (_is.is_map, lambda values: writer.maps(_json, _json, values)),
    (_is.is_list, lambda values: writer.lists(_json, values)),
)

"""Rows as JSON objects, by the conventions of Spark's `to_json`, column by column.

Null fields are left out, null elements and map values are written; binary is base64; a timestamp is ISO 8601 with
milliseconds and the session's zone, `2026-01-31T12:00:00.000Z`; NaN and the infinities are strings. Each type makes
an Arrow array of JSON text, null where the value is null, and nesting joins such arrays: no Python object per row.
Very large and very small doubles are spelled `1e+20` where Java spells `1.0E20`: the same number.

A date or time outside the years 1 to 9999 has no such text. The error is raised at the value and gains its path on the
way up: an element's index becomes the row of its list, a field puts its name before the path.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator
from json import dumps

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from ..errors import DataError, RowError
from .time_zones import to_arrow_zone

# Types that to_json has no portable text for, or Arrow no plain one.
_UNSUPPORTED = (
    spark.DayTimeIntervalType,
    spark.YearMonthIntervalType,
    spark.CalendarIntervalType,
    spark.UserDefinedType,
)
_UNSUPPORTED_NAMES = frozenset({"VariantType", "GeographyType", "GeometryType"})  # not in every Spark that we run on

_SHORT_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPES = _SHORT_ESCAPES | {chr(code): f"\\u{code:04X}" for code in range(32) if chr(code) not in _SHORT_ESCAPES}
_NEEDS_ESCAPE = r'["\\\x00-\x1f]'

_DAYS_IN_RANGE = (-719_162, 2_932_896)  # the years 1 to 9999
_MICROSECONDS_IN_RANGE = (_DAYS_IN_RANGE[0] * 86_400_000_000, (_DAYS_IN_RANGE[1] + 1) * 86_400_000_000 - 1)


class _OutOfYearsError(ValueError):
    """The index of a date or time outside the years 1 to 9999, and the path to it below the array."""

    def __init__(self, index: int, path: str = "") -> None:
        self.index = index
        self.path = path


def unsupported(path: str, kind: spark.DataType) -> Iterator[str]:
    """The parts of a column of this type that cannot be written as JSON, a phrase each."""
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
    """The JSON object of each row, null for a null row. Raises RowError for a date or time that has no text."""
    try:
        return _struct(rows)
    except _OutOfYearsError as found:
        what = "is outside the years 1 to 9999, in which JSON's dates and times lie"
        raise RowError(found.index, f"column `{found.path.removeprefix('.')}` {what}") from None


def _json(values: pa.Array) -> pa.StringArray:
    for is_kind, write in _WRITERS:
        if is_kind(values.type):
            return write(values)
    raise AssertionError(f"Spark makes no Arrow column of {values.type}")


def _struct(values: pa.StructArray) -> pa.StringArray:
    # Each field with a comma before it. Arrow's join that skips nulls loses rows in which there is nothing but nulls.
    members = [
        _joined(f",{dumps(field.name, ensure_ascii=False)}:", _field(values, i)).fill_null("")
        for i, field in enumerate(values.type)
    ]
    opened = _joined("{", *members, "}") if members else pa.repeat("{}", len(values))
    text = pc.replace_substring(opened, "{,", "{", max_replacements=1)
    return pc.if_else(values.is_valid(), text, None) if values.null_count else text


def _field(values: pa.StructArray, at: int) -> pa.StringArray:
    try:
        return _json(values.field(at))
    except _OutOfYearsError as found:
        raise _OutOfYearsError(found.index, f".{values.type[at].name}{found.path}") from None


def _list(values: pa.ListArray) -> pa.StringArray:
    return _joined("[", _rows_joined(values, values.values, "[]", _of_elements), "]")


def _map(values: pa.MapArray) -> pa.StringArray:
    entries = pa.StructArray.from_arrays([values.keys, values.items], ["key", "value"])
    return _joined("{", _rows_joined(values, entries, "{}", _of_entries), "}")


def _rows_joined(
    values: pa.Array, flat: pa.Array, path: str, write: Callable[[pa.Array], pa.StringArray]
) -> pa.StringArray:
    """The texts of each row's elements, joined by commas; null for a null row."""
    offsets = values.offsets.to_numpy().astype(np.int64)
    first, offsets = int(offsets[0]), offsets - offsets[0]
    try:
        texts = write(flat.slice(first, int(offsets[-1])))
    except _OutOfYearsError as found:
        row = int(np.searchsorted(offsets, found.index, side="right")) - 1
        raise _OutOfYearsError(row, f"{path}{found.path}") from None
    mask = values.is_null() if values.null_count else None
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts, mask=mask), ",")


def _of_elements(elements: pa.Array) -> pa.StringArray:
    return _json(elements).fill_null("null")


def _of_entries(entries: pa.StructArray) -> pa.StringArray:
    keys = entries.field("key")
    names = _json(keys)
    if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        names = _joined('"', pc.utf8_trim(names, '"'), '"')
    return _joined(names, ":", _json(entries.field("value")).fill_null("null"))


def _joined(*parts: pa.StringArray | str) -> pa.StringArray:
    return pc.binary_join_element_wise(*parts, "")


def _plain(values: pa.Array) -> pa.StringArray:
    return values.cast(pa.string())


def _quoted(values: pa.Array) -> pa.StringArray:
    return _joined('"', values.cast(pa.string()), '"')


def _string(values: pa.Array) -> pa.StringArray:
    text = values.cast(pa.string())
    if pc.any(pc.match_substring_regex(text, _NEEDS_ESCAPE)).as_py():
        for character, escaped in _ESCAPES.items():
            text = pc.replace_substring(text, character, escaped)
    return _joined('"', text, '"')


def _float(values: pa.Array) -> pa.StringArray:
    text = pc.replace_substring_regex(values.cast(pa.string()), r"^(-?\d+)$", r"\1.0")
    if pc.all(pc.is_finite(values)).as_py() in (True, None):
        return text
    for arrow, java in (("nan", '"NaN"'), ("-inf", '"-Infinity"'), ("inf", '"Infinity"')):
        text = pc.if_else(pc.equal(text, arrow), java, text)
    return text


def _date(values: pa.Array) -> pa.StringArray:
    _check_years(values.cast(pa.int32()), *_DAYS_IN_RANGE)
    return _quoted(values)


def _time(values: pa.Array) -> pa.StringArray:
    text = values.cast(pa.time64("ns")).cast(pa.string())  # nine decimals, of which Spark leaves out the last zeros
    return _joined('"', pc.ascii_rtrim(pc.ascii_rtrim(text, "0"), "."), '"')


def _timestamp(values: pa.Array) -> pa.StringArray:
    if values.type.tz is None:
        return _joined('"', _to_millis(values), '"')
    local = _local(values)
    text = _to_millis(local)
    offsets = pc.subtract(local.cast(pa.int64()), values.cast(pa.int64())).dictionary_encode()
    texts = pa.array([_offset(offset // 1_000_000) for offset in offsets.dictionary.to_pylist()], pa.string())
    return _joined('"', text, texts.take(offsets.indices), '"')


def _local(values: pa.Array) -> pa.Array:
    zone = values.type.tz
    try:
        return pc.local_timestamp(values.cast(pa.timestamp("us", tz=to_arrow_zone(zone))))
    except pa.ArrowInvalid:
        what = f"The session's time zone `{zone}` is not known here"
        example = "a region such as `Europe/Vienna` or an offset such as `+01:00`"
        raise DataError(f"{what}; set `spark.sql.session.timeZone` to {example}.") from None


def _to_millis(local: pa.Array) -> pa.Array:
    _check_years(local.cast(pa.int64()), *_MICROSECONDS_IN_RANGE)
    floored = pc.floor_temporal(local, unit="millisecond").cast(pa.timestamp("ms"))
    return pc.strftime(floored, "%Y-%m-%dT%H:%M:%S")


def _check_years(values: pa.Array, first: int, last: int) -> None:
    outside = pc.or_(pc.less(values, first), pc.greater(values, last))
    if pc.any(outside).as_py():
        raise _OutOfYearsError(pc.index(outside, True).as_py())


def _offset(seconds_east: int) -> str:
    """The offset from UTC in ISO 8601; before 1900 some zones had offsets with seconds, and those are written, too."""
    if not seconds_east:
        return "Z"
    minutes, seconds = divmod(abs(seconds_east), 60)
    text = f"{'-' if seconds_east < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"
    return f"{text}:{seconds:02}" if seconds else text


def _base64(values: pa.Array) -> pa.StringArray:
    """The base64 of each value: all padded to groups of three bytes, encoded in one call, then padded with `=`."""
    filled = values.cast(pa.binary()).fill_null(b"")
    _, positions, content = filled.buffers()
    bounds = np.frombuffer(positions, dtype=np.int32)[filled.offset : filled.offset + len(filled) + 1].astype(np.int64)
    raw = np.frombuffer(content or b"", dtype=np.uint8)[bounds[0] : bounds[-1]]
    sizes = np.diff(bounds)
    groups = (sizes + 2) // 3
    ends = np.cumsum(groups)
    begins = ends - groups
    padded = np.zeros(int(groups.sum()) * 3, dtype=np.uint8)
    padded[np.arange(len(raw)) + np.repeat(begins * 3 - (bounds[:-1] - bounds[0]), sizes)] = raw
    text = np.frombuffer(binascii.b2a_base64(padded.tobytes(), newline=False), dtype=np.uint8).copy()
    for missing in (1, 2):
        text[ends[(groups * 3 - sizes) >= missing] * 4 - missing] = ord("=")
    offsets = pa.array(np.concatenate([[0], ends * 4]), pa.int32())
    encoded = pa.StringArray.from_buffers(len(values), offsets.buffers()[1], pa.py_buffer(text))
    return pc.if_else(values.is_valid(), _joined('"', encoded, '"'), None)


_is = pa.types
_WRITERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.StringArray]], ...] = (
    (_is.is_null, _plain),
    (_is.is_boolean, _plain),
    (_is.is_integer, _plain),
    (_is.is_decimal, _plain),
    (_is.is_floating, _float),
    (_is.is_string, _string),
    (_is.is_large_string, _string),
    (_is.is_binary, _base64),
    (_is.is_large_binary, _base64),
    (_is.is_date, _date),
    (_is.is_timestamp, _timestamp),
    (_is.is_time, _time),
    (_is.is_struct, _struct),
    (_is.is_map, _map),
    (_is.is_list, _list),
)

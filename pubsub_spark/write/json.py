"""Rows as JSON objects, by the conventions of Spark's `to_json`, column by column.

Null fields are left out, null elements and map values are written; binary is base64; a timestamp is ISO 8601 with
milliseconds and the session's zone, `2026-01-31T12:00:00.000Z`; NaN and the infinities are strings. Each type makes
an Arrow array of JSON text, null where the value is null, and nesting joins such arrays: no Python object per row.
Very large and very small doubles are spelled `1e+20` where Java spells `1.0E20`: the same number.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator
from json import dumps

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

# Types that to_json has no portable text for, or Arrow no plain one.
_REFUSED = (spark.DayTimeIntervalType, spark.YearMonthIntervalType, spark.CalendarIntervalType, spark.UserDefinedType)
_REFUSED_NAMES = frozenset({"VariantType", "GeographyType", "GeometryType"})  # not in every Spark that we run on

_SHORT_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_ESCAPES = _SHORT_ESCAPES | {chr(code): f"\\u{code:04X}" for code in range(32) if chr(code) not in _SHORT_ESCAPES}
_NEEDS_ESCAPE = r'["\\\x00-\x1f]'


def unsupported(path: str, kind: spark.DataType) -> Iterator[str]:
    """What cannot be written as JSON in a column of this type, a phrase each."""
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
    elif isinstance(kind, _REFUSED) or type(kind).__name__ in _REFUSED_NAMES:
        yield f"`{path}` is `{kind.simpleString()}`, which has no JSON: cast it to string"


def to_json(rows: pa.StructArray) -> pa.StringArray:
    """The JSON object of each row, null for a null row."""
    return _struct(rows)


def _json(values: pa.Array) -> pa.StringArray:
    for is_kind, write in _WRITERS:
        if is_kind(values.type):
            return write(values)
    raise AssertionError(f"Spark makes no Arrow column of {values.type}")


def _struct(values: pa.StructArray) -> pa.StringArray:
    # Each field with a comma before it. Arrow's join that skips nulls loses rows in which there is nothing but nulls.
    pieces = [
        _joined(f",{dumps(field.name, ensure_ascii=False)}:", _json(values.field(i))).fill_null("")
        for i, field in enumerate(values.type)
    ]
    opened = _joined("{", *pieces, "}") if pieces else pa.repeat("{}", len(values))
    text = pc.replace_substring(opened, "{,", "{", max_replacements=1)
    return pc.if_else(values.is_valid(), text, None) if values.null_count else text


def _list(values: pa.ListArray) -> pa.StringArray:
    return _joined("[", _rows_joined(values, values.values, _of_elements), "]")


def _map(values: pa.MapArray) -> pa.StringArray:
    entries = pa.StructArray.from_arrays([values.keys, values.items], ["key", "value"])
    return _joined("{", _rows_joined(values, entries, _of_entries), "}")


def _rows_joined(values: pa.Array, flat: pa.Array, write: Callable[[pa.Array], pa.StringArray]) -> pa.StringArray:
    """The texts of each row's elements with commas between, null for a null row."""
    offsets = values.offsets.to_numpy().astype(np.int64)
    texts = write(flat.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
    mask = values.is_null() if values.null_count else None
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets - offsets[0], pa.int32()), texts, mask=mask), ",")


def _of_elements(elements: pa.Array) -> pa.StringArray:
    return _json(elements).fill_null("null")


def _of_entries(entries: pa.StructArray) -> pa.StringArray:
    keys = entries.field("key")
    names = _json(keys)
    if not pa.types.is_string(keys.type):
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


def _timestamp(values: pa.Array) -> pa.StringArray:
    if values.type.tz is None:
        return _joined('"', _to_millis(values), '"')
    local = pc.local_timestamp(values)
    shifts = pc.subtract(local.cast(pa.int64()), values.cast(pa.int64())).dictionary_encode()
    zones = pa.array([_zone(shift // 60_000_000) for shift in shifts.dictionary.to_pylist()], pa.string())
    return _joined('"', _to_millis(local), zones.take(shifts.indices), '"')


def _to_millis(local: pa.Array) -> pa.StringArray:
    floored = pc.floor_temporal(local, unit="millisecond").cast(pa.timestamp("ms"))
    return pc.strftime(floored, "%Y-%m-%dT%H:%M:%S")


def _zone(minutes: int) -> str:
    hours, rest = divmod(abs(minutes), 60)
    return f"{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}" if minutes else "Z"


def _base64(values: pa.Array) -> pa.StringArray:
    """Every value padded to whole groups of three bytes, all encoded in one call, the padding then spelled `=`."""
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
    (_is.is_date, _quoted),
    (_is.is_timestamp, _timestamp),
    (_is.is_time, _quoted),
    (_is.is_struct, _struct),
    (_is.is_map, _map),
    (_is.is_list, _list),
)

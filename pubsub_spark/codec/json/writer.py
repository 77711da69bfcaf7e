"""The JSON writer: Arrow columns to JSON texts, column by column, without a Python object per row.

Each value becomes an Arrow string, null if it has no text. A format (`codec.avro`, `codec.protobuf`, `write.json`)
composes these functions by its schema. Texts are UTF-8, on one line, without spaces.

A value that cannot be written raises `rows.Unwritable`.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable
from functools import lru_cache
from json import dumps
from json.encoder import encode_basestring
from operator import length_hint
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.rows import Inside, Unwritable

Write = Callable[[pa.Array], pa.StringArray]

NULL: Final = pa.nulls(1, pa.string())[0]  # `pa.scalar` imports pandas, which takes 0.3 s
constant: Final = lru_cache(4096)(pa.scalar)  # Arrow's functions take 10 us longer with a Python value
_NEEDS_ESCAPE: Final = r'["\\\x00-\x1f]'
_NOT_NUMBERS: Final = (("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"'))
# The shortest decimal of the largest float is above it, where a reader of floats may refuse it.
_LARGEST_FLOAT: Final = ("3.4028235e+38", "3.4028234663852886e+38")


def joined(*parts: pa.StringArray | str) -> pa.StringArray:
    """A text is null if one of its parts is null."""
    return pc.binary_join_element_wise(*(constant(part) if isinstance(part, str) else part for part in (*parts, "")))


def plain(values: pa.Array) -> pa.StringArray:
    """Return Arrow's text of integers, decimals and booleans."""
    return values.cast(pa.string())


def nulls(values: pa.Array) -> pa.StringArray:
    return pa.repeat("null", len(values))


def quoted(values: pa.Array) -> pa.StringArray:
    return joined('"', values.cast(pa.string()), '"')


def one_by_one(text_of: Callable[[Any], str], values: list[Any]) -> pa.StringArray:
    """Raises Unwritable if `text_of` raises ValueError."""
    left = iter(values)
    try:
        texts = [None if value is None else text_of(value) for value in left]
    except ValueError as error:
        raise Unwritable(len(values) - length_hint(left) - 1, f"has no JSON form: {error}") from None
    return pa.array(texts, pa.string())


def strings(values: pa.Array) -> pa.StringArray:
    if pc.any(pc.match_substring_regex(values, _NEEDS_ESCAPE)).as_py():
        return one_by_one(encode_basestring, values.to_pylist())
    return quoted(values)


def base64(values: pa.Array) -> pa.StringArray:
    return one_by_one(lambda value: f'"{b2a_base64(value, newline=False).decode()}"', values.to_pylist())


def floats(values: pa.Array) -> pa.StringArray:
    """NaN and the infinities are their names, as strings."""
    text = pc.replace_substring_regex(values.cast(pa.string()), r"^(-?\d+)$", r"\1.0")
    if pa.types.is_float32(values.type):
        text = pc.replace_substring(text, *_LARGEST_FLOAT)
    if pc.all(pc.is_finite(values)).as_py() is False:
        for arrow, name in _NOT_NUMBERS:
            text = pc.if_else(pc.equal(text, arrow), name, text)
    return text


def objects(members: list[tuple[str, pa.Array, Write]], like: pa.StructArray) -> pa.StringArray:
    """Members without a text are left out. The result is null where `like` is null."""
    parts: list[pa.StringArray | str] = ["{"]
    for name, values, write in members:
        label = f",{dumps(name, ensure_ascii=False)}:"
        with Inside(f".{name}"):
            text = write(values)
        # Arrow's join that skips nulls loses rows that have only nulls.
        parts += [joined(label, text).fill_null("")] if text.null_count else [label, text]
    if not members:
        return pc.if_else(like.is_valid(), constant("{}"), NULL)
    text = pc.replace_substring(joined(*parts, "}"), "{,", "{", max_replacements=1)
    return pc.if_else(like.is_valid(), text, NULL) if like.null_count else text


def lists(write: Write, values: pa.Array) -> pa.StringArray:
    """An element without a text is null."""
    return joined("[", _rows_joined(values, values.values, "[]", lambda items: write(items).fill_null("null")), "]")


def maps(write_key: Write, write: Write, values: pa.Array) -> pa.StringArray:
    """`values` may also be lists of entries. A value without a text is null."""
    entries = values.values if pa.types.is_list(values.type) else None
    keys, items = (values.keys, values.items) if entries is None else (entries.field(0), entries.field(1))

    def write_entries(entries: pa.StructArray) -> pa.StringArray:
        names = write_key(entries.field(0))
        if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
            names = joined('"', pc.utf8_trim(names, '"'), '"')
        return joined(names, ":", write(entries.field(1)).fill_null("null"))

    flat = pa.StructArray.from_arrays([keys, items], ["key", "value"])
    return joined("{", _rows_joined(values, flat, "{}", write_entries), "}")


def _rows_joined(values: pa.Array, flat: pa.Array, path: str, write: Write) -> pa.StringArray:
    offsets = values.offsets.to_numpy().astype(np.int64)
    first, offsets = int(offsets[0]), offsets - offsets[0]
    with Inside(path, offsets):
        texts = write(flat.slice(first, int(offsets[-1])))
    mask = values.is_null() if values.null_count else None
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts, mask=mask), ",")

"""Arrow arrays made of parts, and offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_WIDTHS: Final[dict[int, type[Any]]] = {32: np.int32, 64: np.int64}


def structs(type_: pa.StructType, length: int, children: Sequence[pa.Array], like: pa.Array | None = None) -> Any:
    """The result is null where `like` is null."""
    valid = like.is_valid().buffers()[1] if like is not None and like.null_count else None
    return pa.Array.from_buffers(type_, length, [valid], children=list(children))


def named_structs(children: dict[str, pa.Array], length: int, like: pa.Array | None = None) -> pa.StructArray:
    """See `structs`. The types are those of the children."""
    type_ = pa.struct([pa.field(name, child.type) for name, child in children.items()])
    return structs(type_, length, list(children.values()), like)


def at_rows(values: pa.Array, rows: npt.NDArray[np.integer[Any]], count: int) -> pa.Array:
    """Return `count` values: `values` at `rows`, null elsewhere."""
    index = np.zeros(count, np.int32)  # in `values`, plus one
    index[rows] = np.arange(1, len(rows) + 1, dtype=np.int32)
    valid = pa.py_buffer(np.packbits(index > 0, bitorder="little"))
    if pa.types.is_primitive(values.type) and values.type.bit_width in _WIDTHS and not values.null_count:
        width = _WIDTHS[values.type.bit_width]  # numpy spreads numbers in a third of the time of Arrow's `take`
        data = np.zeros(count, width)
        data[rows] = np.frombuffer(values.buffers()[1], width, len(values), values.offset * data.itemsize)
        return pa.Array.from_buffers(values.type, count, [valid, pa.py_buffer(data)])
    return values.take(pa.Array.from_buffers(pa.int32(), count, [valid, pa.py_buffer(index - 1)]))


def offsets_of(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the offsets of the items of a binary, list or map array."""
    if not len(array):
        return np.zeros(1, np.int64)  # Arrow may leave the buffer out
    width: type[Any] = np.int64 if pa.types.is_large_list(array.type) else np.int32
    size = np.dtype(width).itemsize
    return np.frombuffer(array.buffers()[1], width, len(array) + 1, array.offset * size).astype(np.int64)


def list_offsets(lists: pa.Array) -> npt.NDArray[np.int32]:
    """Return the offsets of lists or maps among their flattened items. A null has no items."""
    counts = np.diff(offsets_of(lists))
    if lists.null_count:
        counts[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def entries_of(maps: pa.MapArray) -> pa.StructArray:
    """Return the entries of all maps, one after the other, because Arrow can flatten no map.

    A cast to a list would be wrong for values of lists of nulls, which it cuts off (pyarrow 26).
    """
    type_, buffers, entries = pa.list_(maps.values.type), maps.buffers()[:2], [maps.values]
    return pa.ListArray.from_buffers(type_, len(maps), buffers, maps.null_count, maps.offset, entries).flatten()


def repeats(keys: pa.StringArray, offsets: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Return the maps that have a key twice."""
    counts = np.diff(offsets)
    twice = np.zeros(len(counts), np.bool_)
    if len(counts) and counts.max() > 1:
        encoded = keys.dictionary_encode()
        owner = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        pair = np.sort(owner * len(encoded.dictionary) + np.asarray(encoded.indices))
        twice[pair[1:][pair[1:] == pair[:-1]] // len(encoded.dictionary)] = True
    return twice


def with_reasons(values: pa.StructArray, reasons: dict[int, str]) -> tuple[pa.StructArray, pa.StringArray]:
    """Return the values, without a copy, null at rows with a reason, and the reasons, null elsewhere."""
    if not reasons:
        return values, pa.nulls(len(values), pa.string())
    column = at_rows(pa.array(reasons.values(), pa.string()), np.fromiter(reasons, np.int64), len(values))
    valid = pc.and_(column.is_null(), values.is_valid()).buffers()[1]
    children = [values.field(index) for index in range(values.type.num_fields)]
    return pa.Array.from_buffers(values.type, len(values), [valid], children=children), column

"""The buffers that messages are joined from: numbers as columns of bytes, and bytes and strings as Arrow has them.

A message is the concatenation of its row's bytes in all buffers. A `ByteColumn` is one byte per row, or a few, which
only some rows may have: a tag, a digit of a varint, a double. Adjacent byte columns become one array (`_side_by_side`),
so a row of twenty numbers is written in one go. Bytes and strings are buffers without null items.

`present` marks the rows that have the value's struct or union branch (None: every row).
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.arrays import offsets_of
from pubsub_spark.schema.avro.cursors import offsets

Octets: TypeAlias = npt.NDArray[np.uint8]
Present: TypeAlias = npt.NDArray[np.bool_] | None

_U = np.uint64


class ByteColumn(NamedTuple):
    """`octets[row]` (one byte, or a row of them) for the rows in `kept`, or for all rows if it is None."""

    octets: Octets
    kept: Present


Buffer: TypeAlias = ByteColumn | pa.BinaryArray


def join(buffers: list[Buffer], count: int) -> pa.BinaryArray:
    """Return the parts of all buffers row by row, one after the other."""
    arrays: list[pa.BinaryArray] = []
    for are_columns, group in groupby(buffers, lambda buffer: isinstance(buffer, ByteColumn)):
        run = list(group)
        arrays += [_side_by_side(run, count)] if are_columns else run
    if not arrays:
        return _array(np.zeros(count + 1, np.int32), np.zeros(0, np.uint8))
    if len(arrays) == 1 and not arrays[0].null_count:
        return arrays[0]
    return pc.binary_join_element_wise(*arrays, b"", null_handling="skip")


def constant(data: bytes, count: int, present: Present) -> ByteColumn:
    return ByteColumn(np.broadcast_to(np.frombuffer(data, np.uint8), (count, len(data))), present)


def fixed(values: npt.NDArray[Any], present: Present) -> ByteColumn:
    """Numbers are written as they are in memory."""
    return ByteColumn(values.view(np.uint8).reshape(len(values), values.itemsize), present)


def ragged(octets: Octets, kept: npt.NDArray[np.bool_], present: Present) -> list[Buffer]:
    """Return a matrix row per item, of the bytes where `kept` is true."""
    if present is not None:
        kept = kept & present[:, None]
    return [ByteColumn(octets[:, at], kept[:, at]) for at in range(octets.shape[1])]


def varints(values: npt.NDArray[np.int64], present: Present) -> list[Buffer]:
    """Return zigzag varints: a column per byte, with the rows whose number is that long."""
    rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
    columns: list[Buffer] = []
    kept = present
    while True:
        octets = rest.astype(np.uint8)
        rest = rest >> _U(7)
        longer = rest != 0
        if not longer.any():
            columns.append(ByteColumn(octets, kept))
            return columns
        columns.append(ByteColumn((octets & 127) | (longer.view(np.uint8) << 7), kept))
        kept = longer if present is None else longer & present


def sized(data: pa.BinaryArray, present: Present) -> list[Buffer]:
    """Return each item's length, and the item."""
    return [*varints(np.diff(offsets_of(data)), present), data]


def blocks(items: pa.BinaryArray, ends: npt.NDArray[np.int32], present: Present) -> list[Buffer]:
    """Return arrays of the encoded items: one block with its count, if any, and the end."""
    counts = np.diff(ends).astype(np.int64)
    some = counts > 0
    heads = varints(counts, some if present is None else some & present)
    data = _array(offsets_of(items)[ends].astype(np.int32), items.buffers()[2], present)
    return [*heads, data, constant(b"\0", len(counts), present)]


def _side_by_side(columns: list[ByteColumn], count: int) -> pa.BinaryArray:
    widths = [column.octets.shape[1] if column.octets.ndim > 1 else 1 for column in columns]
    matrix = np.empty((count, sum(widths)), np.uint8)
    kept = np.ones(matrix.shape, np.bool_)
    length = np.zeros(count, np.int32)
    always = 0
    first = 0
    for column, width in zip(columns, widths, strict=True):
        where = slice(first, first + width) if column.octets.ndim > 1 else first
        matrix[:, where] = column.octets
        if column.kept is None:
            always += width
        else:
            kept[:, where] = column.kept[:, None] if column.octets.ndim > 1 else column.kept
            length += column.kept * np.int32(width)
        first += width
    if always == first:
        return _array(np.arange(count + 1, dtype=np.int32) * np.int32(always), matrix)
    return _array(offsets(length + np.int32(always)), matrix[kept])


def _array(ends: npt.NDArray[np.int32], data: Any, present: Present = None) -> pa.BinaryArray:
    valid = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [valid, pa.py_buffer(ends), None if data is None else pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)

"""The parts that messages are joined from, column by column: numbers as cells, and bytes as Arrow has them.

A row's message is the concatenation of its parts in all pieces. A `Cell` is one byte per row, or a few, which only some
rows may have: a tag, a digit of a varint, a double. Cells that follow each other are laid side by side in a matrix, of
which the bytes that are kept make one array (`_side_by_side`): so a row of twenty numbers is written in one go. Bytes
and strings are pieces as they are; null items are left out. Arrow joins the two kinds (`join`).

`present` says which rows have the value at all (None: every row): the others get nothing, because the value lies inside
a struct or a union's branch that they do not have.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.avro.lanes import offsets_of

Octets: TypeAlias = npt.NDArray[np.uint8]
Present: TypeAlias = npt.NDArray[np.bool_] | None

_U = np.uint64


class Cell(NamedTuple):
    """`octets[row]` (one byte, or a row of them) for the rows that are kept; None: for all."""

    octets: Octets
    kept: Present


Piece: TypeAlias = Cell | pa.BinaryArray


def join(pieces: list[Piece], count: int) -> pa.BinaryArray:
    """Row by row the parts of all pieces, one after the other."""
    arrays: list[pa.BinaryArray] = []
    for are_cells, group in groupby(pieces, lambda piece: isinstance(piece, Cell)):
        run = list(group)
        arrays += [_side_by_side(run, count)] if are_cells else run
    if not arrays:
        return _array(np.zeros(count + 1, np.int32), np.zeros(0, np.uint8))
    if len(arrays) == 1 and not arrays[0].null_count:
        return arrays[0]
    return pc.binary_join_element_wise(*arrays, b"", null_handling="skip")


def constant(data: bytes, count: int, present: Present) -> Cell:
    """The same bytes in each row."""
    return Cell(np.broadcast_to(np.frombuffer(data, np.uint8), (count, len(data))), present)


def fixed(values: npt.NDArray[Any], present: Present) -> Cell:
    """Numbers as they lie in memory."""
    return Cell(values.view(np.uint8).reshape(len(values), values.itemsize), present)


def ragged(octets: Octets, kept: npt.NDArray[np.bool_], present: Present) -> list[Piece]:
    """A row of the matrix per item, of which the bytes where `kept` count."""
    if present is not None:
        kept = kept & present[:, None]
    return [Cell(octets[:, place], kept[:, place]) for place in range(octets.shape[1])]


def varints(values: npt.NDArray[np.int64], present: Present) -> list[Piece]:
    """Zigzag varints: a cell per byte, which has it where the number is that long."""
    rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
    cells: list[Piece] = []
    kept = present
    while True:
        octets = rest.astype(np.uint8)
        rest = rest >> _U(7)
        longer = rest != 0
        if not longer.any():
            cells.append(Cell(octets, kept))
            return cells
        cells.append(Cell((octets & 127) | (longer.view(np.uint8) << 7), kept))
        kept = longer if present is None else longer & present


def sized(data: pa.BinaryArray, present: Present) -> list[Piece]:
    """Each item's length, and the item."""
    return [*varints(np.diff(offsets_of(data)), present), data]


def blocks(items: pa.BinaryArray, counts: npt.NDArray[np.int64], present: Present) -> list[Piece]:
    """Arrays of `counts` items each, already encoded: one block with its count, if there is an item, and the end."""
    some = counts > 0
    ends = offsets_of(items)[_offsets(counts)].astype(np.int32)
    heads = varints(counts, some if present is None else some & present)
    return [*heads, _array(ends, items.buffers()[2], present), constant(b"\0", len(counts), present)]


def _side_by_side(cells: list[Cell], count: int) -> pa.BinaryArray:
    """The kept bytes of each row of all cells."""
    widths = [cell.octets.shape[1] if cell.octets.ndim > 1 else 1 for cell in cells]
    matrix = np.empty((count, sum(widths)), np.uint8)
    kept = np.ones(matrix.shape, np.bool_)
    length = np.zeros(count, np.int32)
    always = 0
    place = 0
    for cell, width in zip(cells, widths, strict=True):
        where = slice(place, place + width) if cell.octets.ndim > 1 else place
        matrix[:, where] = cell.octets
        if cell.kept is None:
            always += width
        else:
            kept[:, where] = cell.kept[:, None] if cell.octets.ndim > 1 else cell.kept
            length += cell.kept * np.int32(width)
        place += width
    if always == place:
        return _array(np.arange(count + 1, dtype=np.int32) * np.int32(always), matrix)
    return _array(_offsets(length + np.int32(always)), matrix[kept])


def _offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _array(offsets: npt.NDArray[np.int32], data: Any, present: Present = None) -> pa.BinaryArray:
    valid = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), None if data is None else pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)

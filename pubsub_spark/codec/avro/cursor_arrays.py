"""Arrow arrays of the values at cursors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pubsub_spark.codec.arrays import at_rows
from pubsub_spark.schema.avro.array_items import item_steps
from pubsub_spark.schema.avro.cursors import Cursors, Longs
from pubsub_spark.schema.avro.schema_tree import Array, Map

Read = Callable[[Cursors], pa.Array]


def segments(cursors: Cursors, length: Longs) -> pa.BinaryArray:
    """Return the next `length` bytes of each cursor, which must be there.

    Arrow takes every other item of an array of segments and gaps, ten times faster than bytes by index.
    """
    count = len(cursors)
    edges = np.empty(2 * count + 1, np.int64)
    edges[0:-1:2] = cursors.at
    cursors.at = cursors.at + length
    edges[1::2] = cursors.at
    edges[-1] = edges[-2] if count else 0
    if cursors.batch.any_fell_back:  # inactive cursors are behind all others, but Arrow needs edges that never fall
        edges[:-1].reshape(count, 2)[cursors.inactive()] = 0
        np.maximum.accumulate(edges, out=edges)
    whole = pa.Array.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(edges.astype(np.int32)), pa.py_buffer(cursors.batch.bytes)]
    )
    return whole.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def read_items(
    cursors: Cursors, node: Array | Map, least_bytes: int, reads: list[Read], types: list[pa.DataType]
) -> tuple[npt.NDArray[np.int32], list[pa.Array]]:
    """Return the offsets of the cursors' arrays, and their items, as each of `reads` reads them.

    reads: for a map, its key's, then its value's. types: those that `reads` return.
    """
    owners: list[Longs] = []
    turns: list[Longs] = []
    columns: list[list[pa.Array]] = [[] for _ in reads]

    def read(items: Cursors, owner: Longs, turn: Longs) -> None:
        items.step = partial(_key, columns[0]) if len(reads) > 1 else partial(_index, turn)
        for read_column, column in zip(reads, columns, strict=True):
            column.append(read_column(items))
        owners.append(owner)
        turns.append(turn)

    starts = item_steps(cursors, node, least_bytes, read)
    if not owners:
        return starts, [pa.array([], type_) for type_ in types]
    places = [starts[owner] + turn for owner, turn in zip(owners, turns, strict=True)]
    return starts, [merge(column, places) for column in columns]


def _index(turn: Longs, item: int) -> str:
    return f"[{turn[item]}]"


def _key(columns: list[pa.Array], item: int) -> str:
    return f"[{columns[-1][item].as_py()!r}]"


def numbers(values: npt.NDArray[Any], type: pa.DataType) -> pa.Array:  # noqa: A002 (Arrow's word)
    """Return an array over numpy's memory, without a copy. `type` has the width of the values."""
    return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(values)])


def merge(arrays: list[pa.Array], places: list[Longs]) -> pa.Array:
    """Return the arrays as one, with the items at their places: all of 0 to the number of items."""
    if len(arrays) == 1 and (len(places[0]) < 2 or (np.diff(places[0]) == 1).all()):
        return arrays[0]
    rows = np.concatenate(places)
    return at_rows(pa.concat_arrays(arrays), rows, len(rows))

"""Arrays and maps at all cursors: item steps, vectorised over rows with one step per item of an array.

An array's items lie one behind the other, so its n-th can only be found by reading those before it: first the first
item of every cursor, then the second of those that have one, and so on. When few cursors are left, whose arrays may be
long, `error_locator` finds where their items begin, and all of them are read in one last step. The items of all steps
are put in the order of their arrays at the end (`merge`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pubsub_spark.codec.avro import error_locator
from pubsub_spark.codec.avro.cursors import MIN_VECTORISED_ROWS, Bits, Cursors, Longs, merge, offsets
from pubsub_spark.codec.avro.mismatch import Mismatch
from pubsub_spark.codec.avro.nodes import Array, Map

Read = Callable[[Cursors], pa.Array]


def item_steps(
    cursors: Cursors, node: Array | Map, least_bytes: int, reads: list[Read], types: list[pa.DataType]
) -> tuple[npt.NDArray[np.int32], list[pa.Array]]:
    """The offsets of the cursors' arrays, and their items, as each of `reads` reads them (a map's key, then its value).

    least_bytes: of an item of `node`, which bounds what a count can be. types: what `reads` give.
    """
    counts = np.zeros(len(cursors), np.int64)
    left = _block(cursors, least_bytes)
    owners: list[Longs] = []
    turns: list[Longs] = []
    columns: list[list[pa.Array]] = [[] for _ in reads]
    while (active := np.flatnonzero(left)).size:
        few = active.size < MIN_VECTORISED_ROWS
        if few:
            active, turn, at = _positions(cursors, node, left, counts)
            items = cursors.inner(active, at)
        else:
            items, turn = cursors.some(active), counts[active]
        items.step = partial(_key, columns[0]) if len(reads) > 1 else partial(_index, turn)
        for read, column in zip(reads, columns, strict=True):
            column.append(read(items))
        owners.append(active)
        turns.append(turn)
        if few:
            break
        cursors.resume(active, items)
        counts[active] += 1
        left[active] -= 1
        if cursors.batch.any_fell_back:
            left[cursors.inactive()] = 0
        done = active[left[active] == 0]
        if done.size:
            some = cursors.some(done)
            left[done] = _block(some, least_bytes)
            cursors.resume(done, some)
    starts = offsets(counts)
    if not owners:
        return starts, [pa.array([], type_) for type_ in types]
    places = [starts[owner] + turn for owner, turn in zip(owners, turns, strict=True)]
    return starts, [merge(column, places) for column in columns]


def empty_items(cursors: Cursors, weight: int, read: Read) -> tuple[npt.NDArray[np.int32], pa.Array]:
    """The offsets of the cursors' arrays, whose items take no bytes, and the items, which are all the same.

    weight: what an item costs of the budget of its message.
    """
    counts = np.zeros(len(cursors), np.int64)
    left = _block(cursors, 0, weight)
    while (active := np.flatnonzero(left)).size:
        counts[active] += left[active]
        some = cursors.some(active)
        left[active] = _block(some, 0, weight)
        cursors.resume(active, some)
    return offsets(counts), read(cursors.batch.inactive_cursor()).take(pa.array(np.zeros(int(counts.sum()), np.int8)))


def _positions(cursors: Cursors, node: Array | Map, left: Longs, counts: Longs) -> tuple[Longs, Longs, Longs]:
    """The cursor, the number and the place of each item that is left; the cursors move behind their arrays."""
    owners, turns, places = [], [], []
    for index in np.flatnonzero(left).tolist():
        at, end = int(cursors.at[index]), int(cursors.end[index])
        try:
            found, size = error_locator.items(node, cursors.batch.bytes.data[at:end], int(left[index]))
        except Mismatch:
            cursors.fall_back(np.arange(len(cursors)) == index)
            continue
        owners.append(np.full(len(found), index))
        turns.append(np.arange(len(found)) + counts[index])
        places.append(np.array(found, np.int64) + at)
        counts[index] += len(found)
        cursors.at[index] = at + size
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *owners]), np.concatenate([none, *turns]), np.concatenate([none, *places])


def _block(cursors: Cursors, least_bytes: int, weight: int = 0) -> Longs:
    """The number of items in the next block of each cursor; 0 ends the array."""
    count = cursors.longs()
    sized = np.flatnonzero(count < 0)
    if sized.size:
        some = cursors.some(sized)
        some.lengths()
        cursors.resume(sized, some)
        count[sized] = -count[sized]
    budget = cursors.batch.empty_items_left
    most = (cursors.end - cursors.at) // least_bytes if least_bytes else budget[cursors.row] // weight
    # What an inactive cursor could hold is no bound on its count, so its count is set to zero.
    wrong = (count < 0) | (count > most) | (cursors.inactive() & (count != 0))
    if cursors.fall_back(wrong):
        count[wrong] = 0
    if not least_bytes:
        np.subtract.at(budget, cursors.row, count * weight)
        wrong = budget[cursors.row] < 0
        if cursors.fall_back(wrong):
            count[wrong] = 0
    return count


def _index(turn: Longs, item: int) -> str:
    return f"[{turn[item]}]"


def _key(columns: list[pa.Array], item: int) -> str:
    """The step to a map's value: its key has been read just before."""
    return f"[{columns[-1][item].as_py()!r}]"


def repeats(keys: pa.StringArray, offsets: npt.NDArray[np.int32]) -> Bits:
    """The maps that have a key twice."""
    counts = np.diff(offsets)
    twice = np.zeros(len(counts), np.bool_)
    if len(counts) and counts.max() > 1:
        encoded = keys.dictionary_encode()
        owner = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        pair = np.sort(owner * len(encoded.dictionary) + np.asarray(encoded.indices))
        twice[pair[1:][pair[1:] == pair[:-1]] // len(encoded.dictionary)] = True
    return twice

"""The items of arrays and maps at all cursors, one step per item of an array, so that rows are vectorised.

An array's n-th item can only be found by reading those before it: first the first item of every cursor, then the
second, and so on. When few cursors are left, whose arrays may be long, `error_locator` finds where their items begin,
and all of them are read in one last step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pubsub_spark.schema.avro import error_locator
from pubsub_spark.schema.avro.cursors import MIN_VECTORISED_ROWS, Cursors, Longs, offsets
from pubsub_spark.schema.avro.schema_tree import Array, Map
from pubsub_spark.schema.definition import Mismatch

# Read the items at some cursors: (cursors, the index of the cursor of each item's array, the item's index in it)
ReadItems = Callable[[Cursors, Longs, Longs], object]


def item_steps(cursors: Cursors, node: Array | Map, least_bytes: int, read: ReadItems) -> npt.NDArray[np.int32]:
    """Read the items of the cursors' arrays, and return the offsets. least_bytes: bounds the count."""
    counts = np.zeros(len(cursors), np.int64)
    left = _block(cursors, least_bytes)
    while (active := np.flatnonzero(left)).size:
        if active.size < MIN_VECTORISED_ROWS:
            active, turn, at = _positions(cursors, node, left, counts)
            read(cursors.inner(active, at), active, turn)
            break
        items = cursors.some(active)
        read(items, active, counts[active])
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
    return offsets(counts)


def empty_items(cursors: Cursors, weight: int) -> npt.NDArray[np.int32]:
    """Return the offsets of arrays whose items have no bytes. `weight`: an item's cost in the budget."""
    counts = np.zeros(len(cursors), np.int64)
    left = _block(cursors, 0, weight)
    while (active := np.flatnonzero(left)).size:
        counts[active] += left[active]
        some = cursors.some(active)
        left[active] = _block(some, 0, weight)
        cursors.resume(active, some)
    return offsets(counts)


def _positions(cursors: Cursors, node: Array | Map, left: Longs, counts: Longs) -> tuple[Longs, Longs, Longs]:
    """Return the cursor, the number and the place of each remaining item. The cursors move behind their arrays."""
    owners, turns, places = [], [], []
    for index in np.flatnonzero(left).tolist():
        at, end = int(cursors.at[index]), int(cursors.end[index])
        try:
            starts, size = error_locator.items(node, cursors.batch.bytes.data[at:end], int(left[index]))
        except Mismatch:
            cursors.fall_back(np.arange(len(cursors)) == index)
            continue
        owners.append(np.full(len(starts), index))
        turns.append(np.arange(len(starts)) + counts[index])
        places.append(np.array(starts, np.int64) + at)
        counts[index] += len(starts)
        cursors.at[index] = at + size
    none = np.zeros(0, np.int64)
    return np.concatenate([none, *owners]), np.concatenate([none, *turns]), np.concatenate([none, *places])


def _block(cursors: Cursors, least_bytes: int, weight: int = 0) -> Longs:
    """Return the number of items in the next block of each cursor, 0 at the end of the array."""
    count = cursors.longs()
    sized = np.flatnonzero(count < 0)
    if sized.size:
        some = cursors.some(sized)
        some.lengths()
        cursors.resume(sized, some)
        count[sized] = -count[sized]
    budget = cursors.batch.empty_items_left
    most = (cursors.end - cursors.at) // least_bytes if least_bytes else budget[cursors.row] // weight
    # The bytes behind an inactive cursor do not bound its count, so its count is set to zero.
    wrong = (count < 0) | (count > most) | (cursors.inactive() & (count != 0))
    if cursors.fall_back(wrong):
        count[wrong] = 0
    if not least_bytes:
        np.subtract.at(budget, cursors.row, count * weight)
        wrong = budget[cursors.row] < 0
        if cursors.fall_back(wrong):
            count[wrong] = 0
    return count

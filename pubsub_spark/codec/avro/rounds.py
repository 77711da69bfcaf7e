"""Arrays and maps in step: the first item of every lane, then the second of those that have one, and so on.

An array's items lie one behind the other, so its n-th can only be found by reading those before it. Lanes whose array
has ended drop out; when only a few go on for long, their messages leave: item by item they are better off alone. The
items come in rounds and are put in the order of their lanes at the end (`merge`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pubsub_spark.codec.avro.lanes import FEW, Bits, Lanes, Longs, merge


def rounds(
    lanes: Lanes, least: int, reads: list[Callable[[Lanes], pa.Array]], types: list[pa.DataType]
) -> tuple[npt.NDArray[np.int32], list[pa.Array]]:
    """The offsets of the lanes' arrays, and their items, as each of `reads` reads them (a map's key, then its value).

    least: the fewest bytes of an item, which bounds what a count can be. types: what `reads` give.
    """
    counts = np.zeros(len(lanes), np.int64)
    left = _block(lanes, least)
    owners: list[Longs] = []
    turns: list[Longs] = []
    pieces: list[list[pa.Array]] = [[] for _ in reads]
    while (active := np.flatnonzero(left)).size:
        if active.size < FEW and len(owners) >= FEW:
            lanes.leave(left > 0)
            break
        some = lanes.some(active)
        for read, piece in zip(reads, pieces, strict=True):
            piece.append(read(some))
        lanes.resume(active, some)
        owners.append(active)
        turns.append(counts[active])
        counts[active] += 1
        left[active] -= 1
        if lanes.batch.any_left:
            left[lanes.parked()] = 0
        done = active[left[active] == 0]
        if done.size:
            some = lanes.some(done)
            left[done] = _block(some, least)
            lanes.resume(done, some)
    offsets = np.zeros(len(lanes) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    if not owners:
        return offsets.astype(np.int32), [pa.array([], type_) for type_ in types]
    places = [offsets[owner] + turn for owner, turn in zip(owners, turns, strict=True)]
    return offsets.astype(np.int32), [merge(piece, places) for piece in pieces]


def _block(lanes: Lanes, least: int) -> Longs:
    """The number of items in the next block of each lane; 0 ends the array."""
    count = lanes.longs()
    sized = np.flatnonzero(count < 0)
    if sized.size:
        some = lanes.some(sized)
        some.lengths()
        lanes.resume(sized, some)
        count[sized] = -count[sized]
    # What a parked lane could hold is no bound on its count, so its count is set to zero.
    wrong = (count < 0) | (count > (lanes.end - lanes.at) // least) | (lanes.parked() & (count != 0))
    if lanes.leave(wrong):
        count[wrong] = 0
    return count


def repeats(keys: pa.StringArray, offsets: npt.NDArray[np.int32]) -> Bits:
    """Which maps have a key twice."""
    counts = np.diff(offsets)
    twice = np.zeros(len(counts), np.bool_)
    if len(counts) and counts.max() > 1:
        encoded = keys.dictionary_encode()
        owner = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        pair = np.sort(owner * len(encoded.dictionary) + np.asarray(encoded.indices))
        twice[pair[1:][pair[1:] == pair[:-1]] // len(encoded.dictionary)] = True
    return twice

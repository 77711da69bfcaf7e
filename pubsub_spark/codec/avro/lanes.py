"""Many messages decoded in step: each has a cursor, and one numpy operation moves all of them.

A `Lane` is a cursor into one message (or into one item of one message). Reading a field of all lanes costs a handful of
numpy operations, whatever their number, so a message costs nanoseconds and no Python object. The rule that keeps this
exact: a lane either reads what the specification plainly says, or it *leaves*. A message that left is decoded alone by
the slow path, which decides and explains. So nothing here has to find words for what is wrong.

A lane that left is parked in a zone of zeros behind the data, where every read gives zero, every length and count is
zero and nothing ends, so the common path needs no further branch for it. `zone` bytes must be enough for all that a
parked lane may still read.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Longs: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.bool_]

# Below this many lanes a numpy operation costs more than decoding their values one by one.
FEW: Final = 24

_FRONT: Final = 16  # a decimal is loaded as the 16 bytes that end with it, wherever it begins
_BACK: Final = 32  # the longest load beyond a cursor: a varint of 10 bytes, taken as two words
_FOREVER: Final = 1 << 62  # the end of a parked lane

_WIDTHS: Final[dict[int, type[Any]]] = {32: np.int32, 64: np.int64}

_U = np.uint64
_CONTINUES: Final = _U(0x8080808080808080)
_GROUPS: Final = _U(0x7F7F7F7F7F7F7F7F)
# Closing the gap that each byte's continuation bit leaves: pairs, fours, eights.
_CLOSE: Final = (
    (_U(0x007F007F007F007F), _U(0x7F007F007F007F00), _U(1)),
    (_U(0x00003FFF00003FFF), _U(0x3FFF00003FFF0000), _U(2)),
    (_U(0x000000000FFFFFFF), _U(0x0FFFFFFF00000000), _U(4)),
)


class Batch:
    """The bytes of some messages, and which of them have left."""

    def __init__(self, data: pa.BinaryArray, zone: int) -> None:
        offsets = offsets_of(data)
        first, last = int(offsets[0]), int(offsets[-1])
        size = last - first
        self.bytes = np.zeros(_FRONT + size + zone + _BACK, np.uint8)
        if size:
            self.bytes[_FRONT : _FRONT + size] = np.frombuffer(data.buffers()[2], np.uint8, size, first)
        self.buffer = pa.py_buffer(self.bytes)
        self.words = np.ndarray((len(self.bytes) - 7,), "<u8", self.bytes, strides=(1,))
        self.halves = np.ndarray((len(self.bytes) - 3,), "<u4", self.bytes, strides=(1,))
        self.parking = _FRONT + size
        self.left = np.zeros(len(data), np.bool_)
        self.any_left = False
        self.lanes = Lanes(
            self, offsets[:-1] + (_FRONT - first), offsets[1:] + (_FRONT - first), np.arange(len(data), dtype=np.int64)
        )


class Lanes:
    """Cursors: `at` is where the next read begins, `end` where the message ends, `row` which message it is."""

    __slots__ = ("at", "batch", "end", "row")

    def __init__(self, batch: Batch, at: Longs, end: Longs, row: Longs) -> None:
        self.batch, self.at, self.end, self.row = batch, at, end, row

    def __len__(self) -> int:
        return len(self.at)

    def some(self, which: Longs) -> Lanes:
        """A copy of some lanes; hand it back to `resume` when they have read."""
        return Lanes(self.batch, self.at[which], self.end[which], self.row[which])

    def resume(self, which: Longs, lanes: Lanes) -> None:
        """Go on from where `lanes`, made by `some(which)`, have come to."""
        self.at[which] = lanes.at
        self.end[which] = lanes.end

    def leave(self, wrong: Bits) -> bool:
        """Park the lanes where `wrong`, for the slow path to decide; whether there were any."""
        if not wrong.any():
            return False
        which = np.flatnonzero(wrong)
        self.batch.left[self.row[which]] = True
        self.batch.any_left = True
        self.at[which] = self.batch.parking
        self.end[which] = _FOREVER
        return True

    def parked(self) -> Bits:
        return np.asarray(self.end == _FOREVER)

    def longs(self) -> Longs:
        """The next varint of each lane, zigzag decoded."""
        first = self.batch.bytes[self.at]
        values = first.astype(np.uint64)
        long = first > 127
        self.at = self.at + 1
        if long.any():
            which = np.flatnonzero(long)
            at = self.at[which]
            second = self.batch.bytes[at]
            values[which] = (values[which] & _U(127)) | ((second & 127).astype(np.uint64) << _U(7))
            self.at[which] = at + 1
            longer = second > 127
            if longer.any():
                self._long_varints(values, which[longer])
        over = self.at > self.end
        if self.leave(over):
            values[over] = 0
        return np.asarray((values >> _U(1)).view(np.int64) ^ -(values & _U(1)).view(np.int64))

    def _long_varints(self, values: npt.NDArray[np.uint64], which: Longs) -> None:
        """Three bytes and more, of which two have been read: eight at a time, and the rare ninth and tenth."""
        at = self.at[which] - 2
        word = self.batch.words[at]
        stops = ~word & _CONTINUES
        stop = stops & (~stops + _U(1))  # the lowest bit set: the last byte of the varint; 0 if it is not among the 8
        value = word & (stop - _U(1)) & _GROUPS
        for low, high, by in _CLOSE:
            value = (value & low) | ((value & high) >> by)
        # The exponent of a power of two as a double says which bit it is; numpy before 2.0 cannot count bits.
        size = (((stop.astype(np.float64).view(np.int64) >> 52) - 1023) >> 3) + 1
        if not stop.all():
            rest = np.flatnonzero(stop == 0)
            ninth = self.batch.bytes[at[rest] + 8].astype(np.uint64)
            tenth = self.batch.bytes[at[rest] + 9].astype(np.uint64)
            ten = ninth > 127
            value[rest] |= ((ninth & _U(127)) << _U(56)) | (np.where(ten, tenth & _U(1), _U(0)) << _U(63))
            size[rest] = np.where(ten, 10, 9)
            wrong = np.zeros(len(self), np.bool_)
            wrong[which[rest]] = ten & (tenth > 1)
            values[which] = value
            self.at[which] = at + size
            if self.leave(wrong):
                values[wrong] = 0
            return
        values[which] = value
        self.at[which] = at + size

    def booleans(self) -> Bits:
        byte = self.batch.bytes[self.at]
        self.at = self.at + 1
        self.leave((self.at > self.end) | (byte > 1))
        return np.asarray(byte == 1)

    def floats(self) -> npt.NDArray[np.float32]:
        word = self.batch.halves[self.at]
        self.at = self.at + 4
        self.leave(self.at > self.end)
        return word.view(np.float32)

    def doubles(self) -> npt.NDArray[np.float64]:
        word = self.batch.words[self.at]
        self.at = self.at + 8
        self.leave(self.at > self.end)
        return word.view(np.float64)

    def lengths(self) -> Longs:
        """The next length of each lane, no longer than what is left of its message."""
        length = self.longs()
        wrong = length.view(np.uint64) > (self.end - self.at).view(np.uint64)
        if self.leave(wrong):
            length[wrong] = 0
        return length

    def segments(self, length: Longs) -> pa.BinaryArray:
        """The next `length` bytes of each lane, which must be there.

        All segments and the gaps between them are laid out as one array over the batch's bytes, of which every other
        item is taken: that way Arrow copies the bytes, which is ten times faster than gathering them by index.
        """
        count = len(self)
        edges = np.empty(2 * count + 1, np.int64)
        edges[0:-1:2] = self.at
        self.at = self.at + length
        edges[1::2] = self.at
        edges[-1] = edges[-2] if count else 0
        if self.batch.any_left:  # parked lanes lie behind all others; Arrow wants edges that never fall
            edges[np.repeat(self.parked(), 2).nonzero()] = 0
            edges[-1] = 0
            np.maximum.accumulate(edges, out=edges)
        whole = pa.Array.from_buffers(
            pa.binary(), 2 * count, [None, pa.py_buffer(edges.astype(np.int32)), self.batch.buffer]
        )
        return whole.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def offsets_of(array: pa.Array) -> Longs:
    """Where the items of a binary, list or map array begin and end in its buffer or its values."""
    if not len(array):
        return np.zeros(1, np.int64)  # Arrow may leave the buffer out
    width: type[Any] = np.int64 if pa.types.is_large_list(array.type) else np.int32
    size = np.dtype(width).itemsize
    return np.frombuffer(array.buffers()[1], width, len(array) + 1, array.offset * size).astype(np.int64)


def numbers(values: npt.NDArray[Any], type: pa.DataType) -> pa.Array:  # noqa: A002 (Arrow's word)
    """An array over numpy's memory, without a copy; `type` has the width of the values."""
    return pa.Array.from_buffers(type, len(values), [None, pa.py_buffer(values)])


def spread(values: pa.Array, which: Longs, count: int) -> pa.Array:
    """`count` items: `values` at `which`, null elsewhere."""
    absent = np.ones(count, np.bool_)
    absent[which] = False
    if pa.types.is_primitive(values.type) and values.type.bit_width in _WIDTHS and not values.null_count:
        width = _WIDTHS[values.type.bit_width]  # numpy spreads numbers in a third of the time of Arrow's `take`
        data = np.zeros(count, width)
        data[which] = np.frombuffer(values.buffers()[1], width, len(values), values.offset * data.itemsize)
        valid = pa.py_buffer(np.packbits(~absent, bitorder="little"))
        return pa.Array.from_buffers(values.type, count, [valid, pa.py_buffer(data)])
    index = np.zeros(count, np.int32)
    index[which] = np.arange(len(which), dtype=np.int32)
    return values.take(pa.array(index, mask=absent))


def merge(pieces: list[pa.Array], places: list[Longs]) -> pa.Array:
    """The pieces as one array, each item at its place; the places are all of 0 to the number of items."""
    if len(pieces) == 1 and (len(places[0]) < 2 or (np.diff(places[0]) == 1).all()):
        return pieces[0]
    place = np.concatenate(places)
    index = np.empty(len(place), np.int32)
    index[place] = np.arange(len(place), dtype=np.int32)
    return pa.concat_arrays(pieces).take(pa.array(index))

"""Many messages decoded at once: each has a cursor, and one numpy operation moves all of them.

`Cursors` are places in messages (or in items of messages). Reading a field at all cursors costs some numpy operations,
whatever their number, so a message costs nanoseconds and no Python object. The rule that keeps this exact: a cursor
either reads what the specification plainly says, or its message *falls back*: the caller then looks at it alone. Why a
message is malformed is not said here: `error_locator` finds that. The reason why a right message has no value (a symbol
that the reader lacks) is kept in `Batch.reasons`, with the path.

The cursors of a message that fell back are inactive. They stand in zeros behind the data, where every read gives zero,
every length and count is zero and nothing ends, so the common path needs no further branch for them. The padding must
be as long as all that an inactive cursor may still read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pubsub_spark.codec.avro import error_locator
from pubsub_spark.codec.avro.mismatch import Mismatch
from pubsub_spark.codec.avro.nodes import Node

Longs: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.bool_]

# Below this many cursors a numpy operation costs more than looking at their values one by one.
MIN_VECTORISED_ROWS: Final = 24

ITEM: Final = "{}"  # the step into an array or map, in a path that is known when the columns are compiled

_FRONT_BYTES: Final = 16  # a decimal is loaded as the 16 bytes that end with it, wherever it begins
_BACK_BYTES: Final = 32  # the longest load beyond a cursor: a varint of 10 bytes, taken as two words
_INACTIVE_END: Final = 1 << 62  # the end of an inactive cursor

_WIDTHS: Final[dict[int, type[Any]]] = {32: np.int32, 64: np.int64}

_U = np.uint64
_CONTINUES: Final = _U(0x8080808080808080)
_GROUPS: Final = _U(0x7F7F7F7F7F7F7F7F)
# Masks and a shift that close the gaps between groups of seven bits: of two bytes, of four, of all eight.
_CLOSE: Final = (
    (_U(0x007F007F007F007F), _U(0x7F007F007F007F00), _U(1)),
    (_U(0x00003FFF00003FFF), _U(0x3FFF00003FFF0000), _U(2)),
    (_U(0x000000000FFFFFFF), _U(0x0FFFFFFF00000000), _U(4)),
)


class Batch:
    """The bytes of some messages, which of them fell back, and why those that are right have no value (`reasons`)."""

    def __init__(self, data: pa.BinaryArray, padding: int) -> None:
        offsets = offsets_of(data)
        first, last = int(offsets[0]), int(offsets[-1])
        size = last - first
        self.bytes = np.zeros(_FRONT_BYTES + size + padding + _BACK_BYTES, np.uint8)
        if size:
            self.bytes[_FRONT_BYTES : _FRONT_BYTES + size] = np.frombuffer(data.buffers()[2], np.uint8, size, first)
        self.buffer = pa.py_buffer(self.bytes)
        self.words = np.ndarray((len(self.bytes) - 7,), "<u8", self.bytes, strides=(1,))
        self.halves = np.ndarray((len(self.bytes) - 3,), "<u4", self.bytes, strides=(1,))
        self.padding_start = _FRONT_BYTES + size
        self.fell_back = np.zeros(len(data), np.bool_)
        self.reasons: dict[int, Mismatch] = {}
        self.reason_at: dict[int, int] = {}
        self.empty_items_left = np.full(len(data), error_locator.MAX_EMPTY_ITEMS)
        self.any_fell_back = False
        begin, end = offsets[:-1] + (_FRONT_BYTES - first), offsets[1:] + (_FRONT_BYTES - first)
        self.cursors = Cursors(self, begin, end, np.arange(len(data), dtype=np.int64))

    def inactive_cursor(self) -> Cursors:
        """One cursor that reads nothing but zeros."""
        return Cursors(self, np.array([self.padding_start]), np.array([_INACTIVE_END]), np.array([0]))


class Cursors:
    """Places in messages: `at` is where the next read begins, `end` where the message ends, `row` its number.

    `outer` are the cursors that these were made of, by their indices; `step` is the path's step from there (`[3]`).
    """

    __slots__ = ("at", "batch", "end", "outer", "row", "step")

    def __init__(self, batch: Batch, at: Longs, end: Longs, row: Longs) -> None:
        self.batch, self.at, self.end, self.row = batch, at, end, row
        self.outer: tuple[Cursors, Longs] | None = None
        self.step: Callable[[int], str] | None = None

    def __len__(self) -> int:
        return len(self.at)

    def some(self, which: Longs) -> Cursors:
        """A copy of some cursors; hand it back to `resume` when they have read."""
        return self.inner(which, self.at[which])

    def inner(self, which: Longs, at: Longs) -> Cursors:
        """New cursors at the places `at`, each in the message of the cursor `which`."""
        cursors = Cursors(self.batch, at, self.end[which], self.row[which])
        cursors.outer = self, which
        return cursors

    def resume(self, which: Longs, cursors: Cursors) -> None:
        """Go on from where `cursors`, made by `some(which)`, have come to."""
        self.at[which] = cursors.at
        self.end[which] = cursors.end

    def fall_back(self, wrong: Bits, reason: Callable[[int], Mismatch] | None = None) -> bool:
        """Make the cursors where `wrong` inactive; whether there were any.

        reason: what is said of a cursor, by its index, if its message turns out to be right.
        """
        if not wrong.any():
            return False
        which = np.flatnonzero(wrong)
        if reason:
            for index in which[~self.inactive()[which]].tolist():
                row, at = int(self.row[index]), int(self.at[index])
                if at < self.batch.reason_at.get(row, _INACTIVE_END):  # the first of its message
                    self.batch.reason_at[row] = at
                    self.batch.reasons[row] = self._located(reason(index), index)
        self.batch.fell_back[self.row[which]] = True
        self.batch.any_fell_back = True
        self.at[which] = self.batch.padding_start
        self.end[which] = _INACTIVE_END
        return True

    def _located(self, mismatch: Mismatch, index: int) -> Mismatch:
        """The finding with its whole path: the `{}` of an array or map become the steps that led to this cursor."""
        taken: list[str] = []
        cursors = self
        while cursors.outer is not None:
            outer, which = cursors.outer
            if cursors.step is not None:
                taken.append(cursors.step(index))
            cursors, index = outer, int(which[index])
        mismatch.steps = [taken.pop(0) if step == ITEM else step for step in mismatch.steps]
        return mismatch

    def skip(self, node: Node) -> None:
        """Move each cursor behind its value, one by one."""
        for index in np.flatnonzero(~self.inactive()).tolist():
            at, end = int(self.at[index]), int(self.end[index])
            try:
                self.at[index] = at + error_locator.end(node, self.batch.bytes.data[at:end])
            except Mismatch:
                self.fall_back(np.arange(len(self)) == index)

    def inactive(self) -> Bits:
        """The cursors whose messages fell back by them."""
        return np.asarray(self.end == _INACTIVE_END)

    def longs(self) -> Longs:
        """The next varint of each cursor, zigzag decoded."""
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
        if self.fall_back(over):
            values[over] = 0
        return np.asarray((values >> _U(1)).view(np.int64) ^ -(values & _U(1)).view(np.int64))

    def _long_varints(self, values: npt.NDArray[np.uint64], which: Longs) -> None:
        """The varints of three bytes and more, of which two are read: eight bytes at a time, then the rare others."""
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
            if self.fall_back(wrong):
                values[wrong] = 0
            return
        values[which] = value
        self.at[which] = at + size

    def booleans(self) -> Bits:
        """The next boolean of each cursor."""
        byte = self.batch.bytes[self.at]
        self.at = self.at + 1
        self.fall_back((self.at > self.end) | (byte > 1))
        return np.asarray(byte == 1)

    def floats(self) -> npt.NDArray[np.float32]:
        """The next float of each cursor."""
        word = self.batch.halves[self.at]
        self.at = self.at + 4
        self.fall_back(self.at > self.end)
        return word.view(np.float32)

    def doubles(self) -> npt.NDArray[np.float64]:
        """The next double of each cursor."""
        word = self.batch.words[self.at]
        self.at = self.at + 8
        self.fall_back(self.at > self.end)
        return word.view(np.float64)

    def lengths(self) -> Longs:
        """The next length of each cursor, no longer than what is left of its message."""
        length = self.longs()
        wrong = length.view(np.uint64) > (self.end - self.at).view(np.uint64)
        if self.fall_back(wrong):
            length[wrong] = 0
        return length

    def segments(self, length: Longs) -> pa.BinaryArray:
        """The next `length` bytes of each cursor, which must be there.

        All segments and the gaps between them are laid out as one array over the batch's bytes, of which every other
        item is taken: that way Arrow copies the bytes, which is ten times faster than gathering them by index.
        """
        count = len(self)
        edges = np.empty(2 * count + 1, np.int64)
        edges[0:-1:2] = self.at
        self.at = self.at + length
        edges[1::2] = self.at
        edges[-1] = edges[-2] if count else 0
        if self.batch.any_fell_back:  # inactive cursors stand behind all others; Arrow wants edges that never fall
            _close_gaps(edges, np.flatnonzero(self.inactive()))
        whole = pa.Array.from_buffers(
            pa.binary(), 2 * count, [None, pa.py_buffer(edges.astype(np.int32)), self.batch.buffer]
        )
        return whole.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def _close_gaps(edges: Longs, inactive: Longs) -> None:
    """Give inactive cursors, of rising index, segments of no bytes where the one before them ends."""
    if not len(inactive):
        return
    breaks = np.diff(inactive, prepend=-2) != 1
    first_of_run = inactive[np.flatnonzero(breaks)[np.cumsum(breaks) - 1]]
    before = np.where(first_of_run > 0, edges[2 * first_of_run - 1], 0)
    edges[2 * inactive] = before
    edges[2 * inactive + 1] = before
    edges[-1] = edges[-2]


def offsets_of(array: pa.Array) -> Longs:
    """The offsets where the items of a binary, list or map array begin and end in its buffer or its values."""
    if not len(array):
        return np.zeros(1, np.int64)  # Arrow may leave the buffer out
    width: type[Any] = np.int64 if pa.types.is_large_list(array.type) else np.int32
    size = np.dtype(width).itemsize
    return np.frombuffer(array.buffers()[1], width, len(array) + 1, array.offset * size).astype(np.int64)


def offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The offsets of items of these lengths, as Arrow has them: one more than there are items."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return ends


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


def merge(arrays: list[pa.Array], places: list[Longs]) -> pa.Array:
    """The arrays as one, each item at its place; the places are all of 0 to the number of items."""
    if len(arrays) == 1 and (len(places[0]) < 2 or (np.diff(places[0]) == 1).all()):
        return arrays[0]
    place = np.concatenate(places)
    index = np.empty(len(place), np.int32)
    index[place] = np.arange(len(place), dtype=np.int32)
    return pa.concat_arrays(arrays).take(pa.array(index))

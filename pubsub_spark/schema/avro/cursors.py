"""Many messages decoded at once: each has a cursor, and one numpy operation moves all of them.

`Cursors` are places in messages (or in items of messages). One rule keeps this exact: a cursor either reads a value
that is plainly right by the specification, or its message *falls back*, and the caller checks it alone. `error_locator`
finds why a message is malformed. `Batch.reasons` has the reason why a right message has no value (a symbol that the
reader lacks).

The cursors of a message that fell back are inactive. They are in zeros behind the data, where every read returns zero,
so the common path needs no further branch for them. The padding must be as long as all that an inactive cursor may
still read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pubsub_spark.schema.avro import error_locator
from pubsub_spark.schema.avro.schema_tree import Array, Map, Node, Record, Union
from pubsub_spark.schema.definition import Mismatch

Longs: TypeAlias = npt.NDArray[np.int64]
Bits: TypeAlias = npt.NDArray[np.bool_]

# Below this many cursors a numpy operation costs more than reading their values one by one.
MIN_VECTORISED_ROWS: Final = 24

ITEM: Final = "{}"  # the step into an array or map, in a path that is known when the columns are compiled

_PADDING: Final = {"null": 0, "float": 4, "double": 8, "fixed": 0}  # bytes that an inactive cursor reads (others: 1)
_FRONT_BYTES: Final = 16  # a decimal is loaded as the 16 bytes that end with it, wherever it begins
_BACK_BYTES: Final = 32  # the longest load beyond a cursor: a varint of 10 bytes, taken as two words
_INACTIVE_END: Final = 1 << 62  # the end of an inactive cursor

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
    """The bytes of some messages, and which of them fell back."""

    def __init__(self, data: Any, offsets: Longs, padding: int) -> None:
        """data: a buffer, or None if it is empty. offsets: where each message begins and, last, where it ends."""
        count = len(offsets) - 1
        first, last = int(offsets[0]), int(offsets[-1])
        size = last - first
        self.bytes = np.zeros(_FRONT_BYTES + size + padding + _BACK_BYTES, np.uint8)
        if size:
            self.bytes[_FRONT_BYTES : _FRONT_BYTES + size] = np.frombuffer(data, np.uint8, size, first)
        self.words = np.ndarray((len(self.bytes) - 7,), "<u8", self.bytes, strides=(1,))
        self.halves = np.ndarray((len(self.bytes) - 3,), "<u4", self.bytes, strides=(1,))
        self.padding_start = _FRONT_BYTES + size
        self.fell_back = np.zeros(count, np.bool_)
        self.reasons: dict[int, Mismatch] = {}
        self.reason_at: dict[int, int] = {}
        self.empty_items_left = np.full(count, error_locator.MAX_EMPTY_ITEMS)
        self.any_fell_back = False
        begin, end = offsets[:-1] + (_FRONT_BYTES - first), offsets[1:] + (_FRONT_BYTES - first)
        self.cursors = Cursors(self, begin, end, np.arange(count, dtype=np.int64))

    def inactive_cursor(self) -> Cursors:
        return Cursors(self, np.array([self.padding_start]), np.array([_INACTIVE_END]), np.array([0]))


class Cursors:
    """Places in messages: `at` is where the next read begins, `end` where the message ends, `row` its number.

    `outer` are the indices of the cursors that these were made of. `step` is the path's step from there (`[3]`).
    """

    __slots__ = ("at", "batch", "end", "outer", "row", "step")

    def __init__(self, batch: Batch, at: Longs, end: Longs, row: Longs) -> None:
        self.batch, self.at, self.end, self.row = batch, at, end, row
        self.outer: tuple[Cursors, Longs] | None = None
        self.step: Callable[[int], str] | None = None

    def __len__(self) -> int:
        return len(self.at)

    def some(self, which: Longs) -> Cursors:
        """Return a copy of some cursors. Pass it to `resume` when they have read."""
        return self.inner(which, self.at[which])

    def inner(self, which: Longs, at: Longs) -> Cursors:
        """Return new cursors at the places `at`, each in the message of the cursor `which`."""
        cursors = Cursors(self.batch, at, self.end[which], self.row[which])
        cursors.outer = self, which
        return cursors

    def resume(self, which: Longs, cursors: Cursors) -> None:
        """Continue where `cursors`, made by `some(which)`, have arrived."""
        self.at[which] = cursors.at
        self.end[which] = cursors.end

    def fall_back(self, wrong: Bits, reason: Callable[[int], Mismatch] | None = None) -> bool:
        """Make the cursors where `wrong` inactive, and return whether there were any.

        reason: the finding about a cursor, by its index, if its message turns out to be right.
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
        """Each `{}` of the path becomes the step into an array or map to this cursor."""
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
        """Return the cursors whose messages fell back by them."""
        return np.asarray(self.end == _INACTIVE_END)

    def longs(self) -> Longs:
        """Return the next varints, zigzag decoded."""
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
        """Finish varints of three bytes and more after their first two."""
        at = self.at[which] - 2
        word = self.batch.words[at]
        stops = ~word & _CONTINUES
        stop = stops & (~stops + _U(1))  # the lowest bit set: the last byte of the varint, 0 if it is not among the 8
        value = word & (stop - _U(1)) & _GROUPS
        for low, high, by in _CLOSE:
            value = (value & low) | ((value & high) >> by)
        # The exponent of a power of two as a double is the number of its bit. numpy before 2.0 cannot count bits.
        size = (((stop.astype(np.float64).view(np.int64) >> 52) - 1023) >> 3) + 1
        all_stop = stop.all()
        if not all_stop:
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
        if not all_stop and self.fall_back(wrong):
            values[wrong] = 0

    def booleans(self) -> Bits:
        byte = self.batch.bytes[self.at]
        self.at = self.at + 1
        self.fall_back((self.at > self.end) | (byte > 1))
        return np.asarray(byte == 1)

    def floats(self) -> npt.NDArray[np.float32]:
        word = self.batch.halves[self.at]
        self.at = self.at + 4
        self.fall_back(self.at > self.end)
        return word.view(np.float32)

    def doubles(self) -> npt.NDArray[np.float64]:
        word = self.batch.words[self.at]
        self.at = self.at + 8
        self.fall_back(self.at > self.end)
        return word.view(np.float64)

    def lengths(self) -> Longs:
        """Return the next lengths, no longer than the remaining bytes of the messages."""
        length = self.longs()
        wrong = length.view(np.uint64) > (self.end - self.at).view(np.uint64)
        if self.fall_back(wrong):
            length[wrong] = 0
        return length

    def indices(self, count: int) -> Longs:
        """Return the next indices of symbols or branches, below `count`."""
        index = self.longs()
        wrong = index.view(np.uint64) >= count
        if self.fall_back(wrong):
            index[wrong] = 0
        return index

    def fixed_lengths(self, size: int) -> Longs:
        """Return the length of the next `size` bytes, which must be there. 0 for inactive cursors."""
        self.fall_back(self.at + size > self.end)
        return np.where(self.inactive(), 0, size)


def offsets(lengths: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return the offsets of items of these lengths, in Arrow's form: one more than there are items."""
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    return ends


def padding(node: Node, known: dict[Record, int] | None = None) -> int:
    """Return the number of bytes that an inactive cursor may read for a value."""
    known = {} if known is None else known
    match node:
        case Union(branches):
            return 1 + max((padding(branch, known) for branch in branches), default=0)
        case Record(fields=fields):
            if node not in known:
                known[node] = 0  # a record inside of itself is skipped, which moves no inactive cursor
                known[node] = sum(padding(field.node, known) for field in fields)
            return known[node]
        case Array(inner) | Map(inner):
            return 3 + padding(inner, known)  # the rest of an item and of its key, and the ends
    return _PADDING.get(node.kind, 1)

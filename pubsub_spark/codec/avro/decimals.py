"""Decimals between Avro and Arrow: big-endian two's complement of any length, and 16 bytes little-endian."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pubsub_spark.codec.arrays import offsets_of
from pubsub_spark.schema.avro.cursors import Bits

_WIDTH = 16  # bytes of Arrow's decimal128
_LOW = 2**64 - 1  # the bits of its low half


def from_bytes(data: pa.BinaryArray, type_: pa.Decimal128Type) -> tuple[pa.Array, Bits]:
    """Return the decimals, and which of them have no bytes or more digits than the type. Those are zero."""
    ends = offsets_of(data)
    length = np.diff(ends)
    # Sixteen bytes of room in front, so that the 16 bytes that end with a short value can also be loaded.
    room = np.zeros(_WIDTH + int(ends[-1]), np.uint8)
    if ends[-1]:
        room[_WIDTH:] = np.frombuffer(data.buffers()[2], np.uint8, int(ends[-1]))
    words = np.ndarray((len(room) - 7,), ">u8", room, strides=(1,))
    low = words[ends[1:] + 8].astype(np.uint64)
    high = words[ends[1:]].astype(np.uint64)
    # The bytes before the value belong to a neighbour: shift them out, then in again as copies of the sign.
    narrow = length <= 8
    shift = np.where(narrow, 8 - np.clip(length, 1, 8), _WIDTH - np.clip(length, 9, _WIDTH)) * 8
    part = np.where(narrow, low, high).view(np.int64)
    part = (part << shift) >> shift
    values = np.empty((len(data), 2), np.int64)
    values[:, 0] = np.where(narrow, part, low.view(np.int64))
    values[:, 1] = np.where(narrow, part >> 63, part)
    wrong = (length < 1) | _are_beyond(values, 10**type_.precision - 1)
    for row in np.flatnonzero(length > _WIDTH).tolist():
        # Longer numbers fit if the bytes in front of the last 16 only repeat the sign.
        sign = b"\xff" if values[row, 1] < 0 else b"\0"
        wrong[row] |= bool(room[_WIDTH + ends[row] : ends[row + 1]].tobytes().strip(sign))
    if wrong.any():
        values[wrong] = 0
    return pa.Array.from_buffers(type_, len(data), [None, pa.py_buffer(values)]), wrong


def _are_beyond(values: npt.NDArray[np.int64], most: int) -> Bits:
    """Return which numbers, each in its low and its high half, have an absolute value above `most`."""
    low, high = values[:, 0].view(np.uint64), values[:, 1]
    most_high, most_low, least_high, least_low = most >> 64, most & _LOW, -most >> 64, -most & _LOW
    above = (high > most_high) | ((high == most_high) & (low > most_low))
    below = (high < least_high) | ((high == least_high) & (low < least_low))
    return np.asarray(above | below)


def as_fixed(decimals: pa.Array, size: int) -> npt.NDArray[np.uint8]:
    """The type's precision guarantees that each number fits in `size` bytes."""
    big = _big_endian(decimals)
    if size <= _WIDTH:
        return np.ascontiguousarray(big[:, _WIDTH - size :])
    return np.concatenate([np.repeat(_signs(big), size - _WIDTH, axis=1), big], axis=1)


def as_bytes(decimals: pa.Array) -> tuple[npt.NDArray[np.uint8], Bits]:
    """Return each number's 16 bytes, and which are needed: the last ones that hold it and its sign."""
    big = _big_endian(decimals)
    magnitude = big ^ _signs(big)
    magnitude[:, -1] |= 1
    first = (magnitude != 0).argmax(axis=1)
    # The top bit of the first byte that matters must be free for the sign. If it is not, one more byte holds the sign.
    first -= (np.take_along_axis(magnitude, first[:, None], axis=1)[:, 0] > 127) & (first > 0)
    return big, np.asarray(np.arange(_WIDTH) >= first[:, None])


def _big_endian(decimals: pa.Array) -> npt.NDArray[np.uint8]:
    count = len(decimals)
    little = np.frombuffer(decimals.buffers()[1], np.uint8, _WIDTH * count, _WIDTH * decimals.offset)
    return little.reshape(count, _WIDTH)[:, ::-1]


def _signs(big: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.where(big[:, :1] > 127, np.uint8(255), np.uint8(0))

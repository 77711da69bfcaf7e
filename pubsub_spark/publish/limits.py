"""Pub/Sub's limits on messages, and the serialized size of each message, checked before anything is published.

Sizes are those in the serialized PublishRequest, byte for byte the output of `ptars`, so messages can be batched into
requests before they are encoded. Pure.

Source of the limits: https://cloud.google.com/pubsub/quotas#resource_limits
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..names import RESERVED_PREFIX, TRACE_ATTRIBUTES

MAX_REQUEST_BYTES = 10_000_000
MAX_REQUEST_MESSAGES = 1000
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class LimitViolation(NamedTuple):
    """A message that Pub/Sub would refuse: its row, its field at fault, and the rest of the sentence."""

    row: int
    field: str
    complaint: str


class MapEntries(NamedTuple):
    """The keys and values of all rows of a map column, and the offset of each row (one more than rows)."""

    keys: pa.Array
    values: pa.Array
    offsets: Ints

    @classmethod
    def of(cls, maps: pa.MapArray) -> MapEntries:
        offsets = maps.offsets.to_numpy().astype(np.int64)
        first, length = int(offsets[0]), int(offsets[-1] - offsets[0])
        return cls(maps.keys.slice(first, length), maps.items.slice(first, length), offsets - first)

    def where(self, kept: Mask) -> MapEntries:
        offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        return MapEntries(self.keys.filter(pa.array(kept)), self.values.filter(pa.array(kept)), offsets)

    @property
    def counts(self) -> Ints:
        return np.diff(self.offsets)

    def row_of(self, entry: int) -> int:
        return int(np.searchsorted(self.offsets, entry, side="right")) - 1


def byte_lengths(array: pa.Array) -> Ints:
    """Return the bytes of each string or binary, 0 for a null."""
    lengths = pc.binary_length(array)
    return np.asarray((lengths.fill_null(0) if lengths.null_count else lengths).to_numpy(), dtype=np.int64)


def _varint_bytes(values: Ints) -> Ints:
    """Values are below 2**35."""
    size = np.ones(len(values), dtype=np.int64)
    largest = int(values.max(initial=0))
    for bits in (7, 14, 21, 28):
        if largest >> bits:
            size += values >= (1 << bits)
    return size


def _field_bytes(sizes: Ints) -> Ints:
    """Fields are length-delimited, with a one-byte tag. A field of no bytes is not written."""
    return np.where(sizes > 0, 1 + _varint_bytes(sizes) + sizes, 0)


def message_sizes(messages: pa.RecordBatch) -> Ints:
    total = _field_bytes(byte_lengths(messages.column("data")))
    if "ordering_key" in messages.schema.names:
        total += _field_bytes(byte_lengths(messages.column("ordering_key")))
    if "attributes" in messages.schema.names:
        entries = MapEntries.of(messages.column("attributes"))
        inner = _field_bytes(byte_lengths(entries.keys)) + _field_bytes(byte_lengths(entries.values))
        ends = np.concatenate([[0], np.cumsum(1 + _varint_bytes(inner) + inner)])
        total += ends[entries.offsets[1:]] - ends[entries.offsets[:-1]]
    return 1 + _varint_bytes(total) + total


def topic_field_bytes(topic: str) -> int:
    return int(_field_bytes(np.array([len(topic.encode())], dtype=np.int64))[0])


def is_empty(messages: pa.RecordBatch) -> Mask:
    """Return the messages without data and without attributes, which Pub/Sub refuses."""
    empty: Mask = byte_lengths(messages.column("data")) == 0
    if "attributes" in messages.schema.names:
        empty &= MapEntries.of(messages.column("attributes")).counts == 0
    return empty


def violations(messages: pa.RecordBatch, sizes: Ints, topic_bytes: Ints | int) -> list[LimitViolation]:
    """Return the messages that are too large or use a reserved name, in the order of the rows, one violation each.

    sizes: `message_sizes`. topic_bytes: `topic_field_bytes` of each message's topic, because a message must fit a
    request.
    """
    by_row: dict[int, LimitViolation] = {}

    def note(row: int, field: str, complaint: str) -> None:
        by_row.setdefault(row, LimitViolation(row, field, complaint))

    if "attributes" in messages.schema.names:
        entries = MapEntries.of(messages.column("attributes"))
        counts, keys, values = entries.counts, byte_lengths(entries.keys), byte_lengths(entries.values)
        for row in _where(counts > MAX_ATTRIBUTES):
            note(row, "attributes", f"has {counts[row]} entries, more than the {MAX_ATTRIBUTES} that Pub/Sub takes")
        for entry in _where(keys > MAX_KEY_BYTES):
            complaint = f"has a key of {keys[entry]} bytes (`{_start(entries.keys[entry])}`)"
            note(entries.row_of(entry), "attributes", f"{complaint}, more than the {MAX_KEY_BYTES} that Pub/Sub takes")
        for entry in _where(values > MAX_VALUE_BYTES):
            complaint = f"has a value of {values[entry]} bytes under `{entries.keys[entry]}`, more than the"
            note(entries.row_of(entry), "attributes", f"{complaint} {MAX_VALUE_BYTES} that Pub/Sub takes")
        for entry in _where(keys == 0):
            note(entries.row_of(entry), "attributes", "has an empty key, and Pub/Sub takes no attribute without a name")
        reserved = pc.starts_with(entries.keys, RESERVED_PREFIX, ignore_case=True)
        for entry in _where(np.asarray(reserved.to_numpy(zero_copy_only=False))):
            if entries.keys[entry].as_py() in TRACE_ATTRIBUTES:
                continue
            complaint = f"has the key `{_start(entries.keys[entry])}`"
            note(entries.row_of(entry), "attributes", f"{complaint}, but names that begin with `goog` are Google's own")
    if "ordering_key" in messages.schema.names:
        keys = byte_lengths(messages.column("ordering_key"))
        for row in _where(keys > MAX_ORDERING_KEY_BYTES):
            complaint = f"has {keys[row]} bytes, more than the {MAX_ORDERING_KEY_BYTES} that Pub/Sub takes"
            note(row, "ordering_key", complaint)
    for row in _where(sizes + topic_bytes > MAX_REQUEST_BYTES):
        complaint = f"makes a request of {sizes[row] + np.broadcast_to(topic_bytes, sizes.shape)[row]:,} bytes"
        note(row, "data", f"{complaint}, more than the {MAX_REQUEST_BYTES:,} that Pub/Sub takes")
    return sorted(by_row.values())


def _where(mask: Mask) -> list[int]:
    return np.flatnonzero(mask).tolist() if mask.any() else []


def _start(text: pa.Scalar) -> str:
    whole = str(text)
    return whole if len(whole) <= 40 else f"{whole[:40]}..."

"""What Pub/Sub takes, checked before a message is sent: sizes to the byte, and the rows that it would refuse.

Pure columns: each limit is one numpy expression over an Arrow batch, so a batch without a bad row costs a few passes
over its lengths. Sizes are those of the serialized PublishRequest; they equal what `ptars` writes, byte for byte, so
requests can be cut before they are encoded.

Source of the limits: https://cloud.google.com/pubsub/quotas#resource_limits
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..names import RESERVED_PREFIX

MAX_REQUEST_BYTES = 10_000_000
MAX_REQUEST_MESSAGES = 1000
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Breach(NamedTuple):
    """A message that Pub/Sub would refuse: its row in the batch, the column at fault, and the rest of the sentence."""

    row: int
    column: str
    complaint: str


class Entries(NamedTuple):
    """A map column taken apart: the keys and values of all rows, and where each row's begin (one more than rows)."""

    keys: pa.Array
    values: pa.Array
    offsets: Ints

    @classmethod
    def of(cls, maps: pa.MapArray) -> Entries:
        """The entries of maps without nulls among them."""
        offsets = maps.offsets.to_numpy().astype(np.int64)
        first, length = int(offsets[0]), int(offsets[-1] - offsets[0])
        return cls(maps.keys.slice(first, length), maps.items.slice(first, length), offsets - first)

    def where(self, kept: Mask) -> Entries:
        """Those entries alone."""
        offsets = np.concatenate([[0], np.cumsum(kept)])[self.offsets]
        return Entries(self.keys.filter(pa.array(kept)), self.values.filter(pa.array(kept)), offsets)

    @property
    def counts(self) -> Ints:
        """Entries of each row."""
        return np.diff(self.offsets)

    def row_of(self, entry: int) -> int:
        """The row to which an entry belongs."""
        return int(np.searchsorted(self.offsets, entry, side="right")) - 1


def lengths(array: pa.Array) -> Ints:
    """Bytes of each string or binary; 0 for a null."""
    found = pc.binary_length(array)
    return np.asarray((found.fill_null(0) if found.null_count else found).to_numpy(), dtype=np.int64)


def _varint(values: Ints) -> Ints:
    """Bytes of each value as a varint; values below 2**35."""
    size = np.ones(len(values), dtype=np.int64)
    largest = int(values.max(initial=0))
    for bits in (7, 14, 21, 28):
        if largest >> bits:
            size += values >= (1 << bits)
    return size


def _field(sizes: Ints) -> Ints:
    """Bytes of length-delimited fields with a one-byte tag; a field of no bytes is not written."""
    return np.where(sizes > 0, 1 + _varint(sizes) + sizes, 0)


def sizes(messages: pa.RecordBatch) -> Ints:
    """Bytes that each message takes in a serialized PublishRequest."""
    total = _field(lengths(messages.column("data")))
    if "ordering_key" in messages.schema.names:
        total += _field(lengths(messages.column("ordering_key")))
    if "attributes" in messages.schema.names:
        entries = Entries.of(messages.column("attributes"))
        inner = _field(lengths(entries.keys)) + _field(lengths(entries.values))
        ends = np.concatenate([[0], np.cumsum(1 + _varint(inner) + inner)])
        total += ends[entries.offsets[1:]] - ends[entries.offsets[:-1]]
    return 1 + _varint(total) + total


def overhead(topic: str) -> int:
    """Bytes of a PublishRequest before its first message: the topic's name."""
    return int(_field(np.array([len(topic.encode())], dtype=np.int64))[0])


def empty(messages: pa.RecordBatch) -> Mask:
    """The rows without data and without attributes: Pub/Sub takes no message with neither."""
    nothing: Mask = lengths(messages.column("data")) == 0
    if "attributes" in messages.schema.names:
        nothing &= Entries.of(messages.column("attributes")).counts == 0
    return nothing


def breaches(messages: pa.RecordBatch, message_sizes: Ints, topic_bytes: Ints | int) -> list[Breach]:
    """What would be refused as too large or reserved, in the order of the rows; one breach a row.

    topic_bytes: `overhead` of each row's topic, because a message must fit into a request.
    """
    found: dict[int, Breach] = {}

    def note(row: int, column: str, complaint: str) -> None:
        found.setdefault(row, Breach(row, column, complaint))

    if "attributes" in messages.schema.names:
        entries = Entries.of(messages.column("attributes"))
        counts, keys, values = entries.counts, lengths(entries.keys), lengths(entries.values)
        for row in _where(counts > MAX_ATTRIBUTES):
            note(row, "attributes", f"has {counts[row]} entries, more than the {MAX_ATTRIBUTES} that Pub/Sub takes")
        for entry in _where(keys > MAX_KEY_BYTES):
            what = f"has a key of {keys[entry]} bytes (`{_start(entries.keys[entry])}`)"
            note(entries.row_of(entry), "attributes", f"{what}, more than the {MAX_KEY_BYTES} that Pub/Sub takes")
        for entry in _where(values > MAX_VALUE_BYTES):
            what = f"has a value of {values[entry]} bytes under `{entries.keys[entry]}`"
            note(entries.row_of(entry), "attributes", f"{what}, more than the {MAX_VALUE_BYTES} that Pub/Sub takes")
        for entry in _where(keys == 0):
            note(entries.row_of(entry), "attributes", "has an empty key, and Pub/Sub takes no attribute without a name")
        reserved = pc.starts_with(entries.keys, RESERVED_PREFIX, ignore_case=True)
        for entry in _where(np.asarray(reserved.to_numpy(zero_copy_only=False))):
            what = f"has the key `{_start(entries.keys[entry])}`"
            note(entries.row_of(entry), "attributes", f"{what}, but names that begin with `goog` are Google's own")
    if "ordering_key" in messages.schema.names:
        keys = lengths(messages.column("ordering_key"))
        for row in _where(keys > MAX_ORDERING_KEY_BYTES):
            what = f"has {keys[row]} bytes, more than the {MAX_ORDERING_KEY_BYTES} that Pub/Sub takes"
            note(row, "ordering_key", what)
    for row in _where(message_sizes + topic_bytes > MAX_REQUEST_BYTES):
        what = (
            f"makes a request of {message_sizes[row] + np.broadcast_to(topic_bytes, message_sizes.shape)[row]:,} bytes"
        )
        note(row, "data", f"{what}, more than the {MAX_REQUEST_BYTES:,} that Pub/Sub takes")
    return sorted(found.values())


def _where(mask: Mask) -> list[int]:
    return np.flatnonzero(mask).tolist() if mask.any() else []


def _start(text: pa.Scalar) -> str:
    whole = str(text)
    return whole if len(whole) <= 40 else f"{whole[:40]}..."

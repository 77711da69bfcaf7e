"""Publish requests: messages batched into serialized PublishRequests.

A request carries messages of one topic and, if they have an ordering key, of one key, within the options' count and
bytes.

Messages with ordering keys are sorted by key, stably, so that the messages of a key stay in the order of the rows.
Their requests are yielded in turn: the first of every key, then the second, so that a key waits for no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..slices import slices
from .limits import Ints, topic_field_bytes

_ENCODE_CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRequest:
    topic: str
    ordering_key: str
    body: bytes
    messages: int


class Ranges(NamedTuple):
    """Ranges of messages: request i carries the messages `starts[i]` to `ends[i]`."""

    starts: Ints
    ends: Ints


def batch_ranges(sizes: Ints, max_messages: int, max_bytes: int, group_starts: Ints | None = None) -> Ranges:
    """Return the ranges of requests within both limits. A larger message has a range by itself.

    group_starts: where each group begins. No range has messages of two groups.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    groups = () if group_starts is None else group_starts.tolist()
    ranges = np.array([*slices(offsets, max_messages, max_bytes, groups)], np.int64)
    return Ranges(*ranges.reshape(-1, 2).T)


def encoded_requests(
    messages: pa.RecordBatch, sizes: Ints, topic: str | None, max_messages: int, max_bytes: int
) -> Iterator[EncodedRequest]:
    """Yield the requests that carry these messages, encoded a few megabytes at a time.

    topic: the topic of all messages, or None if there is a column `topic`.
    """
    if not len(messages):
        return
    topics, topic_codes = _dictionary(messages, "topic", topic)
    keys, key_codes = _dictionary(messages, "ordering_key", "")
    max_messages_bytes = max_bytes - max(topic_field_bytes(name) for name in topics)
    if len(topics) == 1 and len(keys) == 1:
        ranges = batch_ranges(sizes, max_messages, max_messages_bytes)
    else:
        groups = topic_codes.astype(np.int64) * len(keys) + key_codes
        order, ranges = _ranges_by_group(groups, sizes, max_messages, max_messages_bytes)
        messages, sizes = messages.take(pa.array(order)), sizes[order]
        topic_codes, key_codes = topic_codes[order], key_codes[order]
    fields = [name for name in ("data", "attributes", "ordering_key") if name in messages.schema.names]
    columns = pa.StructArray.from_arrays([messages.column(name) for name in fields], fields)
    byte_offsets = np.concatenate([[0], np.cumsum(sizes)])
    range_end_bytes = byte_offsets[ranges.ends]
    first = 0
    while first < len(ranges.starts):
        max_end = byte_offsets[ranges.starts[first]] + _ENCODE_CHUNK_BYTES
        last = int(np.searchsorted(range_end_bytes, max_end, side="right"))
        chunk = slice(first, max(first + 1, last))
        starts, ends = ranges.starts[chunk], ranges.ends[chunk]
        names = [topics[code] for code in topic_codes[starts]]
        bodies = encode(names, columns, starts, int(ends[-1]))
        for name, code, body, count in zip(names, key_codes[starts], bodies, (ends - starts).tolist(), strict=True):
            yield EncodedRequest(name, keys[code], body.as_py(), count)
        first = chunk.stop


def _dictionary(messages: pa.RecordBatch, column: str, default: str | None) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Return the distinct values of a column, by default `default`, and the index of each message's value."""
    if column not in messages.schema.names:
        assert default is not None, "without a topic of all there is a column of topics"
        return [default], np.zeros(len(messages), dtype=np.int32)
    encoded = messages.column(column).dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy()


def _ranges_by_group(groups: Ints, sizes: Ints, max_messages: int, max_bytes: int) -> tuple[Ints, Ranges]:
    """Return the order of publishing and the ranges in that order: one range of every group in turn."""
    by_group = np.argsort(groups, kind="stable")
    sorted_groups = groups[by_group]
    group_starts = np.flatnonzero(np.concatenate([[True], sorted_groups[1:] != sorted_groups[:-1]]))
    starts, ends = batch_ranges(sizes[by_group], max_messages, max_bytes, group_starts)
    group_of_range = np.searchsorted(group_starts, starts, side="right")
    first_of_group = np.searchsorted(group_of_range, group_of_range, side="left")
    in_turn = np.argsort(np.arange(len(starts)) - first_of_group, kind="stable")
    starts, counts = starts[in_turn], (ends - starts)[in_turn]
    new_ends = np.cumsum(counts)
    new_starts = new_ends - counts
    order = by_group[np.arange(len(groups)) + np.repeat(starts - new_starts, counts)]
    return order, Ranges(new_starts, new_ends)


def encode(topics: list[str], messages: pa.StructArray, starts: Ints, end: int) -> pa.BinaryArray:
    offsets = pa.array(np.append(starts, end), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, messages)
    return _handler().record_batch_to_array(pa.RecordBatch.from_pydict({"topic": topics, "messages": lists}))


@lru_cache(maxsize=1)
def _handler() -> Any:
    from google.pubsub_v1.types import PublishRequest
    from ptars import HandlerPool

    descriptor = PublishRequest.pb().DESCRIPTOR
    return HandlerPool([descriptor.file]).get_for_message(descriptor)

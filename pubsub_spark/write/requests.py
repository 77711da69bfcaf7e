"""Messages to publish requests: where to cut, and the bytes.

A request carries messages of one topic; if they have an ordering key, of one key. It stays within the options' count
and bytes. Cutting looks at sizes alone; then `ptars` encodes the requests in Rust, some megabytes at a time.

Messages with ordering keys are sorted by key, stably, so that each key's stay in the order of the rows. Their
requests come out in rounds: the first of every key, then the second of every key; keys wait for themselves
only.
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
from .limits import Ints, overhead

_ENCODED_AT_ONCE = 4 * 2**20


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A serialized PublishRequest, and what one must know to send it."""

    topic: str
    ordering_key: str
    body: bytes
    messages: int


class Cuts(NamedTuple):
    """Requests as ranges of messages: request i has the messages `starts[i]` to `ends[i]`."""

    starts: Ints
    ends: Ints


def cut(sizes: Ints, max_messages: int, max_bytes: int, groups: Ints | None = None) -> Cuts:
    """Ranges of at most so many messages and bytes, none across a group's end; a message too big for any goes alone.

    groups: where each group of messages begins.
    """
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    ranges = np.array([*slices(offsets, max_messages, max_bytes, () if groups is None else groups.tolist())], np.int64)
    return Cuts(*ranges.reshape(-1, 2).T)


def requests(
    messages: pa.RecordBatch, sizes: Ints, topic: str | None, max_messages: int, max_bytes: int
) -> Iterator[Request]:
    """The requests that carry these messages, lazily: encoded a few megabytes at a time.

    topic: of all messages, None when there is a column `topic`.
    """
    if not len(messages):
        return
    topics, topic_codes = _coded(messages, "topic", topic)
    keys, key_codes = _coded(messages, "ordering_key", "")
    room = max_bytes - max(overhead(name) for name in topics)
    if len(topics) == 1 and len(keys) == 1:
        ranges = cut(sizes, max_messages, room)
    else:
        lanes = topic_codes.astype(np.int64) * len(keys) + key_codes
        order, ranges = _rounds(lanes, sizes, max_messages, room)
        messages, sizes = messages.take(pa.array(order)), sizes[order]
        topic_codes, key_codes = topic_codes[order], key_codes[order]
    fields = [name for name in ("data", "attributes", "ordering_key") if name in messages.schema.names]
    columns = pa.StructArray.from_arrays([messages.column(name) for name in fields], fields)
    sent = np.concatenate([[0], np.cumsum(sizes)])
    total = sent[ranges.ends]
    first = 0
    while first < len(ranges.starts):
        until = int(np.searchsorted(total, sent[ranges.starts[first]] + _ENCODED_AT_ONCE, side="right"))
        chosen = slice(first, max(first + 1, until))
        starts, ends = ranges.starts[chosen], ranges.ends[chosen]
        names = [topics[code] for code in topic_codes[starts]]
        bodies = _encoded(names, columns, starts, int(ends[-1]))
        for name, code, body, count in zip(names, key_codes[starts], bodies, (ends - starts).tolist(), strict=True):
            yield Request(name, keys[code], body.as_py(), count)
        first = chosen.stop


def _coded(messages: pa.RecordBatch, column: str, otherwise: str | None) -> tuple[list[str], npt.NDArray[np.int32]]:
    if column not in messages.schema.names:
        assert otherwise is not None, "without a topic of all there is a column of topics"
        return [otherwise], np.zeros(len(messages), dtype=np.int32)
    coded = messages.column(column).dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy()


def _rounds(lanes: Ints, sizes: Ints, max_messages: int, max_bytes: int) -> tuple[Ints, Cuts]:
    """The order in which messages are sent, and the requests in that order: lane by lane, round by round."""
    by_lane = np.argsort(lanes, kind="stable")
    sorted_lanes = lanes[by_lane]
    groups = np.flatnonzero(np.concatenate([[True], sorted_lanes[1:] != sorted_lanes[:-1]]))
    starts, ends = cut(sizes[by_lane], max_messages, max_bytes, groups)
    lane = np.searchsorted(groups, starts, side="right")
    first_of_lane = np.searchsorted(lane, lane, side="left")
    rounds = np.argsort(np.arange(len(starts)) - first_of_lane, kind="stable")
    starts, counts = starts[rounds], (ends - starts)[rounds]
    new_ends = np.cumsum(counts)
    new_starts = new_ends - counts
    order = by_lane[np.arange(len(lanes)) + np.repeat(starts - new_starts, counts)]
    return order, Cuts(new_starts, new_ends)


def _encoded(topics: list[str], messages: pa.StructArray, starts: Ints, end: int) -> pa.BinaryArray:
    offsets = pa.array(np.append(starts, end), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, messages)
    return _handler().record_batch_to_array(pa.RecordBatch.from_pydict({"topic": topics, "messages": lists}))


@lru_cache(maxsize=1)
def _handler() -> Any:
    """The `ptars` handler of PublishRequest, made once per process."""
    from google.pubsub_v1.types import PublishRequest
    from ptars import HandlerPool

    descriptor = PublishRequest.pb().DESCRIPTOR
    return HandlerPool([descriptor.file]).get_for_message(descriptor)

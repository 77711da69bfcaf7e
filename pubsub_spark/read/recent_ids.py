"""Recent ids: the deduplication ids of messages that may be delivered again, each until a time.

There may be millions of them (5,000 messages/s with `idAttribute` are three million in ten minutes), and each batch
looks up and adds a few thousand. So they are runs, as in a log-structured merge tree: immutable, sorted, each for the
ids of one minute; a new one is merged with the one before it unless that is twice as long, and those of a minute that
is over become one. A batch costs what it has itself and not what is recent; a process that has read the file of a run
needs only those of later ones.

An id is its digest of 128 bits: a table of two uint64 arrays, sorted by the first. That two of three million ids have
the same digest happens once in 10^25 times; a hash that can be forged could have a publisher drop the messages of
another, so it is BLAKE2b.

Pure: `now` is an argument, in seconds of any clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from .pull.lease import LEASE_SECONDS

_SLOT_SECONDS = 60.0
_MAX_PREFIX_BITS = 24  # 2 MB of memory, and 16 MB while they are found
Digests: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.uint64]]  # shape (2, number of ids)


def digests(ids: pa.Array) -> Digests:
    """The digests of an Arrow string array, in its order; a null has one, too."""
    texts = ids.cast(pa.binary()).to_pylist()
    found = b"".join(blake2b(text or b"", digest_size=16).digest() for text in texts)
    return np.frombuffer(found, np.uint64).reshape(-1, 2).T


def merged(parts: Sequence[Digests]) -> Digests:
    """The digests of all parts, sorted."""
    joined = np.concatenate([np.empty((2, 0), np.uint64), *parts], axis=1)
    return np.ascontiguousarray(joined[:, np.argsort(joined[0], kind="stable")])  # which merges sorted parts


class IdSet:
    """A set of ids that is looked into: sorted digests, and which prefixes occur in them.

    A prefix has so many bits that one in sixteen occurs at the most, up to a million ids. Ids whose prefix does not
    occur, which are nearly all of those that are not in the set, are told by one look at memory that is small.
    """

    def __init__(self, ids: Digests) -> None:
        self.digests = ids

    @cached_property
    def _prefixes(self) -> tuple[np.uint64, np.ndarray[Any, Any]]:
        """The bits by which a digest is shifted for its prefix, and a bit for each prefix, eight to a byte."""
        bits = min(max(3, 4 + self.digests.shape[1].bit_length()), _MAX_PREFIX_BITS)
        shift = np.uint64(64 - bits)
        occurs = np.zeros(1 << bits, np.bool_)
        occurs[self.digests[0] >> shift] = True
        return shift, np.packbits(occurs, bitorder="little")

    def places(self, wanted: Digests) -> np.ndarray[Any, Any]:
        """The places in `wanted`, which is sorted, of the ids that are in this set."""
        shift, occurs = self._prefixes
        prefixes = wanted[0] >> shift
        looked = np.flatnonzero((occurs[prefixes >> np.uint64(3)] >> (prefixes & np.uint64(7)).astype(np.uint8)) & 1)
        found = [looked[:0]]
        first, second = wanted[:, looked]
        at = np.searchsorted(self.digests[0], first)
        while len(looked):
            same = at < self.digests.shape[1]
            same[same] = self.digests[0, at[same]] == first[same]
            looked, first, second, at = looked[same], first[same], second[same], at[same]
            found.append(looked[self.digests[1, at] == second])
            at = at + 1
        return np.concatenate(found)


def is_in(wanted: Digests, sets: Iterable[IdSet]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the ids are in one of the sets."""
    order = np.argsort(wanted[0])  # neighbours look at the same memory
    ordered = wanted[:, order]
    found = np.zeros(len(order), np.bool_)
    for each in sets:
        found[order[each.places(ordered)]] = True
    return found


def serialized(ids: Digests, **metadata: str | int | None) -> bytes:
    """A file of sorted digests: an Arrow stream, with metadata."""
    texts = {name: str(value) for name, value in metadata.items() if value is not None}
    schema = pa.schema([("first", pa.uint64()), ("second", pa.uint64())], texts)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(each) for each in ids], schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def deserialized(content: Any) -> tuple[Digests, dict[str, str]]:
    """The digests of such a file, and its metadata."""
    table = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    metadata = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    return np.stack([column.to_numpy() for column in table.columns]), metadata


@dataclass(frozen=True)
class Run:
    """Ids that are recent until a time."""

    number: int
    until: float
    ids: IdSet

    @property
    def count(self) -> int:
        """The number of ids."""
        return int(self.ids.digests.shape[1])


@dataclass
class RecentIds:
    """The runs, the oldest first. They are numbered in their order; a number is never used again."""

    runs: list[Run] = field(default_factory=list)
    _last: int = 0

    def add(self, added: Digests, now: float) -> None:
        """Add ids for the longest lease from `now` on, and up to a minute longer."""
        if not added.shape[1]:
            return
        until = ((now + LEASE_SECONDS) // _SLOT_SECONDS + 1) * _SLOT_SECONDS
        before = self.runs[-1].until if self.runs else until
        if before < until and [run.until for run in self.runs].count(before) > 1:
            self._push(self._popped(before, np.inf), before)
        self._push([*self._popped(until, added.shape[1]), added], until)

    def _popped(self, until: float, length: float) -> list[Digests]:
        """Remove the last runs of a slot that are shorter than twice those that come after them, of `length` ids."""
        parts: list[Digests] = []
        while self.runs and self.runs[-1].until == until and self.runs[-1].count < 2 * length:
            parts.append(self.runs.pop().ids.digests)
            length += parts[-1].shape[1]
        return parts

    def _push(self, parts: Sequence[Digests], until: float) -> None:
        self._last += 1
        self.runs.append(Run(self._last, until, IdSet(merged(parts))))

    def forget(self, now: float) -> None:
        """Remove the ids that no message delivered at `now` or later can have as a redelivery."""
        self.runs = [run for run in self.runs if run.until > now]

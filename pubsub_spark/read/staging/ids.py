"""Sets of message ids, in memory and as files of the staging area. Pure.

An id is its digest of 128 bits, because there may be millions: a table of two uint64 arrays, sorted by the first. The
chance that two of three million ids share a digest is one in 10^25. A publisher that can forge a hash could have
another publisher's messages dropped, so the digest is BLAKE2b.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ...errors import DamagedFile

_SCHEMA = pa.schema([("first", pa.uint64()), ("second", pa.uint64())])
_MAX_PREFIX_BITS = 24  # 2 MB of memory, and 16 MB while they are found
Digests: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.uint64]]  # shape (2, number of ids)


def digests(ids: pa.Array) -> Digests:
    """Return the digests of an Arrow string array, in its order. A null also has one."""
    texts = ids.cast(pa.binary()).to_pylist()
    hashes = b"".join(blake2b(text or b"", digest_size=16).digest() for text in texts)
    return np.frombuffer(hashes, np.uint64).reshape(-1, 2).T


def merged(parts: Sequence[Digests]) -> Digests:
    """Return the digests of all parts, sorted, each once."""
    joined = np.concatenate([np.empty((2, 0), np.uint64), *parts], axis=1)
    joined = joined[:, np.argsort(joined[0], kind="stable")]  # which merges sorted parts
    is_copy = np.zeros(joined.shape[1], np.bool_)
    is_copy[1:] = (joined[:, 1:] == joined[:, :-1]).all(axis=0)
    return np.ascontiguousarray(joined[:, ~is_copy])


def message_ids(receipts: Iterable[pa.RecordBatch]) -> Digests:
    return merged([digests(batch.column("message_id")) for batch in receipts])


@dataclass(eq=False)
class IdSet:
    """A set of ids that is looked into: sorted digests, and which prefixes occur in them.

    A prefix has enough bits that at most one in sixteen occurs, up to a million ids. One look at a small memory finds
    nearly all ids outside the set.
    """

    digests: Digests

    @cached_property
    def _prefixes(self) -> tuple[np.uint64, np.ndarray[Any, Any]]:
        """The number of bits to shift a digest to its prefix, and a bit for each prefix, eight to a byte."""
        bits = min(max(3, 4 + self.digests.shape[1].bit_length()), _MAX_PREFIX_BITS)
        shift = np.uint64(64 - bits)
        occurs = np.zeros(1 << bits, np.bool_)
        occurs[self.digests[0] >> shift] = True
        return shift, np.packbits(occurs, bitorder="little")

    def places(self, wanted: Digests) -> np.ndarray[Any, Any]:
        """Return the places in `wanted`, which is sorted, of the ids that are in this set."""
        shift, occurs = self._prefixes
        prefixes = wanted[0] >> shift
        looked = np.flatnonzero((occurs[prefixes >> np.uint64(3)] >> (prefixes & np.uint64(7)).astype(np.uint8)) & 1)
        places = [looked[:0]]
        first, second = wanted[:, looked]
        at = np.searchsorted(self.digests[0], first)
        while len(looked):
            same = at < self.digests.shape[1]
            same[same] = self.digests[0, at[same]] == first[same]
            looked, first, second, at = looked[same], first[same], second[same], at[same]
            places.append(looked[self.digests[1, at] == second])
            at = at + 1
        return np.concatenate(places)


def is_in(wanted: Digests, sets: Iterable[IdSet]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return a mask of the ids that are in one of the sets."""
    order = np.argsort(wanted[0])  # neighbours look at the same memory
    ordered = wanted[:, order]
    are_in = np.zeros(len(order), np.bool_)
    for ids in sets:
        are_in[order[ids.places(ordered)]] = True
    return are_in


def serialized(ids: Digests, **metadata: str | int | float | None) -> bytes:
    """Return a file of sorted digests: an Arrow stream, with metadata."""
    texts = {name: str(value) for name, value in metadata.items() if value is not None}
    schema = _SCHEMA.with_metadata(texts)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(column) for column in ids], schema=schema))
    return bytes(sink.getvalue().to_pybytes())


def deserialized(content: Any, name: str = "ids") -> tuple[Digests, dict[str, str]]:
    """Return the digests of such a file, and its metadata. name: for DamagedFile."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
        metadata = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
        if table.schema != _SCHEMA or sum(column.null_count for column in table.columns):
            raise DamagedFile(name, f"it has the columns {table.schema.names}")
        return np.stack([column.to_numpy() for column in table.columns]), metadata
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DamagedFile(name, str(error)) from None

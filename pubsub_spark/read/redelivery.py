"""Dropping what was seen before: the rows go, the receipts stay, so that it is acknowledged with its batch.

A message is known by its identity (`envelope.RECEIPTS`): its message id, under which Pub/Sub sends it again, or with
`idAttribute` the name that its publisher gave it, under which the publisher may have sent it twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.envelope import Received


def without(received: Sequence[Received], known: pa.Array, distinct: bool = False) -> tuple[list[pa.RecordBatch], int]:
    """The message batches without those whose identity is known, and how many were dropped.

    distinct: drop all but the first of an identity in what was received, too.
    """
    batches = [got.messages for got in received]
    if len(known):
        kept = [_only(got, pc.invert(pc.is_in(got.receipts.column("identity"), known))) for got in received]
        received = kept
    if distinct:
        received = _firsts(received)
    result = [got.messages for got in received]
    return result, sum(b.num_rows for b in batches) - sum(r.num_rows for r in result)


def _firsts(received: Sequence[Received]) -> list[Received]:
    identities = pa.chunked_array([got.receipts.column("identity") for got in received], pa.string())
    rows = pa.table({"identity": identities, "row": np.arange(len(identities))})
    first = rows.group_by("identity").aggregate([("row", "min")]).column("row_min")
    mask = np.zeros(len(identities), dtype=bool)
    mask[first.to_numpy()] = True
    ends = np.cumsum([0, *(got.messages.num_rows for got in received)])
    return [_only(got, pa.array(mask[ends[i] : ends[i + 1]])) for i, got in enumerate(received)]


def _only(received: Received, wanted: pa.BooleanArray) -> Received:
    return Received(received.messages.filter(wanted), received.receipts.filter(wanted))

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


def without(received: Received, known: pa.Array) -> Received:
    """What was received without those whose identity is known."""
    if not len(known):
        return received
    return _only(received, pc.invert(pc.is_in(received.receipts.column("identity"), known)))


def firsts(received: Sequence[Received]) -> list[Received]:
    """What was received with only the first of each identity."""
    identities = pa.chunked_array([got.receipts.column("identity") for got in received], pa.string())
    rows = pa.table({"identity": identities, "row": np.arange(len(identities))})
    first = rows.group_by("identity").aggregate([("row", "min")]).column("row_min")
    mask = np.zeros(len(identities), dtype=bool)
    mask[first.to_numpy()] = True
    ends = np.cumsum([0, *(got.messages.num_rows for got in received)])
    return [_only(got, pa.array(mask[ends[i] : ends[i + 1]])) for i, got in enumerate(received)]


def _only(received: Received, wanted: pa.BooleanArray) -> Received:
    return Received(received.messages.filter(wanted), received.receipts.filter(wanted))

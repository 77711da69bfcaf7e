"""Claims: which part of a batch has the row of a deduplication id, with `idAttribute`.

Two tasks may pull two messages with the same id, each without knowing of the other. After its part is staged a task
writes the ids of it as the next claim of the batch: `claim-1`, `claim-2`, each created once. What an earlier claim has
is not given by the part of a later one.

    part staged, task dies, no claim    -> the next attempt claims
    claim written, task dies            -> the next attempt finds the claim of its part, and gives the same rows
    two attempts of a task              -> one claim: the second finds that of its part
    two tasks at once                   -> `create` has one winner; the other one takes the next number

So no task waits for another, and what a part gives never changes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import count

from ..errors import StagingError
from .recent_ids import Digests, IdSet, deserialized, serialized
from .staging import Staging, claim_path


def claim(staging: Staging, batch: int, part: int, ids: Digests) -> list[IdSet]:
    """Claim the ids of a staged part, sorted, unless that was done before; the claims before it."""
    earlier: list[IdSet] = []
    content = serialized(ids, part=part)
    while True:
        for other, claimed in _claims(staging, batch, len(earlier) + 1):
            if other == part:
                return earlier
            earlier.append(IdSet(claimed))
        path = claim_path(batch, len(earlier) + 1)
        if staging.create(path, [content]):
            return earlier
        if staging.read(path) is None:
            raise StagingError(
                f"The staged files of batch {batch} of `{staging.subscription}` were deleted from `{staging.location}` "
                f"while part {part} was read; Spark tries the task again."
            )


def of_batch(staging: Staging, batch: int, parts: Container[int]) -> dict[int, Digests]:
    """The claims of these parts of a batch: the part of each and its sorted ids, in their order.

    A task that outlives its driver may claim after the manifest; its part is none of the batch, and its messages come
    again.
    """
    return {part: ids for part, ids in _claims(staging, batch, 1) if part in parts}


def _claims(staging: Staging, batch: int, first: int) -> Iterator[tuple[int, Digests]]:
    for number in count(first):
        content = staging.read(claim_path(batch, number))
        if content is None:
            return
        ids, metadata = deserialized(content)
        yield int(metadata["part"]), ids

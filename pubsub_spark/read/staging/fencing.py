"""Fencing: one run of a query owns a staging area. It alone may plan batches in it, stage their parts and delete them.

The later run wins, because a crashed run cannot release the area. The earlier one, if it lives, fails before it plans
its next batch, stages its next part or deletes files of the area. Whatever it staged before is replayed by its
successor. Two runs that are in the same moment past their check meet at part 0 of the batch, which is also create-only.

An epoch is the time of the claim in milliseconds, or one more than the epoch before: it grows even if something else
removes files from the area.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from ...errors import StagingError
from .area import OWNERS, Staging


def claim(staging: Staging, now: float) -> Staging:
    """Create `owners/<epoch>` and return the area as its new owner uses it. now: seconds since the epoch of Unix."""
    claimed = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    # `run` makes the content unlike that of any other claim: a store may refuse the repetition of a put that it took.
    owner = {"run": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid(), "claimed": claimed}
    content = json.dumps(owner).encode()
    epoch = max([int(now * 1000), *(earlier + 1 for earlier in staging.epochs())])
    while not staging.create(f"{OWNERS}/{epoch}", [content]):
        epoch += 1
    staging.delete_before(OWNERS, epoch)
    return replace(staging, epoch=epoch)


def check_owner(staging: Staging) -> None:
    """Raise StagingError if another run has become the owner since this one."""
    if failure := taken_over(staging):
        raise failure


def taken_over(staging: Staging) -> StagingError | None:
    """Return the error to raise if another run has become the owner since this one. Costs one listing.

    If the owners' files are gone, that run may own the successor of the stream.
    """
    latest = max(staging.epochs(), default=0)
    if latest <= staging.epoch and (latest or not staging.is_abandoned):
        return None
    owner: dict[str, object] = {}
    with suppress(ValueError):  # empty or damaged, which changes nothing: its name identifies the owner
        owner = json.loads(bytes(staging.read(f"{OWNERS}/{latest}") or b""))
    process, host, claimed = (owner.get(name, "unknown") for name in ("process", "host", "claimed"))
    return StagingError(
        f"Another query has taken over stream {staging.stream} of `{staging.subscription}` (process {process} on "
        f"`{host}`, since {claimed}), so this one ends. Let one query at a time use a checkpoint location, or a copy "
        "of it. The other run replays the batches that this one has not acknowledged."
    )

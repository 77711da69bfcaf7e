"""The owner of a staging area: the one run of a query that may plan batches in it, stage their parts and delete them.

    claim(staging)       a run becomes the owner when it starts: it creates `owners/<epoch>`, a number above all others
    taken_over(staging)  the error for a run when a later one has become the owner

The later run wins, because after a crash nobody is left to give the area up; the earlier one, if it lives, fails with a
sentence before it plans its next batch, stages its next part or deletes another batch. Whatever it staged before is
replayed by its successor. Two runs that are in the same moment past their check meet at part 0 of the batch, which is
create-only, too. Each check is one listing of `owners/`: one a batch, one a pulled part, one a second for deletions.

An epoch is the time of the claim in milliseconds, or one more than the epoch before: it grows even where something else
removes files from the area.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime

from ..errors import StagingError
from .staging import Staging


def claim(staging: Staging, now: float | None = None) -> Staging:
    """The area as its new owner uses it. now: seconds since the epoch of Unix."""
    now = time.time() if now is None else now
    claimed = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    # `run` makes the content unlike that of any other claim: a store may refuse the repetition of a put that it took.
    owner = {"run": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid(), "claimed": claimed}
    content = json.dumps(owner).encode()
    earlier = staging.epochs()
    epoch = max([int(now * 1000), *(each + 1 for each in earlier)])
    while not staging.create_owner(epoch, content):
        epoch += 1
    for each in earlier:
        staging.delete_owner(each)
    return replace(staging, epoch=epoch)


def taken_over(staging: Staging) -> StagingError | None:
    """The error to raise when another run has become the owner since this one has."""
    latest = max(staging.epochs(), default=0)
    if latest <= staging.epoch:
        return None
    content = staging.owner(latest)
    owner = json.loads(content) if content else {}
    process, host, claimed = (owner.get(name, "unknown") for name in ("process", "host", "claimed"))
    return StagingError(
        f"Another query has taken over stream {staging.stream} of `{staging.subscription}` (process {process} on "
        f"`{host}`, since {claimed}), so this one ends. Let one query at a time use a checkpoint location, or a copy "
        "of it; what this one has not acknowledged, the other gives."
    )

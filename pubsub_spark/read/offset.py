"""The offset of this source, and its meaning.

    {"version": 1, "stream": "0c8f...", "batch": 7, "subscription": "projects/p/subscriptions/s", "area": "5e1c..."}

`batch` is the number of the last micro-batch that the offset includes: a query at this offset has everything up to and
including batch 7, and the next batch is 8. 0 is the start. The messages of a batch are in the staging area, under the
same `stream` and number.

`stream` is drawn for a new checkpoint, so that it never meets the staged files of an old one. A new one is drawn when a
query continues in another area, so that a later return to the old area does not meet the files there.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import StagingError

VERSION = 1


@dataclass(frozen=True)
class Offset:
    """The end of a micro-batch: everything up to and including `batch` of `stream`.

    subscription: its full name, so that a checkpoint is not used on another one. area: a digest of the
    `stagingLocation` of the batch. Both are None in a checkpoint of an older release, until its next batch.
    """

    stream: str
    batch: int
    subscription: str | None = None
    area: str | None = None

    @classmethod
    def start(cls, subscription: str | None = None, area: str | None = None) -> Offset:
        """Return the offset before the first batch of a new stream."""
        return cls(uuid.uuid4().hex, 0, subscription, area)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark writes it into its offset log."""
        known = {"subscription": self.subscription, "area": self.area}
        known = {name: value for name, value in known.items() if value is not None}
        return {"version": VERSION, "stream": self.stream, "batch": self.batch, **known}

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Offset:
        """Return the offset in a checkpoint. Raises StagingError if a newer release or another source wrote it."""
        if text.get("version") != VERSION or not {"stream", "batch"} <= text.keys():
            raise StagingError(
                f"The checkpoint holds the offset `{dict(text)}`, which this release of pubsub_spark cannot read (it "
                f"reads version {VERSION}). Use the release that wrote it, or a new checkpoint location."
            )
        return cls(str(text["stream"]), int(text["batch"]), text.get("subscription"), text.get("area"))

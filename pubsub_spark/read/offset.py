"""The offset of this source, and its meaning.

    {"version": 1, "stream": "0c8f...", "batch": 7}

`batch` is the number of the last micro-batch that the offset includes: a query at this offset has everything up to and
with batch 7, and the next batch is 8. 0 is the start. The messages of a batch are not in the offset. They are in the
staging area, under the same `stream` and number, from before Spark has the first row until it has committed the batch.

`stream` is drawn when a checkpoint is new, and lives in Spark's checkpoint from then on. A new one is drawn when a
query continues in an area that has no files of it. A new checkpoint therefore never meets the staged files of an old
one, and a query that returns to an area does not meet its own old files. Both fields survive a restart. Nothing else
does.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import StagingError

VERSION = 1


@dataclass(frozen=True)
class Offset:
    """The end of a micro-batch: everything up to and with `batch` of `stream`.

    subscription: its full name. area: a digest of the batch's `stagingLocation`. Both are None in
    a checkpoint of an older release, until its next batch.
    """

    stream: str
    batch: int
    subscription: str | None = None
    area: str | None = None

    @classmethod
    def start(cls, subscription: str | None = None) -> Offset:
        """Return the offset before the first batch of a new stream of a subscription (a full name)."""
        return cls(uuid.uuid4().hex, 0, subscription)

    @property
    def next(self) -> Offset:
        """The end of the batch after this one."""
        return replace(self, batch=self.batch + 1)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark writes it into its offset log."""
        known = {"subscription": self.subscription, "area": self.area}
        known = {name: value for name, value in known.items() if value is not None}
        return {"version": VERSION, "stream": self.stream, "batch": self.batch, **known}

    @classmethod
    def from_json(cls, text: Mapping[str, Any]) -> Offset:
        """Return the offset in a checkpoint. Raises StagingError if a newer release wrote it, or another source."""
        if text.get("version") != VERSION or not {"stream", "batch"} <= text.keys():
            raise StagingError(
                f"The checkpoint holds the offset `{dict(text)}`, which this release of pubsub_spark cannot read (it "
                f"reads version {VERSION}). Use the release that wrote it, or a new checkpoint location."
            )
        return cls(str(text["stream"]), int(text["batch"]), text.get("subscription"), text.get("area"))

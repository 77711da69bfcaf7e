"""The streams that have files in a staging location, for `pubsub-spark staging`.

A stream is found by the token that its driver wrote (`staging`); other files in the location are never touched. A
stream whose files have not changed for long is dead or idle: only a person knows which, so nothing is removed without
being asked for. Removing one never loses a message; messages that were not acknowledged are delivered again.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

import obstore

from .staging import REFUSED, TOKEN, Staging, local_folder, open_store, unusable

_TOKEN = f"/{TOKEN}"


@dataclass
class StagedStream:
    """The files of one stream in the staging area; `changed` is the time when the youngest was written."""

    staging: Staging
    changed: datetime.datetime
    files: int = 0
    bytes: int = 0
    batches: set[int] = field(default_factory=set)

    def remove(self) -> int:
        """Delete the stream's files, and no others; how many they were."""
        return self.staging.delete()


def find(location: str) -> list[StagedStream]:
    """All streams in a location (a path or URL), those unchanged for longest first; StagingError if it is refused.

    A local folder that does not exist has none, as a bucket has none under a prefix, and is not created.
    """
    folder = local_folder(location)
    if folder is not None and not folder.exists():
        return []
    try:
        entries = [entry for page in obstore.list(open_store(location)) for entry in page]
    except REFUSED as error:
        raise unusable(location, error) from None
    found: dict[str, StagedStream] = {}
    for entry in entries:
        path = str(entry["path"])
        if path.endswith(_TOKEN) and path.count("/") == 3:
            project, subscription, stream, _ = path.split("/")
            staging = Staging(location, f"projects/{project}/subscriptions/{subscription}", stream)
            found[path.removesuffix(_TOKEN)] = StagedStream(staging, entry["last_modified"])
    for entry in entries:
        _add(found, entry)
    return sorted(found.values(), key=lambda stream: stream.changed)


def _add(found: dict[str, StagedStream], entry: Any) -> None:
    project, subscription, stream, *rest = [*str(entry["path"]).split("/"), "", "", ""][:5]
    owner = found.get(f"{project}/{subscription}/{stream}")
    if owner is not None:
        owner.files += 1
        owner.bytes += int(entry["size"])
        owner.changed = max(owner.changed, entry["last_modified"])
        if rest[0].isdigit():
            owner.batches.add(int(rest[0]))

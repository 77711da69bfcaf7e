"""The streams that have files in a staging location, for `pubsub-spark staging`.

A stream is found by the token that its driver wrote (`area`); other files in the location are never touched. A
stream whose files have not changed for long is dead or idle: only a person knows which, so nothing is removed without
being asked for. Removing one never loses a message; messages that were not acknowledged are delivered again.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from .area import TOKEN, Staging
from .store import Entry, open_store

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
    """Return all streams in a location (a path or URL), those unchanged for longest first.

    A local folder that does not exist has none and is not created. Raises StagingError if the store refuses.
    """
    store = open_store(location)
    entries = store.entries()
    found: dict[str, StagedStream] = {}
    for entry in entries:
        path = entry.path
        if path.endswith(_TOKEN) and path.count("/") == 3:
            project, subscription, stream, _ = path.split("/")
            staging = Staging(store, f"projects/{project}/subscriptions/{subscription}", stream)
            found[path.removesuffix(_TOKEN)] = StagedStream(staging, entry.changed)
    for entry in entries:
        _add(found, entry)
    return sorted(found.values(), key=lambda stream: stream.changed)


def _add(found: dict[str, StagedStream], entry: Entry) -> None:
    project, subscription, stream, *rest = [*entry.path.split("/"), "", "", ""][:5]
    owner = found.get(f"{project}/{subscription}/{stream}")
    if owner is not None:
        owner.files += 1
        owner.bytes += entry.size
        owner.changed = max(owner.changed, entry.changed)
        if rest[0].isdigit():
            owner.batches.add(int(rest[0]))

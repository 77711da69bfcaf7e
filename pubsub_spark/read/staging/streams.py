"""The streams that have files in a staging location, for `pubsub-spark staging`.

A stream is found by the token that its driver wrote (`area`). A stream whose files have not changed for long is dead or
idle: only a person knows which, so nothing is removed without being asked for. Removing one never loses a message.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from dataclasses import dataclass

from .area import TOKEN, Staging
from .store import Entry, open_store


@dataclass(frozen=True)
class StagedStream:
    """The files of one stream in the staging area. changed: when the youngest was written."""

    staging: Staging
    changed: datetime.datetime
    files: int
    bytes: int
    batches: set[int]


def find(location: str, credentials_json: str | None = None) -> list[StagedStream]:
    """Return all streams in a location (a path or URL), those unchanged for longest first.

    credentials_json: see `Store`. Raises StagingError if the store refuses.
    """
    store = open_store(location, credentials_json)
    folders: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for entry in store.entries():
        *folder, path = entry.path.split("/", 3)
        folders[tuple(folder)].append(entry._replace(path=path))
    streams = [
        StagedStream(
            Staging(store, f"projects/{folder[0]}/subscriptions/{folder[1]}", folder[2]),
            changed=max(file.changed for file in files),
            files=len(files),
            bytes=sum(file.size for file in files),
            batches={int(batch) for batch in (file.path.partition("/")[0] for file in files) if batch.isdigit()},
        )
        for folder, files in folders.items()
        if len(folder) == 3 and any(file.path == TOKEN for file in files)
    ]
    return sorted(streams, key=lambda stream: stream.changed)

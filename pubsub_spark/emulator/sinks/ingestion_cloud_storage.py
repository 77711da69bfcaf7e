"""Cloud Storage as a source: the objects of a bucket, once each.

An object is read once two listings agree on it, so never while it is still being written. It is read again only if it
changes. With a data directory that also holds after a restart, unless the emulator was killed while it read the object.
An object is skipped if its name is not UTF-8, which obstore cannot represent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import obstore

from pubsub_spark.emulator.sinks import ingestion_format
from pubsub_spark.emulator.sinks.destination import DestinationError
from pubsub_spark.emulator.sinks.ingestion_source import Marks, Portion, SourceError
from pubsub_spark.emulator.sinks.object_glob import Glob
from pubsub_spark.emulator.sinks.storage_root import StorageRoot, first_line

_log = logging.getLogger("pubsub_spark.emulator")

_DENIED = (PermissionError, obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError)
_STATES = {"PERMISSION_DENIED": "CLOUD_STORAGE_PERMISSION_DENIED", "NOT_FOUND": "BUCKET_NOT_FOUND"}
_Seen = tuple[str, str, int]  # name, e-tag or time, and size of an object


class CloudStorageSource:
    def __init__(self, root: StorageRoot, settings: Any, marks: Marks) -> None:
        self._root = root
        self._settings = settings
        self._glob = Glob(settings.match_glob)
        self._since = settings.minimum_object_create_time.ToNanoseconds() / 1e9
        self._candidates: set[_Seen] = set()  # from the last listing
        self._marks = marks
        self._passed_over: set[str] = set()  # the logged messages about names of unreadable objects

    def new(self) -> Iterator[Portion]:
        try:
            store = self._root.open(self._settings.bucket)
            objects = set(self._objects(store))
            for path, version, size in sorted(objects & self._candidates):
                part, mark = f"{self._settings.bucket}/{path}", f"{version} {size}"
                if self._marks.get(part) != mark:
                    content = bytes(obstore.get(store, path).bytes())
                    yield Portion(f"`{path}`", ingestion_format.messages(self._settings, content), part, mark)
            self._candidates = objects
        except DestinationError as problem:
            raise SourceError(_STATES.get(problem.state, "ACTIVE"), str(problem)) from None
        except _DENIED as problem:
            sentence = f"The bucket `{self._settings.bucket}` may not be read. Grant access ({first_line(problem)})."
            raise SourceError(_STATES["PERMISSION_DENIED"], sentence) from None
        except (OSError, obstore.exceptions.BaseError) as problem:  # deleted meanwhile, or a store that is away
            sentence = f"The bucket `{self._settings.bucket}` cannot be read now: {first_line(problem)}"
            raise SourceError("ACTIVE", sentence) from None

    def _objects(self, store: Any) -> Iterator[_Seen]:
        for entry in self._listed(store):
            changed = entry["last_modified"].timestamp()
            if changed >= self._since and self._glob.matches(entry["path"]):
                yield entry["path"], str(entry["e_tag"] or changed), entry["size"]

    def _listed(self, store: Any) -> Iterator[Any]:
        chunks = iter(obstore.list(store, chunk_size=1))  # in a larger chunk, a bad name would lose the others
        while True:
            try:
                yield from next(chunks)
            except StopIteration:
                return
            except obstore.exceptions.InvalidPathError as problem:
                self._pass_over(first_line(problem))

    def _pass_over(self, why: str) -> None:
        if why not in self._passed_over:
            self._passed_over.add(why)
            _log.warning("An object of the bucket `%s` is not ingested. Rename it: %s", self._settings.bucket, why)

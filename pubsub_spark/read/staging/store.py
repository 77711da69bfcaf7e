"""`Store`: where a staging area is kept, a folder or a prefix of `gs://`, `s3://`, `az://` and others, through obstore.

The rule is create-only: `create` succeeds for one writer of a path, and every reader gets the bytes of that one. What
`create` and `put` have written is durable when they return. obstore's store of local files does not fsync. So a local
file is written under a temporary name, fsynced and renamed, and its folder is fsynced.

If the file system or the service refuses a call, the call raises StagingError.
"""

from __future__ import annotations

import errno
import getpass
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, MemoryStore, from_url

from ...errors import MissingFile, StagingError
from .part import Buffer

T = TypeVar("T")
# How many levels below its root exist before anyone writes: `/Volumes/CATALOG/SCHEMA/VOLUME` on Databricks, and the
# disks on macOS, where `/Volumes/DISK` is one that is mounted.
_MOUNTED_LEVELS = {"/Volumes": 3, "/dbfs": 0, "/Workspace": 0}
_VOLUMES_LEVELS_OF_MACOS = 1
# `dbfs:/folder`, as Hadoop writes it; and `file://host/folder`, which would be a folder of the working directory.
_NO_LOCATION = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:(?!//)|file://(?!/)")
_TEMPORARY = ".unfinished-"  # in the name of a local file until it is durable
_LEFTOVER_SECONDS = 86400  # after which such a file is that of a dead writer

# obstore raises Python's own errors for some stores and its own for others.
_EXISTS = (FileExistsError, AlreadyExistsError)
_MISSING = (FileNotFoundError, NotFoundError)
_REFUSED = (OSError, BaseError, NotImplementedError)  # the last from a store of HTTP, which has no create-only writes


class Entry(NamedTuple):
    """A stored file. path: relative to the store's location. changed: when it was written."""

    path: str
    size: int
    changed: datetime


def open_store(location: str) -> Store:
    """Return the store at a path or URL.

    Raises StagingError if it is neither, or is a folder of Databricks or of a disk that is not mounted here.
    """
    if location.startswith("~") or _NO_LOCATION.match(location):
        raise StagingError(
            f"`stagingLocation` `{location}` is neither a path nor a URL. Give the whole path from `/` on, or a URL "
            "like `gs://bucket/folder`."
        )
    folder = _folder(location)
    mounted = None if folder is None else mounted_folder(folder, sys.platform)
    if mounted is not None and not mounted.exists():
        raise StagingError(
            f"`stagingLocation` `{location}` is a folder of Databricks or of a disk that is not mounted: there is no "
            f"`{mounted}` on this machine. Give a folder of this machine, or a URL of an object store."
        )
    return Store(location)


def default_location() -> str:
    """Return this user's folder under the system's temporary folder: right for `local[*]`, wrong for a cluster."""
    return str(Path(tempfile.gettempdir()) / f"pubsub_spark-{getpass.getuser()}")


def mounted_folder(folder: Path, platform: str) -> Path | None:
    """Return the folder above (or the same) that is mounted and never made, or None if there is no such folder.

    platform: as `sys.platform`.
    """
    for top, levels in _MOUNTED_LEVELS.items():
        if folder.is_relative_to(top):
            if top == "/Volumes" and platform == "darwin":
                levels = _VOLUMES_LEVELS_OF_MACOS
            return Path(*folder.parts[: len(Path(top).parts) + levels])
    return None


@dataclass(frozen=True)
class Store:
    """The files under a location, which is a path or URL. A plain value: it connects when it is used.

    Paths are relative to the location, with `/` between their parts. A prefix is a folder with a final slash, or "" for
    the whole location. Local files and folders are open to this user alone.
    """

    location: str

    @property
    def is_local(self) -> bool:
        """Whether it is files of this machine."""
        return _folder(self.location) is not None

    def create(self, path: str, buffers: Sequence[Buffer]) -> bool:
        """Write buffers to a path that does not exist; return False if another writer was first.

        A store may accept a write, fail to answer, and refuse its repetition. So True if the same bytes are stored.
        """
        try:
            self._write(path, buffers, is_new=True)
        except _EXISTS:
            stored = self.read(path)
            return stored is not None and bytes(stored) == b"".join(buffers)
        return True

    def put(self, path: str, content: Buffer) -> None:
        """Write a file, or replace it."""
        self._write(path, [content], is_new=False)

    def read(self, path: str) -> Buffer | None:
        """Return the content of a file, or None if it does not exist."""
        with suppress(*_MISSING):
            return self._ask(lambda: memoryview(obstore.get(self._store, path).bytes()), _MISSING)
        return None

    def read_range(self, path: str, start: int, end: int) -> Buffer:
        """Return the bytes from `start` up to `end` of a file; raise MissingFile if it does not exist."""
        try:
            return self._ask(lambda: memoryview(obstore.get_range(self._store, path, start=start, end=end)), _MISSING)
        except _MISSING:
            raise MissingFile(path, self.location) from None
        except StagingError:  # obstore also refuses a range that begins at the end of a file
            content = self.read(path)
            if content is None or len(content) > start:
                raise
            return b""

    def list(self, prefix: str) -> dict[str, int]:
        """Return the size of each file under a prefix, by its path relative to the prefix."""
        return {entry.path.removeprefix(prefix): entry.size for entry in self.entries(prefix)}

    def entries(self, prefix: str = "") -> Sequence[Entry]:
        """Return the files under a prefix; none if a local folder does not exist."""
        metas = self._ask(lambda: [meta for page in obstore.list(self._store, prefix) for meta in page])
        files = (Entry(str(meta["path"]), int(meta["size"]), meta["last_modified"]) for meta in metas)
        return [file for file in files if _TEMPORARY not in file.path]

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under a prefix."""
        folders = self._ask(lambda: obstore.list_with_delimiter(self._store, prefix)["common_prefixes"])
        return [str(folder).rstrip("/").rpartition("/")[2] for folder in folders]

    def delete(self, path: str) -> None:
        """Delete a file if it exists. Local folders that are empty after it are removed."""
        with suppress(*_MISSING):
            self._ask(lambda: obstore.delete(self._store, path), _MISSING)

    def prepare(self, folder: str) -> None:
        """Make a local folder, and remove the leftovers of dead writers; StagingError if it cannot be create-only."""
        location = _folder(self.location)
        if location is not None:
            self._ask(lambda: _prepare(location / folder, self.location))

    @property
    def _store(self) -> Any:
        """The obstore store; an empty one for a local folder that does not exist, which the first write makes."""
        folder = _folder(self.location)
        return _connected(self.location) if folder is None or folder.exists() else MemoryStore()

    def _write(self, path: str, buffers: Sequence[Buffer], is_new: bool) -> None:
        """Write a file; raise one of _EXISTS if it must be new and is not."""
        mode: Any = "create" if is_new else "overwrite"
        if self.is_local:
            self._ask(lambda: self._write_durably(path, buffers, is_new), _EXISTS)
        else:
            self._ask(lambda: obstore.put(self._store, path, buffers, mode=mode), _EXISTS)

    def _write_durably(self, path: str, buffers: Sequence[Buffer], is_new: bool) -> None:
        """Write a local file. Its content is durable before it has its name, and its name when this returns."""
        temporary = f"{path}{_TEMPORARY}{uuid.uuid4().hex}"
        file = Path(str(_folder(self.location)), temporary)
        changed = [file.parent, *_make_private(file.parent)]
        try:
            obstore.put(self._store, temporary, buffers, use_multipart=False)
            with suppress(OSError):  # a file system without modes
                file.chmod(0o600)
            _sync(file)
            obstore.rename(self._store, temporary, path, overwrite=not is_new)
        finally:
            file.unlink(missing_ok=True)
            for folder in changed:  # also if another writer was first, who may not have synced them yet
                _sync(folder)

    def _ask(self, call: Callable[[], T], passed: tuple[type[Exception], ...] = ()) -> T:
        """Return the result of a call; StagingError if the store refuses it, unless by one of the errors `passed`."""
        try:
            return call()
        except _REFUSED as error:
            if isinstance(error, passed):
                raise
            raise StagingError(
                f"The staging area `{self.location}` cannot be used: {str(error).splitlines()[0]}. Give "
                "`stagingLocation` a path or URL with room, where driver and executors may read, write and delete."
            ) from None


def _folder(location: str) -> Path | None:
    """Return the folder of a location, or None for a URL of an object store."""
    is_url = "://" in location and not location.startswith("file://")
    return None if is_url else Path(location.removeprefix("file://")).absolute()


@lru_cache(maxsize=16)
def _connected(location: str) -> Any:
    """Return the obstore store at a location, one in each process; StagingError if it cannot be opened."""
    folder = _folder(location)
    try:
        return from_url(location) if folder is None else LocalStore(folder, automatic_cleanup=True)
    except Exception as error:
        raise StagingError(
            f"`stagingLocation` `{location}` cannot be opened: {str(error).splitlines()[0]}. Give a path, or a URL of "
            "`gs://`, `s3://`, `az://` or `file://`."
        ) from None


def _prepare(folder: Path, location: str) -> None:
    """See `Store.prepare`. A local file is create-only by a hard link."""
    for changed in _make_private(folder):
        _sync(changed)
    for leftover in [Path(top, name) for top, _, names in os.walk(folder) for name in names if _TEMPORARY in name]:
        with suppress(OSError):  # removed meanwhile, or a folder with files in it
            if time.time() - leftover.stat().st_mtime > _LEFTOVER_SECONDS:
                leftover.unlink()
                leftover.parent.rmdir()
    with tempfile.NamedTemporaryFile(dir=folder, suffix=_TEMPORARY) as probe:
        other = Path(f"{probe.name}2")
        try:
            other.hardlink_to(probe.name)
        except OSError as error:
            raise StagingError(
                f"The file system of `stagingLocation` `{location}` has no hard links ({error.strerror}). Without them "
                "a part could be written twice. Give a URL of an object store, or a folder of another file system."
            ) from None
        other.unlink()


def _sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable if its file system can."""
    with suppress(FileNotFoundError):  # deleted meanwhile
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(handle)


def _make_private(folder: Path) -> list[Path]:
    """Make a folder with those above it, open to this user alone; return the folders that have new folders in them.

    Folders that exist stay as they are. The caller syncs the changed folders last: much of it is done by then.
    """
    changed: list[Path] = []
    if not folder.is_dir():
        for path in (*reversed(folder.parents), folder):
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                changed.append(path.parent)
    return changed

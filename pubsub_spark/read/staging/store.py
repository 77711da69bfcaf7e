"""Where a staging area is kept: a folder, or a prefix of an object store.

    open_store(location)   the `Store` of a path or URL
    FileStore              local files
    ObjectStore            `gs://`, `s3://`, `az://` and others, through obstore

The rule is create-only: `create` succeeds for one writer of a path, and every reader gets the bytes of that one. What
`create` and `put` have written is durable when they return. obstore's own store of local files does not fsync, so
`FileStore` writes a temporary file, fsyncs it, links it to its name and fsyncs the folder.

A store is a plain value: it can be pickled and hashed, and connects when it is used. If the file system or the service
refuses a call, the call raises StagingError.
"""

from __future__ import annotations

import errno
import getpass
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import from_url

from ...errors import MissingFile, StagingError
from .part import Buffer

# How many levels below its root exist before anyone writes: `/Volumes/CATALOG/SCHEMA/VOLUME` on Databricks, and the
# disks on macOS, where `/Volumes/DISK` is one that is mounted.
_MOUNTED_LEVELS = {"/Volumes": 3, "/dbfs": 0, "/Workspace": 0}
_VOLUMES_LEVELS_OF_MACOS = 1
# `dbfs:/folder`, as Hadoop writes it; and `file://host/folder`, which would be a folder of the working directory.
_NO_LOCATION = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:(?!//)|file://(?!/)")
_TEMPORARY = ".unfinished-"  # prefix of the file that a writer has not linked to its name yet
_WRITE_ATTEMPTS = 3  # another thread may have removed the folder, because it was empty
_WRITE_BUFFER_BYTES = 2**16  # for the small buffers of a part; larger ones are written as they are

# obstore raises Python's own errors for some stores and its own for others.
_EXISTS = (FileExistsError, AlreadyExistsError)
_MISSING = (FileNotFoundError, NotFoundError)
_REFUSED = (OSError, BaseError, NotImplementedError)  # the last from a store of HTTP, which has no create-only writes


class Entry(NamedTuple):
    """A stored file. path: relative to the store's location. changed: when it was written."""

    path: str
    size: int
    changed: datetime


class Store(Protocol):
    """What a staging area needs of its store. Paths are relative to the location, with `/` between their parts.

    A prefix is a folder with a final slash, or "" for the whole location. is_local: whether it
    is files of this machine.
    """

    @property
    def location(self) -> str: ...
    @property
    def is_local(self) -> bool: ...

    def create(self, path: str, buffers: Sequence[Buffer]) -> bool:
        """Write buffers to a path that does not exist; return False if another writer was first.

        A store may accept a write, fail to answer, and refuse its repetition. So True if the same bytes are stored.
        """

    def put(self, path: str, content: Buffer) -> None:
        """Write a file, or replace it."""

    def read(self, path: str) -> Buffer | None:
        """Return the content of a file, or None if it does not exist."""

    def read_range(self, path: str, start: int, end: int) -> Buffer:
        """Return the bytes from `start` up to `end` of a file; raise MissingFile if it does not exist."""

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""

    def list(self, prefix: str) -> dict[str, int]:
        """Return the size of each file under a prefix, by its path relative to the prefix."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under a prefix."""

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""

    def prepare(self, folder: str) -> None:
        """Make a folder that only this user can open, and check that files can be created only once in it."""


def open_store(location: str) -> FileStore | ObjectStore:
    """Return the store at a path or URL; raise StagingError if the location is neither."""
    return ObjectStore(location) if local_folder(location) is None else FileStore(location)


def default_location() -> str:
    """Return this user's folder under the system's temporary folder: right for `local[*]`, wrong for a cluster."""
    return str(Path(tempfile.gettempdir()) / f"pubsub_spark-{getpass.getuser()}")


def local_folder(location: str) -> Path | None:
    """Return the folder that a location names, or None for a URL of an object store.

    Raises StagingError if it is neither, or is a folder of Databricks or of a disk that is not mounted here.
    """
    if location.startswith("~") or _NO_LOCATION.match(location):
        raise StagingError(
            f"`stagingLocation` `{location}` is neither a path nor a URL. Give the whole path from `/` on, or a URL "
            "like `gs://bucket/folder`."
        )
    if "://" in location and not location.startswith("file://"):
        return None
    folder = _folder(location)
    mounted = mounted_folder(folder, sys.platform)
    if mounted is not None and not mounted.exists():
        raise StagingError(
            f"`stagingLocation` `{location}` is a folder of Databricks or of a disk that is not mounted: there is no "
            f"`{mounted}` on this machine. Give a folder of this machine, or a URL of an object store."
        )
    return folder


def _folder(location: str) -> Path:
    return Path(location.removeprefix("file://")).absolute()


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


@contextmanager
def _refusals(location: str) -> Iterator[None]:
    """Raise StagingError if the store at a location refuses a call."""
    try:
        yield
    except StagingError:
        raise
    except _REFUSED as error:
        raise StagingError(
            f"The staging area `{location}` cannot be used: {str(error).splitlines()[0]}. Give `stagingLocation` a "
            "path or URL with room, where driver and executors may read, write and delete."
        ) from None


def _is_stored(stored: Buffer | None, buffers: Sequence[Buffer]) -> bool:
    """Whether what is stored is what the buffers have."""
    return stored is not None and len(stored) == sum(map(len, buffers)) and bytes(stored) == b"".join(buffers)


@dataclass(frozen=True)
class FileStore:
    """Files of a folder, which only this user can open. location: an absolute path, or a URL of `file://`."""

    location: str
    is_local = True

    @property
    def _folder(self) -> Path:
        return _folder(self.location)

    def create(self, path: str, buffers: Sequence[Buffer]) -> bool:
        """See `Store.create`."""
        return self._write(path, buffers, os.link) or _is_stored(self.read(path), buffers)

    def put(self, path: str, content: Buffer) -> None:
        """See `Store.put`."""
        self._write(path, [content], os.replace)

    def _write(self, path: str, buffers: Sequence[Buffer], publish: Callable[[str, Path], None]) -> bool:
        """Write a file durably; return False if `publish` finds that another file has its name."""
        file = self._folder / path
        changed = [file.parent]  # also if another writer has made the file, who may not have synced its name yet
        with _refusals(self.location):
            for attempt in range(1, _WRITE_ATTEMPTS + 1):
                try:
                    changed += _make_private(file.parent)
                    is_first = _write_file(file, buffers, publish)
                    for folder in changed:
                        _sync_folder(folder)
                    break
                except FileNotFoundError:
                    if attempt == _WRITE_ATTEMPTS:
                        raise
        return is_first

    def read(self, path: str) -> Buffer | None:
        """See `Store.read`."""
        with _refusals(self.location):
            try:
                return (self._folder / path).read_bytes()
            except FileNotFoundError:
                return None

    def read_range(self, path: str, start: int, end: int) -> Buffer:
        """See `Store.read_range`."""
        with _refusals(self.location):
            try:
                with (self._folder / path).open("rb") as file:
                    file.seek(start)
                    return file.read(end - start)
            except FileNotFoundError:
                raise MissingFile(path, self.location) from None

    def exists(self, path: str) -> bool:
        """See `Store.exists`."""
        with _refusals(self.location):
            return (self._folder / path).exists()

    def list(self, prefix: str) -> dict[str, int]:
        """See `Store.list`."""
        return {entry.path.removeprefix(prefix): entry.size for entry in self.entries(prefix)}

    def entries(self, prefix: str = "") -> Sequence[Entry]:
        """Return the files under a prefix; none if the folder does not exist."""
        files: list[Entry] = []
        with _refusals(self.location):
            for file in _files(self._folder / prefix):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    stat = file.stat()
                    path = Path(file.path).relative_to(self._folder).as_posix()
                    files.append(Entry(path, stat.st_size, datetime.fromtimestamp(stat.st_mtime, UTC)))
        return files

    def folders(self, prefix: str) -> Sequence[str]:
        """See `Store.folders`."""
        with _refusals(self.location), suppress(FileNotFoundError), os.scandir(self._folder / prefix) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
        return []

    def delete(self, path: str) -> None:
        """See `Store.delete`. Folders that are empty after it are removed."""
        file = self._folder / path
        with _refusals(self.location), suppress(FileNotFoundError):
            file.unlink()
            for folder in list(file.parents)[: len(Path(path).parents) - 1]:
                if not _remove_if_empty(folder):
                    break

    def prepare(self, folder: str) -> None:
        """See `Store.prepare`: obstore and this class create a file only once by a hard link."""
        with _refusals(self.location):
            for changed in _make_private(self._folder / folder):
                _sync_folder(changed)
            with tempfile.NamedTemporaryFile(dir=self._folder / folder, prefix=_TEMPORARY) as probe:
                other = Path(f"{probe.name}-2")
                try:
                    other.hardlink_to(probe.name)
                except OSError as error:
                    raise StagingError(
                        f"The file system of `stagingLocation` `{self.location}` has no hard links ({error.strerror}). "
                        "Without them a part could be written twice. Give a URL of an object store, or a folder of "
                        "another file system."
                    ) from None
                other.unlink()


def _write_file(file: Path, buffers: Sequence[Buffer], publish: Callable[[str, Path], None]) -> bool:
    """Fsync a temporary file, then have `publish` give it its name; return False if another file has this name."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=_TEMPORARY)  # its mode is 0600
    try:
        with os.fdopen(handle, "wb", _WRITE_BUFFER_BYTES) as stream:
            stream.writelines(buffers)
            stream.flush()
            os.fsync(handle)
        publish(temporary, file)
    except FileExistsError:
        return False
    finally:
        Path(temporary).unlink(missing_ok=True)  # it is missing if it was renamed
    return True


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, if its file system can."""
    handle = os.open(folder, os.O_RDONLY)
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


def _files(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    """The files in a folder and below, without those that are being written."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif not entry.name.startswith(_TEMPORARY):
                yield entry


def _remove_if_empty(folder: Path) -> bool:
    """Remove a folder that has no files but those of dead writers; return whether it is gone."""
    with os.scandir(folder) as entries:
        leftovers = []
        for entry in entries:
            if not entry.name.startswith(_TEMPORARY):
                return False
            leftovers.append(entry.path)
    for path in leftovers:
        Path(path).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


@dataclass(frozen=True)
class ObjectStore:
    """Objects under a URL, through obstore, which connects once in each process."""

    location: str
    is_local = False

    @property
    def _store(self) -> Any:
        return _connected(self.location)

    def create(self, path: str, buffers: Sequence[Buffer]) -> bool:
        """See `Store.create`."""
        with _refusals(self.location):
            try:
                obstore.put(self._store, path, buffers, mode="create")
            except _EXISTS:
                return _is_stored(self.read(path), buffers)
        return True

    def put(self, path: str, content: Buffer) -> None:
        """See `Store.put`."""
        with _refusals(self.location):
            obstore.put(self._store, path, bytes(content))

    def read(self, path: str) -> Buffer | None:
        """See `Store.read`."""
        with _refusals(self.location):
            try:
                return memoryview(obstore.get(self._store, path).bytes())
            except _MISSING:
                return None

    def read_range(self, path: str, start: int, end: int) -> Buffer:
        """See `Store.read_range`."""
        with _refusals(self.location):
            try:
                return memoryview(obstore.get_range(self._store, path, start=start, end=end))
            except _MISSING:
                raise MissingFile(path, self.location) from None

    def exists(self, path: str) -> bool:
        """See `Store.exists`."""
        with _refusals(self.location):
            try:
                obstore.head(self._store, path)
            except _MISSING:
                return False
        return True

    def list(self, prefix: str) -> dict[str, int]:
        """See `Store.list`."""
        return {entry.path.removeprefix(prefix): entry.size for entry in self.entries(prefix)}

    def entries(self, prefix: str = "") -> Sequence[Entry]:
        """Return the files under a prefix."""
        with _refusals(self.location):
            metas = [meta for page in obstore.list(self._store, prefix) for meta in page]
        return [Entry(str(meta["path"]), int(meta["size"]), meta["last_modified"]) for meta in metas]

    def folders(self, prefix: str) -> Sequence[str]:
        """See `Store.folders`."""
        with _refusals(self.location):
            folders = obstore.list_with_delimiter(self._store, prefix)["common_prefixes"]
        return [str(folder).rstrip("/").rpartition("/")[2] for folder in folders]

    def delete(self, path: str) -> None:
        """See `Store.delete`."""
        with _refusals(self.location), suppress(*_MISSING):
            obstore.delete(self._store, path)

    def prepare(self, folder: str) -> None:
        """See `Store.prepare`; objects have no folders."""


@lru_cache(maxsize=16)
def _connected(location: str) -> Any:
    """The obstore store at a URL; StagingError if it cannot be opened."""
    try:
        return from_url(location)
    except Exception as error:
        raise StagingError(
            f"`stagingLocation` `{location}` cannot be opened: {str(error).splitlines()[0]}. Give a path, or a URL of "
            "`gs://`, `s3://`, `az://` or `file://`."
        ) from None

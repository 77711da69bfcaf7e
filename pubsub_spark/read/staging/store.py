"""`Store`: where a staging area is kept, a folder or a prefix of `gs://`, `s3://`, `az://` and others, through obstore.

The rule is create-only: `create` succeeds for one writer of a path, and every reader gets the bytes of that one. Files
of `create` and `put` are durable when they return. obstore's store of local files does not fsync. So a local file is
written under a temporary name, fsynced and renamed, and its folder is fsynced.

A call that is refused raises StagingError, three times if the status may pass. An outage of an object store, also a
connection that breaks, is waited for: obstore repeats a request for some seconds. After that new requests, with new
signatures and tokens, are sent until `failAfter`.
"""

from __future__ import annotations

import errno
import getpass
import logging
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, NotFoundError, UnauthenticatedError
from obstore.store import LocalStore, MemoryStore, from_url

from ...backend.status import delays
from ...errors import MissingFile, StagingError
from .part import Buffer

T = TypeVar("T")
# How many levels below its root exist before anyone writes: `/Volumes/CATALOG/SCHEMA/VOLUME` on Databricks, and the
# disks on macOS, where `/Volumes/DISK` is one that is mounted.
MOUNTED_LEVELS = {"/Volumes": 3, "/dbfs": 0, "/Workspace": 0}
_VOLUMES_LEVELS_OF_MACOS = 1
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")  # also the drive of a Windows path
# Scheme -> where the credentials come from. obstore reads the environment variables.
_GOOGLE = (
    "the options `credentials`, `credentialsFile` or `privateKey`, else the Application Default Credentials "
    "(GOOGLE_APPLICATION_CREDENTIALS) of driver and executors"
)
_AWS = (
    "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION in the environment of driver and "
    "executors, else the role of the machine"
)
_AZURE = (
    "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, or with AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and "
    "AZURE_TENANT_ID, in the environment of driver and executors, else the managed identity of the machine"
)
_SCHEMES = {
    "gs": _GOOGLE,
    **dict.fromkeys(("s3", "s3a"), _AWS),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), _AZURE),
    **dict.fromkeys(("file", "memory", "http", "https"), ""),
}
_OTHER_NAMES = {"gcs": "gs", "s3n": "s3", "wasb": "abfss", "wasbs": "abfss"}  # of schemes in _SCHEMES, by Hadoop
# With one of these, obstore's own look for credentials is asked: a key for this bucket alone, or none for an emulator.
_OBSTORE_VARIABLES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SKIP_SIGNATURE")
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
# For which obstore repeats a request with the signature and token of its first attempt, which expire.
REQUEST_SECONDS = 10.0
_TRIES = 3  # of a request that is refused at once, by a status that may pass
# A connection that broke, as obstore says it. It repeats no create and no delete then.
_BROKEN = re.compile("error sending request|body error|decoding response body")
_METADATA_SECONDS = 20.0  # the wait for a metadata server, as Pub/Sub's default of `connectTimeout`
_OUTAGE_SECONDS = 300.0  # the wait through an outage without `failAfter`
_TEMPORARY = ".unfinished-"  # in the name of a local file until it is durable
_LEFTOVER_SECONDS = 86400  # until such a file counts as a dead writer's

# obstore raises Python's own errors for some stores and its own for others.
_EXISTS = (FileExistsError, AlreadyExistsError)
_MISSING = (FileNotFoundError, NotFoundError)
_REFUSED = (OSError, BaseError, NotImplementedError)  # the last from a store of HTTP, which has no create-only writes
_OUTAGE = (GenericError, UnauthenticatedError)  # the last if no token could be fetched
_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A stored file. path: relative to the store's location. changed: when it was written."""

    path: str
    size: int
    changed: datetime


def open_store(
    location: str, credentials_json: str | None = None, fail_after: float | None = None, mode: int = 0o600
) -> Store:
    """Return the store at a path or URL. See `Store`. fail_after: None for five minutes.

    Raises StagingError if it is neither, or is a folder of Databricks or of a disk that is not mounted here.
    """
    scheme = _scheme(location)
    if scheme in _OTHER_NAMES:
        right = f"{_OTHER_NAMES[scheme]}{location[len(scheme) :]}".replace(".blob.core.", ".dfs.core.")
        raise StagingError(f"`stagingLocation` `{location}` has a scheme that is not supported. Use `{right}`.")
    is_url = scheme in _SCHEMES and location[len(scheme) :].startswith(":///" if scheme == "file" else "://")
    if not is_url and not location.startswith("/"):
        raise StagingError(
            f"`stagingLocation` `{location}` is neither a whole path nor a URL of a supported store. Use the path "
            f"from `/` on, or a URL of `gs://`, `s3://`, `az://` or `file:///`."
        )
    folder = _folder(location)
    mounted = None if folder is None else mounted_folder(folder, sys.platform)
    if mounted is not None and not mounted.exists():
        raise StagingError(
            f"`stagingLocation` `{location}` is a folder of Databricks or of a disk that is not mounted: there is no "
            f"`{mounted}` on this machine. Use a folder of this machine, or a URL of an object store."
        )
    seconds = _OUTAGE_SECONDS if fail_after is None else fail_after
    return Store(location, credentials_json=credentials_json, fail_after=seconds, mode=mode)


def default_location() -> str:
    """Return this user's folder under the system's temporary folder: right for `local[*]`, wrong for a cluster."""
    return str(Path(tempfile.gettempdir()) / f"pubsub_spark-{getpass.getuser()}")


def mounted_folder(folder: Path, platform: str) -> Path | None:
    """Return the folder above (or the same) that is mounted and never made, or None. platform: as `sys.platform`."""
    for top, levels in MOUNTED_LEVELS.items():
        if folder.is_relative_to(top):
            if top == "/Volumes" and platform == "darwin":
                levels = _VOLUMES_LEVELS_OF_MACOS
            return Path(*folder.parts[: len(Path(top).parts) + levels])
    return None


@dataclass(frozen=True)
class Store:
    """The files under a location, which is a path or URL. A plain value: it connects when it is used.

    Paths are relative to the location, with `/` between their parts. A prefix is a folder with a final slash, or "" for
    the whole location. Local folders are open to this user alone, and files too unless `mode` says otherwise.

    credentials_json: Google's, for `gs://`, or None for the Application Default Credentials. fail_after: seconds to
    wait through an outage of an object store.
    """

    location: str
    credentials_json: str | None = field(default=None, repr=False, kw_only=True)
    fail_after: float = field(default=_OUTAGE_SECONDS, kw_only=True)
    mode: int = field(default=0o600, kw_only=True)

    @property
    def is_local(self) -> bool:
        return _folder(self.location) is not None

    def within(self, seconds: float) -> Store:
        """Return this store with so many seconds to wait through an outage."""
        return replace(self, fail_after=min(self.fail_after, seconds))

    def create(self, path: str, buffers: Sequence[Buffer]) -> bool:
        """Write buffers to a path that does not exist. Return False if another writer was first.

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
        """Return the bytes from `start` up to `end` of a file. Raises MissingFile."""
        began = time.monotonic()
        try:
            return self._ask(lambda: memoryview(obstore.get_range(self._store, path, start=start, end=end)), _MISSING)
        except _MISSING:
            raise MissingFile(path, self.location) from None
        except StagingError:  # obstore also refuses a range that begins at the end of a file
            if time.monotonic() - began >= self.fail_after:
                raise  # the end of an outage, which is not waited for again
            content = self.read(path)
            if content is None or len(content) > start:
                raise
            return b""

    def list(self, prefix: str) -> dict[str, int]:
        """Return the size of each file under a prefix, by its path relative to the prefix."""
        return {entry.path.removeprefix(prefix): entry.size for entry in self.entries(prefix)}

    def entries(self, prefix: str = "") -> Sequence[Entry]:
        """Return the files under a prefix."""
        metas = self._ask(lambda: [meta for page in obstore.list(self._store, prefix) for meta in page])
        files = (Entry(str(meta["path"]), int(meta["size"]), meta["last_modified"]) for meta in metas)
        return [file for file in files if _TEMPORARY not in file.path.rpartition("/")[2]]

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under a prefix."""
        folders = self._ask(lambda: obstore.list_with_delimiter(self._store, prefix)["common_prefixes"])
        return [str(folder).rstrip("/").rpartition("/")[2] for folder in folders]

    def delete(self, path: str) -> None:
        """Delete a file if it exists. Local folders that are empty after it are removed."""
        with suppress(*_MISSING):
            self._ask(lambda: obstore.delete(self._store, path), _MISSING)

    def prepare(self, folder: str) -> None:
        """Make a local folder, and remove the leftovers of dead writers. Raises StagingError if it cannot be
        create-only.
        """
        location = _folder(self.location)
        if location is not None:
            self._ask(lambda: _prepare(location / folder, self.location))

    @property
    def _store(self) -> Any:
        """The obstore store. An empty one for a local folder that does not exist, which the first write makes."""
        folder = _folder(self.location)
        return connected(self) if folder is None or folder.exists() else MemoryStore()

    def _write(self, path: str, buffers: Sequence[Buffer], is_new: bool) -> None:
        mode: Any = "create" if is_new else "overwrite"
        if self.is_local:
            self._ask(lambda: self._write_durably(path, buffers, is_new), _EXISTS)
        else:
            self._ask(lambda: self._put(path, buffers, mode), _EXISTS)

    def _put(self, path: str, buffers: Sequence[Buffer], mode: Any) -> None:
        """Write an object. S3 also answers a conflict, 409, while another request changes it, there or not:
        https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-error-response.html
        """
        try:
            obstore.put(self._store, path, buffers, mode=mode, use_multipart=False)
        except _EXISTS as error:
            with suppress(*_MISSING):
                if mode == "create":
                    obstore.head(self._store, path)
                    raise
            raise GenericError(_reason(error)) from None

    def _write_durably(self, path: str, buffers: Sequence[Buffer], is_new: bool) -> None:
        """Write a local file. Its content is durable before it has its name, and its name when this returns."""
        temporary = f"{path}{_TEMPORARY}{uuid.uuid4().hex}"
        file = Path(str(_folder(self.location)), temporary)
        changed = [file.parent, *_make_private(file.parent)]
        try:
            obstore.put(self._store, temporary, buffers, use_multipart=False)
            with suppress(OSError):  # a file system without modes
                file.chmod(self.mode)
            _sync(file)
            obstore.rename(self._store, temporary, path, overwrite=not is_new)
        finally:
            file.unlink(missing_ok=True)
            for folder in changed:  # also if another writer was first, which may not have synced them yet
                _sync(folder)

    def _ask(self, call: Callable[[], T], passed: tuple[type[Exception], ...] = ()) -> T:
        """Return the result of a call, which is repeated while an object store is out.

        Raises StagingError if the store refuses the call, unless by one of the errors `passed`, or at the end of
        `fail_after`.
        """
        began, is_out, pauses, early = time.monotonic(), False, delays(first=1.0), 0
        while True:
            asked = time.monotonic()
            try:
                result = call()
            except _REFUSED as error:
                if isinstance(error, passed):
                    self._log_end(is_out, began)
                    raise
                now = time.monotonic()
                if not isinstance(error, _OUTAGE) or self.is_local:
                    raise self._refused(error) from None
                if now - asked < self._request_seconds and not _BROKEN.search(str(error)):
                    early += 1
                    if early == _TRIES or not isinstance(error, GenericError):
                        raise self._refused(error) from None
                if now - began >= self.fail_after:
                    raise StagingError(
                        f"The staging area `{self.location}` did not answer for {now - began:.0f} s: {_reason(error)}. "
                        f"Check the network and the store, and start the query again.{_credentials(self.location)}"
                    ) from None
                if not is_out and now - began >= self._request_seconds:
                    is_out = True
                    _log.warning(
                        "no answer from the staging area `%s` for %.0f s, so the query waits. Trying again for up to "
                        "%.0f s (last error: %s).%s",
                        self.location,
                        now - began,
                        self.fail_after,
                        _reason(error),
                        _credentials(self.location),
                    )
                time.sleep(min(next(pauses), began + self.fail_after - now))
            else:
                self._log_end(is_out, began)
                return result

    def _log_end(self, is_out: bool, began: float) -> None:
        if is_out:
            _log.warning("the staging area `%s` answers again after %.0f s", self.location, time.monotonic() - began)

    @property
    def _request_seconds(self) -> float:
        return min(REQUEST_SECONDS, self.fail_after)

    def _refused(self, error: Exception) -> StagingError:
        if isinstance(error, _MISSING) and not self.is_local:  # files that may be missing are among `passed`
            return StagingError(
                f"The bucket or container of `stagingLocation` `{self.location}` does not exist: {_reason(error)}. "
                "Create it, or correct its name."
            )
        return StagingError(
            f"The staging area `{self.location}` cannot be used: {_reason(error)}. Set `stagingLocation` to a path "
            f"or URL with room, where driver and executors may read, write and delete.{_credentials(self.location)}"
        )


def _reason(error: Exception) -> str:
    """Return the first line of an error. obstore's have many."""
    return (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".:")


def _scheme(location: str) -> str:
    scheme = _SCHEME.match(location)
    return "" if scheme is None else scheme[1].lower()


def _credentials(location: str) -> str:
    source = _SCHEMES.get(_scheme(location), "")
    return source and f" Its credentials are those of {source}."


def _folder(location: str) -> Path | None:
    scheme, separator, path = location.partition("://")
    if separator and scheme.lower() != "file":
        return None
    return Path(path if separator else location).absolute()


@lru_cache(maxsize=16)
def connected(store: Store) -> Any:
    """Return the obstore store, one in each process. Raises StagingError if it cannot be opened."""
    folder, scheme = _folder(store.location), _scheme(store.location)
    settings: dict[str, Any] = {
        "retry_config": {"max_retries": 1000, "retry_timeout": timedelta(seconds=store._request_seconds)}
    }
    try:
        if folder is not None:
            return LocalStore(folder, automatic_cleanup=True)
        if scheme == "gs" and (
            store.credentials_json or not any(name.startswith(_OBSTORE_VARIABLES) for name in os.environ)
        ):
            settings["credential_provider"] = _google_tokens(store)
        return from_url(store.location, **settings)
    except Exception as error:
        raise StagingError(
            f"`stagingLocation` `{store.location}` cannot be opened: {_reason(error)}. Use a path, or a URL of "
            f"`gs://`, `s3://`, `az://` or `file://`.{_credentials(store.location)}"
        ) from None


def _google_tokens(store: Store) -> Callable[[], Any]:
    """Return a function that fetches a token for obstore, and waits for a token server for some seconds."""
    from google.auth.credentials import with_scopes_if_required
    from google.auth.exceptions import GoogleAuthError, TransportError
    from obstore.auth.google import GoogleCredentialProvider

    from ...backend import google_credentials

    credentials = google_credentials.load(
        store.credentials_json, store.location, min(_METADATA_SECONDS, store.fail_after)
    )
    fetch = GoogleCredentialProvider(with_scopes_if_required(credentials, _SCOPES))

    def token() -> Any:
        end = time.monotonic() + store._request_seconds
        pauses = delays()
        while True:
            try:
                return fetch()
            except GoogleAuthError as error:
                if not (error.retryable or isinstance(error, TransportError)) or time.monotonic() >= end:
                    raise
                time.sleep(next(pauses))

    return token


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
                "a part could be written twice. Use a URL of an object store, or a folder of another file system."
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
    """Make a folder with those above it, open to this user alone. Return the folders that have new folders in them.

    Folders that exist stay as they are. The caller syncs the changed folders last: much of it is done by then.
    """
    changed: list[Path] = []
    if not folder.is_dir():
        for path in (*reversed(folder.parents), folder):
            if not path.is_dir():  # macOS answers for `/` that it is a directory, not that it exists
                with suppress(FileExistsError):
                    path.mkdir(mode=0o700)
                    changed.append(path.parent)
    return changed

"""The staging area: a batch is written here before Spark sees a row of it, so that it can be read again.

    <location>/<project>/<subscription>/<stream>/
        driver-token               what executors look for, to know that they see the driver's area
        last-acknowledged          number of the last batch that was acknowledged and deleted
        unfinished-run             says that a run was killed and may hold leases; empty while one runs
        recent/<epoch>-<n>         deduplication ids of messages that may be delivered again (`recent_ids`)
        <batch>/part-<i>           the messages and receipts of one pull, written once (`staged_part`)
        <batch>/manifest           numbers of the parts of a batch that is replayed after a restart, written once
        <batch>/excluded-ids       deduplication ids of the driver's part, which the batch's tasks drop
        <batch>/claim-<n>          deduplication ids of the part that was the n-th to claim its own (`claims`)
        <batch>/given-<i>          says that rows of part i were given to Spark
        <batch>/repeated-ids-<i>   deduplication ids that a replay drops from part i, for an earlier part has them
        <batch>/malformed-<i>-<n>  says that part i has n payloads that could not be decoded
        schemas/<digest>[-<n>]     the schemas that batches were decoded with (`staged_schemas`)
        owners/<epoch>             the run that owns the area, written once (`owner`)

The rule is create-only: `create` succeeds for one writer of a name, and all yield what that one wrote. Nothing
in here is acknowledged, so losing it costs duplicates and never a message. Files of other names are left alone.

Local files and object stores alike, through obstore. Runs on the driver and in tasks; a `Staging` is plain values until
it is used.
"""

from __future__ import annotations

import getpass
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, from_url

from .. import names
from ..errors import StagingError
from .leases import LEASE_SECONDS
from .recent_ids import Digests, IdSet, deserialized, serialized
from .staged_part import FOOTER_READ_BYTES, Buffer, Footer, PartBuilder, footer_of_tail

T = TypeVar("T")
_TOKEN_CONTENT = b"pubsub_spark"
TOKEN, _LAST_ACKNOWLEDGED, _RECENT = "driver-token", "last-acknowledged", "recent"
_UNFINISHED_RUN = "unfinished-run"
SCHEMAS = "schemas"
_MANIFEST, _EXCLUDED_IDS = "manifest", "excluded-ids"
_GIVEN, _REPEATED_IDS, _CLAIM, _OWNERS = "given", "repeated-ids", "claim", "owners"
_OURS = re.compile(
    rf"{TOKEN}|{_LAST_ACKNOWLEDGED}|{_RECENT}/[0-9]+-[0-9]+|{_UNFINISHED_RUN}|{_OWNERS}/[0-9]+"
    rf"|{SCHEMAS}/[0-9a-f]{{32}}(-[0-9]+)?"
    rf"|[0-9]+/((part|{_GIVEN}|{_REPEATED_IDS}|{_CLAIM})-[0-9]+|{_MANIFEST}|{_EXCLUDED_IDS}|malformed-[0-9]+-[0-9]+)"
)
# How many levels below its root exist before anyone writes: `/Volumes/CATALOG/SCHEMA/VOLUME` on Databricks, and the
# disks on macOS, where `/Volumes/DISK` is one that is mounted.
_MOUNTED_LEVELS = {"/Volumes": 3, "/dbfs": 0, "/Workspace": 0}
_VOLUMES_LEVELS_OF_MACOS = 1
# `dbfs:/folder`, as Hadoop writes it; and `file://host/folder`, which would be a folder of the working directory.
_NO_LOCATION = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:(?!//)|file://(?!/)")

# obstore raises Python's own errors for some stores and its own for others.
_EXISTS = (FileExistsError, AlreadyExistsError)
MISSING = (FileNotFoundError, NotFoundError)
REFUSED = (OSError, BaseError, NotImplementedError)  # the last from a store of HTTP, which cannot create only once


def part_path(batch: int, part: int) -> str:
    """The path of a part, relative to its stream's folder."""
    return f"{batch}/part-{part}"


def manifest_path(batch: int) -> str:
    """The path of a batch's manifest."""
    return f"{batch}/{_MANIFEST}"


def given_path(batch: int, part: int) -> str:
    """The path of the file that says that rows of a part were given to Spark."""
    return f"{batch}/{_GIVEN}-{part}"


def claim_path(batch: int, number: int) -> str:
    """The path of a claim of a batch; they are numbered from 1 on."""
    return f"{batch}/{_CLAIM}-{number}"


def excluded_path(batch: int) -> str:
    """The path of the deduplication ids of the driver's part, whose messages the batch's tasks drop."""
    return f"{batch}/{_EXCLUDED_IDS}"


def repeated_path(batch: int, part: int) -> str:
    """The path of the deduplication ids whose messages a replay drops from a part."""
    return f"{batch}/{_REPEATED_IDS}-{part}"


def recent_path(epoch: int, number: int) -> str:
    """The path of a run of recent ids. epoch: of the run of the query that writes it."""
    return f"{_RECENT}/{epoch}-{number}"


def default_location() -> str:
    """A folder of this user under the system's temporary folder: right for `local[*]`, wrong for a cluster."""
    return str(Path(tempfile.gettempdir()) / f"pubsub_spark-{getpass.getuser()}")


def local_folder(location: str) -> Path | None:
    """The folder that a location names, None for a URL of an object store; StagingError when it is neither."""
    if location.startswith("~") or _NO_LOCATION.match(location):
        raise StagingError(
            f"`stagingLocation` `{location}` is neither a path nor a URL. Give the whole path from `/` on, or a URL "
            "like `gs://bucket/folder`."
        )
    if "://" in location and not location.startswith("file://"):
        return None
    folder = Path(location.removeprefix("file://")).absolute()
    mounted = mounted_folder(folder, sys.platform)
    if mounted is not None and not mounted.exists():
        raise StagingError(
            f"`stagingLocation` `{location}` is a folder of Databricks or of a disk that is not mounted: there is no "
            f"`{mounted}` on this machine. Give a folder of this machine, or a URL of an object store."
        )
    return folder


def mounted_folder(folder: Path, platform: str) -> Path | None:
    """The folder above (or the same) that must be there already, for it is mounted and never made; None for others.

    platform: as `sys.platform`.
    """
    for top, levels in _MOUNTED_LEVELS.items():
        if folder.is_relative_to(top):
            if top == "/Volumes" and platform == "darwin":
                levels = _VOLUMES_LEVELS_OF_MACOS
            return Path(*folder.parts[: len(Path(top).parts) + levels])
    return None


@lru_cache(maxsize=16)
def open_store(location: str) -> Any:
    """The obstore store at a path or URL; StagingError when the location cannot be understood."""
    folder = local_folder(location)
    try:
        if folder is None:
            return from_url(location)
        _make_private(folder)
        return LocalStore(folder, automatic_cleanup=True)
    except Exception as error:
        raise StagingError(
            f"`stagingLocation` `{location}` cannot be opened: {str(error).splitlines()[0]}. Give a path, or a URL of "
            "`gs://`, `s3://`, `az://` or `file://`."
        ) from None


def _make_private(folder: Path) -> None:
    """Make a folder with those above it, open to this user alone; folders that exist stay as they are."""
    if folder.is_dir():
        return
    for each in (*reversed(folder.parents), folder):
        with suppress(FileExistsError):
            each.mkdir(mode=0o700)


def _check_hard_links(folder: Path, location: str) -> None:
    """Raise StagingError where a file system has no hard links, by which obstore creates a file only once."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix="link-") as probe:
        other = Path(f"{probe.name}-2")
        try:
            other.hardlink_to(probe.name)
        except OSError as error:
            raise StagingError(
                f"The file system of `stagingLocation` `{location}` has no hard links ({error.strerror}), which a part "
                "that is written once needs. Give a URL of an object store, or a folder of another file system."
            ) from None
        other.unlink()


def unusable(location: str, error: Exception) -> StagingError:
    """The error to raise when the store at a location refuses a call."""
    return StagingError(
        f"The staging area `{location}` cannot be used: {str(error).splitlines()[0]}. Give `stagingLocation` a path or "
        "URL with room, where driver and executors may read, write and delete."
    )


@dataclass(frozen=True)
class Staging:
    """The staging area of one stream; picklable. epoch: of the run that uses it, 0 for none (`owner`)."""

    location: str
    subscription: str
    stream: str
    epoch: int = 0

    @property
    def root(self) -> str:
        """The stream's folder, relative to the location."""
        name = names.parse(self.subscription, "subscriptions")
        return f"{name.project}/{name.id}/{self.stream}"

    def part_builder(self) -> PartBuilder:
        """A builder of a part of this area; parts in object stores are compressed.

        Local files are deleted before they reach a disk, so that compressing them costs more than it saves.
        """
        return PartBuilder(None if isinstance(self._store, LocalStore) else "lz4")

    @property
    def _store(self) -> Any:
        return open_store(self.location)

    def create(self, path: str, content: Sequence[Buffer]) -> bool:
        """Write buffers to a path that does not exist; False when another writer was first.

        A store may take a write, fail to answer, and refuse its repetition: so the stored bytes are compared.
        """
        try:
            self._put(path, content, mode="create")
        except _EXISTS:
            stored = self.read(path)
            return stored is not None and bytes(stored) == b"".join(content)
        return True

    def read(self, path: str) -> Any | None:
        """The bytes at a path, None when there are none."""
        try:
            return self._ask(lambda store, name: obstore.get(store, name).bytes(), path)
        except MISSING:
            return None

    def parts(self, batch: int) -> dict[int, int]:
        """The parts of a batch: number and size in bytes.

        Once the batch has a manifest, only the parts in it: one that a dead task staged later was never given to Spark,
        and must not be acknowledged.
        """
        names = self._names(f"{batch}/")
        found = {int(n[5:]): size for n, size in names.items() if n.startswith("part-") and n[5:].isdigit()}
        listed = self._manifest(batch) if _MANIFEST in names else sorted(found)
        return {part: found[part] for part in listed if part in found}

    def footer(self, batch: int, part: int, length: int) -> Footer:
        """The footer of a part of `length` bytes."""
        path, start = part_path(batch, part), max(0, length - FOOTER_READ_BYTES)
        tail = self._ask(obstore.get_range, path, start=start, end=length) if length else b""
        return footer_of_tail(tail, f"{self.root}/{path}")

    def footers(self, batch: int, lengths: Mapping[int, int]) -> list[Footer]:
        """The footers of parts, in the order of `lengths`, which has the bytes of each."""
        return [self.footer(batch, part, length) for part, length in lengths.items()]

    def receipts(self, batch: int, part: int, length: int) -> Iterator[pa.RecordBatch]:
        """The receipts of a part of `length` bytes, section by section, without reading its messages."""
        found = self.footer(batch, part, length)
        path, start = part_path(batch, part), found.messages_length
        for section in found.receipts_lengths:
            yield from pa.ipc.open_stream(self._ask(obstore.get_range, path, start=start, length=section))
            start += section

    def write_manifest(self, batch: int) -> list[int]:
        """Fix the parts of a batch that an earlier run staged; the same parts however often it is called."""
        listed = json.dumps(sorted(self.parts(batch))).encode()
        self.create(manifest_path(batch), [listed])
        return self._manifest(batch)

    def _manifest(self, batch: int) -> list[int]:
        return [int(part) for part in json.loads(bytes(self.read(manifest_path(batch)) or b"[]"))]

    def files(self, batch: int) -> set[str]:
        """The paths of the files of a batch, relative to the stream's folder."""
        return {f"{batch}/{name}" for name in self._names(f"{batch}/")}

    def record_given(self, batch: int, part: int) -> None:
        """Record that rows of a staged part are given to Spark; once, however often it is called."""
        self.create(given_path(batch, part), [])

    def write_ids(self, path: str, ids: Digests, topic: str | None = None) -> None:
        """Write deduplication ids, which are sorted; once. topic: of recent ids, for a restart."""
        self.create(path, [serialized(ids, topic=topic)])

    def ids(self, path: str) -> IdSet:
        """The deduplication ids in a file whose messages a task drops; StagingError when the file is gone."""
        content = self.read(path)
        if content is None:
            raise StagingError(
                f"The file `{self.root}/{path}` is gone from `{self.location}`, so duplicates cannot be told. Keep "
                "cleaners and lifecycle rules from `stagingLocation` and start the query again."
            )
        return IdSet(deserialized(content)[0])

    def recent_ids(self, topic: str | None = None) -> dict[str, Digests]:
        """The deduplication ids that earlier runs wrote, by path; none of another topic's, for ids are of a topic."""
        found: dict[str, Digests] = {}
        for path in (f"{_RECENT}/{name}" for name in self._names(f"{_RECENT}/")):
            if _OURS.fullmatch(path) and (content := self.read(path)) is not None:
                ids, metadata = deserialized(content)
                found[path] = ids if topic is None or metadata.get("topic", topic) == topic else ids[:, :0]
        return found

    def delete_recent_ids(self, path: str) -> None:
        """Delete a file of recent ids that another one replaces."""
        self._delete(path)

    def record_malformed(self, batch: int, part: int, count: int) -> None:
        """Record how many payloads of a part could not be decoded; once, however often it is called."""
        self.create(f"{batch}/malformed-{part}-{count}", [])

    def malformed(self, batch: int) -> int:
        """The number of payloads of a batch that could not be decoded."""
        recorded = (name for name in self._names(f"{batch}/") if name.startswith("malformed-"))
        return sum(int(name.rpartition("-")[2]) for name in recorded)

    def write_token(self) -> None:
        """Write the token by which executors know that they see the driver's area.

        Raises StagingError when the store cannot be written to, or overwrites an object that must not exist.
        """
        open_store(self.location)
        folder = local_folder(self.location)
        if folder is not None:
            try:
                _make_private(folder / self.root)
                _check_hard_links(folder / self.root, self.location)
            except OSError as error:
                raise unusable(self.location, error) from None
        self.create(TOKEN, [_TOKEN_CONTENT])
        if self.create(TOKEN, [_TOKEN_CONTENT + b" again"]):
            raise StagingError(
                f"The store of `stagingLocation` `{self.location}` overwrites an object when asked to create it, so "
                "that a batch could change. Use GCS, S3, Azure or a file system, or a store with conditional writes."
            )
        if folder is not None:
            with suppress(OSError):  # cleaners of temporary folders remove files that nobody has touched for days
                (folder / self.root / TOKEN).touch()

    def check_token(self) -> None:
        """Raise StagingError when the driver's token cannot be seen from this process."""
        try:
            self._ask(obstore.head, TOKEN)
        except MISSING:
            raise StagingError(
                f"This executor cannot see the driver's staging area `{self.location}`. Give `stagingLocation` a path "
                "or URL (`gs://`, `s3://`, `az://`) that the driver and all executors share."
            ) from None

    def epochs(self) -> list[int]:
        """The epochs of the runs that have owned this area and have files in it, ascending."""
        return sorted(int(name) for name in self._names(f"{_OWNERS}/") if name.isdigit())

    def create_owner(self, epoch: int, content: bytes) -> bool:
        """Write the file of an owner; False when another run has this epoch."""
        return self.create(f"{_OWNERS}/{epoch}", [content])

    def owner(self, epoch: int) -> bytes:
        """The file of an owner, empty when it is gone."""
        return bytes(self.read(f"{_OWNERS}/{epoch}") or b"")

    def delete_owner(self, epoch: int) -> None:
        """Delete the file of an earlier owner."""
        self._delete(f"{_OWNERS}/{epoch}")

    def last_acknowledged(self) -> int:
        """The number of the last batch that was acknowledged and deleted; 0 when none was."""
        return int(bytes(self.read(_LAST_ACKNOWLEDGED) or b"0"))

    def begin_run(self, now: float) -> float:
        """Record that a run has begun; until when an earlier one, which was killed, may hold leases (0: none does).

        now: seconds since the epoch, like the answer.
        """
        content = self.read(_UNFINISHED_RUN)
        self._put(_UNFINISHED_RUN, b"")
        return 0.0 if content is None else float(bytes(content) or now + LEASE_SECONDS)

    def end_run(self, leased_until: float, now: float) -> None:
        """Record that a run holds no lease any more. leased_until: the answer of `begin_run`."""
        if leased_until > now:
            self._put(_UNFINISHED_RUN, str(leased_until).encode())
        else:
            self._delete(_UNFINISHED_RUN)

    def is_new(self) -> bool:
        """Whether nothing was ever staged here; false for a checkpoint that was put back to its start."""
        return self.read(_LAST_ACKNOWLEDGED) is None and not self.batches()

    def delete_acknowledged(self, batches: Iterable[int], last: int) -> None:
        """Record that all batches up to `last` were acknowledged, then delete the files of `batches`."""
        self._write_last_acknowledged(last)
        for batch in batches:
            self.delete(f"{batch}/")

    def begin_after(self, batch: int) -> None:
        """Begin a new area after a batch of another one, whose batches stay where they are."""
        self.write_token()
        self._write_last_acknowledged(batch)

    def _write_last_acknowledged(self, batch: int) -> None:
        self._put(_LAST_ACKNOWLEDGED, str(batch).encode())

    def batches(self) -> list[int]:
        """The numbers of the batches that have files, ascending."""
        folders = self._ask(obstore.list_with_delimiter, "")["common_prefixes"]
        numbers = (str(folder).rstrip("/").rpartition("/")[2] for folder in folders)
        return sorted(int(number) for number in numbers if number.isdigit())

    def delete(self, prefix: str = "") -> int:
        """Delete the files of ours under a prefix of this stream's folder; how many they were."""
        ours = [f"{prefix}{name}" for name in self._names(prefix) if _OURS.fullmatch(f"{prefix}{name}")]
        for name in ours:
            self._delete(name)
        return len(ours)

    def _delete(self, path: str) -> None:
        with suppress(*MISSING):
            self._ask(obstore.delete, path)

    def _names(self, folder: str) -> dict[str, int]:
        """The names and sizes in bytes of the files in a folder of this stream ("" or with a final slash) and below."""
        prefix = f"{self.root}/{folder}"
        entries = self._ask(lambda store, name: [entry for page in obstore.list(store, name) for entry in page], folder)
        return {str(entry["path"]).removeprefix(prefix): int(entry["size"]) for entry in entries}

    def _put(self, path: str, content: Any, **settings: Any) -> None:
        """Write an object; a local file and its folder are open to this user alone."""
        folder = local_folder(self.location)
        file = None if folder is None else folder / self.root / path
        if file is not None:
            with suppress(OSError):  # obstore's own attempt says what is wrong
                _make_private(file.parent)
        self._ask(obstore.put, path, content, **settings)
        if file is not None:
            with suppress(OSError):  # deleted already, or a file system without modes
                file.chmod(0o600)

    def _ask(self, call: Callable[..., T], path: str, *arguments: Any, **settings: Any) -> T:
        """The result of a call of obstore with a path of this stream; StagingError when the store refuses it."""
        try:
            return call(self._store, f"{self.root}/{path}", *arguments, **settings)
        except (*_EXISTS, *MISSING):
            raise
        except REFUSED as error:
            raise unusable(self.location, error) from None

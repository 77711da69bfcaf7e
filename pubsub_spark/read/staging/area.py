"""`Staging`: the files of one stream in a store, their names and their meaning.

    <location>/<project>/<subscription>/<stream>/
        driver-token               read by executors, to know that they see the driver's area
        abandoned                  the stream that runs continue, because this one's files are missing or elsewhere
        acknowledged/<batch>       says that all batches up to this one were acknowledged, and are deleted
        unfinished/<epoch>         until when messages that a run has received are delivered. Empty while it runs
        in-doubt/<epoch>-<n>       ids of messages that may be delivered again (`ids`)
        <batch>/part-<i>           the messages and receipts of one pull, written once (`part`)
        schemas/<digest>           a schema that batches were decoded with (`schemas`)
        <batch>/manifest           parts of a batch that is replayed after a restart, and their ids, written once
        <batch>/given-<i>          footer of the part i that a task has yielded to Spark, written once
        <batch>/malformed-<i>-<n>  says that part i has n payloads that could not be decoded
        owners/<epoch>             the run that owns the area, written once (`fencing`)

No run overwrites a file of another one, because a write may take minutes and come after the end of its run: of the
batches in `acknowledged`, and of the times in `unfinished`, the last one counts.

Nothing in here is acknowledged, so losing it costs duplicates and never a message: a part that is staged in the place
of a lost one has another id than `manifest` or `given-<i>` says. Files of other names are left alone.
A file whose content cannot be read raises DamagedFile.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, pairwise, starmap
from typing import NamedTuple, TypeVar

import pyarrow as pa

from ... import names
from ...errors import DamagedFile, MissingFile, StagingError
from . import part as part_format
from .ids import Digests, deserialized, serialized
from .part import FOOTER_READ_BYTES, Buffer, Footer, PartBuilder
from .store import Store

T = TypeVar("T")
TOKEN, IN_DOUBT, SCHEMAS, _ABANDONED = "driver-token", "in-doubt", "schemas", "abandoned"
ACKNOWLEDGED, OWNERS, _UNFINISHED = "acknowledged", "owners", "unfinished"
_LISTINGS = 5  # of files that are merged meanwhile
_OURS = re.compile(
    rf"{TOKEN}|{_ABANDONED}|({OWNERS}|{ACKNOWLEDGED}|{_UNFINISHED})/[0-9]+"
    rf"|{IN_DOUBT}/[0-9]+-[0-9]+|{SCHEMAS}/[0-9a-f]{{32}}(-[0-9]+)?"
    r"|[0-9]+/((part|given)-[0-9]+|manifest|malformed-[0-9]+-[0-9]+)"
)


def part_path(batch: int, part: int) -> str:
    """Return the path of a part, relative to its stream's folder."""
    return f"{batch}/part-{part}"


def manifest_path(batch: int) -> str:
    """Return the path of a batch's manifest."""
    return f"{batch}/manifest"


def given_path(batch: int, part: int) -> str:
    """Return the path of the file that says which part was yielded to Spark."""
    return f"{batch}/given-{part}"


class Listing(NamedTuple):
    """The files of a batch. parts: sizes in bytes, by number. yielded: parts whose rows Spark has. fixed: the ids of
    the parts in the manifest, "" for those of 0.1.0, or None without a manifest.
    """

    parts: dict[int, int]
    yielded: set[int]
    fixed: dict[int, str] | None


@dataclass(frozen=True)
class Staging:
    """The staging area of one stream, as plain values. Picklable and hashable if its store is.

    epoch: of the run that uses the area, 0 for none (`fencing`).
    """

    store: Store
    subscription: str
    stream: str
    epoch: int = 0

    @property
    def location(self) -> str:
        """The path or URL of the store."""
        return self.store.location

    @property
    def area(self) -> str:
        """A digest of the location, which may hold a secret."""
        return hashlib.blake2b(self.location.encode(), digest_size=8).hexdigest()

    @property
    def root(self) -> str:
        """The stream's folder, relative to the location."""
        name = names.parse(self.subscription, "subscriptions")
        return f"{name.project}/{name.id}/{self.stream}"

    def part_builder(self) -> PartBuilder:
        """Return a builder of a part of this area.

        Parts in object stores are compressed, because they cross a network. Local files cost less as they are.
        """
        return PartBuilder(None if self.store.is_local else "lz4")

    def create(self, path: str, content: Sequence[Buffer]) -> bool:
        """Write buffers to a path that does not exist. Return False if another writer was first."""
        return self.store.create(self._path(path), content)

    def read(self, path: str) -> Buffer | None:
        """Return the bytes at a path, or None if it does not exist."""
        return self.store.read(self._path(path))

    def parts(self, batch: int) -> dict[int, int]:
        """Return the size in bytes of each part of a batch, by its number. Once it has a manifest, of those in it."""
        return self.listing(batch).parts

    def listing(self, batch: int) -> Listing:
        """Return the files of a batch. Once it has a manifest, only the parts in it."""
        names = self.store.list(self._path(f"{batch}/"))
        sizes = _numbered(names, "part-")
        fixed = self._manifest(batch) if "manifest" in names else None
        parts = {part: sizes[part] for part in sorted(sizes) if fixed is None or part in fixed}
        return Listing(parts, {*_numbered(names, "given-")}, fixed)

    def messages(self, batch: int, part: int, content: Buffer | None = None) -> Iterator[pa.RecordBatch] | None:
        """Return the messages of a part, as record batches of the schema MESSAGES, or None if it is not staged.

        content: of the part, if it was read already.
        """
        path = part_path(batch, part)
        content = self.read(path) if content is None else content
        return None if content is None else part_format.messages(content, self._path(path))

    def footer(self, batch: int, part: int, length: int) -> Footer:
        """Return the footer of a part of `length` bytes."""
        path = self._path(part_path(batch, part))
        end = self.store.read_range(path, max(0, length - FOOTER_READ_BYTES), length) if length else b""
        needed = part_format.footer_length(end, path)
        if len(end) < needed <= length:
            end = self.store.read_range(path, length - needed, length)
        return part_format.footer(end, path)

    def receipts(self, batch: int, part: int, length: int, part_id: str = "") -> Iterator[pa.RecordBatch]:
        """Yield the receipts of a part of `length` bytes, section by section, without reading its messages.

        Raises MissingFile if another part than that with the id is in its place. "" is any part.
        """
        footer = self.footer(batch, part, length)
        path, start = self._path(part_path(batch, part)), footer.messages_length
        if part_id not in ("", footer.id):
            raise MissingFile(path, self.location)
        bounds = pairwise(accumulate(footer.receipts_lengths, initial=start))
        sections = starmap(partial(self.store.read_range, path), bounds)
        batches = chain.from_iterable(part_format.receipt_batches(section, path) for section in sections)
        yield from part_format.counted(batches, footer.acks, path)

    def record_yielded(self, batch: int, part: int, footer: Footer) -> bool:
        """Record that a part is yielded to Spark. Return False if another one was yielded in its place."""
        return self.create(given_path(batch, part), [footer.serialized()])

    def yielded(self, batch: int, part: int) -> Footer | None:
        """Return the footer of the part that was yielded to Spark, or None: 0.1.0 writes an empty file."""
        return self._parsed(
            given_path(batch, part), lambda text: Footer.parsed(json.loads(text)) if text else None, None
        )

    def write_manifest(self, batch: int) -> list[int]:
        """Fix the parts of a batch that an earlier run staged. Return the same parts however often it is called.

        Without the driver's part others may be of a late task. If another part was yielded in the place of one, its
        rows are unknown. A part that no task has yielded has rows now: an earlier run may extend its leases for long.
        """
        parts, yielded, fixed = self.listing(batch)
        if fixed is None:
            ids: dict[int, str] = {}
            for part, length in parts.items() if 0 in parts else ():
                with suppress(DamagedFile, MissingFile):  # a part that is staged in its place later is another one
                    found = self.footer(batch, part, length).id
                    named = self.yielded(batch, part) if part in yielded else None
                    if named is None or named.id == found:
                        ids[part] = found
            self.create(manifest_path(batch), [json.dumps(ids).encode()])
        return sorted(self._manifest(batch))

    def _manifest(self, batch: int) -> dict[int, str]:
        def ids(text: bytes) -> dict[int, str]:
            listed = json.loads(text)
            if isinstance(listed, list):  # the numbers alone, in 0.1.0
                return dict.fromkeys(listed, "")
            return {int(part): part_id for part, part_id in listed.items()}

        return self._parsed(manifest_path(batch), ids, {})

    def files(self, folder: str) -> list[str]:
        """Return the sorted paths of the files of ours in a folder: "", or with a final slash."""
        paths = (f"{folder}{name}" for name in self.store.list(self._path(folder)))
        return sorted(path for path in paths if _OURS.fullmatch(path))

    def write_ids(self, path: str, ids: Digests, **metadata: str | int | float | None) -> None:
        """Write a file of sorted ids unless it exists. metadata: of the file, without the values that are None."""
        self.create(path, [serialized(ids, **metadata)])

    def ids_in_doubt(self, known: Iterable[str] = ()) -> dict[str, Buffer]:
        """Return the content of the files of ids in doubt by path, and of those that a run merges meanwhile.

        known: paths that are left out, because the caller has read them.
        """
        read: dict[str, Buffer] = {}
        for number in range(_LISTINGS):
            paths = [path for path in self.files(f"{IN_DOUBT}/") if path not in known]
            if number and read.keys() >= {*paths}:  # one listing may have neither a merged file nor the new one
                return read
            read |= {path: content for path in paths if path not in read and (content := self.read(path)) is not None}
        raise StagingError(f"Files of ids in doubt disappear from `{self.location}`. Exclude it from cleanup jobs.")

    def read_ids(self, path: str) -> tuple[Digests, dict[str, str]]:
        """Return the ids in a file, and its metadata. Raises MissingFile if it is gone."""
        content = self.read(path)
        if content is None:
            raise MissingFile(self._path(path), self.location)
        return deserialized(content, self._path(path))

    def record_malformed(self, batch: int, part: int, count: int) -> None:
        """Record how many payloads of a part could not be decoded. Once, however often it is called."""
        self.create(f"{batch}/malformed-{part}-{count}", [])

    def malformed(self, batch: int) -> int:
        """Return the number of payloads of a batch that could not be decoded."""
        recorded = (path for path in self.files(f"{batch}/") if "/malformed-" in path)
        return sum(int(path.rpartition("-")[2]) for path in recorded)

    def write_token(self) -> None:
        """Write the driver's token, also again: cleaners of temporary folders remove old files.

        Raises StagingError if the store cannot be written to, or overwrites a file that must not exist.
        """
        self.store.prepare(self.root)
        self._put(TOKEN, b"pubsub_spark")
        if self.create(TOKEN, [b"pubsub_spark again"]):
            raise StagingError(
                f"The store of `stagingLocation` `{self.location}` overwrites an object when asked to create it, so "
                "that a batch could change. Use GCS, S3, Azure or a file system, or a store with conditional writes."
            )

    def check_token(self) -> None:
        """Raise StagingError if this process cannot see the driver's token."""
        if self.read(TOKEN) is None:
            raise StagingError(
                f"This executor cannot see the driver's staging area `{self.location}`. Set `stagingLocation` to a "
                f"path or URL (`gs://`, `s3://`, `az://`) that the driver and all executors share."
            )

    def epochs(self) -> list[int]:
        """Return the epochs of the runs that have files in `owners/`, ascending."""
        return self._numbers(OWNERS)

    def last_acknowledged(self) -> int:
        """Return the number of the last batch that was acknowledged and deleted, or 0."""
        return max(self._numbers(ACKNOWLEDGED), default=0)

    def begin_run(self, now: float, seconds: float) -> float:
        """Record that a run has begun. Return until when messages that earlier runs had are delivered, or 0.0.

        now: seconds since the epoch, like the result. seconds: the longest lease and back-off.
        """
        earlier = (f"{_UNFINISHED}/{epoch}" for epoch in self._numbers(_UNFINISHED))
        ends = [self._parsed(path, lambda text: float(text or now + seconds), 0.0) for path in earlier]
        self._put(self._unfinished, b"")
        self.delete_before(_UNFINISHED, self.epoch)
        return min(max(ends, default=0.0), now + seconds)  # the clock of an earlier run may have been ahead

    def end_run(self, leased_until: float, now: float) -> None:
        """Record that a run has ended. leased_until: when the messages that it or an earlier one had are delivered."""
        if leased_until > now:
            self._put(self._unfinished, str(leased_until).encode())
        else:
            self.delete_file(self._unfinished)

    @property
    def _unfinished(self) -> str:
        return f"{_UNFINISHED}/{self.epoch}"

    def successor(self, stream: str) -> str | None:
        """Return the stream that runs continue if nothing of earlier runs is here, else None.

        stream: its name, unless it has one. It stays so, because a dead run may stage a part later.
        """
        if not self.is_abandoned:
            if self.epochs() or not self.is_new():
                return None
            self.create(_ABANDONED, [stream.encode()])
        return self._parsed(_ABANDONED, bytes.decode, stream) or stream

    @property
    def is_abandoned(self) -> bool:
        """Whether runs continue another stream."""
        return self.read(_ABANDONED) is not None

    def is_new(self) -> bool:
        """Return whether nothing was ever staged here. False for a checkpoint that was put back to its start."""
        return not self._numbers(ACKNOWLEDGED) and not self.batches()

    def delete_acknowledged(self, batches: Iterable[int], last: int) -> None:
        """Record that all batches up to `last` were acknowledged, then delete the files of `batches`."""
        self.create(f"{ACKNOWLEDGED}/{last}", [])
        for batch in batches:
            self.delete(f"{batch}/")
        self.delete_before(ACKNOWLEDGED, last)

    def delete_before(self, folder: str, number: int) -> None:
        """Delete the files of a folder of numbers that are lower than `number`. Later ones are of another run."""
        self.delete_files(f"{folder}/{lower}" for lower in self._numbers(folder) if lower < number)

    def begin_after(self, batch: int) -> None:
        """Begin after a batch without files in the area. A file that a dead process stages later is never rows."""
        self.delete_acknowledged([], batch)

    def batches(self) -> list[int]:
        """Return the numbers of the batches that have files, ascending."""
        return sorted(int(name) for name in self.store.folders(f"{self.root}/") if name.isdigit())

    def delete(self, prefix: str = "") -> int:
        """Delete the files of ours under a prefix of this stream's folder. Return how many they were."""
        ours = self.files(prefix)
        self.delete_files(ours)
        return len(ours)

    def delete_files(self, paths: Iterable[str]) -> None:
        """Delete files, those of them that exist."""
        for path in paths:
            self.delete_file(path)

    def delete_file(self, path: str) -> None:
        """Delete a file if it exists."""
        self.store.delete(self._path(path))

    def _numbers(self, folder: str) -> list[int]:
        """Return the names of the files in a folder, which are numbers, ascending."""
        return sorted(int(path.rpartition("/")[2]) for path in self.files(f"{folder}/"))

    def _put(self, path: str, content: bytes) -> None:
        self.store.put(self._path(path), content)

    def _path(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _parsed(self, path: str, parse: Callable[[bytes], T], missing: T) -> T:
        """Return the parsed content of a small file, or `missing` without a file. Raises DamagedFile."""
        content = self.read(path)
        if content is None:
            return missing
        try:
            return parse(bytes(content))
        except (ValueError, TypeError, AttributeError) as error:
            raise DamagedFile(self._path(path), str(error)) from None


def _numbered(names: Mapping[str, int], prefix: str) -> dict[int, int]:
    """Return the sizes of the files with a prefix and a number as their names, by number."""
    numbers = {name.removeprefix(prefix): size for name, size in names.items() if name.startswith(prefix)}
    return {int(number): size for number, size in numbers.items() if number.isdigit()}

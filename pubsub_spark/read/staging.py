"""Where the rows of a batch are written down before anyone sees them, so that they can be seen again.

    <location>/<project>/<subscription>/<stream>/
        driver                 a token: executors that do not find it cannot see the driver's area
        released               the number of the last batch that was acknowledged and deleted
        <batch>/part-<i>       what one task pulled: messages and receipts, written once
        <batch>/sealed         the parts of a batch that is replayed after a restart, listed once
        <batch>/known          identities that the batch drops
        <batch>/malformed-<i>-<n>  part i had n payloads that could not be decoded
        seen                   identities of deleted batches that are dropped when they come again

The rule is create-only: `create` succeeds for one writer of a name, and everybody yields what that one wrote. Nothing
in here is acknowledged, so losing it costs duplicates and never a message. Names that are not ours are left alone.

A part is one object, so that it is there or not: an Arrow IPC stream of messages, some of receipts, and a footer with
their places. Tasks read the messages; the driver reads footer and receipts alone, with ranged reads. Local files and
object stores alike, through obstore. Runs on the driver and in tasks; a `Staging` is plain values until it is used.
"""

from __future__ import annotations

import getpass
import io
import json
import re
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, from_url

from .. import names
from ..codec.envelope import MESSAGES, RECEIPTS, size
from ..errors import StagingError

T = TypeVar("T")
Buffer: TypeAlias = bytes | memoryview
_MAGIC = b"PSSTAGE1"
_TAIL = struct.Struct("<I8s")  # bytes of the JSON footer, magic
_SECTION = 4 * 2**20  # bytes of receipts that the driver reads at a time
_ONE_SLASH = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:(?!//)")  # `dbfs:/folder`, as Hadoop writes it
_OURS = re.compile(r"driver|released|seen|[0-9]+/(part-[0-9]+|sealed|known|malformed-[0-9]+-[0-9]+)")
_GUESS = 4096  # a footer is a few hundred bytes; one read gets it

# obstore raises Python's own errors for some stores and its own for others.
_EXISTS = (FileExistsError, AlreadyExistsError)
MISSING = (FileNotFoundError, NotFoundError)
REFUSED = (OSError, BaseError)


@dataclass(frozen=True)
class Footer:
    """What a part holds, and why its pull ended (`full`, `period` or `idle`); times in seconds since the epoch."""

    rows: int
    bytes: int
    dropped: int
    ended: str
    oldest: float | None
    messages_length: int
    receipts_lengths: Sequence[int]


class Packer:
    """The bytes of a part, put together as its messages come, in pieces that are never copied into one.

    Receipts may outnumber messages: redeliveries that were dropped are acknowledged with the batch that met them.
    compression: Arrow's name of one, or None.
    """

    def __init__(self, compression: str | None) -> None:
        self._messages = _Section(MESSAGES, compression)
        self._receipts: list[_Section] = []
        self._compression = compression
        self._rows = self._bytes = self._receipts_rows = 0
        self._oldest: int | None = None  # microseconds since the epoch

    def add(self, messages: pa.RecordBatch, receipts: pa.RecordBatch) -> None:
        """Append a batch of the schema MESSAGES and one of the schema RECEIPTS."""
        self._messages.write(messages)
        if not self._receipts or self._receipts[-1].length >= _SECTION:
            self._receipts.append(_Section(RECEIPTS, self._compression))
        self._receipts[-1].write(receipts)
        self._rows += messages.num_rows
        self._bytes += size(messages)
        self._receipts_rows += receipts.num_rows
        if messages.num_rows:
            oldest = pc.min(messages.column("publish_time")).value
            self._oldest = oldest if self._oldest is None else min(oldest, self._oldest)

    def content(self, ended: str) -> list[Buffer]:
        """The pieces of the part, to be written one after the other."""
        sections = [self._messages, *self._receipts]
        pieces = [piece for section in sections for piece in section.end()]
        footer = Footer(
            rows=self._rows,
            bytes=self._bytes,
            dropped=self._receipts_rows - self._rows,
            ended=ended,
            oldest=None if self._oldest is None else self._oldest / 1e6,
            messages_length=self._messages.length,
            receipts_lengths=[section.length for section in self._receipts],
        )
        text = json.dumps(asdict(footer)).encode()
        return [*pieces, text, _TAIL.pack(len(text), _MAGIC)]


class _Section:
    """An Arrow IPC stream, kept as the pieces that Arrow writes: Arrow's own buffers, where nothing is compressed."""

    def __init__(self, schema: pa.Schema, compression: str | None) -> None:
        self._sink = _Pieces()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema, options=options)

    @property
    def length(self) -> int:
        return self._sink.length

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def end(self) -> list[Buffer]:
        self._writer.close()
        return self._sink.pieces


class _Pieces(io.RawIOBase):
    """A file that keeps each piece as it is given; one growing buffer would be copied again and again."""

    def __init__(self) -> None:
        self.pieces: list[Buffer] = []
        self.length = 0

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.pieces.append(memoryview(piece).cast("B"))  # Arrow's own buffers are signed, which obstore refuses
        self.length += len(piece)
        return len(piece)


def messages(part: Any) -> Iterator[pa.RecordBatch]:
    """The message batches in the bytes of a part, as Arrow record batches of the schema MESSAGES."""
    buffer = pa.py_buffer(part)
    yield from pa.ipc.open_stream(buffer.slice(0, footer(buffer).messages_length))


def receipts_of(pieces: Sequence[Buffer]) -> Iterator[pa.RecordBatch]:
    """The receipt batches in the pieces of a part, as `Packer` gives them."""
    part = pa.py_buffer(b"".join(pieces))
    found = footer(part)
    start = found.messages_length
    for length in found.receipts_lengths:
        yield from pa.ipc.open_stream(part.slice(start, length))
        start += length


def footer(part: Any) -> Footer:
    """The footer in the bytes of a part."""
    return _footer(memoryview(part).cast("B")[-_GUESS:], "part")


def _footer(tail: Any, name: str) -> Footer:
    """The footer at the end of `tail`, the last bytes of a part."""
    view = memoryview(tail).cast("B")
    if len(view) >= _TAIL.size:
        length, magic = _TAIL.unpack(view[-_TAIL.size :])
        if magic == _MAGIC and length + _TAIL.size <= len(view):
            return Footer(**json.loads(bytes(view[-_TAIL.size - length : -_TAIL.size])))
    raise StagingError(
        f"The staged part `{name}` is damaged. Remove its stream with `pubsub-spark staging clean`; its messages were "
        "never acknowledged and come again."
    )


def _strings(values: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("identity", pa.string())])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([values], names=["identity"]))
    return bytes(sink.getvalue().to_pybytes())


def _as_strings(content: Any | None) -> pa.Array:
    if content is None:
        return pa.array([], pa.string())
    return pa.ipc.open_stream(pa.py_buffer(content)).read_all().column("identity").combine_chunks()


def default_location() -> str:
    """A folder of this user under the system's temporary folder: right for `local[*]`, wrong for a cluster."""
    return str(Path(tempfile.gettempdir()) / f"pubsub_spark-{getpass.getuser()}")


def local_folder(location: str) -> Path | None:
    """The folder that a location names, None for a URL of an object store; StagingError when it is neither."""
    if location.startswith("~") or _ONE_SLASH.match(location):
        raise StagingError(
            f"`stagingLocation` `{location}` is neither a path nor a URL. Give the whole path from `/` on, or a URL "
            "like `gs://bucket/folder`."
        )
    if "://" in location and not location.startswith("file://"):
        return None
    return Path(location.removeprefix("file://")).absolute()


@lru_cache(maxsize=16)
def open_store(location: str) -> Any:
    """The obstore store at a path or URL; StagingError when the location cannot be understood."""
    folder = local_folder(location)
    try:
        return from_url(location) if folder is None else LocalStore(folder, mkdir=True, automatic_cleanup=True)
    except Exception as error:
        raise StagingError(
            f"`stagingLocation` `{location}` cannot be opened: {str(error).splitlines()[0]}. Give a path, or a URL of "
            "`gs://`, `s3://`, `az://` or `file://`."
        ) from None


def unusable(location: str, error: Exception) -> StagingError:
    """What to raise when the store at a location refuses a call."""
    return StagingError(
        f"The staging area `{location}` cannot be used: {str(error).splitlines()[0]}. Give `stagingLocation` a path or "
        "URL with room, where driver and executors may read, write and delete."
    )


@dataclass(frozen=True)
class Staging:
    """The staging area of one stream; picklable."""

    location: str
    subscription: str
    stream: str

    @property
    def root(self) -> str:
        """The stream's folder, relative to the location."""
        name = names.parse(self.subscription, "subscriptions")
        return f"{name.project}/{name.id}/{self.stream}"

    def packer(self) -> Packer:
        """For a part of this area. Local files are gone before they reach a disk: to compress them pays nothing."""
        return Packer(None if isinstance(self._store, LocalStore) else "lz4")

    @property
    def _store(self) -> Any:
        return open_store(self.location)

    def create(self, path: str, content: Sequence[Buffer]) -> bool:
        """Write pieces under a name that does not exist; False when somebody else wrote it first.

        A store may take a write, fail to say so, and refuse its repetition: what is there is looked at.
        """
        try:
            self._ask(obstore.put, path, content, mode="create")
        except _EXISTS:
            there = self.read(path)
            return there is not None and bytes(there) == b"".join(content)
        return True

    def read(self, path: str) -> Any | None:
        """The bytes under a name, None when there are none."""
        try:
            return self._ask(lambda store, name: obstore.get(store, name).bytes(), path)
        except MISSING:
            return None

    def parts(self, batch: int) -> dict[int, int]:
        """The parts of a batch: index and size in bytes.

        Once the batch is sealed only those that the seal lists: what a task that everybody thought dead staged later
        was never given to Spark, and must not be acknowledged.
        """
        names = self._names(f"{batch}/")
        found = {int(n[5:]): size for n, size in names.items() if n.startswith("part-") and n[5:].isdigit()}
        listed = self._sealed(batch) if "sealed" in names else sorted(found)
        return {part: found[part] for part in listed if part in found}

    def footer(self, batch: int, part: int, length: int) -> Footer:
        """The footer of a part of `length` bytes."""
        path = f"{batch}/part-{part}"
        tail = self._ask(obstore.get_range, path, start=max(0, length - _GUESS), end=length) if length else b""
        return _footer(tail, f"{self.root}/{path}")

    def footers(self, batch: int, lengths: Mapping[int, int]) -> list[Footer]:
        """The footers of parts, in the order of `lengths`, which has the bytes of each."""
        return [self.footer(batch, part, length) for part, length in lengths.items()]

    def receipts(self, batch: int, part: int, length: int) -> Iterator[pa.RecordBatch]:
        """The receipts of a part of `length` bytes, piece by piece, without reading its messages."""
        found = self.footer(batch, part, length)
        path, start = f"{batch}/part-{part}", found.messages_length
        for section in found.receipts_lengths:
            yield from pa.ipc.open_stream(self._ask(obstore.get_range, path, start=start, length=section))
            start += section

    def seal(self, batch: int) -> list[int]:
        """Fix the parts of a batch that an earlier run staged: the same answer however often it is asked."""
        listed = json.dumps(sorted(self.parts(batch))).encode()
        self.create(f"{batch}/sealed", [listed])
        return self._sealed(batch)

    def _sealed(self, batch: int) -> list[int]:
        return [int(part) for part in json.loads(bytes(self.read(f"{batch}/sealed") or b"[]"))]

    def write_known(self, batch: int, identities: pa.Array) -> None:
        """Put down the identities that a batch drops."""
        self.create(f"{batch}/known", [_strings(identities)])

    def known(self, batch: int) -> pa.Array:
        """The identities that a batch drops."""
        return _as_strings(self.read(f"{batch}/known"))

    def write_seen(self, identities: pa.Array) -> None:
        """Put down the identities that are remembered, for a restart."""
        self._ask(obstore.put, "seen", [_strings(identities)])

    def seen(self) -> pa.Array:
        """The identities that an earlier run remembered."""
        return _as_strings(self.read("seen"))

    def count(self, batch: int, part: int, malformed: int) -> None:
        """Note how many payloads of a part could not be decoded; the same however often it is noted."""
        self.create(f"{batch}/malformed-{part}-{malformed}", [])

    def malformed(self, batch: int) -> int:
        """Payloads of a batch that could not be decoded."""
        noted = (name for name in self._names(f"{batch}/") if name.startswith("malformed-"))
        return sum(int(name.rpartition("-")[2]) for name in noted)

    def leave_token(self) -> None:
        """Say that the driver uses this area."""
        self.create("driver", [b"pubsub_spark"])

    def check_token(self) -> None:
        """StagingError when the driver's token is not to be seen from here."""
        try:
            self._ask(obstore.head, "driver")
        except MISSING:
            raise StagingError(
                f"This executor cannot see the driver's staging area `{self.location}`. Give `stagingLocation` a path "
                "or URL (`gs://`, `s3://`, `az://`) that the driver and all executors share."
            ) from None

    def released(self) -> int:
        """The number of the last batch that was acknowledged and deleted; 0 when none was."""
        return int(bytes(self.read("released") or b"0"))

    def is_new(self) -> bool:
        """Whether nothing was ever staged here; false for a checkpoint that was put back to its start."""
        return self.read("released") is None and not self.batches()

    def release(self, batch: int) -> None:
        """Note that a batch was acknowledged, then delete it."""
        self._put_released(batch)
        self.delete(f"{batch}/")

    def restart_after(self, batch: int) -> None:
        """The checkpoint was put back: the numbers of later batches are used again, for other messages.

        What is remembered may be of those batches: it is rows now, should it come again.
        """
        for later in self.batches():
            if later > batch:
                self.delete(f"{later}/")
        self.write_seen(pa.array([], pa.string()))
        self._put_released(batch)

    def _put_released(self, batch: int) -> None:
        self._ask(obstore.put, "released", str(batch).encode())

    def batches(self) -> list[int]:
        """Numbers of the batches that have files, ascending."""
        folders = self._ask(obstore.list_with_delimiter, "")["common_prefixes"]
        numbers = (str(folder).rstrip("/").rpartition("/")[2] for folder in folders)
        return sorted(int(number) for number in numbers if number.isdigit())

    def delete(self, prefix: str = "") -> int:
        """Delete what we wrote under a prefix of this stream; how many files that was."""
        ours = [f"{prefix}{name}" for name in self._names(prefix) if _OURS.fullmatch(f"{prefix}{name}")]
        for name in ours:
            with suppress(*MISSING):
                self._ask(obstore.delete, name)
        return len(ours)

    def _names(self, folder: str) -> dict[str, int]:
        """What is stored in a folder of this stream ("" or with a final slash) and below: name and size in bytes."""
        prefix = f"{self.root}/{folder}"
        entries = self._ask(lambda store, name: [entry for page in obstore.list(store, name) for entry in page], folder)
        return {str(entry["path"]).removeprefix(prefix): int(entry["size"]) for entry in entries}

    def _ask(self, call: Callable[..., T], path: str, *arguments: Any, **settings: Any) -> T:
        """A call of obstore about `path` of this stream; StagingError when the store refuses it, whoever asks."""
        try:
            return call(self._store, f"{self.root}/{path}", *arguments, **settings)
        except (*_EXISTS, *MISSING):
            raise
        except REFUSED as error:
            raise unusable(self.location, error) from None

"""The bytes of a staged part: an Arrow IPC stream of messages, one or more of receipts, a footer with their lengths.

A part is one object, so that it is there or not. The driver reads the footer and the receipts alone, with ranged reads
(`Staging.receipts`). Pure. Unreadable bytes raise DamagedFile.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ...codec.envelope import MESSAGES, RECEIPTS, has_text, size
from ...errors import DamagedFile

Buffer: TypeAlias = bytes | memoryview
FOOTER_READ_BYTES = 4096  # from the end of a part. Nearly all footers are shorter, so one read is enough
_MAGIC = b"PSSTAGE1"
_TAIL = struct.Struct("<I8s")  # length of the JSON footer in bytes, magic
_SMALL_BYTES = 4096  # of buffers that are joined
_RECEIPTS_SECTION_BYTES = 4 * 2**20  # which the driver reads at a time


@dataclass(frozen=True)
class Footer:
    """The counts and lengths of a part, and why its pull ended (`full`, `caughtUp`, `period` or `idle`).

    dropped: redeliveries, which have receipts and no rows. oldest: a publish time in seconds since the epoch.
    pull_bytes, pull_seconds: of all responses, and until the last of them. arrived: when that was, by the task's clock,
    in seconds since the epoch. 0 without one. spark_batch, task_slots: of `spark_context`, if a task has staged the
    part. has_keys: whether messages have ordering keys. redelivered: messages that the task has acknowledged at once,
    without rows and receipts. reader: the name of the reader schema, in part 0 (`schemas`). id: of the attempt that has
    staged the part, "" in 0.1.0. siblings: number and id of other parts of the batch which have messages whose receipts
    are here. Fields of other versions are ignored.
    """

    rows: int
    bytes: int
    dropped: int
    ended: str
    oldest: float | None
    messages_length: int
    receipts_lengths: Sequence[int]
    pull_bytes: int = 0
    pull_seconds: float = 0.0
    arrived: float = 0.0
    spark_batch: int | None = None
    task_slots: int | None = None
    redelivered: int = 0
    has_keys: bool = False
    reader: str | None = None
    id: str = ""
    siblings: Sequence[tuple[int, str]] = ()

    @classmethod
    def parsed(cls, fields: Mapping[str, Any]) -> Self:
        """Return the footer with these fields. Raises TypeError if one is missing."""
        return cls(**{name: fields[name] for name in fields if name in cls.__dataclass_fields__})

    def serialized(self) -> Buffer:
        """Return it as JSON, the same for equal footers."""
        return json.dumps(asdict(self)).encode()

    @property
    def acks(self) -> int:
        """The number of acks that the part waits for: of rows and of dropped redeliveries."""
        return self.rows + self.dropped

    @property
    def is_empty(self) -> bool:
        """Whether its pull brought no message."""
        return not (self.acks or self.redelivered)

    @property
    def has_found_the_end(self) -> bool:
        """Whether its pull says that the subscription had no more messages."""
        return self.is_empty or self.ended in ("idle", "caughtUp")


class _BufferList(io.RawIOBase):
    """A file that keeps the buffers that are written, and joins small ones. One growing buffer is copied too often."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.length = 0

    def writable(self) -> bool:
        return True

    def write(self, buffer: Any) -> int:
        piece = memoryview(buffer).cast("B")  # Arrow's own buffers are signed, which obstore refuses
        if len(piece) < _SMALL_BYTES and self.buffers and len(self.buffers[-1]) < _SMALL_BYTES:
            self.buffers[-1] = bytes(self.buffers[-1]) + piece  # each buffer is written by a call of its own
        else:
            self.buffers.append(piece)
        self.length += len(piece)
        return len(piece)


class _Section(NamedTuple):
    writer: Any
    sink: _BufferList


class PartBuilder:
    """The bytes of a part as its messages arrive, in buffers that are never copied into one.

    compression: Arrow's name of a codec, or None. section_bytes: of receipts that are read at a time.
    """

    def __init__(self, compression: str | None, section_bytes: int = _RECEIPTS_SECTION_BYTES) -> None:
        self._section_bytes = section_bytes
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._messages = self._section(MESSAGES)
        self._receipts: list[_Section] = []
        self._rows = self._bytes = self._receipts_rows = 0
        self._has_keys = False
        self._oldest: int | None = None  # microseconds since the epoch

    def add(self, messages: pa.RecordBatch, receipts: pa.RecordBatch) -> None:
        """Append messages (schema MESSAGES) and receipts (RECEIPTS), which may outnumber them."""
        self._messages.writer.write_batch(messages)
        if not self._receipts or self._receipts[-1].sink.length >= self._section_bytes:
            self._receipts.append(self._section(RECEIPTS))
        self._receipts[-1].writer.write_batch(receipts)
        self._rows += messages.num_rows
        self._has_keys = self._has_keys or has_text(messages.column("ordering_key"))
        self._bytes += size(messages)
        self._receipts_rows += receipts.num_rows
        if messages.num_rows:
            oldest = pc.min(messages.column("publish_time")).value
            self._oldest = oldest if self._oldest is None else min(oldest, self._oldest)

    def buffers(self, ended: str, **more: Any) -> list[Buffer]:
        """Return the buffers of the finished part, to be written in order. more: the other fields of `Footer`."""
        sections = [self._messages, *self._receipts]
        for section in sections:
            section.writer.close()
        buffers = [buffer for section in sections for buffer in section.sink.buffers]
        footer = Footer(
            rows=self._rows,
            bytes=self._bytes,
            dropped=self._receipts_rows - self._rows,
            ended=ended,
            oldest=None if self._oldest is None else self._oldest / 1e6,
            messages_length=self._messages.sink.length,
            has_keys=self._has_keys,
            receipts_lengths=[section.sink.length for section in self._receipts],
            **more,
        )
        text = footer.serialized()
        return [*buffers, text, _TAIL.pack(len(text), _MAGIC)]

    def _section(self, schema: pa.Schema) -> _Section:
        sink = _BufferList()
        return _Section(pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema, options=self._options), sink)


def messages(part: Any, name: str = "part") -> Iterator[pa.RecordBatch]:
    """Yield the messages in the bytes of a part, as record batches of the schema MESSAGES. name: for DamagedFile."""
    buffer = pa.py_buffer(part)
    read = footer(buffer, name)
    yield from counted(record_batches(buffer.slice(0, read.messages_length), name), read.rows, name)


def receipts(buffers: Sequence[Buffer]) -> Iterator[pa.RecordBatch]:
    """Yield the receipts in the buffers of a part, as record batches of the schema RECEIPTS."""
    part = pa.py_buffer(b"".join(buffers))
    read = footer(part)
    start = read.messages_length
    for length in read.receipts_lengths:
        yield from receipt_batches(part.slice(start, length), "part")
        start += length


def receipt_batches(section: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the receipts of a section of a part."""
    for batch in record_batches(section, name):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=RECEIPTS)  # 0.1.0 has other names


def record_batches(section: Any, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a section of a part. Raises DamagedFile if it is no whole Arrow stream."""
    try:
        for batch in pa.ipc.open_stream(section):
            batch.validate(full=True)  # else Arrow, or a worker, may crash later
            yield batch
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DamagedFile(name, str(error)) from None


def counted(batches: Iterator[pa.RecordBatch], rows: int, name: str) -> Iterator[pa.RecordBatch]:
    """Yield record batches. Raises DamagedFile if they have another number of rows: zeros end a stream, for Arrow."""
    count = 0
    for batch in batches:
        count += batch.num_rows
        yield batch
    if count != rows:
        raise DamagedFile(name, f"it has {count} of {rows} messages")


def footer(part: Any, name: str = "part") -> Footer:
    """Return the footer in the bytes of a part, or in its last `footer_length` bytes."""
    view = memoryview(part).cast("B")
    length = footer_length(view, name)
    if length > len(view):
        raise DamagedFile(name, "it is truncated")
    try:
        return Footer.parsed(json.loads(bytes(view[-length : -_TAIL.size])))
    except (ValueError, TypeError) as error:
        raise DamagedFile(name, str(error)) from None


def footer_length(end: Any, name: str) -> int:
    """Return the length of the footer and its trailer, from the last bytes of a part."""
    view = memoryview(end).cast("B")
    if len(view) >= _TAIL.size:
        length, magic = _TAIL.unpack(view[-_TAIL.size :])
        if magic == _MAGIC:
            return int(length) + _TAIL.size
    raise DamagedFile(name, "it has no footer")

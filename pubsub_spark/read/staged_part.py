"""The bytes of a staged part: an Arrow IPC stream of messages, one or more of receipts, a footer with their lengths.

A part is one object, so that it is there or not. Tasks read the messages; the driver reads the footer and the receipts
alone, with ranged reads (`Staging.receipts`). Pure: buffers in and out.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..codec.envelope import MESSAGES, RECEIPTS, size
from ..errors import StagingError

Buffer: TypeAlias = bytes | memoryview
FOOTER_READ_BYTES = 4096  # from the end of a part; a footer has a few hundred bytes, so one read is enough
_MAGIC = b"PSSTAGE1"
_TAIL = struct.Struct("<I8s")  # length of the JSON footer in bytes, magic
_RECEIPTS_SECTION_BYTES = 4 * 2**20  # which the driver reads at a time


@dataclass(frozen=True)
class Footer:
    """The counts and lengths of a part, and why its pull ended (`full`, `caughtUp`, `period` or `idle`).

    dropped: redeliveries, which have receipts and no rows. oldest: a publish time in seconds since the epoch.
    pull_bytes, pull_seconds: of all responses, and until the last of them.
    spark_batch, task_slots: Spark's batchId of the batch, and the number of tasks that run at once, where a task has
    staged the part; the driver is not told them.
    sent_acks: the parts of committed batches whose acks the task has sent, each as batch, part and number of acks
    (`task_acks`).
    reader: the name of the reader schema of the run that planned the batch, in part 0 (`staged_schemas`).
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
    spark_batch: int | None = None
    task_slots: int | None = None
    sent_acks: Sequence[Sequence[int]] = ()
    reader: str | None = None


class PartBuilder:
    """The bytes of a part as its messages arrive, in buffers that are never copied into one.

    Receipts may outnumber messages: redeliveries that were dropped are acknowledged with the batch that dropped them.
    compression: Arrow's name of a codec, or None.
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
        if not self._receipts or self._receipts[-1].length >= _RECEIPTS_SECTION_BYTES:
            self._receipts.append(_Section(RECEIPTS, self._compression))
        self._receipts[-1].write(receipts)
        self._rows += messages.num_rows
        self._bytes += size(messages)
        self._receipts_rows += receipts.num_rows
        if messages.num_rows:
            oldest = pc.min(messages.column("publish_time")).value
            self._oldest = oldest if self._oldest is None else min(oldest, self._oldest)

    def buffers(self, ended: str, **more: Any) -> list[Buffer]:
        """The buffers of the finished part, to be written one after the other. more: the other fields of `Footer`."""
        sections = [self._messages, *self._receipts]
        buffers = [buffer for section in sections for buffer in section.end()]
        footer = Footer(
            rows=self._rows,
            bytes=self._bytes,
            dropped=self._receipts_rows - self._rows,
            ended=ended,
            oldest=None if self._oldest is None else self._oldest / 1e6,
            messages_length=self._messages.length,
            receipts_lengths=[section.length for section in self._receipts],
            **more,
        )
        text = json.dumps(asdict(footer)).encode()
        return [*buffers, text, _TAIL.pack(len(text), _MAGIC)]


class _Section:
    """An Arrow IPC stream, kept as the buffers that Arrow writes; its own, where nothing is compressed."""

    def __init__(self, schema: pa.Schema, compression: str | None) -> None:
        self._sink = _BufferList()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema, options=options)

    @property
    def length(self) -> int:
        return self._sink.length

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def end(self) -> list[Buffer]:
        self._writer.close()
        return self._sink.buffers


class _BufferList(io.RawIOBase):
    """A file that keeps each buffer as it is written; one growing buffer would be copied again and again."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.length = 0

    def writable(self) -> bool:
        return True

    def write(self, buffer: Any) -> int:
        self.buffers.append(memoryview(buffer).cast("B"))  # Arrow's own buffers are signed, which obstore refuses
        self.length += len(buffer)
        return len(buffer)


def messages(part: Any) -> Iterator[pa.RecordBatch]:
    """The messages in the bytes of a part, as record batches of the schema MESSAGES."""
    buffer = pa.py_buffer(part)
    yield from pa.ipc.open_stream(buffer.slice(0, footer(buffer).messages_length))


def receipts(buffers: Sequence[Buffer]) -> Iterator[pa.RecordBatch]:
    """The receipts in the buffers of a part, as record batches of the schema RECEIPTS."""
    part = pa.py_buffer(b"".join(buffers))
    found = footer(part)
    start = found.messages_length
    for length in found.receipts_lengths:
        yield from pa.ipc.open_stream(part.slice(start, length))
        start += length


def footer(part: Any) -> Footer:
    """The footer in the bytes of a part."""
    return footer_of_tail(memoryview(part).cast("B")[-FOOTER_READ_BYTES:], "part")


def footer_of_tail(tail: Any, name: str) -> Footer:
    """The footer at the end of `tail`, the last bytes of a part. name: of the part, for the error."""
    view = memoryview(tail).cast("B")
    if len(view) >= _TAIL.size:
        length, magic = _TAIL.unpack(view[-_TAIL.size :])
        if magic == _MAGIC and length + _TAIL.size <= len(view):
            return Footer(**json.loads(bytes(view[-_TAIL.size - length : -_TAIL.size])))
    raise StagingError(
        f"The staged part `{name}` is damaged. Remove its stream with `pubsub-spark staging clean`; its messages were "
        "never acknowledged and come again."
    )

"""What one task does with its rows: columns to messages, checked, cut into requests, sent, confirmed.

A `Job` is made on the driver and pickled to the tasks: plain values. `run` opens a connection, and returns only when
every message has an id. Its memory does not grow with its rows: it holds an Arrow batch, or with ordering keys some
megabytes of them so that a key's messages share requests, and what is under way.

All rows of an Arrow batch are checked before any of them is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import names
from ..backend import Backend
from ..errors import DataError, RowError
from ..options import WriteOptions
from . import deadletter, limits, payload, requests, rows
from .metrics import WriteMetrics
from .publish import Publisher

if TYPE_CHECKING:
    from ..codec.registry import TopicSchema

# Bytes of messages with several keys or topics that are gathered before they are cut: with 1000 keys and 200 bytes a
# message, requests of 200 messages instead of the 10 that an Arrow batch of 10,000 rows has for each key.
_GATHERED = 40 * 2**20


@dataclass(frozen=True)
class Part:
    """The part of a write that one task does. `prefix` begins the ids of its rows, the same in every try."""

    partition: int
    prefix: str


@dataclass(frozen=True)
class Job:
    """One write, as every task of it knows it."""

    options: WriteOptions
    backend: Backend
    layout: rows.Layout
    topic_schema: TopicSchema | None

    def run(self, batches: Iterable[pa.RecordBatch], part: Part) -> WriteMetrics:
        """Publish the rows of one task. Raises DataError for a row that cannot be sent, and Publisher's errors."""
        with (
            self.backend.connect() as connection,
            Publisher(connection, self.options.max_outstanding_requests, self.options.publish_timeout) as publisher,
        ):
            work = _Work(self, part, publisher)
            try:
                for batch in batches:
                    work.take(batch)
                work.send_gathered()
            except DataError as error:
                raise type(error)(f"{error} {publisher.settle()}") from None
            return publisher.finish() + work.adjustment


class _Work:
    """One task under way."""

    def __init__(self, job: Job, part: Part, publisher: Publisher) -> None:
        self.adjustment = WriteMetrics()
        self._job = job
        self._part = part
        self._publisher = publisher
        self._encode = payload.RowEncoder(job.topic_schema, job.options)
        self._row = 0
        self._gathered: list[tuple[pa.RecordBatch, limits.Ints]] = []
        self._gathered_bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Check the rows of an Arrow batch, and send them, or gather them with the next ones."""
        messages = self._named(self._checked_topics(self._messages(batch)))
        self._row += len(messages)
        sizes = limits.sizes(messages)
        messages, sizes = self._within_limits(messages, sizes)
        self._gathered.append((messages, sizes))
        self._gathered_bytes += int(sizes.sum())
        if self._gathered_bytes >= _GATHERED or not {"topic", "ordering_key"}.intersection(messages.schema.names):
            self.send_gathered()

    def send_gathered(self) -> None:
        """Send what was gathered."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            sizes = np.concatenate([sizes for _, sizes in gathered])
            batches = [batch for batch, _ in gathered]
            gathered.clear()
            self._send(batches, sizes, self._job.options.topic)

    def _send(self, batches: list[pa.RecordBatch], sizes: limits.Ints, topic: str | None) -> None:
        """Send batches and forget them: while they are sent only what is cut of them is still there."""
        most, size = self._job.options.max_batch_messages, self._job.options.max_batch_bytes
        made = requests.requests(rows.concatenated(batches), sizes, topic, most, size)
        batches.clear()
        for request in made:
            self._publisher.send(request)

    def _messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return rows.messages(batch, self._job.layout, self._encode)
        except RowError as error:
            raise DataError(f"{self._where(self._row + error.row)}: {error.complaint}.") from None

    def _checked_topics(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The same messages with full names of their topics."""
        if self._job.layout.topic is None:
            return messages
        column = messages.column("topic")
        if column.null_count:
            raise self._refused(pc.index(column.is_null(), True).as_py(), "topic", "is null, but must name a topic")
        coded = column.dictionary_encode()
        full = []
        for code, name in enumerate(coded.dictionary.to_pylist()):
            try:
                full.append(names.full(name, self._job.options.project, "topics"))
            except ValueError as error:
                raise self._refused(
                    pc.index(coded.indices, code).as_py(), "topic", f"names no topic: {error}"
                ) from None
        return rows.with_column(messages, "topic", pa.array(full, pa.string()).take(coded.indices))

    def _named(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """The same messages, which must not be empty, with the id by which a repeated one can be told."""
        empty = limits.empty(messages)
        if empty.any():
            what = "is null or empty, and there are no attributes: Pub/Sub takes no message with neither"
            raise self._refused(int(empty.argmax()), "data", what)
        name = self._job.options.id_attribute
        if name is None:
            return messages
        numbers = pa.array(np.arange(self._row, self._row + len(messages))).cast(pa.string())
        ids = pc.binary_join_element_wise(self._part.prefix, numbers, "/")
        present = "attributes" in messages.schema.names
        attributes = rows.with_attributes(messages.column("attributes") if present else None, [(name, ids)])
        return rows.with_column(messages, "attributes", attributes)

    def _within_limits(self, messages: pa.RecordBatch, sizes: limits.Ints) -> tuple[pa.RecordBatch, limits.Ints]:
        """The messages that Pub/Sub will take; others fail the task, are dropped, or go to the dead-letter topic."""
        options = self._job.options
        found = limits.breaches(messages, sizes, self._overheads(messages))
        if not found:
            return messages, sizes
        first_row = self._row - len(messages)
        if options.on_oversize == "error":
            more = f" {len(found) - 1} more rows of its Arrow batch are refused too." if len(found) > 1 else ""
            error = self._refused(found[0].row, found[0].column, found[0].complaint, first_row)
            raise DataError(f"{error} Change it, or set `onOversize` to `drop` or `deadletter`.{more}")
        if options.on_oversize == "deadletter":
            labels = ((breach.row, {deadletter.ERROR_ATTRIBUTE: self._sentence(breach, first_row)}) for breach in found)
            letters = deadletter.letters(messages, labels)
            assert options.dead_letter is not None, "parse() refuses options without it"
            self._send([letters], limits.sizes(letters), options.dead_letter)
            # A letter is published and has its id, but it is not the message.
            self.adjustment += WriteMetrics(messages=-len(found), dead_lettered=len(found))
        else:
            self.adjustment += WriteMetrics(dropped=len(found))
        kept = np.ones(len(messages), dtype=np.bool_)
        kept[[breach.row for breach in found]] = False
        return messages.filter(pa.array(kept)), sizes[kept]

    def _overheads(self, messages: pa.RecordBatch) -> limits.Ints | int:
        if self._job.options.topic is not None:
            return limits.overhead(self._job.options.topic)
        coded = messages.column("topic").dictionary_encode()
        each = np.array([limits.overhead(name) for name in coded.dictionary.to_pylist()], dtype=np.int64)
        of_row: limits.Ints = each[coded.indices.to_numpy()]
        return of_row

    def _sentence(self, breach: limits.Breach, first_row: int) -> str:
        return f"{self._where(first_row + breach.row)}: {self._job.layout.shown(breach.column)} {breach.complaint}."

    def _where(self, row: int) -> str:
        return f"Row {row} of partition {self._part.partition}"

    def _refused(self, row: int, column: str, complaint: str, first_row: int | None = None) -> DataError:
        first = self._row if first_row is None else first_row
        return DataError(self._sentence(limits.Breach(row, column, complaint), first))

"""The data writer of a task: Arrow batches of rows become confirmed messages.

Runs in a task. Memory does not grow with the rows of the partition: it holds one Arrow batch, or with ordering keys
some megabytes of batches so that the messages of a key share requests, and the outstanding requests.

All rows of an Arrow batch are checked before any of them is published.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import names
from ..errors import DataError, RowError
from ..publish import limits
from ..publish.dead_letters import ERROR_ATTRIBUTE, dead_letters
from ..publish.requests import encoded_requests
from .messages import concatenated, to_messages, with_attributes, with_column
from .metrics import WriteMetrics
from .plan import WritePlan
from .publisher import Publisher
from .row_encoder import RowEncoder

# Messages with several keys or topics are buffered up to this size before they are batched into requests: with 1000
# keys, an Arrow batch of 10,000 rows has 10 messages for each key. At 200 bytes a message, buffering makes requests of
# 200.
MAX_BUFFERED_BYTES = 40 * 2**20


@dataclass(frozen=True)
class PartitionId:
    """The partition that a task writes. `id_prefix` begins the ids of its rows, the same in every attempt."""

    partition: int
    id_prefix: str


def write_partition(plan: WritePlan, batches: Iterable[pa.RecordBatch], partition: PartitionId) -> WriteMetrics:
    """Returns when every message has an id.

    Raises DataError for a row that cannot be published, and Publisher's errors.
    """
    with (
        plan.backend.connect() as connection,
        Publisher(connection, plan.options.max_outstanding_requests, plan.options.publish_timeout) as publisher,
    ):
        writer = _DataWriter(plan, partition, publisher)
        try:
            for batch in batches:
                writer.write(batch)
            writer.flush()
        except DataError as error:
            raise type(error)(f"{error} {publisher.finish_outstanding()}") from None
        return publisher.finish() + writer.adjustment


class _DataWriter:
    """The writer of one partition. `adjustment` corrects the publisher's metrics by dropped rows and dead letters."""

    def __init__(self, plan: WritePlan, partition: PartitionId, publisher: Publisher) -> None:
        self.adjustment = WriteMetrics()
        self._plan = plan
        self._partition = partition
        self._publisher = publisher
        self._encode = RowEncoder(plan.topic_schema, plan.options)
        self._rows = 0
        self._buffered: list[tuple[pa.RecordBatch, limits.Ints]] = []
        self._buffered_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        messages = self._with_ids(self._with_full_topics(self._to_messages(batch)))
        messages, sizes = self._within_limits(messages, limits.message_sizes(messages))
        self._rows += len(batch)
        self._buffered.append((messages, sizes))
        self._buffered_bytes += int(sizes.sum())
        fills_requests = not {"topic", "ordering_key"}.intersection(messages.schema.names)
        if fills_requests or self._buffered_bytes >= MAX_BUFFERED_BYTES:
            self.flush()

    def flush(self) -> None:
        buffered, self._buffered, self._buffered_bytes = self._buffered, [], 0
        if buffered:
            sizes = np.concatenate([sizes for _, sizes in buffered])
            batches = [batch for batch, _ in buffered]
            buffered.clear()
            self._publish(batches, sizes, self._plan.options.topic)

    def _publish(self, batches: list[pa.RecordBatch], sizes: limits.Ints, topic: str | None) -> None:
        """Empty the list, so that while the batches are sent only their requests are in memory."""
        options = self._plan.options
        requests = encoded_requests(
            concatenated(batches), sizes, topic, options.max_batch_messages, options.max_batch_bytes
        )
        batches.clear()
        for request in requests:
            self._publisher.send(request)

    def _to_messages(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return to_messages(batch, self._plan.mapping, self._encode)
        except RowError as error:
            raise DataError(f"{self._where(error.row)}: {error.complaint}.") from None

    def _with_full_topics(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        if self._plan.mapping.topic is None:
            return messages
        column = messages.column("topic")
        if column.null_count:
            raise self._row_error(pc.index(column.is_null(), True).as_py(), "topic", "is null, but must name a topic")
        encoded = column.dictionary_encode()
        full_names = []
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            try:
                full_names.append(names.full(name, self._plan.options.project, "topics"))
            except ValueError as error:
                row = pc.index(encoded.indices, code).as_py()
                raise self._row_error(row, "topic", f"names no topic: {error}") from None
        return with_column(messages, "topic", pa.array(full_names, pa.string()).take(encoded.indices))

    def _with_ids(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Add the attribute that identifies a repeated message. An empty message is an error."""
        empty = limits.is_empty(messages)
        if empty.any():
            complaint = "is null or empty, and there are no attributes: Pub/Sub takes no message with neither"
            raise self._row_error(int(empty.argmax()), "data", complaint)
        id_attribute = self._plan.options.id_attribute
        if id_attribute is None:
            return messages
        numbers = pa.array(np.arange(self._rows, self._rows + len(messages))).cast(pa.string())
        ids = pc.binary_join_element_wise(self._partition.id_prefix, numbers, "/")
        present = "attributes" in messages.schema.names
        attributes = with_attributes(messages.column("attributes") if present else None, [(id_attribute, ids)])
        return with_column(messages, "attributes", attributes)

    def _within_limits(self, messages: pa.RecordBatch, sizes: limits.Ints) -> tuple[pa.RecordBatch, limits.Ints]:
        """Messages that break a limit fail the task, are dropped or become dead letters."""
        options = self._plan.options
        violations = limits.violations(messages, sizes, self._topic_field_bytes(messages))
        if not violations:
            return messages, sizes
        if options.on_oversize == "error":
            first, others = violations[0], len(violations) - 1
            more = f" {others} more rows of its Arrow batch are also refused." if others else ""
            error = self._row_error(first.row, first.field, first.complaint)
            raise DataError(f"{error} Change it, or set `onOversize` to `drop` or `deadletter`.{more}")
        if options.on_oversize == "deadletter":
            reasons = ((violation.row, {ERROR_ATTRIBUTE: self._sentence(violation)}) for violation in violations)
            published = dead_letters(messages, reasons)
            assert options.dead_letter is not None, "parse() refuses options without it"
            self._publish([published], limits.message_sizes(published), options.dead_letter)
            # A dead letter is published and has its id, but it is not the message.
            self.adjustment += WriteMetrics(messages=-len(violations), dead_lettered=len(violations))
        else:
            self.adjustment += WriteMetrics(dropped=len(violations))
        kept = np.ones(len(messages), dtype=np.bool_)
        kept[[violation.row for violation in violations]] = False
        return messages.filter(pa.array(kept)), sizes[kept]

    def _topic_field_bytes(self, messages: pa.RecordBatch) -> limits.Ints | int:
        if self._plan.options.topic is not None:
            return limits.topic_field_bytes(self._plan.options.topic)
        encoded = messages.column("topic").dictionary_encode()
        by_topic = [limits.topic_field_bytes(name) for name in encoded.dictionary.to_pylist()]
        by_row: limits.Ints = np.array(by_topic, dtype=np.int64)[encoded.indices.to_numpy()]
        return by_row

    def _row_error(self, row: int, field: str, complaint: str) -> DataError:
        return DataError(self._sentence(limits.LimitViolation(row, field, complaint)))

    def _sentence(self, violation: limits.LimitViolation) -> str:
        column = self._plan.mapping.column_of(violation.field)
        return f"{self._where(violation.row)}: {column} {violation.complaint}."

    def _where(self, row: int) -> str:
        return f"Row {self._rows + row} of partition {self._partition.partition}"

"""The Protobuf decoder: payloads to columns, a block of messages at a time, in C++ and Rust.

protobuf's own core (upb) decides which payloads are messages. A block goes through five steps:

    payloads → one envelope    the messages behind one another, each with tag and length       ptars
             → upb             parsed: now it is certain that each of them is a message        protobuf
            (→ bytes           written again: the last of a oneof, or of a map's key, has won  protobuf)
             → a batch         a list of structs, by the schema made for ptars                 ptars
             → columns         unsigned to signed, numbers to names, seconds to microseconds   here

`ptars` alone is lenient: it accepts lengths that overflow and bytes left over, and keeps both members of a oneof, a
map's key twice, the number that a closed enum does not have. So schemas with one of the last three or with messages of
any shape have their messages written again. So have messages that ptars refuses: it knows no groups, which unknown
fields may be.

When a step fails, the bad rows are isolated. upb continues behind each malformed message that it refuses. For messages
that have no place in the columns the block is split into parts, and the parts that fail are split again, down to single
rows. A bad row gets a reason and, in the block, the bytes of an empty message. Then the block is decoded again.

Binary messages are read with the reader's descriptor whatever revision wrote them, since field numbers are common to
both. JSON has names instead of numbers, so it is read with the writer's descriptor and passed on as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pubsub_spark.codec import arrays
from pubsub_spark.codec.protobuf import column_arrays, ptars_schema, types
from pubsub_spark.codec.protobuf.column_arrays import UnreadableMessage, message_column
from pubsub_spark.codec.protobuf.column_tree import Array, Enum, Json, Map, Node, Struct, build_column_tree
from pubsub_spark.codec.protobuf.json import compile_reader
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.protobuf.definition import ENVELOPE_TAG, ProtobufDefinition
from pubsub_spark.schema.protobuf.descriptors import has_required
from pubsub_spark.slices import slices

# A block: small enough for the caches and for a parse to hold little memory, large enough to hide its fixed cost.
BLOCK_ROWS: Final = 16_384
BLOCK_BYTES: Final = 8 << 20
CHUNK_ROWS: Final = 256  # of a block with malformed messages: after each one, the rest of a chunk is copied
SPLIT_PARTS: Final = 4  # of rows that fail together


class ProtobufDecoder:
    """`writer`: the revision of the names in JSON payloads."""

    def __init__(
        self, definition: ProtobufDefinition, encoding: Encoding = "BINARY", writer: ProtobufDefinition | None = None
    ) -> None:
        self.definition = definition
        self._json_reader = compile_reader(writer or definition) if encoding == "JSON" else None
        self.struct = build_column_tree(definition.message)
        self.type = types.struct_type(self.struct)
        self._required = has_required(definition.message)
        self._maps = _any(self.struct, lambda node: isinstance(node, Map))
        # Unknown fields for upb but not for ptars: a closed enum's other numbers, and map entries with a third field.
        self._discarded = self._maps or _any(self.struct, lambda node: isinstance(node, Enum) and node.closed)
        self._rewritten = self._discarded or _any(self.struct, _is_merged)
        self._envelope = ptars_schema.envelope_writer()
        self._batch = ptars_schema.batch_reader(self.struct)

    def decode(self, data: pa.BinaryArray) -> tuple[pa.StructArray, pa.StringArray]:
        """Return the value of each payload, null where the second array has the reason for it."""
        reasons: dict[int, str] = {}
        if self._json_reader:
            data, reasons = self._json_reader.read(data.fill_null(b""))
        data = data.fill_null(b"")
        blocks = [
            self._block(data.slice(start, end - start), start, reasons)
            for start, end in slices(arrays.offsets_of(data), BLOCK_ROWS, BLOCK_BYTES)
        ]
        return arrays.with_reasons(pa.concat_arrays(blocks or [pa.array([], self.type)]), reasons)

    def _block(self, data: pa.Array, start: int, reasons: dict[int, str]) -> pa.StructArray:
        """`start` is the row of the first message. A row with a reason is an empty message, to be made null."""
        framed = self._framed(data)
        try:
            return self._columns(framed, self._parse(framed))
        except UnreadableMessage:
            malformed = {row: self._parse_error(data[row].as_py()) for row in self._malformed(framed, _places(data))}

        def read_rows(first: int, end: int) -> None:
            part = self._framed(data.slice(first, end - first))
            if end - first > 1:
                self._columns(part)
            else:  # ptars may fail for a reason that this module does not know of
                self._from_objects(part)

        data = _emptied(data, list(malformed))
        reasons.update({start + row: reason for row, reason in malformed.items() if start + row not in reasons})
        try:
            return self._columns(self._framed(data))
        except UnreadableMessage:
            unreadable = dict(_refused(read_rows, 0, len(data)))
            data = _emptied(data, list(unreadable))
            reasons.update({start + row: reason for row, reason in unreadable.items()})
        framed = self._framed(data)
        try:
            return self._columns(framed)
        except UnreadableMessage:
            return self._from_objects(framed)

    def _malformed(self, framed: bytes, places: list[int]) -> Iterator[int]:
        def parse_rows(first: int, end: int) -> None:
            self._parse(framed[places[first] : places[end]])

        row, count = 0, len(places) - 1
        while row < count:
            end = min(row + CHUNK_ROWS, count)
            refused = row + self._accepted(framed[places[row] : places[end]])
            if refused == end:
                row = end
            elif any(_refused(parse_rows, refused, refused + 1)):
                yield refused
                row = refused + 1
            else:  # another implementation of protobuf keeps other messages
                yield from (at for at, _ in _refused(parse_rows, row, end))
                row = end

    def _accepted(self, framed: bytes) -> int:
        """Return the number of messages before the first that upb refuses, or that lacks a required field."""
        envelope = self.definition.envelope_class()
        try:
            envelope.ParseFromString(framed)
            parsed = len(envelope.messages)
        except DecodeError:  # upb keeps the messages that it has parsed and, as the last, the one that it refuses
            parsed = max(len(envelope.messages) - 1, 0)
        if self._required:
            complete = map(self.definition.message_class.IsInitialized, envelope.messages[:parsed])
            return next((at for at, is_complete in enumerate(complete) if not is_complete), parsed)
        return parsed

    def _parse(self, framed: bytes, required: bool = True) -> Any:
        """Return the parsed envelope. Raises UnreadableMessage if one is malformed or, if `required`, lacks a field."""
        try:
            envelope = self.definition.envelope_class.FromString(framed)
        except DecodeError as error:
            raise UnreadableMessage(str(error)) from None
        if required and self._required and not envelope.IsInitialized():
            raise UnreadableMessage("A required field is missing")
        return envelope

    def _columns(self, framed: bytes, envelope: Any = None) -> pa.StructArray:
        """Raises UnreadableMessage if a message has no place in the columns."""
        if not self.struct.columns or self._batch is None:
            return self._from_objects(framed, envelope)
        try:
            batch = self._read_batch(self._rewrite(framed, envelope, self._discarded) if self._rewritten else framed)
        except UnreadableMessage:
            batch = self._read_batch(self._rewrite(framed, envelope, discard=True))
        return message_column(batch.column(0).values, self.struct, self.type, present=True)

    def _read_batch(self, framed: bytes) -> pa.RecordBatch:
        """Raises UnreadableMessage when ptars cannot read a message."""
        assert self._batch is not None
        try:
            return ptars_schema.call(self._batch.list_to_record_batch, [framed])
        except ValueError as error:
            raise UnreadableMessage(str(error)) from None

    def _rewrite(self, framed: bytes, envelope: Any, discard: bool) -> bytes:
        """Return the envelope as upb writes it, with maps in a stable order. `discard`: without unknown fields."""
        envelope = envelope or self._parse(framed, required=False)
        if discard:
            envelope.DiscardUnknownFields()
        return bytes(envelope.SerializePartialToString(deterministic=self._maps))

    def _framed(self, data: pa.Array) -> bytes:
        # A slice is copied: not every version of ptars respects an offset.
        payloads = pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), pa.concat_arrays([data]))
        batch = pa.RecordBatch.from_arrays([payloads], names=["messages"])
        framed: bytes = ptars_schema.call(self._envelope.record_batch_to_array, batch)[0].as_py()
        return framed

    def _from_objects(self, framed: bytes, envelope: Any = None) -> pa.StructArray:
        messages = (envelope or self._parse(framed, required=False)).messages
        rows = [column_arrays.object_values(message, self.struct, "") for message in messages]
        return message_column(pa.array(rows, types.ptars_type(self.struct)), self.struct, self.type, present=True)

    def _parse_error(self, payload: bytes) -> str:
        try:
            self.definition.read(payload, "BINARY")
        except InvalidMessage as error:
            return str(error)
        return "The message is nested too deeply"  # a hundred levels of unknown groups, and the envelope's


def _is_merged(node: Node) -> bool:
    """Return whether upb merges values that ptars keeps: members of a oneof, parts of a JSON message."""
    return isinstance(node, Json) or (isinstance(node, Struct) and any(column.oneof for column in node.columns))


def _refused(check: Callable[[int, int], None], first: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield the rows that make `check` raise UnreadableMessage, each with the error's message."""
    try:
        check(first, end)
    except UnreadableMessage as error:
        if end - first == 1:
            yield first, str(error)
            return
        size = -(-(end - first) // SPLIT_PARTS)
        for start in range(first, end, size):
            yield from _refused(check, start, min(start + size, end))


def _any(node: Node, holds: Callable[[Node], bool]) -> bool:
    match node:
        case Struct(columns=columns):
            return holds(node) or any(_any(column.node, holds) for column in columns)
        case Array(inner) | Map(value=inner):
            return holds(node) or _any(inner, holds)
    return holds(node)


def _emptied(data: pa.Array, rows: list[int]) -> pa.Array:
    mask = np.zeros(len(data), bool)
    mask[rows] = True
    return pc.if_else(pa.array(mask), pa.scalar(b""), data)


def _places(data: pa.Array) -> list[int]:
    """Return the offset of each message in the envelope of `data` and, last, its length."""
    lengths = np.diff(arrays.offsets_of(data))
    framed_lengths = lengths + (len(ENVELOPE_TAG) + 1)
    for bits in (7, 14, 21, 28):  # a length needs one more byte from here on
        framed_lengths += lengths >> bits > 0
    return [0, *np.cumsum(framed_lengths).tolist()]

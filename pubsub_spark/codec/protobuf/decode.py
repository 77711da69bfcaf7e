"""The Protobuf decoder: payloads to columns, a block of messages at a time, in C++ and Rust.

protobuf's own core (upb) decides which payloads are messages. A block goes through five steps, none of which makes a
Python object per message:

    payloads → one envelope    the messages behind one another, each with tag and length       ptars
             → upb             parsed: now it is certain that each of them is a message        protobuf
            (→ bytes           written again: the last of a oneof, or of a map's key, has won  protobuf)
             → a batch         a list of structs, by the schema made for ptars                 ptars
             → columns         unsigned to signed, numbers to names, seconds to microseconds   here

`ptars` alone is twice as fast, and lenient: it takes lengths that overflow and bytes left over, and keeps both members
of a oneof, a map's key twice, the number that a closed enum does not have. What upb has parsed it reads exactly but for
the last three (and for messages of any shape, which it gets as bytes); schemas with one of them have their messages
written again. So have messages that ptars then refuses: it knows no groups, which unknown fields may be.

When a step fails, the bad rows are isolated. Malformed messages: upb parses the block in chunks, and goes on behind the
message that it failed at; that costs the block one more parse. Messages that have no place in the columns: the block is
split into parts, again and again, until the failing parts are a few rows. A bad row gets a reason and, in the block,
the bytes of an empty message. Then the block is decoded again.

Revisions: binary messages are read with the reader's descriptor whatever revision wrote them, since field numbers are
what both share: a field that the writer did not have is absent, one that the reader does not have is skipped. JSON has
names instead of numbers, so it is read with the writer's descriptor and then passed on as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from pubsub_spark.codec import arrays
from pubsub_spark.codec.json.reader import JsonReader
from pubsub_spark.codec.protobuf import ptars_schema, row_reader
from pubsub_spark.codec.protobuf.column_arrays import message_column
from pubsub_spark.codec.protobuf.column_tree import (
    Array,
    Enum,
    Json,
    Map,
    Node,
    Struct,
    build_column_tree,
)
from pubsub_spark.codec.protobuf.json import compile_reader
from pubsub_spark.codec.protobuf.row_reader import UnreadableMessage
from pubsub_spark.codec.protobuf.types import struct_type
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.protobuf.definition import ENVELOPE_TAG, ProtobufDefinition
from pubsub_spark.schema.protobuf.descriptors import has_required
from pubsub_spark.slices import slices

# A block: small enough for the caches and for a parse to hold little memory, large enough to hide its fixed cost.
BLOCK_ROWS: Final = 16_384
BLOCK_BYTES: Final = 8 << 20
# The rows of a block with malformed messages that are parsed at once: all that is behind a malformed one is copied.
CHUNK_ROWS: Final = 256
# A block with messages that have no place in the columns is split into so many parts, down to so many rows.
SPLIT_PARTS: Final = 8
MAX_ROWS_ONE_BY_ONE: Final = 32
_EMPTY_MESSAGE: Final = ENVELOPE_TAG + b"\x00"


class DecodedPayloads(NamedTuple):
    """The rows of payloads: `value` is null where `error` says why, and `error` is null where there is a value."""

    value: pa.StructArray
    error: pa.StringArray


class _Messages:
    """Messages as the bytes of one envelope, which upb parses when it is first asked for them."""

    def __init__(self, framed: bytes, envelope_class: Any) -> None:
        self.framed = framed
        self._envelope_class = envelope_class

    @cached_property
    def envelope(self) -> Any:
        """The parsed envelope; DecodeError where one of the messages is malformed."""
        return self._envelope_class.FromString(self.framed)


class ProtobufDecoder:
    """The decoder of payloads of any revision to the columns of one, the reader's; compiled once per revision."""

    def __init__(self, definition: ProtobufDefinition) -> None:
        self.definition = definition
        self.struct = build_column_tree(definition.message)
        self.type = struct_type(self.struct)
        self._required = has_required(definition.message)
        self._maps = _any(self.struct, lambda node: isinstance(node, Map))
        # Unknown fields for upb but not for ptars: a closed enum's other numbers, and map entries with a third field.
        self._discarded = self._maps or _any(self.struct, lambda node: isinstance(node, Enum) and node.closed)
        self._rewritten = self._discarded or _any(self.struct, _is_merged)
        self._envelope = ptars_schema.envelope_writer()
        self._batch = ptars_schema.batch_reader(self.struct)
        self._row = row_reader.compile_row_reader(self.struct)
        self._json: dict[ProtobufDefinition, JsonReader] = {}

    def decode(
        self, data: pa.Array, encoding: Encoding = "BINARY", writer: ProtobufDefinition | None = None
    ) -> DecodedPayloads:
        """The rows of `data` (binary), written by revision `writer` or, if that is None, by the reader's own."""
        reasons: dict[int, str] = {}
        if encoding == "JSON":
            data, reasons = self._json_reader(writer or self.definition).read(data.fill_null(b""))
        if data.null_count:
            data = data.fill_null(b"")
        blocks = [self._block(data.slice(start, count), start, reasons) for start, count in _blocks(data)]
        value = pa.concat_arrays(blocks) if blocks else self._nothing()
        return DecodedPayloads(*arrays.with_reasons(value, reasons))

    def _json_reader(self, writer: ProtobufDefinition) -> JsonReader:
        """The reader of the JSON messages of a revision; compiled when first used."""
        if writer not in self._json:
            self._json[writer] = compile_reader(writer)
        return self._json[writer]

    def _nothing(self) -> pa.StructArray:
        return pa.array([], self.type)

    def _block(self, data: pa.Array, start: int, reasons: dict[int, str]) -> pa.StructArray:
        """The rows of `data`, which begins at row `start`; a row with a reason is an empty message, to be made null."""
        messages = self._messages(data)
        try:
            self._check(messages.envelope)
            return self._columns(messages)
        except (DecodeError, UnreadableMessage):
            places = _framed_places(data)
            malformed = self._bad_rows(
                data, start, reasons, self._malformed_rows(messages.framed, places), self._parse_error
            )
            messages = self._messages_without(messages.framed, places, malformed)
        # Each message parses now, so they are not checked again: the empty ones may lack a required field.
        try:
            return self._columns(messages)
        except UnreadableMessage:
            data = _emptied(data, malformed)
            suspects = _suspect_rows(data, lambda part: self._columns(self._messages(part)))
            data = _emptied(data, self._bad_rows(data, start, reasons, suspects, self._column_error))
        try:
            return self._columns(self._messages(data))
        except UnreadableMessage:  # each alone is readable: ptars fails on something that this module does not know of
            return self._from_objects(map(self.definition.message_class.FromString, data.to_pylist()))

    def _bad_rows(
        self,
        data: pa.Array,
        start: int,
        reasons: dict[int, str],
        suspects: Iterable[int],
        reason_of: Callable[[bytes], str | None],
    ) -> list[int]:
        """The rows among the suspects that have a reason, which is in `reasons` from now on."""
        bad = []
        for row in suspects:
            if start + row not in reasons and (reason := reason_of(data[row].as_py())):
                reasons[start + row] = reason
                bad.append(row)
        return bad

    def _malformed_rows(self, framed: bytes, places: list[int]) -> Iterator[int]:
        """The rows that upb refuses: malformed messages, and those without a required field.

        upb reads messages in their order, and what it has read until it fails stays: the last one there is the one that
        it refuses. A upb that does otherwise is noticed, since that row alone is then no error: rows are tried singly.
        """
        envelope = self.definition.envelope_class()
        parse = envelope.ParseFromString
        count = len(places) - 1
        row = 0
        while row < count:
            last = min(row + CHUNK_ROWS, count)
            try:
                parse(framed[places[row] : places[last]])
                refused = last
            except DecodeError:
                refused = row + len(envelope.messages) - 1
                if refused < row or not self._is_refused(framed[places[refused] : places[refused + 1]]):
                    singles = range(row, last)
                    yield from (one for one in singles if self._is_refused(framed[places[one] : places[one + 1]]))
                    row = last
                    continue
            if self._required and not envelope.IsInitialized():
                parsed = zip(range(row, refused), envelope.messages, strict=False)
                yield from (one for one, message in parsed if not self.definition.message_class.IsInitialized(message))
            if refused < last:
                yield refused
            row = min(refused + 1, last)

    def _is_refused(self, framed: bytes) -> bool:
        """Whether upb refuses an envelope."""
        try:
            self._check(self.definition.envelope_class.FromString(framed))
        except (DecodeError, UnreadableMessage):
            return True
        return False

    def _messages(self, data: pa.Array) -> _Messages:
        return _Messages(self._framed(data), self.definition.envelope_class)

    def _messages_without(self, framed: bytes, places: list[int], rows: list[int]) -> _Messages:
        """The messages of an envelope with those in `rows` replaced by empty ones."""
        parts, done = [], 0
        for row in rows:
            parts += [framed[done : places[row]], _EMPTY_MESSAGE]
            done = places[row + 1]
        return _Messages(b"".join([*parts, framed[done:]]), self.definition.envelope_class)

    def _check(self, envelope: Any) -> None:
        """Raise UnreadableMessage when a message lacks a required field."""
        if self._required and not envelope.IsInitialized():
            raise UnreadableMessage("A required field is missing")

    def _columns(self, messages: _Messages) -> pa.StructArray:
        """The columns of the messages; UnreadableMessage when one of them has no place there."""
        if not self.struct.columns:
            return arrays.structs(self.type, len(messages.envelope.messages), [])
        if self._batch is None:
            return self._from_objects(messages.envelope.messages)
        try:
            framed = self._rewrite(messages, self._discarded) if self._rewritten else messages.framed
            batch = self._read_batch(framed)
        except UnreadableMessage:
            batch = self._read_batch(self._rewrite(messages, discard=True))
        return message_column(batch.column(0).values, self.struct, self.type, present=True)

    def _read_batch(self, framed: bytes) -> pa.RecordBatch:
        """The batch that ptars makes of an envelope; UnreadableMessage when it cannot."""
        assert self._batch is not None
        try:
            return ptars_schema.call(self._batch.list_to_record_batch, [framed])
        except ValueError as error:
            raise UnreadableMessage(str(error)) from None

    def _rewrite(self, messages: _Messages, discard: bool) -> bytes:
        """The envelope as upb writes it, maps in the same order each time; `discard`: without unknown fields."""
        if discard:
            messages.envelope.DiscardUnknownFields()
        framed: bytes = messages.envelope.SerializePartialToString(deterministic=self._maps)
        return framed

    def _framed(self, data: pa.Array) -> bytes:
        """The payloads as one envelope."""
        # A slice is copied: not every version of ptars minds an offset.
        payloads = pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), pa.concat_arrays([data]))
        batch = pa.RecordBatch.from_arrays([payloads], names=["messages"])
        framed: bytes = ptars_schema.call(self._envelope.record_batch_to_array, batch)[0].as_py()
        return framed

    def _from_objects(self, messages: Iterable[Any]) -> pa.StructArray:
        return pa.array([self._row(message) for message in messages], self.type)

    def _parse_error(self, payload: bytes) -> str | None:
        """The reason why this payload is not a message, or None."""
        try:
            self.definition.read(payload, "BINARY")
            self.definition.envelope_class.FromString(self._framed(pa.array([payload], pa.binary())))
        except InvalidMessage as error:
            return str(error)
        except DecodeError:  # a hundred levels of unknown groups, and the envelope's is one too many
            return "The message is nested too deeply"
        return None

    def _column_error(self, payload: bytes) -> str | None:
        """The reason why this message has no place in the columns, or None."""
        try:
            self._row(self.definition.message_class.FromString(payload))
        except UnreadableMessage as error:
            return str(error)
        return None


def _is_merged(node: Node) -> bool:
    """Whether upb merges values of the node that ptars keeps apart: members of a oneof, parts of a JSON message."""
    return isinstance(node, Json) or (isinstance(node, Struct) and any(column.oneof for column in node.columns))


def _suspect_rows(data: pa.Array, check: Callable[[pa.Array], Any], first: int = 0) -> Iterator[int]:
    """The rows of the smallest parts of `data` that fail the check: the bad rows and a few beside each."""
    if len(data) <= MAX_ROWS_ONE_BY_ONE:
        yield from range(first, first + len(data))
        return
    size = -(-len(data) // SPLIT_PARTS)
    for at in range(0, len(data), size):
        part = data.slice(at, size)
        try:
            check(part)
        except (DecodeError, UnreadableMessage):
            yield from _suspect_rows(part, check, first + at)


def _any(node: Node, holds: Callable[[Node], bool]) -> bool:
    """Whether something holds for a node, or for one below it."""
    match node:
        case Struct(columns=columns):
            return holds(node) or any(_any(column.node, holds) for column in columns)
        case Array(inner) | Map(value=inner):
            return holds(node) or _any(inner, holds)
    return holds(node)


def _emptied(data: pa.Array, rows: list[int]) -> pa.Array:
    """The payloads with those in `rows` replaced by the bytes of an empty message."""
    mask = np.zeros(len(data), bool)
    mask[rows] = True
    return pc.if_else(pa.array(mask), pa.scalar(b""), data)


def _framed_places(data: pa.Array) -> list[int]:
    """The offsets in the envelope of `data` where its messages begin and, last, where it ends."""
    lengths = pc.binary_length(data).to_numpy(zero_copy_only=False)
    framed_lengths = lengths + (len(ENVELOPE_TAG) + 1)
    for bits in (7, 14, 21, 28):  # a length takes one byte more from here on
        framed_lengths += lengths >> bits > 0
    return [0, *np.cumsum(framed_lengths, dtype=np.int64).tolist()]


def _blocks(data: pa.Array) -> Iterator[tuple[int, int]]:
    """The blocks as (first row, rows): at most BLOCK_ROWS and, unless it is one row, BLOCK_BYTES each."""
    ends = np.cumsum(pc.binary_length(data).to_numpy(zero_copy_only=False), dtype=np.int64)
    for start, end in slices(np.concatenate([[0], ends]), BLOCK_ROWS, BLOCK_BYTES):
        yield start, end - start

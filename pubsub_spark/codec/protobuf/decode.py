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

When a step fails, the bad rows are isolated: the block is split into parts, again and again, until the failing parts
are a few rows, which are checked one by one. A bad row gets a reason and, in the block, the bytes of an empty message.
Then the block is decoded again. So a bad payload costs the others in its block one more parse.

Revisions: binary messages are read with the reader's descriptor whatever revision wrote them, since field numbers are
what both share: a field that the writer did not have is absent, one that the reader does not have is skipped. JSON has
names instead of numbers, so it is read with the writer's descriptor and then passed on as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from pubsub_spark.codec.definition import Encoding, InvalidMessage
from pubsub_spark.codec.protobuf import ptars_schema, row_reader
from pubsub_spark.codec.protobuf.column_tree import (
    Array,
    Column,
    Duration,
    Enum,
    Json,
    Map,
    Node,
    Scalar,
    Struct,
    Timestamp,
    build_column_tree,
)
from pubsub_spark.codec.protobuf.definition import ProtobufDefinition
from pubsub_spark.codec.protobuf.descriptors import has_required
from pubsub_spark.codec.protobuf.row_reader import UnreadableMessage
from pubsub_spark.codec.protobuf.types import MAX_SECONDS, UNSIGNED, struct_type
from pubsub_spark.slices import slices

# A block: small enough for the caches and for a parse to hold little memory, large enough to hide its fixed cost.
BLOCK_ROWS: Final = 16_384
BLOCK_BYTES: Final = 8 << 20
# A block that cannot be decoded is split into so many parts, again and again, down to so many rows.
SPLIT_PARTS: Final = 8
MAX_ROWS_ONE_BY_ONE: Final = 32


class DecodedPayloads(NamedTuple):
    """The rows of payloads: `value` is null where `error` says why, and `error` is null where there is a value."""

    value: pa.StructArray
    error: pa.StringArray


class _Parsed(NamedTuple):
    """Messages parsed by upb, and the bytes that it parsed."""

    framed: bytes
    envelope: Any


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

    def decode(
        self, data: pa.Array, encoding: Encoding = "BINARY", writer: ProtobufDefinition | None = None
    ) -> DecodedPayloads:
        """The rows of `data` (binary), written by revision `writer` or, if that is None, by the reader's own."""
        reasons: dict[int, str] = {}
        if encoding == "JSON":
            data = _to_binary(data, writer or self.definition, reasons)
        elif data.null_count:
            data = data.fill_null(b"")
        blocks = [self._block(data.slice(start, count), start, reasons) for start, count in _blocks(data)]
        value = pa.concat_arrays(blocks) if blocks else self._nothing()
        return DecodedPayloads(_with_nulls(value, reasons), _reason_column(reasons, len(data)))

    def _nothing(self) -> pa.StructArray:
        return pa.array([], self.type)

    def _block(self, data: pa.Array, start: int, reasons: dict[int, str]) -> pa.StructArray:
        """The rows of `data`, which begins at row `start`; a row with a reason is an empty message, to be made null."""
        try:
            return self._columns(self._parse(data))
        except (DecodeError, UnreadableMessage):
            data = self._isolate_bad_rows(data, start, reasons, self._parse, self._parse_error)
        # A row replaced by an empty message lacks its required fields, so these are not checked again.
        try:
            return self._columns(self._parse(data, complete=False))
        except (DecodeError, UnreadableMessage):
            data = self._isolate_bad_rows(
                data, start, reasons, lambda part: self._columns(self._parse(part)), self._column_error
            )
        try:
            return self._columns(self._parse(data, complete=False))
        except UnreadableMessage:  # each alone is readable: ptars fails on something that this module does not know of
            return self._from_objects(map(self.definition.message_class.FromString, data.to_pylist()))

    def _isolate_bad_rows(
        self,
        data: pa.Array,
        start: int,
        reasons: dict[int, str],
        check: Callable[[pa.Array], Any],
        reason_of: Callable[[bytes], str | None],
    ) -> pa.Array:
        """`data` with each bad row, its reason now in `reasons`, replaced by an empty message.

        check: raises for an array with a bad row in it
        reason_of: why a payload is bad, or None
        """
        bad = np.zeros(len(data), bool)
        for row in _suspect_rows(data, check):
            if start + row not in reasons and (reason := reason_of(data[row].as_py())):
                reasons[start + row] = reason
                bad[row] = True
        return pc.if_else(pa.array(bad), pa.scalar(b""), data)

    def _parse(self, data: pa.Array, complete: bool = True) -> _Parsed:
        """The messages, parsed; DecodeError where one is none, UnreadableMessage where it lacks a required field."""
        framed = self._framed(data)
        envelope = self.definition.envelope_class.FromString(framed)
        if complete and self._required and not envelope.IsInitialized():
            raise UnreadableMessage("A required field is missing")
        return _Parsed(framed, envelope)

    def _columns(self, parsed: _Parsed) -> pa.StructArray:
        """The columns of the messages; UnreadableMessage when one of them has no place there."""
        if not self.struct.columns:
            return _empty(len(parsed.envelope.messages))
        if self._batch is None:
            return self._from_objects(parsed.envelope.messages)
        try:
            framed = self._rewrite(parsed, self._discarded) if self._rewritten else parsed.framed
            batch = self._read_batch(framed)
        except UnreadableMessage:
            batch = self._read_batch(self._rewrite(parsed, discard=True))
        return _struct(batch.column(0).values, self.struct, self.type, present=True)

    def _read_batch(self, framed: bytes) -> pa.RecordBatch:
        """The batch that ptars makes of an envelope; UnreadableMessage when it cannot."""
        assert self._batch is not None
        try:
            return ptars_schema.call(self._batch.list_to_record_batch, [framed])
        except ValueError as error:
            raise UnreadableMessage(str(error)) from None

    def _rewrite(self, parsed: _Parsed, discard: bool) -> bytes:
        """The envelope as upb writes it, maps in the same order each time; `discard`: without unknown fields."""
        if discard:
            parsed.envelope.DiscardUnknownFields()
        framed: bytes = parsed.envelope.SerializePartialToString(deterministic=self._maps)
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
        except InvalidMessage as error:
            return str(error)
        return None

    def _column_error(self, payload: bytes) -> str | None:
        """The reason why this message has no place in the columns, or None."""
        try:
            self._row(self.definition.message_class.FromString(payload))
            self.definition.envelope_class.FromString(self._framed(pa.array([payload], pa.binary())))
        except UnreadableMessage as error:
            return str(error)
        except DecodeError:  # a hundred levels of unknown groups, and the envelope's is one too many
            return "The message is nested too deeply"
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


def _to_binary(data: pa.Array, writer: ProtobufDefinition, reasons: dict[int, str]) -> pa.Array:
    """The binary form of JSON messages; an empty message, and a reason, for a text that is not one."""
    payloads = []
    for row, text in enumerate(data.to_pylist()):
        try:
            payloads.append(writer.json_reader.read(text or b"").SerializePartialToString())
        except InvalidMessage as error:
            reasons[row] = str(error)
            payloads.append(b"")
    return pa.array(payloads, pa.binary())


def _blocks(data: pa.Array) -> Iterator[tuple[int, int]]:
    """The blocks as (first row, rows): at most BLOCK_ROWS and, unless it is one row, BLOCK_BYTES each."""
    ends = np.cumsum(pc.binary_length(data).to_numpy(zero_copy_only=False), dtype=np.int64)
    for start, end in slices(np.concatenate([[0], ends]), BLOCK_ROWS, BLOCK_BYTES):
        yield start, end - start


def _struct(array: pa.StructArray, struct: Struct, type_: pa.StructType, present: bool) -> pa.StructArray:
    """The column of a message; `present`: none of its values may be null, as in lists and maps."""
    children = [_column(array.field(ptars_schema.field_name(c)), c, type_.field(c.name).type) for c in struct.columns]
    validity = None if present or not array.null_count else pc.is_valid(array)
    return _assemble(type_, len(array), validity, children)


def _column(array: pa.Array, column: Column, type_: pa.DataType) -> pa.Array:
    """The column of a field, with the defaults of absent values."""
    values = _values(array, column.node, type_, column.path)
    if column.default is not None and values.null_count:
        default = column.node.name_of(column.default) if isinstance(column.node, Enum) else column.default
        if isinstance(column.node, Scalar) and column.node.kind in UNSIGNED:
            return values.fill_null(pa.scalar(default, UNSIGNED[column.node.kind]).cast(type_, safe=False))
        return values.fill_null(pa.scalar(default, type_))
    if column.required and values.null_count:  # below a message that is absent, or in a row that has an error
        return _without_nulls(values)
    return values


def _values(array: pa.Array, node: Node, type_: pa.DataType, path: str) -> pa.Array:
    """The column of a node."""
    match node:
        case Scalar(kind):
            return array.view(type_) if kind in UNSIGNED else array
        case Enum():
            return _enum_names(array, node)
        case Timestamp() | Duration():
            return _micros(array, type_, path)
        case Json():
            return _json(array, node)
        case Array(element):
            values = _elements(array.values, element, type_.value_type, f"{path}[]")
            return pa.ListArray.from_arrays(array.offsets, values, type=type_)
        case Map(key, value):
            keys = _values(array.values.field("key"), key, type_.key_type, path)
            items = _elements(array.values.field("value"), value, type_.item_type, f"{path}{{}}")
            entries = _assemble(pa.struct([type_.key_field, type_.item_field]), len(keys), None, [keys, items])
            return pa.Array.from_buffers(type_, len(array), [None, array.offsets.buffers()[1]], children=[entries])
        case Struct():
            return _struct(array, node, type_, present=False)


def _elements(array: pa.Array, node: Node, type_: pa.DataType, path: str) -> pa.Array:
    """The elements of a list or the values of a map, where an absent message is an empty one."""
    if isinstance(node, Struct):
        return _struct(array, node, type_, present=True)
    return _values(_without_nulls(array) if array.null_count else array, node, type_, path)


def _enum_names(array: pa.Int32Array, enum: Enum) -> pa.StringArray:
    """The names of an enum's numbers."""
    numbers = list(enum.names)
    found = pc.index_in(array, value_set=pa.array(numbers, pa.int32()))
    if found.null_count > array.null_count:  # an open enum keeps numbers that it has no name for
        numbers += [n for n in pc.unique(array).to_pylist() if n is not None and n not in enum.names]
        found = pc.index_in(array, value_set=pa.array(numbers, pa.int32()))
    return pa.array([enum.name_of(number) for number in numbers], pa.string()).take(found)


def _micros(array: pa.StructArray, type_: pa.DataType, path: str) -> pa.Array:
    """The timestamps or durations of arrays of seconds and nanoseconds."""
    seconds, nanos = array.field("seconds"), array.field("nanos")
    extremes = pc.min_max(seconds).as_py()
    if len(array) and (extremes["min"] < -MAX_SECONDS or extremes["max"] > MAX_SECONDS):
        raise UnreadableMessage(f"Field `{path}` is out of range")
    micros = pc.add(pc.multiply(seconds, 1_000_000), pc.divide(nanos, 1_000).cast(pa.int64()))
    return _null_where_null(micros, array).view(type_)


def _json(array: pa.BinaryArray, node: Json) -> pa.StringArray:
    read = GetMessageClass(node.message).FromString
    try:
        texts = [None if value is None else row_reader.json_text(read(value)) for value in array.to_pylist()]
    except ValueError as error:
        raise UnreadableMessage(str(error)) from None
    return pa.array(texts, pa.string())


def _null_where_null(values: pa.Array, like: pa.Array) -> pa.Array:
    """The values, null where `like` is null."""
    if not like.null_count:
        return values
    return pc.if_else(pc.is_valid(like), values, pa.scalar(None, values.type))


def _without_nulls(array: pa.Array) -> pa.Array:
    """The same values, none of them null: ptars leaves the type's zero in the place of a null."""
    if pa.types.is_struct(array.type):
        children = [array.field(index) for index in range(array.type.num_fields)]
        return pa.Array.from_buffers(array.type, len(array), [None], children=children)
    return pa.Array.from_buffers(array.type, len(array), [None, *array.buffers()[1:]])


def _assemble(
    type_: pa.StructType, length: int, validity: pa.BooleanArray | None, children: list[pa.Array]
) -> pa.StructArray:
    bits = None if validity is None else validity.buffers()[1]
    return pa.Array.from_buffers(type_, length, [bits], children=children)


def _empty(length: int) -> pa.StructArray:
    return pa.Array.from_buffers(pa.struct([]), length, [None])


def _with_nulls(value: pa.StructArray, reasons: dict[int, str]) -> pa.StructArray:
    """The rows, null where there is a reason."""
    if not reasons:
        return value
    valid = np.ones(len(value), bool)
    valid[list(reasons)] = False
    children = [value.field(index) for index in range(value.type.num_fields)]
    return _assemble(value.type, len(value), pa.array(valid), children)


def _reason_column(reasons: dict[int, str], length: int) -> pa.StringArray:
    """The reasons by row."""
    if not reasons:
        return pa.nulls(length, pa.string())
    rows = np.fromiter(reasons, np.int64)
    which, absent = np.zeros(length, np.int32), np.ones(length, bool)
    which[rows], absent[rows] = np.arange(len(rows)), False
    return pa.array(list(reasons.values()), pa.string()).take(pa.array(which, mask=absent))

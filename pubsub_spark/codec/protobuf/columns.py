"""Payloads to columns: a block of messages at a time, in C++ and Rust, with protobuf's own core as the judge.

A block goes through five steps, none of which makes a Python object per message:

    payloads → one envelope    the messages behind one another, each with tag and length       ptars
             → upb             parsed: now it is certain that each of them is a message        protobuf
            (→ bytes           written again: the last of a oneof, or of a map's key, has won  protobuf)
             → a batch         a list of structs by the layout                                 ptars
             → columns         unsigned to signed, numbers to names, seconds to microseconds   here

`ptars` alone is twice as fast, and lenient: it takes lengths that overflow and bytes left over, and keeps both members
of a oneof, a map's key twice, the number that a closed enum does not have. What upb has parsed it reads exactly but for
the last three (and for messages of any shape, which it gets as bytes); schemas with one of them have their messages
written again. So have messages that ptars then refuses: it knows no groups, which unknown fields may be.

When a step fails, the parts of the block are tried until the culprit is among a few rows; those are looked at one by
one, and the bad ones get a reason and, in the block, the bytes of an empty message. Then the block goes again. So a bad
payload costs its neighbours one more parse.

Revisions: bytes are read with the reader's descriptor, whoever wrote them, since field numbers are what both share: a
field that the writer did not have is absent, one that the reader does not have is skipped. JSON has names instead of
numbers, so it is read with the writer's descriptor and then passed on as bytes.
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
from pubsub_spark.codec.protobuf import layout, objects
from pubsub_spark.codec.protobuf.definition import ProtobufDefinition
from pubsub_spark.codec.protobuf.objects import Unreadable
from pubsub_spark.codec.protobuf.schema import (
    Array,
    Column,
    Enum,
    Instant,
    Json,
    Map,
    Node,
    Scalar,
    Span,
    Struct,
    columns_of,
    has_required,
)
from pubsub_spark.codec.protobuf.types import MAX_SECONDS, UNSIGNED, struct_type
from pubsub_spark.slices import slices

# Small enough for the caches and for a parse to hold little memory, large enough that a block's fixed cost is nothing.
BLOCK_ROWS: Final = 16_384
BLOCK_BYTES: Final = 8 << 20
# A block with something bad in it is taken apart, again and again, down to a few rows that are looked at one by one.
PARTS: Final = 8
FEW: Final = 32


class Columns(NamedTuple):
    """One row per payload: `value` is null where `error` says why, and `error` is null where there is a value."""

    value: pa.StructArray
    error: pa.StringArray


class _Parsed(NamedTuple):
    """Messages that upb has parsed, and the bytes which it did that from."""

    framed: bytes
    envelope: Any


class Reader:
    """Reads payloads of any revision into the columns of one: the compiled form of a reader's definition."""

    def __init__(self, definition: ProtobufDefinition) -> None:
        self.definition = definition
        self.struct = columns_of(definition.message)
        self.type = struct_type(self.struct)
        self._required = has_required(definition.message)
        self._maps = _any(self.struct, lambda node: isinstance(node, Map))
        # What upb takes for unknown and ptars does not: a closed enum's other numbers, and entries with a third field.
        self._discarded = self._maps or _any(self.struct, lambda node: isinstance(node, Enum) and node.closed)
        self._rewritten = self._discarded or _any(self.struct, _is_merged)
        self._envelope = layout.envelope_writer()
        self._batch = layout.reader(self.struct)
        self._row = objects.row_of(self.struct)

    def read(self, data: pa.Array, encoding: Encoding = "BINARY", writer: ProtobufDefinition | None = None) -> Columns:
        """The columns of `data` (binary), written by `writer` or, if that is None, by the reader's own revision."""
        reasons: dict[int, str] = {}
        if encoding == "JSON":
            data = _to_binary(data, writer or self.definition, reasons)
        elif data.null_count:
            data = data.fill_null(b"")
        blocks = [self._block(data.slice(start, count), start, reasons) for start, count in _blocks(data)]
        value = pa.concat_arrays(blocks) if blocks else self._nothing()
        return Columns(_with_nulls(value, reasons), _reasons(reasons, len(data)))

    def _nothing(self) -> pa.StructArray:
        return pa.array([], self.type)

    def _block(self, data: pa.Array, start: int, reasons: dict[int, str]) -> pa.StructArray:
        """The rows of `data`; a row with a reason is an empty message, to be made null."""
        try:
            return self._columns(self._parse(data))
        except (DecodeError, Unreadable):
            data = self._weed(data, start, reasons, self._parse, self._unparsable)
        # What has been weeded out lacks every required field, so nobody asks for them again.
        try:
            return self._columns(self._parse(data, complete=False))
        except (DecodeError, Unreadable):
            data = self._weed(data, start, reasons, lambda part: self._columns(self._parse(part)), self._unreadable)
        try:
            return self._columns(self._parse(data, complete=False))
        except Unreadable:  # each of them is readable: ptars has met something that this module does not know of
            return self._from_objects(map(self.definition.message_class.FromString, data.to_pylist()))

    def _weed(
        self,
        data: pa.Array,
        start: int,
        reasons: dict[int, str],
        check: Callable[[pa.Array], Any],
        why: Callable[[bytes], str | None],
    ) -> pa.Array:
        """`data` with an empty message in the place of each that there is a reason against."""
        bad = np.zeros(len(data), bool)
        for row in _suspects(data, check):
            if start + row not in reasons and (reason := why(data[row].as_py())):
                reasons[start + row] = reason
                bad[row] = True
        return pc.if_else(pa.array(bad), pa.scalar(b""), data)

    def _parse(self, data: pa.Array, complete: bool = True) -> _Parsed:
        """The messages, parsed; DecodeError where one is none, Unreadable where it lacks a required field."""
        framed = self._framed(data)
        envelope = self.definition.envelope_class.FromString(framed)
        if complete and self._required and not envelope.IsInitialized():
            raise Unreadable("A required field is missing")
        return _Parsed(framed, envelope)

    def _columns(self, parsed: _Parsed) -> pa.StructArray:
        """The columns of the messages; Unreadable when one of them has no place there."""
        if not self.struct.columns:
            return _empty(len(parsed.envelope.messages))
        if self._batch is None:
            return self._from_objects(parsed.envelope.messages)
        try:
            framed = self._rewrite(parsed, self._discarded) if self._rewritten else parsed.framed
            batch = self._read_batch(framed)
        except Unreadable:
            batch = self._read_batch(self._rewrite(parsed, discard=True))
        return _struct(batch.column(0).values, self.struct, self.type, present=True)

    def _read_batch(self, framed: bytes) -> pa.RecordBatch:
        assert self._batch is not None
        try:
            return layout.run(self._batch.list_to_record_batch, [framed])
        except ValueError as error:
            raise Unreadable(str(error)) from None

    def _rewrite(self, parsed: _Parsed, discard: bool) -> bytes:
        """The envelope as upb writes it, maps in the same order each time; without what is unknown, if so wished."""
        if discard:
            parsed.envelope.DiscardUnknownFields()
        framed: bytes = parsed.envelope.SerializePartialToString(deterministic=self._maps)
        return framed

    def _framed(self, data: pa.Array) -> bytes:
        # A slice is copied: not every version of ptars minds an offset.
        payloads = pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), pa.concat_arrays([data]))
        batch = pa.RecordBatch.from_arrays([payloads], names=["messages"])
        framed: bytes = layout.run(self._envelope.record_batch_to_array, batch)[0].as_py()
        return framed

    def _from_objects(self, messages: Iterable[Any]) -> pa.StructArray:
        return pa.array([self._row(message) for message in messages], self.type)

    def _unparsable(self, payload: bytes) -> str | None:
        """Why this payload is no message, or None."""
        try:
            self.definition.read(payload, "BINARY")
        except InvalidMessage as error:
            return str(error)
        return None

    def _unreadable(self, payload: bytes) -> str | None:
        """Why this message has no place in the columns, or None."""
        try:
            self._row(self.definition.message_class.FromString(payload))
            self.definition.envelope_class.FromString(self._framed(pa.array([payload], pa.binary())))
        except Unreadable as error:
            return str(error)
        except DecodeError:  # a hundred levels of unknown groups, and the envelope's is one too many
            return "The message is nested too deeply"
        return None


def _is_merged(node: Node) -> bool:
    """Whether protobuf makes one of what ptars keeps apart, or forgets: members of a oneof, parts of a JSON message."""
    return isinstance(node, Json) or (isinstance(node, Struct) and any(column.oneof for column in node.columns))


def _suspects(data: pa.Array, check: Callable[[pa.Array], Any], first: int = 0) -> Iterator[int]:
    """The rows of those parts of `data` that do not pass: few more than those which alone would not."""
    if len(data) <= FEW:
        yield from range(first, first + len(data))
        return
    size = -(-len(data) // PARTS)
    for at in range(0, len(data), size):
        part = data.slice(at, size)
        try:
            check(part)
        except (DecodeError, Unreadable):
            yield from _suspects(part, check, first + at)


def _any(node: Node, holds: Callable[[Node], bool]) -> bool:
    """Whether something holds for a node, or for one below it."""
    match node:
        case Struct(columns=columns):
            return holds(node) or any(_any(column.node, holds) for column in columns)
        case Array(inner) | Map(value=inner):
            return holds(node) or _any(inner, holds)
    return holds(node)


def _to_binary(data: pa.Array, writer: ProtobufDefinition, reasons: dict[int, str]) -> pa.Array:
    """JSON texts as the bytes of the same messages."""
    payloads = []
    for row, text in enumerate(data.to_pylist()):
        try:
            payloads.append(writer.json_reader.read(text or b"").SerializePartialToString())
        except InvalidMessage as error:
            reasons[row] = str(error)
            payloads.append(b"")
    return pa.array(payloads, pa.binary())


def _blocks(data: pa.Array) -> Iterator[tuple[int, int]]:
    """Where blocks start and how many rows they have: at most so many rows and, unless it is one row, so many bytes."""
    ends = np.cumsum(pc.binary_length(data).to_numpy(zero_copy_only=False), dtype=np.int64)
    for start, end in slices(np.concatenate([[0], ends]), BLOCK_ROWS, BLOCK_BYTES):
        yield start, end - start


def _struct(array: pa.StructArray, struct: Struct, type_: pa.StructType, present: bool) -> pa.StructArray:
    """A message's struct; `present` says that none of them may be null, as in lists and maps."""
    children = [_column(array.field(layout.name_of(c)), c, type_.field(c.name).type) for c in struct.columns]
    validity = None if present or not array.null_count else pc.is_valid(array)
    return _assemble(type_, len(array), validity, children)


def _column(array: pa.Array, column: Column, type_: pa.DataType) -> pa.Array:
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
    match node:
        case Scalar(kind):
            return array.view(type_) if kind in UNSIGNED else array
        case Enum():
            return _names(array, node)
        case Instant() | Span():
            return _micros(array, type_, path)
        case Json():
            return _json(array, node)
        case Array(element):
            values = _inside(array.values, element, type_.value_type, f"{path}[]")
            return pa.ListArray.from_arrays(array.offsets, values, type=type_)
        case Map(key, value):
            keys = _values(array.values.field("key"), key, type_.key_type, path)
            items = _inside(array.values.field("value"), value, type_.item_type, f"{path}{{}}")
            entries = _assemble(pa.struct([type_.key_field, type_.item_field]), len(keys), None, [keys, items])
            return pa.Array.from_buffers(type_, len(array), [None, array.offsets.buffers()[1]], children=[entries])
        case Struct():
            return _struct(array, node, type_, present=False)


def _inside(array: pa.Array, node: Node, type_: pa.DataType, path: str) -> pa.Array:
    """The elements of a list or the values of a map: an absent message is an empty one."""
    if isinstance(node, Struct):
        return _struct(array, node, type_, present=True)
    return _values(_without_nulls(array) if array.null_count else array, node, type_, path)


def _names(array: pa.Int32Array, enum: Enum) -> pa.StringArray:
    numbers = list(enum.names)
    found = pc.index_in(array, value_set=pa.array(numbers, pa.int32()))
    if found.null_count > array.null_count:  # an open enum keeps numbers that it has no name for
        numbers += [n for n in pc.unique(array).to_pylist() if n is not None and n not in enum.names]
        found = pc.index_in(array, value_set=pa.array(numbers, pa.int32()))
    return pa.array([enum.name_of(number) for number in numbers], pa.string()).take(found)


def _micros(array: pa.StructArray, type_: pa.DataType, path: str) -> pa.Array:
    seconds, nanos = array.field("seconds"), array.field("nanos")
    extremes = pc.min_max(seconds).as_py()
    if len(array) and (extremes["min"] < -MAX_SECONDS or extremes["max"] > MAX_SECONDS):
        raise Unreadable(f"Field `{path}` is out of range")
    micros = pc.add(pc.multiply(seconds, 1_000_000), pc.divide(nanos, 1_000).cast(pa.int64()))
    return _with_validity(micros, array).view(type_)


def _json(array: pa.BinaryArray, node: Json) -> pa.StringArray:
    message = GetMessageClass(node.message)
    try:
        texts = [None if value is None else objects.json_text(message.FromString(value)) for value in array.to_pylist()]
    except ValueError as error:
        raise Unreadable(str(error)) from None
    return pa.array(texts, pa.string())


def _with_validity(values: pa.Array, like: pa.Array) -> pa.Array:
    if not like.null_count:
        return values
    return pc.if_else(pc.is_valid(like), values, pa.scalar(None, values.type))


def _without_nulls(array: pa.Array) -> pa.Array:
    """The same values with nothing marked null: what ptars leaves below a null is the type's zero."""
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
    if not reasons:
        return value
    valid = np.ones(len(value), bool)
    valid[list(reasons)] = False
    children = [value.field(index) for index in range(value.type.num_fields)]
    return _assemble(value.type, len(value), pa.array(valid), children)


def _reasons(reasons: dict[int, str], length: int) -> pa.StringArray:
    if not reasons:
        return pa.nulls(length, pa.string())
    rows = np.fromiter(reasons, np.int64)
    which, absent = np.zeros(length, np.int32), np.ones(length, bool)
    which[rows], absent[rows] = np.arange(len(rows)), False
    return pa.array(list(reasons.values()), pa.string()).take(pa.array(which, mask=absent))

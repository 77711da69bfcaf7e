"""Avro binary to Arrow, all messages of a batch in step: the fast path.

`compile_columns(writer, reader)` turns a pair of schemas into nested functions from `Lanes` to an Arrow array, so that
the loop over messages decides nothing. The writer's schema says what to read, the reader's what to make of it:
promotions, defaults, reordered and removed fields, enum defaults and unions are all settled when the pair is compiled.
A message that is not plainly right leaves its lane (see `lanes`); `decode` then asks the slow path about it.

Pairs with a recursive writer or with items of no bytes (arrays of nulls) are not compiled: NotInStep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.avro import decimals
from pubsub_spark.codec.avro.binary import least_bytes
from pubsub_spark.codec.avro.compatibility import best_branch, written_field
from pubsub_spark.codec.avro.lanes import Batch, Bits, Lanes, Longs, numbers, offsets_of, spread
from pubsub_spark.codec.avro.resolution import (
    Unresolvable,
    check_logical,
    constant,
    enum_symbols,
    time_scale,
    unresolvable,
)
from pubsub_spark.codec.avro.rounds import repeats, rounds
from pubsub_spark.codec.avro.schema import INT, LONG, Array, Enum, Fixed, Map, Node, Primitive, Record, Union
from pubsub_spark.codec.avro.types import column_of, variants, widened
from pubsub_spark.errors import SchemaError
from pubsub_spark.slices import slices

Read = Callable[[Lanes], pa.Array]

# Messages, and their bytes, per batch: the cursors and intermediate values of one field then stay in the processor's
# cache, and what is copied of large messages stays small.
BATCH: Final = 1 << 14
BATCH_BYTES: Final = 1 << 24
# Strings that are looked at together for one that is no UTF-8.
HANDFUL: Final = 128
# A schema whose parked lanes would need more zeros than this (a fixed of a megabyte) is left to the slow path.
MAX_ZONE: Final = 1 << 16


class NotInStep(Exception):  # noqa: N818 (a finding: the slow path does it)
    """Messages of this pair cannot be decoded in step."""


class Columns(NamedTuple):
    """A compiled pair."""

    read: Read
    zone: int

    def decode(self, data: pa.BinaryArray) -> tuple[pa.Array, Bits]:
        """The column of the reader's type, and which messages left: their values mean nothing."""
        batch = Batch(data, self.zone)
        lanes = batch.lanes
        column = self.read(lanes)
        lanes.leave((lanes.at != lanes.end) & ~batch.left)
        return column, batch.left


def batches(data: pa.BinaryArray) -> list[tuple[int, int]]:
    """Where to begin and end, so that a batch is at most BATCH messages and, unless it is one, BATCH_BYTES."""
    return list(slices(offsets_of(data), BATCH, BATCH_BYTES))


def compile_columns(writer: Node, reader: Node) -> Columns:
    """The fast path of a pair; NotInStep when there is none, Unresolvable when no message can ever be read."""
    zone = _zone(writer, {})
    if zone > MAX_ZONE:
        raise NotInStep
    try:
        return Columns(_compile(writer, reader), zone)
    except SchemaError:  # a field that only the writer has, of a type that Spark has not
        raise NotInStep from None


def _zone(node: Node, known: dict[Record, int | None]) -> int:
    """How many bytes a lane may still read after it left: the rest of what it was at, then zeros."""
    match node:
        case Primitive(kind):
            return {"null": 0, "float": 4, "double": 8}.get(kind, 1)
        case Fixed(size=size):
            return size
        case Union(branches):
            return 1 + max((_zone(branch, known) for branch in branches), default=0)
        case Record(fields=fields):
            if node not in known:
                known[node] = None  # under way: met again, it is recursive
                known[node] = sum(_zone(field.node, known) for field in fields)
            zone = known[node]
            if zone is None:
                raise NotInStep
            return zone
        case Array(items) | Map(items):
            if isinstance(node, Array) and not least_bytes(items):
                raise NotInStep
            return 3 + _zone(items, known)  # the rest of the item and of its key, where the lane left, and the ends
        case _:
            return 1


def _compile(writer: Node, reader: Node) -> Read:
    if isinstance(writer, Union):
        return _written_union(writer, reader)
    if isinstance(reader, Union):
        return _into_union(writer, reader)
    match writer, reader:
        case Record(), Record():
            return _record(writer, reader)
        case Array(), Array():
            return _array(writer, reader)
        case Map(), Map():
            return _map(writer, reader)
        case Enum(), Enum():
            return _enum(writer, reader)
        case ((Fixed() | Primitive()), (Fixed() | Primitive())):
            return _scalar(writer, reader)
    raise unresolvable(writer, reader)


# ---------------------------------------------------------------------------------------------------------- scalars


def _scalar(writer: Fixed | Primitive, reader: Fixed | Primitive) -> Read:
    check_logical(writer, reader)
    type_ = column_of(reader).type
    match writer.kind, reader.kind:
        case "null", "null":
            return lambda lanes: pa.nulls(len(lanes))
        case "boolean", "boolean":
            return lambda lanes: pa.array(lanes.booleans())
        case ("int", ("int" | "long")) | ("long", "long"):
            return _integer(writer.kind == "int", *time_scale(writer, reader), type_)
        case (("int" | "long"), ("float" | "double")):
            integer = _integer(writer.kind == "int", 1, 1, pa.int64())
            return lambda lanes: integer(lanes).cast(type_, safe=False)
        case "float", ("float" | "double"):
            return lambda lanes: numbers(lanes.floats(), pa.float32()).cast(type_)
        case "double", "double":
            return lambda lanes: numbers(lanes.doubles(), pa.float64())
        case ("bytes", "bytes") | ("fixed", "fixed"):
            if isinstance(writer, Fixed) and isinstance(reader, Fixed) and writer.size != reader.size:
                raise unresolvable(writer, reader)
            take = _segments(writer)
            return _decimal(take, type_) if pa.types.is_decimal(type_) else take
        case ("string", "string") | ("bytes", "string"):
            return _strings
        case "string", "bytes":
            if reader.logical:
                raise NotInStep  # a decimal out of text: nobody does it, and the slow path can
            return lambda lanes: _strings(lanes).cast(pa.binary())
    raise unresolvable(writer, reader)


def _integer(narrow: bool, times: int, over: int, type_: pa.DataType) -> Read:
    low, high = INT if narrow else (-(LONG[1] // times), LONG[1] // times)
    width: type[Any] = np.int32 if type_.bit_width == 32 else np.int64
    bounded = narrow or times > 1

    def read(lanes: Lanes) -> pa.Array:
        values = lanes.longs()
        if bounded:
            wrong = (values < low) | (values > high)
            if lanes.leave(wrong):
                values[wrong] = 0
        if times > 1:
            values *= times
        if over > 1:
            values //= over
        return numbers(values.astype(width, copy=False), type_)

    return read


def _segments(writer: Fixed | Primitive) -> Callable[[Lanes], pa.BinaryArray]:
    if not isinstance(writer, Fixed):
        return lambda lanes: lanes.segments(lanes.lengths())
    size = writer.size

    def read(lanes: Lanes) -> pa.BinaryArray:
        lanes.leave(lanes.at + size > lanes.end)
        return lanes.segments(np.where(lanes.parked(), 0, size))

    return read


def _strings(lanes: Lanes) -> pa.StringArray:
    data = lanes.segments(lanes.lengths())
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        wrong = _not_utf8(data)
        lanes.leave(wrong)
        return pc.if_else(pa.array(wrong), b"", data).cast(pa.string())


def _not_utf8(data: pa.BinaryArray) -> Bits:
    """Which items are no text; a handful at a time, so that one of them does not slow all."""
    wrong = np.zeros(len(data), np.bool_)
    for start in range(0, len(data), HANDFUL):
        some = data.slice(start, HANDFUL)
        try:
            some.cast(pa.string())
        except pa.ArrowInvalid:
            wrong[start : start + HANDFUL] = [not _is_utf8(item) for item in some.to_pylist()]
    return wrong


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _decimal(take: Callable[[Lanes], pa.BinaryArray], type_: pa.Decimal128Type) -> Read:
    def read(lanes: Lanes) -> pa.Array:
        values, wrong = decimals.from_bytes(take(lanes), type_)
        lanes.leave(wrong)
        return values

    return read


def _enum(writer: Enum, reader: Enum) -> Read:
    symbols = enum_symbols(writer, reader)
    if not symbols:
        raise NotInStep
    lacking = np.array([symbol is None for symbol in symbols])
    names = pa.array([symbol or "" for symbol in symbols], pa.string())

    def read(lanes: Lanes) -> pa.Array:
        index = _index(lanes, len(symbols))
        lanes.leave(lacking[index])
        return names.take(pa.array(index))

    return read


def _index(lanes: Lanes, count: int) -> Longs:
    """The next symbol or branch of each lane, one of `count`."""
    index = lanes.longs()
    wrong = index.view(np.uint64) >= count
    if lanes.leave(wrong):
        index[wrong] = 0
    return index


# --------------------------------------------------------------------------------------------------- nested columns


def _record(writer: Record, reader: Record) -> Read:
    type_ = column_of(reader).type
    places: list[int | None] = [None] * len(writer.fields)
    rest: list[tuple[int, Callable[[int], pa.Array]]] = []
    for place, field in enumerate(reader.fields):
        index = written_field(writer, field)
        if index is None:
            rest.append((place, _repeated(constant(field), type_[place].type)))
        elif places[index] is not None:
            raise NotInStep  # two fields that by their aliases are one: the slow path reads it twice
        else:
            places[index] = place
    # What the reader does not want is decoded all the same: a message is right or wrong as a whole.
    steps = [
        (_compile(field.node, field.node if place is None else reader.fields[place].node), place)
        for field, place in zip(writer.fields, places, strict=True)
    ]

    def read(lanes: Lanes) -> pa.Array:
        columns: list[pa.Array] = [None] * len(type_)
        for step, place in steps:
            column = step(lanes)
            if place is not None:
                columns[place] = column
        for place, repeat in rest:
            columns[place] = repeat(len(lanes))
        return pa.Array.from_buffers(type_, len(lanes), [None], children=columns)

    return read


def _repeated(value: Any, type_: pa.DataType) -> Callable[[int], pa.Array]:
    one = pa.array([value], type_)
    return lambda count: one.take(pa.array(np.zeros(count, np.int32)))


def _array(writer: Array, reader: Array) -> Read:
    type_ = column_of(reader).type
    item = _compile(writer.items, reader.items)
    least = least_bytes(writer.items)

    def read(lanes: Lanes) -> pa.Array:
        offsets, [items] = rounds(lanes, least, [item], [type_.value_type])
        return pa.Array.from_buffers(type_, len(lanes), [None, pa.py_buffer(offsets)], children=[items])

    return read


def _map(writer: Map, reader: Map) -> Read:
    type_ = column_of(reader).type
    entry = pa.struct([type_.key_field, type_.item_field])
    item = _compile(writer.values, reader.values)

    def read(lanes: Lanes) -> pa.Array:
        offsets, columns = rounds(
            lanes, 1 + least_bytes(writer.values), [_strings, item], [pa.string(), type_.item_type]
        )
        lanes.leave(repeats(columns[0], offsets))  # of two entries with one key the last counts: the slow path knows
        entries = pa.Array.from_buffers(entry, len(columns[0]), [None], children=columns)
        return pa.Array.from_buffers(type_, len(lanes), [None, pa.py_buffer(offsets)], children=[entries])

    return read


# ----------------------------------------------------------------------------------------------------------- unions


def _written_union(writer: Union, reader: Node) -> Read:
    type_ = column_of(reader).type
    branches: list[Read | None] = []
    for branch in writer.branches:
        try:
            branches.append(_compile(branch, reader))
        except Unresolvable:
            branches.append(None)  # an error only for messages that use it
    nulls = frozenset(
        index
        for index, branch in enumerate(writer.branches)
        if branch.kind == "null" and branches[index] is not None and not pa.types.is_null(type_)
    )
    if not branches:
        raise NotInStep

    def read(lanes: Lanes) -> pa.Array:
        index = _index(lanes, len(branches))
        pieces: list[pa.Array] = []
        places: list[Longs] = []
        for number, branch in enumerate(branches):
            if number in nulls:
                continue
            which = np.flatnonzero(index == number)
            if branch is None:
                lanes.leave(index == number)
                continue
            if len(which) == len(lanes):
                return branch(lanes)
            if len(which):
                some = lanes.some(which)
                pieces.append(branch(some))
                lanes.resume(which, some)
                places.append(which)
        if not pieces:
            return pa.nulls(len(lanes), type_)
        if len(pieces) == 1:
            return spread(pieces[0], places[0], len(lanes))
        return spread(pa.concat_arrays(pieces), np.concatenate(places), len(lanes))

    return read


def _into_union(writer: Node, reader: Union) -> Read:
    index = best_branch(writer, reader)
    if index is None:
        raise unresolvable(writer, reader)
    branch = reader.branches[index]
    type_ = column_of(reader).type
    if branch.kind == "null":
        return lambda lanes: pa.nulls(len(lanes), type_)
    kinds = variants(reader)
    inner = _compile(writer, widened(reader) or branch)
    if widened(reader) or len(kinds) == 1:
        return inner
    place = kinds.index(branch)

    def read(lanes: Lanes) -> pa.Array:
        count = len(lanes)
        members = [pa.nulls(count, field.type) for field in type_]
        members[place] = inner(lanes)
        return pa.Array.from_buffers(type_, count, [None], children=members)

    return read

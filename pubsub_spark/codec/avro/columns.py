"""Avro binary to Arrow, all messages of a batch at once.

`compile_columns` turns a pair of schemas into nested functions from `Cursors` to an Arrow array. The writer's schema
determines the bytes to read, the reader's the values to build. A message that is not plainly right falls back (see
`cursors`), and `decode` finds the reason.

Names and branches are matched by the rules of `compatibility`. A timestamp keeps its instant if the reader counts in
another unit (Java keeps the number). Decimals of another scale do not resolve.

`path` leads to the values of a function, innermost step first, with `{}` for each array or map.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.arrays import at_rows, offsets_of, repeats
from pubsub_spark.codec.avro import decimals
from pubsub_spark.codec.avro.cursor_arrays import Read, numbers, read_items, segments
from pubsub_spark.codec.avro.types import column_of, variants, widened
from pubsub_spark.schema.avro import schema_tree as tree
from pubsub_spark.schema.avro.array_items import empty_items
from pubsub_spark.schema.avro.batch_check import compile_check, is_utf8
from pubsub_spark.schema.avro.compatibility import Unresolvable, best_branch, unresolvable, written_field
from pubsub_spark.schema.avro.cursors import ITEM, Batch, Bits, Cursors, Longs, padding
from pubsub_spark.schema.avro.datum import DatumSerializer
from pubsub_spark.schema.avro.error_locator import least_bytes
from pubsub_spark.schema.avro.json_encoding import quoted
from pubsub_spark.schema.definition import Mismatch
from pubsub_spark.slices import slices

Path = tuple[str, ...]

# Messages, and their bytes, per batch: the cursors and intermediate values of one field then stay in the processor's
# cache, and little of a large message is copied.
MAX_BATCH_MESSAGES: Final = 1 << 14
MAX_BATCH_BYTES: Final = 1 << 24
# Strings that are checked together for one that is not UTF-8.
_UTF8_CHECK_ITEMS: Final = 128

# nanoseconds in the unit that a timestamp is written in, and in that of its column
_WRITTEN_NANOSECONDS: Final = {
    f"{local}timestamp-{unit}": nanoseconds
    for local in ("", "local-")
    for unit, nanoseconds in (("millis", 1_000_000), ("micros", 1_000), ("nanos", 1))
}
_COLUMN_NANOSECONDS: Final = {name: 1 if name.endswith("nanos") else 1_000 for name in _WRITTEN_NANOSECONDS}


class ColumnReader(NamedTuple):
    """`padding`: the bytes that an inactive cursor may still read."""

    read: Read
    padding: int

    def decode(self, data: pa.BinaryArray) -> tuple[pa.Array, Batch]:
        """Return the column, and the batch. Values of messages that fell back are meaningless."""
        batch = Batch(data.buffers()[2], offsets_of(data), self.padding)
        cursors = batch.cursors
        column = self.read(cursors)
        cursors.fall_back((cursors.at != cursors.end) & ~batch.fell_back)
        return column, batch


def batches(data: pa.BinaryArray) -> list[tuple[int, int]]:
    """Return batches as (first, end), each within both limits unless it is one message."""
    return list(slices(offsets_of(data), MAX_BATCH_MESSAGES, MAX_BATCH_BYTES))


def compile_columns(writer: tree.Node, reader: tree.Node) -> ColumnReader:
    """Raises Unresolvable if no message can be read, else see `column_of`."""
    return ColumnReader(_compile(writer, reader, ()), padding(writer))


def constant(field: tree.Field) -> pa.Array:
    """Return the default of an unwritten field as an array of one. Raises Unresolvable if Spark has none."""
    if not field.has_default:
        raise Unresolvable("was not written and has no default")
    value, batch = compile_columns(field.node, field.node).decode(
        pa.array([DatumSerializer(field.node).write(field.default)], pa.binary())
    )
    for mismatch in batch.reasons.values():
        raise Unresolvable(
            f"takes its default `{quoted(field.node, field.default)}`, which Spark cannot hold: "
            f"{mismatch.sentence('it')}"
        )
    return value


def _compile(writer: tree.Node, reader: tree.Node, path: Path) -> Read:
    if isinstance(writer, tree.Union):
        return _written_union(writer, reader, path)
    if isinstance(reader, tree.Union):
        return _into_union(writer, reader, path)
    match writer, reader:
        case tree.Record(), tree.Record():
            return _record(writer, reader, path)
        case tree.Array(), tree.Array():
            return _array(writer, reader, path)
        case tree.Map(), tree.Map():
            return _map(writer, reader, path)
        case tree.Enum(), tree.Enum():
            return _enum(writer, reader, path)
        case ((tree.Fixed() | tree.Primitive()), (tree.Fixed() | tree.Primitive())):
            return _scalar(writer, reader, path)
    raise unresolvable(writer, reader)


def _mismatch(reason: str, path: Path) -> Mismatch:
    """Return a new Mismatch each time, since its path is completed on the way out."""
    mismatch = Mismatch(reason)
    mismatch.steps.extend(path)
    return mismatch


# ---------------------------------------------------------------------------------------------------------- scalars


def _scalar(writer: tree.Fixed | tree.Primitive, reader: tree.Fixed | tree.Primitive, path: Path) -> Read:
    one, other = writer.logical, reader.logical
    if one and other and one.name == other.name == "decimal" and one.scale != other.scale:
        raise unresolvable(writer, reader)
    type_ = column_of(reader).type
    match writer.kind, reader.kind:
        case "null", "null":
            return lambda cursors: pa.nulls(len(cursors))
        case "boolean", "boolean":
            return lambda cursors: pa.array(cursors.booleans())
        case ("int", ("int" | "long")) | ("long", "long"):
            return _integer(writer.kind == "int", *_time_scale(writer, reader), type_, path)
        case (("int" | "long"), ("float" | "double")):
            integer = _integer(writer.kind == "int", 1, 1, pa.int64(), path)
            return lambda cursors: integer(cursors).cast(type_, safe=False)
        case "float", ("float" | "double"):
            return lambda cursors: numbers(cursors.floats(), pa.float32()).cast(type_)
        case "double", "double":
            return lambda cursors: numbers(cursors.doubles(), pa.float64())
        case ("bytes", "bytes") | ("fixed", "fixed"):
            if isinstance(writer, tree.Fixed) and isinstance(reader, tree.Fixed) and writer.size != reader.size:
                raise unresolvable(writer, reader)
            return _bytes(partial(_segments, writer.size if isinstance(writer, tree.Fixed) else None), type_, path)
        case "string", "string":
            return _strings
        case "bytes", "string":
            return lambda cursors: _strings(cursors, lambda _: _mismatch("is not valid UTF-8", path))
        case "string", "bytes":
            return _bytes(lambda cursors: _strings(cursors).cast(pa.binary()), type_, path)
    raise unresolvable(writer, reader)


def _time_scale(writer: tree.Fixed | tree.Primitive, reader: tree.Fixed | tree.Primitive) -> tuple[int, int]:
    """Return the factor and the divisor from an integer to the reader's column: (1, 1) if it is no timestamp."""
    wanted = reader.logical.name if reader.logical else ""
    if wanted not in _COLUMN_NANOSECONDS:
        return 1, 1
    unit = _WRITTEN_NANOSECONDS.get(writer.logical.name if writer.logical else "", _WRITTEN_NANOSECONDS[wanted])
    column = _COLUMN_NANOSECONDS[wanted]
    return max(1, unit // column), max(1, column // unit)


def _integer(narrow: bool, times: int, over: int, type_: pa.DataType, path: Path) -> Read:
    low, high = tree.INT if narrow else (-(tree.LONG[1] // times), tree.LONG[1] // times)
    width: type[Any] = np.int32 if type_.bit_width == 32 else np.int64
    bounded = narrow or times > 1

    def beyond(value: int) -> Mismatch:
        return _mismatch(f"is a timestamp of value {value}, beyond Spark's range", path)

    def read(cursors: Cursors) -> pa.Array:
        values = cursors.longs()
        if bounded:
            wrong = (values < low) | (values > high)
            if cursors.fall_back(wrong, lambda index: beyond(values[index])):
                values[wrong] = 0
        if times > 1:
            values *= times
        if over > 1:
            values //= over
        return numbers(values.astype(width, copy=False), type_)

    return read


def _segments(size: int | None, cursors: Cursors) -> pa.BinaryArray:
    return segments(cursors, cursors.lengths() if size is None else cursors.fixed_lengths(size))


def _strings(cursors: Cursors, reason: Callable[[int], Mismatch] | None = None) -> pa.StringArray:
    data = segments(cursors, cursors.lengths())
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        wrong = _not_utf8(data)
        cursors.fall_back(wrong, reason)
        return pc.if_else(pa.array(wrong), b"", data).cast(pa.string())


def _not_utf8(data: pa.BinaryArray) -> Bits:
    """Search a few at a time, so that one item that is not UTF-8 does not slow all."""
    wrong = np.zeros(len(data), np.bool_)
    for start in range(0, len(data), _UTF8_CHECK_ITEMS):
        some = data.slice(start, _UTF8_CHECK_ITEMS)
        try:
            some.cast(pa.string())
        except pa.ArrowInvalid:
            wrong[start : start + _UTF8_CHECK_ITEMS] = [not is_utf8(item) for item in some.to_pylist()]
    return wrong


def _bytes(take: Read, type_: pa.DataType, path: Path) -> Read:
    if not pa.types.is_decimal(type_):
        return take
    too_long, empty = f"is a decimal of more than {type_.precision} digits", "is a decimal of no bytes"

    def read(cursors: Cursors) -> pa.Array:
        data = take(cursors)
        values, wrong = decimals.from_bytes(data, type_)
        cursors.fall_back(wrong, lambda index: _mismatch(too_long if data[index].as_py() else empty, path))
        return values

    return read


def _enum(writer: tree.Enum, reader: tree.Enum, path: Path) -> Read:
    symbols = [symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols]
    symbols = symbols or [None]  # every message falls back
    lacking = np.array([symbol is None for symbol in symbols])
    names = pa.array([symbol or "" for symbol in symbols], pa.string())

    def read(cursors: Cursors) -> pa.Array:
        index = cursors.indices(len(writer.symbols))
        cursors.fall_back(lacking[index], lambda at: unknown(writer.symbols[index[at]]))
        return names.take(pa.array(index))

    def unknown(symbol: str) -> Mismatch:
        return _mismatch(f"has the symbol `{symbol}`, which enum `{reader.name}` of the reader lacks", path)

    return read


# --------------------------------------------------------------------------------------------------- nested columns


def _record(writer: tree.Record, reader: tree.Record, path: Path) -> Read:
    type_ = column_of(reader).type
    reads: list[list[tuple[Read, int]]] = [[] for _ in writer.fields]  # of a written field, each with its column
    constants: list[tuple[int, pa.Array]] = []
    for column, field in enumerate(reader.fields):
        index = written_field(writer, field)
        try:
            if index is None:
                constants.append((column, constant(field)))
            else:
                node = writer.fields[index].node
                reads[index].append((_compile(node, field.node, (f".{field.name}", *path)), column))
        except Unresolvable as error:
            raise error.inside(f".{field.name}") from None
    # Fields that the reader lacks are also decoded: a message is right or wrong as a whole.
    rest = [None if own else compile_check(field.node) for field, own in zip(writer.fields, reads, strict=True)]

    def read(cursors: Cursors) -> pa.Array:
        columns: list[pa.Array] = [None] * len(type_)
        for own, unread in zip(reads, rest, strict=True):
            if unread:
                unread(cursors)
            for field, column in own[1:]:  # by their aliases, more than one of the reader's fields are this one
                columns[column] = field(cursors.some(np.arange(len(cursors))))
            for field, column in own[:1]:
                columns[column] = field(cursors)
        for column, one in constants:
            columns[column] = one.take(pa.array(np.zeros(len(cursors), np.int32)))
        return pa.Array.from_buffers(type_, len(cursors), [None], children=columns)

    return read


def _array(writer: tree.Array, reader: tree.Array, path: Path) -> Read:
    type_ = column_of(reader).type
    item = _compile(writer.items, reader.items, (ITEM, *path))
    least, work = least_bytes(writer.items), tree.weight(writer.items)

    def read(cursors: Cursors) -> pa.Array:
        if least:
            offsets, [items] = read_items(cursors, writer, least, [item], [type_.value_type])
        else:  # which are all the same
            offsets = empty_items(cursors, work)
            items = item(cursors.batch.inactive_cursor()).take(pa.array(np.zeros(offsets[-1], np.int8)))
        return pa.Array.from_buffers(type_, len(cursors), [None, pa.py_buffer(offsets)], children=[items])

    return read


def _map(writer: tree.Map, reader: tree.Map, path: Path) -> Read:
    type_ = column_of(reader).type
    entry = pa.struct([type_.key_field, type_.item_field])
    item = _compile(writer.values, reader.values, (ITEM, *path))
    least = 1 + least_bytes(writer.values)

    def read(cursors: Cursors) -> pa.Array:
        offsets, columns = read_items(cursors, writer, least, [_strings, item], [pa.string(), type_.item_type])
        cursors.fall_back(repeats(columns[0], offsets))  # of two entries with one key the last counts
        entries = pa.Array.from_buffers(entry, len(columns[0]), [None], children=columns)
        return pa.Array.from_buffers(type_, len(cursors), [None, pa.py_buffer(offsets)], children=[entries])

    return read


# ----------------------------------------------------------------------------------------------------------- unions


def _written_union(writer: tree.Union, reader: tree.Node, path: Path) -> Read:
    type_ = column_of(reader).type
    branches: dict[int, Read] = {}
    refused: dict[int, Unresolvable] = {}  # an error only for messages that use it
    for index, branch in enumerate(writer.branches):
        try:
            branches[index] = _compile(branch, reader, path)
        except Unresolvable as error:
            refused[index] = error
    nulls = frozenset(
        index
        for index, branch in enumerate(writer.branches)
        if branch.kind == "null" and index not in refused and not pa.types.is_null(type_)
    )

    def mismatch_at(index: int) -> Mismatch:
        return _mismatch(refused[index].reason, (*refused[index].steps, *path))

    def read(cursors: Cursors) -> pa.Array:
        index = cursors.indices(len(writer.branches))
        columns: list[pa.Array] = []
        places: list[Longs] = []
        for number in refused:
            cursors.fall_back(index == number, lambda at: mismatch_at(int(index[at])))
        for number, branch in branches.items():
            if number in nulls:
                continue
            which = np.flatnonzero(index == number)
            if len(which) == len(cursors):
                return branch(cursors)
            if len(which):
                some = cursors.some(which)
                columns.append(branch(some))
                cursors.resume(which, some)
                places.append(which)
        if not columns:
            return pa.nulls(len(cursors), type_)
        if len(columns) == 1:
            return at_rows(columns[0], places[0], len(cursors))
        return at_rows(pa.concat_arrays(columns), np.concatenate(places), len(cursors))

    return read


def _into_union(writer: tree.Node, reader: tree.Union, path: Path) -> Read:
    index = best_branch(writer, reader)
    if index is None:
        raise unresolvable(writer, reader)
    branch = reader.branches[index]
    type_ = column_of(reader).type
    if branch.kind == "null":
        return lambda cursors: pa.nulls(len(cursors), type_)
    kinds = variants(reader)
    inner = _compile(writer, widened(reader) or branch, path)
    if widened(reader) or len(kinds) == 1:
        return inner
    member = kinds.index(branch)

    def read(cursors: Cursors) -> pa.Array:
        count = len(cursors)
        members = [pa.nulls(count, field.type) for field in type_]
        members[member] = inner(cursors)
        return pa.Array.from_buffers(type_, count, [None], children=members)

    return read

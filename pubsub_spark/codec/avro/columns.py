"""Avro binary to Arrow, all messages of a batch at once.

`compile_columns` makes a plan of a pair of schemas: functions from `Cursors` to an Arrow array, bound to the plans of
their parts. The writer's schema determines the bytes to read, the reader's the values to build. A message that is not
plainly right falls back (see `cursors`), and `decode` finds the reason.

Names and branches are matched by the rules of `compatibility`. A timestamp keeps its instant if the reader counts in
another unit (Java keeps the number). Decimals of another scale do not resolve.

`path` leads to the values of a plan, innermost step first, with `{}` for each array or map.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.bound import Bound
from pubsub_spark.codec.arrays import at_rows, offsets_of, repeats
from pubsub_spark.codec.avro import decimals
from pubsub_spark.codec.avro.cursor_arrays import Read, numbers, read_items, segments
from pubsub_spark.codec.avro.types import column_of, variants, widened
from pubsub_spark.schema.avro import schema_tree as tree
from pubsub_spark.schema.avro.array_items import empty_items
from pubsub_spark.schema.avro.batch_check import Check, compile_check, is_utf8
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
        case tree.Array(items), tree.Array(wanted):
            type_, item, least = column_of(reader).type, _compile(items, wanted, (ITEM, *path)), least_bytes(items)
            if not least:
                return Bound(_lists_of_equals, type_, item, tree.weight(items))
            return Bound(_lists, type_, item, writer, least)
        case tree.Map(values), tree.Map(wanted):
            item = _compile(values, wanted, (ITEM, *path))
            return Bound(_maps, column_of(reader).type, item, writer, 1 + least_bytes(values))
        case tree.Enum(symbols=symbols), tree.Enum():
            known = tuple(symbol if symbol in reader.symbols else reader.default for symbol in symbols)
            return Bound(_symbols, symbols, known, reader.name, path)
        case ((tree.Fixed() | tree.Primitive()), (tree.Fixed() | tree.Primitive())):
            return _scalar(writer, reader, path)
    raise unresolvable(writer, reader)


def _scalar(writer: tree.Fixed | tree.Primitive, reader: tree.Fixed | tree.Primitive, path: Path) -> Read:
    one, other = writer.logical, reader.logical
    if one and other and one.name == other.name == "decimal" and one.scale != other.scale:
        raise unresolvable(writer, reader)
    type_ = column_of(reader).type
    match writer.kind, reader.kind:
        case "null", "null":
            return Bound(_nulls, type_)
        case "boolean", "boolean":
            return _booleans
        case ("int", ("int" | "long")) | ("long", "long"):
            return Bound(_integers, writer.kind == "int", *_time_scale(writer, reader), type_, path)
        case (("int" | "long"), ("float" | "double")):
            return Bound(_cast, Bound(_integers, writer.kind == "int", 1, 1, pa.int64(), path), type_)
        case "float", ("float" | "double"):
            return Bound(_floats, type_)
        case "double", "double":
            return _doubles
        case ("bytes", "bytes") | ("fixed", "fixed"):
            if isinstance(writer, tree.Fixed) and isinstance(reader, tree.Fixed) and writer.size != reader.size:
                raise unresolvable(writer, reader)
            data = Bound(_segments, writer.size if isinstance(writer, tree.Fixed) else None)
            return Bound(_decimals, data, type_, path) if pa.types.is_decimal(type_) else data
        case "string", "string":
            return _STRINGS
        case "bytes", "string":
            return Bound(_strings, path)
        case "string", "bytes":
            data = Bound(_cast, _STRINGS, pa.binary())
            return Bound(_decimals, data, type_, path) if pa.types.is_decimal(type_) else data
    raise unresolvable(writer, reader)


def _time_scale(writer: tree.Fixed | tree.Primitive, reader: tree.Fixed | tree.Primitive) -> tuple[int, int]:
    """Return the factor and the divisor from an integer to the reader's column: (1, 1) if it is no timestamp."""
    wanted = reader.logical.name if reader.logical else ""
    if wanted not in _COLUMN_NANOSECONDS:
        return 1, 1
    unit = _WRITTEN_NANOSECONDS.get(writer.logical.name if writer.logical else "", _WRITTEN_NANOSECONDS[wanted])
    column = _COLUMN_NANOSECONDS[wanted]
    return max(1, unit // column), max(1, column // unit)


def _record(writer: tree.Record, reader: tree.Record, path: Path) -> Read:
    reads: list[list[tuple[int, Read]]] = [[] for _ in writer.fields]  # of a written field, each with its column
    constants: list[tuple[int, pa.Array]] = []
    for column, field in enumerate(reader.fields):
        index = written_field(writer, field)
        try:
            if index is None:
                constants.append((column, constant(field)))
            else:
                node = writer.fields[index].node
                reads[index].append((column, _compile(node, field.node, (f".{field.name}", *path))))
        except Unresolvable as error:
            raise error.inside(f".{field.name}") from None
    # Fields that the reader lacks are also decoded: a message is right or wrong as a whole.
    fields = tuple(tuple(own) or compile_check(field.node) for field, own in zip(writer.fields, reads, strict=True))
    return Bound(_structs, column_of(reader).type, fields, tuple(constants))


def _written_union(writer: tree.Union, reader: tree.Node, path: Path) -> Read:
    type_ = column_of(reader).type
    branches: list[Read | None] = []
    for branch in writer.branches:
        try:
            read = _compile(branch, reader, path)
            branches.append(None if branch.kind == "null" and not pa.types.is_null(type_) else read)
        except Unresolvable as error:  # an error only for messages that use it
            branches.append(Bound(_refused, type_, error.reason, (*error.steps, *path)))
    return Bound(_branches, type_, tuple(branches))


def _into_union(writer: tree.Node, reader: tree.Union, path: Path) -> Read:
    index = best_branch(writer, reader)
    if index is None:
        raise unresolvable(writer, reader)
    branch = reader.branches[index]
    type_ = column_of(reader).type
    if branch.kind == "null":
        return Bound(_nulls, type_)
    kinds = variants(reader)
    inner = _compile(writer, widened(reader) or branch, path)
    return inner if widened(reader) or len(kinds) == 1 else Bound(_member, type_, kinds.index(branch), inner)


def _mismatch(reason: str, path: Path) -> Mismatch:
    """Return a new Mismatch each time, since its path is completed on the way out."""
    mismatch = Mismatch(reason)
    mismatch.steps.extend(path)
    return mismatch


# ---------------------------------------------------------------------------------------------------------- scalars


def _nulls(type_: pa.DataType, cursors: Cursors) -> pa.Array:
    return pa.nulls(len(cursors), type_)


def _booleans(cursors: Cursors) -> pa.BooleanArray:
    return pa.array(cursors.booleans())


def _floats(type_: pa.DataType, cursors: Cursors) -> pa.Array:
    return numbers(cursors.floats(), pa.float32()).cast(type_)


def _doubles(cursors: Cursors) -> pa.DoubleArray:
    return numbers(cursors.doubles(), pa.float64())


def _cast(read: Read, type_: pa.DataType, cursors: Cursors) -> pa.Array:
    return read(cursors).cast(type_, safe=False)


def _integers(narrow: bool, times: int, over: int, type_: pa.DataType, path: Path, cursors: Cursors) -> pa.Array:
    """narrow: written as `int`. times, over: from a timestamp's written unit to its column's."""
    values = cursors.longs()
    if narrow or times > 1:
        low, high = tree.INT if narrow else (-(tree.LONG[1] // times), tree.LONG[1] // times)
        wrong = (values < low) | (values > high)
        beyond = "is a timestamp of value {}, beyond Spark's range"
        if cursors.fall_back(wrong, lambda index: _mismatch(beyond.format(values[index]), path)):
            values[wrong] = 0
    if times > 1:
        values *= times
    if over > 1:
        values //= over
    width: type[Any] = np.int32 if type_.bit_width == 32 else np.int64
    return numbers(values.astype(width, copy=False), type_)


def _segments(size: int | None, cursors: Cursors) -> pa.BinaryArray:
    return segments(cursors, cursors.lengths() if size is None else cursors.fixed_lengths(size))


def _strings(path: Path | None, cursors: Cursors) -> pa.StringArray:
    """path: of bytes that are read as strings. They are right though they may not be UTF-8."""
    data = segments(cursors, cursors.lengths())
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        wrong = _not_utf8(data)
        cursors.fall_back(wrong, None if path is None else lambda _: _mismatch("is not valid UTF-8", path))
        return pc.if_else(pa.array(wrong), b"", data).cast(pa.string())


_STRINGS: Final = Bound(_strings, None)


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


def _decimals(read: Read, type_: pa.Decimal128Type, path: Path, cursors: Cursors) -> pa.Array:
    data = read(cursors)
    values, wrong = decimals.from_bytes(data, type_)
    too_long, empty = f"is a decimal of more than {type_.precision} digits", "is a decimal of no bytes"
    cursors.fall_back(wrong, lambda index: _mismatch(too_long if data[index].as_py() else empty, path))
    return values


def _symbols(
    written: tuple[str, ...], known: tuple[str | None, ...], enum: str, path: Path, cursors: Cursors
) -> pa.StringArray:
    """known: the written symbols as the reader has them, None if it lacks one. enum: the reader's."""
    index = cursors.indices(len(written))
    symbols = pa.array(known or [None], pa.string()).take(pa.array(index))  # without one every message falls back
    if symbols.null_count:
        lacking = "has the symbol `{}`, which enum `{}` of the reader lacks"
        wrong = symbols.is_null().to_numpy(zero_copy_only=False)
        cursors.fall_back(wrong, lambda at: _mismatch(lacking.format(written[index[at]], enum), path))
        symbols = symbols.fill_null("")
    return symbols


# --------------------------------------------------------------------------------------------------- nested columns


def _structs(
    type_: pa.StructType,
    fields: tuple[tuple[tuple[int, Read], ...] | Check, ...],
    constants: tuple[tuple[int, pa.Array], ...],
    cursors: Cursors,
) -> pa.StructArray:
    """fields: of the written record, each with the plans of its columns, or its check if the reader lacks it."""
    columns: list[pa.Array] = [None] * len(type_)
    for field in fields:
        if not isinstance(field, tuple):
            field(cursors)
            continue
        for column, read in field[1:]:  # by their aliases, more than one of the reader's fields are this one
            columns[column] = read(cursors.some(np.arange(len(cursors))))
        column, read = field[0]
        columns[column] = read(cursors)
    for column, one in constants:
        columns[column] = one.take(pa.array(np.zeros(len(cursors), np.int32)))
    return pa.Array.from_buffers(type_, len(cursors), [None], children=columns)


def _lists(type_: pa.ListType, item: Read, written: tree.Array, least_bytes: int, cursors: Cursors) -> pa.ListArray:
    offsets, [items] = read_items(cursors, written, least_bytes, [item], [type_.value_type])
    return pa.Array.from_buffers(type_, len(cursors), [None, pa.py_buffer(offsets)], children=[items])


def _lists_of_equals(type_: pa.ListType, item: Read, weight: int, cursors: Cursors) -> pa.ListArray:
    """Read items of no bytes, which are all the same."""
    offsets = empty_items(cursors, weight)
    items = item(cursors.batch.inactive_cursor()).take(pa.array(np.zeros(offsets[-1], np.int8)))
    return pa.Array.from_buffers(type_, len(cursors), [None, pa.py_buffer(offsets)], children=[items])


def _maps(type_: pa.MapType, item: Read, written: tree.Map, least_bytes: int, cursors: Cursors) -> pa.MapArray:
    offsets, columns = read_items(cursors, written, least_bytes, [_STRINGS, item], [pa.string(), type_.item_type])
    cursors.fall_back(repeats(columns[0], offsets))  # of two entries with one key the last counts
    entry = pa.struct([type_.key_field, type_.item_field])
    entries = pa.Array.from_buffers(entry, len(columns[0]), [None], children=columns)
    return pa.Array.from_buffers(type_, len(cursors), [None, pa.py_buffer(offsets)], children=[entries])


# ----------------------------------------------------------------------------------------------------------- unions


def _branches(type_: pa.DataType, branches: tuple[Read | None, ...], cursors: Cursors) -> pa.Array:
    """branches: of the written union. None: a null in a column of another type."""
    index = cursors.indices(len(branches))
    columns: list[pa.Array] = []
    places: list[Longs] = []
    for number, branch in enumerate(branches):
        if branch is None:
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


def _refused(type_: pa.DataType, reason: str, path: Path, cursors: Cursors) -> pa.Array:
    cursors.fall_back(np.ones(len(cursors), np.bool_), lambda _: _mismatch(reason, path))
    return pa.nulls(len(cursors), type_)


def _member(type_: pa.StructType, member: int, read: Read, cursors: Cursors) -> pa.StructArray:
    members = [pa.nulls(len(cursors), field.type) for field in type_]
    members[member] = read(cursors)
    return pa.Array.from_buffers(type_, len(cursors), [None], children=members)

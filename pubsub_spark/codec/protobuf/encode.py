"""The Protobuf encoder: rows to payloads. Columns are checked once per schema, and batches become bytes in Rust.

Every column must fit its field, every required field must have a column. Encoding converts each array to its type in
`ptars_schema` (names to numbers, microseconds to seconds and nanos, signed to unsigned). A null is an absent field, and
so is a missing column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message_factory import GetMessageClass

from pubsub_spark.bound import Bound
from pubsub_spark.codec.arrays import entries_of, list_offsets, named_structs
from pubsub_spark.codec.protobuf import column_tree as tree
from pubsub_spark.codec.protobuf import ptars_schema
from pubsub_spark.codec.protobuf.json import compile_writer
from pubsub_spark.codec.protobuf.types import SCALARS, TIMES, UNSIGNED, arrow_type
from pubsub_spark.codec.rows import Inside, Unwritable, find_columns, fits, unfit
from pubsub_spark.errors import DataError, RowError, SchemaError
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.protobuf import json_mapping
from pubsub_spark.schema.protobuf.definition import ProtobufDefinition

# Years 1 to 9999, and ten thousand years either way: the bounds of Timestamp and Duration (google/protobuf/*.proto).
_SECONDS: Final = {
    "Timestamp": (-62_135_596_800, 253_402_300_799),
    "Duration": (-315_576_000_000, 315_576_000_000),
}

_TEXT: Final = (pa.string(), pa.large_string())

_Convert = Callable[[pa.Array], pa.Array]
_Fields = Callable[[pa.StructArray], dict[str, pa.Array]]  # the converted columns by their names in `ptars_schema`


class ProtobufEncoder:
    def __init__(
        self, definition: ProtobufDefinition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool = False
    ) -> None:
        struct = tree.build_column_tree(definition.message)
        self._fields = _compile_fields(struct, source_type, "", ignore_extra)
        self._handler = ptars_schema.payload_writer(struct)
        self._write_json = compile_writer(definition) if encoding == "JSON" else None

    def encode(self, rows: pa.StructArray) -> pa.BinaryArray:
        """Raises RowError for a value that does not fit."""
        if rows.null_count:
            raise RowError(_first_true(pc.is_null(rows)), "the row is null, and a message cannot be")
        try:
            columns = self._fields(rows)
            if self._write_json is not None:
                return self._write_json(named_structs(columns, len(rows))).cast(pa.binary())
        except Unwritable as unwritable:
            raise unwritable.row_error() from None
        if not columns:
            return pa.array([b""] * len(rows), pa.binary())
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        try:
            return ptars_schema.call(self._handler.record_batch_to_array, batch)
        except ValueError as error:  # more than 2 GiB, which no Arrow array of payloads can hold
            raise DataError(f"The {len(rows)} rows of an Arrow batch cannot be written at once: {error}") from None


def _compile_fields(struct: tree.Struct, source: pa.StructType, path: str, ignore_extra: bool) -> _Fields:
    if struct.unmapped:
        raise SchemaError(f"Field `{struct.unmapped[0]}` is required, and a message without fields cannot be a column")
    indices, problems = find_columns([column.name for column in struct.columns], source, path, ignore_extra)
    converters: list[tuple[int, tree.Column, _Convert]] = []
    oneofs: dict[str, list[tuple[int, str]]] = {}
    for column in struct.columns:
        index = indices.get(column.name)
        if index is None or pa.types.is_null(source[index].type):
            if column.required:
                problems.append(f"Column `{column.path}` is missing: the schema requires it")
            continue
        try:
            convert = _compile(column.node, source[index].type, column.path, ignore_extra)
        except SchemaError as error:
            problems.append(str(error))
            continue
        if isinstance(column.node, tree.Scalar) and column.node.kind in ("float", "double") and not column.presence:
            convert = Bound(_without_zeros, convert)
        converters.append((index, column, convert))
        if column.oneof:
            oneofs.setdefault(column.oneof, []).append((index, column.name))
    if problems:
        raise SchemaError("; ".join(problems))

    return Bound(_fields, tuple(converters), oneofs)


def _fields(
    converters: tuple[tuple[int, tree.Column, _Convert], ...],
    oneofs: dict[str, list[tuple[int, str]]],
    rows: pa.StructArray,
) -> dict[str, pa.Array]:
    """oneofs: the index and name of each member's column."""
    sources = rows.flatten()  # each with the nulls of its parent
    arrays = {}
    for index, column, convert in converters:
        with Inside(f".{column.name}"):
            source = sources[index]
            if column.required and source.null_count > rows.null_count:
                bad = _first_true(pc.and_(pc.is_null(source), pc.is_valid(rows)))
                raise Unwritable(bad, "is null, and the field is required")
            arrays[ptars_schema.field_name(column)] = convert(source)
    for oneof, members in oneofs.items():
        _check_oneof(oneof, {name: sources[index] for index, name in members})
    return arrays


def _check_oneof(oneof: str, members: dict[str, pa.Array]) -> None:
    if len(members) < 2 or sum(len(array) - array.null_count for array in members.values()) < 2:
        return
    valid = np.stack([pc.is_valid(array).to_numpy(zero_copy_only=False) for array in members.values()])
    conflicting = np.flatnonzero(valid.sum(axis=0) > 1)
    if len(conflicting):
        first, *others = (name for name, has in zip(members, valid[:, conflicting[0]], strict=True) if has)
        names = " and ".join(f"`{name}`" for name in others)
        raise Unwritable(int(conflicting[0]), f"has a value, and so has {names}: oneof `{oneof}` has one", f".{first}")


def _compile(node: tree.Node, source: pa.DataType, path: str, ignore_extra: bool) -> _Convert:
    match node:
        case tree.Scalar(kind):
            return _compile_scalar(kind, source, path)
        case tree.Enum():
            if source in _TEXT:
                return Bound(_numbers, node)
            if pa.types.is_signed_integer(source) and source.bit_width <= 32:
                return Bound(_checked_numbers, node)
        case tree.Time(name):
            if fits(TIMES[name], source):
                return Bound(_seconds_and_nanos, name)
        case tree.Json():
            if source in _TEXT:
                return Bound(_json_bytes, node)
        case tree.Array(element):
            if pa.types.is_list(source) or pa.types.is_large_list(source):
                return Bound(_lists, _compile(element, source.value_type, f"{path}[]", ignore_extra))
        case tree.Map(key, value):
            if pa.types.is_map(source):
                keys = _compile(key, source.key_type, f"{path}{{}}", ignore_extra)
                values = _compile(value, source.item_type, f"{path}{{}}", ignore_extra)
                return Bound(_maps, keys, values)
        case tree.Struct():
            if pa.types.is_struct(source):
                return Bound(_structs, _compile_fields(node, source, path, ignore_extra))
    raise unfit(path, source, arrow_type(node))


def _compile_scalar(kind: str, source: pa.DataType, path: str) -> _Convert:
    target = SCALARS[kind]
    unsigned = UNSIGNED.get(kind)
    if fits(target, source) or (target == pa.int32() and pa.types.is_date32(source)):
        return Bound(_cast, target) if unsigned is None else Bound(_view, target, unsigned)
    wide = (
        source == pa.int64() if kind in ("uint32", "fixed32") else pa.types.is_decimal128(source) and source.scale == 0
    )
    if unsigned is not None and wide:  # the types that Spark reads them as with `upcast.unsigned.ints`
        return Bound(_in_range, unsigned, kind)
    raise unfit(path, source, target)


def _cast(type_: pa.DataType, array: pa.Array) -> pa.Array:
    return array if array.type == type_ else array.cast(type_)


def _view(signed: pa.DataType, unsigned: pa.DataType, array: pa.Array) -> pa.Array:
    """Keep the bits, as in reading."""
    return array.cast(signed).view(unsigned)


def _in_range(type_: pa.DataType, kind: str, array: pa.Array) -> pa.Array:
    most = pa.scalar(2**type_.bit_width - 1, pa.decimal128(38, 0) if pa.types.is_decimal(array.type) else array.type)
    outside = pc.or_(pc.less(array, pa.scalar(0)), pc.greater(array, most))
    if pc.any(outside).as_py():
        bad = _first_true(outside)
        raise Unwritable(bad, f"is {array[bad]}, out of the range of `{kind}`")
    return array.cast(type_)


def _without_zeros(convert: _Convert, array: pa.Array) -> pa.Array:
    """Convert without 0.0, which a field without presence does not write. -0.0 stays."""
    values = convert(array)
    bits = values.view(pa.int64() if pa.types.is_float64(values.type) else pa.int32())
    zero = pc.equal(bits, pa.scalar(0, bits.type))
    return pc.if_else(zero, pa.scalar(None, values.type), values) if pc.any(zero).as_py() else values


def _numbers(enum: tree.Enum, array: pa.Array) -> pa.Int32Array:
    names = pa.array(list(enum.numbers), pa.string())
    index = pc.index_in(array.cast(pa.string()), value_set=names)
    if index.null_count > array.null_count:
        bad = _first_true(pc.and_(pc.is_null(index), pc.is_valid(array)))
        some = ", ".join(f"`{name}`" for name in list(enum.numbers)[:10])
        more = ", ..." if len(enum.numbers) > 10 else ""
        raise Unwritable(bad, f"is `{array[bad]}`, and enum `{enum.name}` has only {some}{more}")
    return pa.array(list(enum.numbers.values()), pa.int32()).take(index)


def _checked_numbers(enum: tree.Enum, array: pa.Array) -> pa.Int32Array:
    """Raises Unwritable for a number that a closed enum does not have."""
    array = array.cast(pa.int32())
    if enum.closed:
        undeclared = pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, pa.array(list(enum.names), pa.int32()))))
        if pc.any(undeclared).as_py():
            bad = _first_true(undeclared)
            raise Unwritable(bad, f"is {array[bad]}, which enum `{enum.name}` does not have")
    return array


def _seconds_and_nanos(name: str, array: pa.Array) -> pa.StructArray:
    micros: npt.NDArray[np.int64] = array.cast(pa.int64()).fill_null(0).to_numpy()
    rest = np.fmod(micros, 1_000_000) if name == "Duration" else micros % 1_000_000  # a Duration's has its sign
    seconds = (micros - rest) // 1_000_000
    least, most = _SECONDS[name]
    outside = np.flatnonzero((seconds < least) | (seconds > most))
    if len(outside):
        bad = int(outside[0])
        raise Unwritable(bad, f"is {micros[bad]} microseconds, more than its field holds")
    nanos = (rest * 1_000).astype(np.int32)
    return named_structs({"seconds": pa.array(seconds), "nanos": pa.array(nanos)}, len(array), array)


def _json_bytes(node: tree.Json, array: pa.Array) -> pa.BinaryArray:
    message_class = GetMessageClass(node.message)
    values: list[bytes | None] = []
    for index, text in enumerate(array.to_pylist()):
        message: Any = message_class()
        try:
            if text is not None:
                json_mapping.read(text.encode(), message)
        except InvalidMessage as error:
            raise Unwritable(index, f"is no `{node.message.name}`: {error}") from None
        values.append(None if text is None else message.SerializeToString())
    return pa.array(values, pa.binary())


def _structs(fields: _Fields, array: pa.StructArray) -> pa.StructArray:
    return named_structs(fields(array), len(array), array)


def _lists(convert: _Convert, array: pa.Array) -> pa.ListArray:
    offsets = list_offsets(array)
    with Inside("[]", offsets):
        return pa.ListArray.from_arrays(pa.array(offsets), convert(_refuse_nulls(array.flatten())))


def _maps(keys: _Convert, values: _Convert, array: pa.MapArray) -> pa.ListArray:
    offsets, entries = list_offsets(array), entries_of(array)
    with Inside("{}", offsets):
        members = [keys(entries.field(0)), values(_refuse_nulls(entries.field(1)))]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(members, ["key", "value"]))


def _refuse_nulls(array: pa.Array) -> pa.Array:
    if array.null_count:
        raise Unwritable(_first_true(pc.is_null(array)), "is null, and protobuf has no null inside lists and maps")
    return array


def _first_true(mask: pa.BooleanArray) -> int:
    return int(pc.index(mask, True).as_py())

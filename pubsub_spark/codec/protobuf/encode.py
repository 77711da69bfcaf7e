"""The Protobuf encoder: rows to payloads; columns are checked once per schema, and batches become bytes in Rust.

Compiling compares the column tree with the type of the rows: every column must fit its field (SchemaError with path,
expected and found), every required field must have a column. Encoding a batch is then a walk that converts each array
to the type that `ptars_schema` has for it (names to numbers, microseconds to seconds and nanos, signed to unsigned) and
refuses values that the message cannot hold, with row and path. A null is an absent field, and so is a missing column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message_factory import GetMessageClass

from pubsub_spark.codec.arrays import named_structs
from pubsub_spark.codec.json.writer import Unwritable
from pubsub_spark.codec.protobuf import ptars_schema
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
from pubsub_spark.codec.protobuf.json import compile_writer
from pubsub_spark.codec.protobuf.types import SCALARS, UNSIGNED, arrow_type
from pubsub_spark.errors import DataError, RowError, SchemaError
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.protobuf import json_mapping
from pubsub_spark.schema.protobuf.definition import ProtobufDefinition

# Years 1 to 9999, and ten thousand years either way: what Timestamp and Duration may hold (google/protobuf/*.proto).
TIMESTAMP_RANGE_SECONDS: Final = (-62_135_596_800, 253_402_300_799)
DURATION_RANGE_SECONDS: Final = (-315_576_000_000, 315_576_000_000)

_SMALL_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32())
_TEXT: Final = (pa.string(), pa.large_string())
_BYTES: Final = (pa.binary(), pa.large_binary())

# The column types accepted for a scalar field: its own type, and those whose every value fits.
ACCEPTED: Final[dict[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int32(): (*_SMALL_INTEGERS, pa.date32()),
    pa.int64(): (*_SMALL_INTEGERS, pa.int64()),
    pa.float32(): (pa.int8(), pa.int16(), pa.float32()),
    pa.float64(): (*_SMALL_INTEGERS, pa.float32(), pa.float64()),
    pa.bool_(): (pa.bool_(),),
    pa.string(): _TEXT,
    pa.binary(): _BYTES,
}


@dataclass(frozen=True, slots=True)
class _RowIndex:
    """The rows that the values of an array belong to: one value per row, or the elements of the lists in `parent`."""

    parent: _RowIndex | None = None
    offsets: npt.NDArray[np.int32] | None = None

    def row(self, index: int) -> int:
        """The row that the value at `index` belongs to."""
        if self.parent is None or self.offsets is None:
            return index
        return self.parent.row(int(np.searchsorted(self.offsets, index, side="right")) - 1)


_Convert = Callable[[pa.Array, _RowIndex], pa.Array]


class ProtobufEncoder:
    """The encoder of rows of one type to payloads of one definition."""

    def __init__(
        self, definition: ProtobufDefinition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool = False
    ) -> None:
        struct = build_column_tree(definition.message)
        self._conversion = _compile_struct(struct, source_type, "", ignore_extra)
        self._handler = ptars_schema.payload_writer(struct)
        self._write_json = compile_writer(definition) if encoding == "JSON" else None

    def encode(self, rows: pa.StructArray) -> pa.BinaryArray:
        """One payload per row; RowError names the row and the column of a value that does not fit."""
        if rows.null_count:
            raise RowError(_first_true(pc.is_null(rows)), "the row is null, and a message cannot be")
        columns = self._conversion.arrays(rows, _RowIndex())
        if self._write_json is not None:
            try:
                return self._write_json(named_structs(columns, len(rows))).cast(pa.binary())
            except Unwritable as found:
                column = f"column `{found.path.removeprefix('.')}`" if found.path else "the row"
                raise RowError(found.index, f"{column} {found.reason}") from None
        if not columns:
            return pa.array([b""] * len(rows), pa.binary())
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        try:
            return ptars_schema.call(self._handler.record_batch_to_array, batch)
        except ValueError as error:  # more than 2 GiB, which no Arrow array of payloads can hold
            raise DataError(f"The {len(rows)} rows of an Arrow batch cannot be written at once: {error}") from None


@dataclass(frozen=True, slots=True)
class _StructConversion:
    """The columns of a message that the rows have, as (position in the rows, column, conversion)."""

    columns: tuple[tuple[int, Column, _Convert], ...]

    def arrays(self, rows: pa.StructArray, row_index: _RowIndex) -> dict[str, pa.Array]:
        """The converted arrays by the names that `ptars_schema` gives them."""
        sources = rows.flatten()  # each with the nulls of its parent
        arrays = {}
        for index, column, convert in self.columns:
            source = sources[index]
            if column.required and source.null_count > rows.null_count:
                bad = _first_true(pc.and_(pc.is_null(source), pc.is_valid(rows)))
                raise RowError(row_index.row(bad), f"column `{column.path}` is null, and the field is required")
            arrays[ptars_schema.field_name(column)] = convert(source, row_index)
        self._check_oneofs(sources, row_index)
        return arrays

    def _check_oneofs(self, sources: list[pa.Array], row_index: _RowIndex) -> None:
        """Raise RowError where more than one field of a oneof has a value."""
        for oneof in dict.fromkeys(column.oneof for _, column, _ in self.columns if column.oneof):
            members = [(index, column) for index, column, _ in self.columns if column.oneof == oneof]
            if sum(len(sources[index]) - sources[index].null_count for index, _ in members) <= 1 or len(members) < 2:
                continue
            valid = np.stack([pc.is_valid(sources[index]).to_numpy(zero_copy_only=False) for index, _ in members])
            conflicting = np.flatnonzero(valid.sum(axis=0) > 1)
            if len(conflicting):
                names = " and ".join(f"`{members[m][1].path}`" for m in np.flatnonzero(valid[:, conflicting[0]]))
                raise RowError(
                    row_index.row(int(conflicting[0])),
                    f"columns {names} both have a value, and of the fields of oneof `{oneof}` only one may",
                )


def _compile_struct(struct: Struct, source: pa.StructType, path: str, ignore_extra: bool) -> _StructConversion:
    """The columns of a message and their conversions; SchemaError with every one that does not fit."""
    if struct.unmapped:
        raise SchemaError(f"Field `{struct.unmapped[0]}` is required, and a message without fields cannot be a column")
    found, extra = _match(struct, source, path)
    columns = []
    problems = []
    if extra and not ignore_extra:
        names = ", ".join(f"`{name}`" for name in extra)
        problems.append(f"The schema has no field for {names}: drop it, or set ignoreExtraColumns=true")
    for column in struct.columns:
        index = found.get(column.name)
        if index is None or pa.types.is_null(source.field(index).type):
            if column.required:
                problems.append(f"Column `{column.path}` is missing: the schema requires it")
            continue
        try:
            convert = _compile(column.node, source.field(index).type, column.path, ignore_extra)
        except SchemaError as error:
            problems.append(str(error))
            continue
        if isinstance(column.node, Scalar) and column.node.kind in ("float", "double") and not column.presence:
            convert = _without_zeros(convert)
        columns.append((index, column, convert))
    if problems:
        raise SchemaError("; ".join(problems))
    return _StructConversion(tuple(columns))


def _match(struct: Struct, source: pa.StructType, path: str) -> tuple[dict[str, int], list[str]]:
    """The position of each field's column, by its name or, as Spark resolves names, in any case of its letters; and the
    paths of columns of no field."""
    exact = {column.name for column in struct.columns}
    folded: dict[str, list[str]] = {}
    for column in struct.columns:
        folded.setdefault(column.name.casefold(), []).append(column.name)
    found: dict[str, int] = {}
    extra = []
    for index in range(source.num_fields):
        name = source.field(index).name
        here = f"{path}.{name}" if path else name
        spellings = [name] if name in exact else folded.get(name.casefold(), [])
        if not spellings:
            extra.append(here)
        elif len(spellings) > 1 or spellings[0] in found:
            raise SchemaError(f"Column `{here}` is not the only one for a field of message `{struct.name}`")
        else:
            found[spellings[0]] = index
    return found, extra


def _compile(node: Node, source: pa.DataType, path: str, ignore_extra: bool) -> _Convert:
    """The conversion of arrays of type `source` for `ptars`; SchemaError when there is none."""
    match node:
        case Scalar(kind):
            return _compile_scalar(kind, source, path)
        case Enum():
            if source in _TEXT:
                return lambda array, row_index: _numbers(array, node, row_index, path)
            if source in _SMALL_INTEGERS:
                return lambda array, row_index: _checked_numbers(array.cast(pa.int32()), node, row_index, path)
        case Timestamp():
            if pa.types.is_timestamp(source) and source.unit == "us" and source.tz is not None:
                return lambda array, row_index: _timestamps(array, row_index, path)
        case Duration():
            if source == pa.duration("us"):
                return lambda array, row_index: _durations(array, row_index, path)
        case Json():
            if source in _TEXT:
                return lambda array, row_index: _json_bytes(array, node, row_index, path)
        case Array(element):
            if pa.types.is_list(source) or pa.types.is_large_list(source):
                inner = _compile(element, source.value_type, f"{path}[]", ignore_extra)
                return lambda array, row_index: _lists(array, inner, row_index, f"{path}[]")
        case Map(key, value):
            if pa.types.is_map(source):
                keys = _compile(key, source.key_type, f"{path}{{}}", ignore_extra)
                values = _compile(value, source.item_type, f"{path}{{}}", ignore_extra)
                return lambda array, row_index: _maps(array, keys, values, row_index, f"{path}{{}}")
        case Struct():
            if pa.types.is_struct(source):
                inner_struct = _compile_struct(node, source, path, ignore_extra)
                return lambda array, row_index: _structs(array, inner_struct, row_index)
    raise _unfit(node, source, path)


def _unfit(node: Node, found: pa.DataType, path: str) -> SchemaError:
    """The error about a column whose type does not fit its field."""
    from pubsub_spark.codec.spark_types import type_name

    return SchemaError(f"Column `{path}` is `{type_name(found)}`, the schema wants `{type_name(arrow_type(node))}`")


def _compile_scalar(kind: str, source: pa.DataType, path: str) -> _Convert:
    target = SCALARS[kind]
    unsigned = UNSIGNED.get(kind)
    if source in ACCEPTED[target]:
        if unsigned is not None:  # the same bits, as reading gives them
            return lambda array, _: array.cast(target).view(unsigned)
        return lambda array, _: array if array.type == target else array.cast(target)
    wide = (
        source == pa.int64() if kind in ("uint32", "fixed32") else pa.types.is_decimal128(source) and source.scale == 0
    )
    if unsigned is not None and wide:  # the types that Spark reads them as with `upcast.unsigned.ints`
        return lambda array, row_index: _in_range(array, 0, 2**unsigned.bit_width - 1, row_index, path, kind).cast(
            unsigned
        )
    raise _unfit(Scalar(kind), source, path)


def _in_range(array: pa.Array, low: int, high: int, row_index: _RowIndex, path: str, kind: str) -> pa.Array:
    outside = pc.or_(pc.less(array, pa.scalar(low)), pc.greater(array, _scalar(high, array.type)))
    if pc.any(outside).as_py():
        bad = _first_true(outside)
        raise RowError(row_index.row(bad), f"column `{path}` is {array[bad]}, out of the range of `{kind}`")
    return array


def _scalar(value: int, type_: pa.DataType) -> pa.Scalar:
    return pa.scalar(value, pa.decimal128(38, 0)) if pa.types.is_decimal(type_) else pa.scalar(value, type_)


def _without_zeros(convert: _Convert) -> _Convert:
    """The conversion without zeros, which a field without presence does not write; -0.0 is another value, and stays."""

    def converted(array: pa.Array, row_index: _RowIndex) -> pa.Array:
        values = convert(array, row_index)
        bits = values.view(pa.int64() if pa.types.is_float64(values.type) else pa.int32())
        zero = pc.equal(bits, pa.scalar(0, bits.type))
        return pc.if_else(zero, pa.scalar(None, values.type), values) if pc.any(zero).as_py() else values

    return converted


def _numbers(array: pa.Array, enum: Enum, row_index: _RowIndex, path: str) -> pa.Int32Array:
    """The numbers of an enum's names; RowError for a name that it does not have."""
    names = pa.array(list(enum.numbers), pa.string())
    found = pc.index_in(array.cast(pa.string()), value_set=names)
    if found.null_count > array.null_count:
        bad = _first_true(pc.and_(pc.is_null(found), pc.is_valid(array)))
        some = ", ".join(f"`{name}`" for name in list(enum.numbers)[:10])
        raise RowError(
            row_index.row(bad),
            f"column `{path}` is `{array[bad]}`, and enum `{enum.name}` has only {some}"
            + (", ..." if len(enum.numbers) > 10 else ""),
        )
    return pa.array(list(enum.numbers.values()), pa.int32()).take(found)


def _checked_numbers(array: pa.Int32Array, enum: Enum, row_index: _RowIndex, path: str) -> pa.Int32Array:
    """The numbers of an enum, as they are; RowError for a number that a closed enum does not have."""
    if enum.closed:
        undeclared = pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, pa.array(list(enum.names), pa.int32()))))
        if pc.any(undeclared).as_py():
            bad = _first_true(undeclared)
            raise RowError(
                row_index.row(bad), f"column `{path}` is {array[bad]}, which enum `{enum.name}` does not have"
            )
    return array


def _timestamps(array: pa.Array, row_index: _RowIndex, path: str) -> pa.StructArray:
    micros = _int64(array)
    seconds = np.floor_divide(micros, 1_000_000)
    return _seconds_and_nanos(array, seconds, micros, TIMESTAMP_RANGE_SECONDS, row_index, path)


def _durations(array: pa.Array, row_index: _RowIndex, path: str) -> pa.StructArray:
    micros = _int64(array)
    seconds = np.sign(micros) * (np.abs(micros) // 1_000_000)  # both parts have the sign of the whole
    return _seconds_and_nanos(array, seconds, micros, DURATION_RANGE_SECONDS, row_index, path)


def _seconds_and_nanos(
    array: pa.Array,
    seconds: npt.NDArray[np.int64],
    micros: npt.NDArray[np.int64],
    bounds: tuple[int, int],
    row_index: _RowIndex,
    path: str,
) -> pa.StructArray:
    outside = np.flatnonzero((seconds < bounds[0]) | (seconds > bounds[1]))
    if len(outside):
        bad = int(outside[0])
        raise RowError(row_index.row(bad), f"column `{path}` is {micros[bad]} microseconds, more than its field holds")
    nanos = ((micros - seconds * 1_000_000) * 1_000).astype(np.int32)
    return named_structs({"seconds": pa.array(seconds), "nanos": pa.array(nanos)}, len(array), array)


def _int64(array: pa.Array) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = array.cast(pa.int64()).fill_null(0).to_numpy()
    return values


def _json_bytes(array: pa.Array, node: Json, row_index: _RowIndex, path: str) -> pa.BinaryArray:
    message_class = GetMessageClass(node.message)
    values: list[bytes | None] = []
    for index, text in enumerate(array.to_pylist()):
        message: Any = message_class()
        try:
            if text is not None:
                json_mapping.read(text.encode(), message)
        except InvalidMessage as error:
            raise RowError(row_index.row(index), f"column `{path}` is no `{node.message.name}`: {error}") from None
        values.append(None if text is None else message.SerializeToString())
    return pa.array(values, pa.binary())


def _lists(array: pa.Array, convert: _Convert, row_index: _RowIndex, path: str) -> pa.ListArray:
    offsets = _offsets(array)
    inner = _RowIndex(row_index, offsets)
    return pa.ListArray.from_arrays(pa.array(offsets), convert(_refuse_nulls(array.flatten(), inner, path), inner))


def _maps(array: pa.MapArray, keys: _Convert, values: _Convert, row_index: _RowIndex, path: str) -> pa.ListArray:
    array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    offsets = _offsets(array)
    inner = _RowIndex(row_index, offsets)
    entries = array.flatten()
    members = [keys(entries.field(0), inner), values(_refuse_nulls(entries.field(1), inner, path), inner)]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(members, ["key", "value"]))


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """The offsets of the lists in `array.flatten()`, where a null list has no elements."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def _refuse_nulls(array: pa.Array, row_index: _RowIndex, path: str) -> pa.Array:
    """The elements as they are; RowError when one is null."""
    if array.null_count:
        bad = _first_true(pc.is_null(array))
        raise RowError(row_index.row(bad), f"column `{path}` is null, and protobuf has no null inside lists and maps")
    return array


def _structs(array: pa.StructArray, conversion: _StructConversion, row_index: _RowIndex) -> pa.StructArray:
    return named_structs(conversion.arrays(array, row_index), len(array), array)


def _first_true(mask: pa.BooleanArray) -> int:
    """The first index where `mask` is true."""
    return int(pc.index(mask, True).as_py())

"""Rows to payloads: columns are checked against the message once, and batches become bytes in Rust.

Compiling compares the tree of columns with the type of the rows: every column must fit its field (SchemaError with
path, expected and found), every required field must have a column. What is left for a batch is a walk that turns each
array into the layout's type (names to numbers, microseconds to seconds and nanos, signed to unsigned) and refuses
values which the message cannot hold, with row and path. Nulls are absent fields, and so is a field without a column.
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

from pubsub_spark.codec.definition import Encoding, InvalidMessage
from pubsub_spark.codec.protobuf import json, layout
from pubsub_spark.codec.protobuf.definition import ProtobufDefinition
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
)
from pubsub_spark.codec.protobuf.types import SCALARS, UNSIGNED, arrow_type
from pubsub_spark.errors import DataError, RowError, SchemaError

# Years 1 to 9999, and ten thousand years either way: what Timestamp and Duration may hold (google/protobuf/*.proto).
INSTANT_SECONDS: Final = (-62_135_596_800, 253_402_300_799)
SPAN_SECONDS: Final = (-315_576_000_000, 315_576_000_000)

_SMALL: Final = (pa.int8(), pa.int16(), pa.int32())
_TEXT: Final = (pa.string(), pa.large_string())
_BYTES: Final = (pa.binary(), pa.large_binary())

# What a column may be for a scalar field: its own type, and those whose every value fits.
ACCEPTED: Final[dict[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int32(): (*_SMALL, pa.date32()),
    pa.int64(): (*_SMALL, pa.int64()),
    pa.float32(): (pa.int8(), pa.int16(), pa.float32()),
    pa.float64(): (*_SMALL, pa.float32(), pa.float64()),
    pa.bool_(): (pa.bool_(),),
    pa.string(): _TEXT,
    pa.binary(): _BYTES,
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the values of an array stand: in the rows themselves, or inside the lists at `outer`."""

    outer: _Place | None = None
    offsets: npt.NDArray[np.int32] | None = None

    def row(self, index: int) -> int:
        """The row that the value at `index` belongs to."""
        if self.outer is None or self.offsets is None:
            return index
        return self.outer.row(int(np.searchsorted(self.offsets, index, side="right")) - 1)


_Convert = Callable[[pa.Array, _Place], pa.Array]


class Writer:
    """Writes rows of one type as payloads of one definition."""

    def __init__(
        self, definition: ProtobufDefinition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool = False
    ) -> None:
        struct = columns_of(definition.message)
        self._definition = definition
        self._encoding = encoding
        self._members = _compile_members(struct, source_type, "", ignore_extra)
        self._handler = layout.writer(struct)
        self._json = json.JsonWriter(definition.message_class)

    def write(self, rows: pa.StructArray) -> pa.BinaryArray:
        """One payload per row; RowError names the row and the column of a value that does not fit."""
        if rows.null_count:
            raise RowError(_first(pc.is_null(rows)), "the row is null, and a message cannot be")
        columns = self._members.arrays(rows, _Place())
        if not columns:
            payloads = pa.array([b""] * len(rows), pa.binary())
        else:
            batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
            try:
                payloads = layout.run(self._handler.record_batch_to_array, batch)
            except ValueError as error:  # more than 2 GiB, which no Arrow array of payloads can hold
                raise DataError(f"The {len(rows)} rows of an Arrow batch cannot be written at once: {error}") from None
        return payloads if self._encoding == "BINARY" else self._texts(payloads)

    def _texts(self, payloads: pa.BinaryArray) -> pa.BinaryArray:
        texts = []
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                texts.append(self._json.write(self._definition.message_class.FromString(payload)))
            except ValueError as error:
                raise RowError(row, f"the row has no JSON form: {error}") from None
        return pa.array(texts, pa.binary())


@dataclass(frozen=True, slots=True)
class _Members:
    """The columns of a message that rows have: (position in the rows, column, conversion)."""

    columns: tuple[tuple[int, Column, _Convert], ...]

    def arrays(self, rows: pa.StructArray, place: _Place) -> dict[str, pa.Array]:
        """The arrays by their names in the layout."""
        sources = rows.flatten()  # each with the nulls of its parent
        arrays = {}
        for index, column, convert in self.columns:
            source = sources[index]
            if column.required and source.null_count > rows.null_count:
                bad = _first(pc.and_(pc.is_null(source), pc.is_valid(rows)))
                raise RowError(place.row(bad), f"column `{column.path}` is null, and the field is required")
            arrays[layout.name_of(column)] = convert(source, place)
        self._check_oneofs(sources, place)
        return arrays

    def _check_oneofs(self, sources: list[pa.Array], place: _Place) -> None:
        for oneof in dict.fromkeys(column.oneof for _, column, _ in self.columns if column.oneof):
            members = [(index, column) for index, column, _ in self.columns if column.oneof == oneof]
            if sum(len(sources[index]) - sources[index].null_count for index, _ in members) <= 1 or len(members) < 2:
                continue
            valid = np.stack([pc.is_valid(sources[index]).to_numpy(zero_copy_only=False) for index, _ in members])
            crowded = np.flatnonzero(valid.sum(axis=0) > 1)
            if len(crowded):
                names = " and ".join(f"`{members[m][1].path}`" for m in np.flatnonzero(valid[:, crowded[0]]))
                raise RowError(
                    place.row(int(crowded[0])),
                    f"columns {names} both have a value, and of the fields of oneof `{oneof}` only one may",
                )


def _compile_members(struct: Struct, source: pa.StructType, path: str, ignore_extra: bool) -> _Members:
    if struct.lost:
        raise SchemaError(f"Field `{struct.lost[0]}` is required, and a message without fields cannot be a column")
    found = _match(struct, source, path, ignore_extra)
    columns = []
    for column in struct.columns:
        index = found.get(column.name)
        if index is None or pa.types.is_null(source.field(index).type):
            if column.required:
                raise SchemaError(f"Column `{column.path}` is missing: the schema requires it")
            continue
        convert = _compile(column.node, source.field(index).type, column.path, ignore_extra)
        if isinstance(column.node, Scalar) and column.node.kind in ("float", "double") and not column.presence:
            convert = _without_zeros(convert)
        columns.append((index, column, convert))
    return _Members(tuple(columns))


def _match(struct: Struct, source: pa.StructType, path: str, ignore_extra: bool) -> dict[str, int]:
    """Field name to position of its column: by its name or, as Spark resolves names, by its only other spelling."""
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
            extra.append(f"`{here}`")
        elif len(spellings) > 1 or spellings[0] in found:
            raise SchemaError(f"Column `{here}` is not the only one for a field of message `{struct.name}`")
        else:
            found[spellings[0]] = index
    if extra and not ignore_extra:
        raise SchemaError(f"The schema has no field for {', '.join(extra)}: drop it, or set ignoreExtraColumns=true")
    return found


def _compile(node: Node, source: pa.DataType, path: str, ignore_extra: bool) -> _Convert:
    """How an array of type `source` becomes the layout's array; SchemaError when it cannot."""
    match node:
        case Scalar(kind):
            return _compile_scalar(kind, source, path)
        case Enum():
            if source in _TEXT:
                return lambda array, place: _numbers(array, node, place, path)
            if source in _SMALL:
                return lambda array, place: _known(array.cast(pa.int32()), node, place, path)
        case Instant():
            if pa.types.is_timestamp(source) and source.unit == "us" and source.tz is not None:
                return lambda array, place: _instants(array, place, path)
        case Span():
            if source == pa.duration("us"):
                return lambda array, place: _spans(array, place, path)
        case Json():
            if source in _TEXT:
                return lambda array, place: _json_bytes(array, node, place, path)
        case Array(element):
            if pa.types.is_list(source) or pa.types.is_large_list(source):
                inner = _compile(element, source.value_type, f"{path}[]", ignore_extra)
                return lambda array, place: _lists(array, inner, place, f"{path}[]")
        case Map(key, value):
            if pa.types.is_map(source):
                keys = _compile(key, source.key_type, f"{path}{{}}", ignore_extra)
                values = _compile(value, source.item_type, f"{path}{{}}", ignore_extra)
                return lambda array, place: _maps(array, keys, values, place, f"{path}{{}}")
        case Struct():
            if pa.types.is_struct(source):
                members = _compile_members(node, source, path, ignore_extra)
                return lambda array, place: _structs(array, members, place)
    raise _unfit(node, source, path)


def _unfit(node: Node, found: pa.DataType, path: str) -> SchemaError:
    from pubsub_spark.codec.spark import spelled

    return SchemaError(f"Column `{path}` is `{spelled(found)}`, the schema wants `{spelled(arrow_type(node))}`")


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
    if unsigned is not None and wide:  # what `upcast.unsigned.ints` makes of them
        return lambda array, place: _in_range(array, 0, 2**unsigned.bit_width - 1, place, path, kind).cast(unsigned)
    raise _unfit(Scalar(kind), source, path)


def _in_range(array: pa.Array, low: int, high: int, place: _Place, path: str, kind: str) -> pa.Array:
    outside = pc.or_(pc.less(array, pa.scalar(low)), pc.greater(array, _scalar(high, array.type)))
    if pc.any(outside).as_py():
        bad = _first(outside)
        raise RowError(place.row(bad), f"column `{path}` is {array[bad]}, out of the range of `{kind}`")
    return array


def _scalar(value: int, type_: pa.DataType) -> pa.Scalar:
    return pa.scalar(value, pa.decimal128(38, 0)) if pa.types.is_decimal(type_) else pa.scalar(value, type_)


def _without_zeros(convert: _Convert) -> _Convert:
    """Zero is not written where the wire cannot tell it from absent; -0.0 is another value, and is."""

    def converted(array: pa.Array, place: _Place) -> pa.Array:
        values = convert(array, place)
        bits = values.view(pa.int64() if pa.types.is_float64(values.type) else pa.int32())
        zero = pc.equal(bits, pa.scalar(0, bits.type))
        return pc.if_else(zero, pa.scalar(None, values.type), values) if pc.any(zero).as_py() else values

    return converted


def _numbers(array: pa.Array, enum: Enum, place: _Place, path: str) -> pa.Int32Array:
    names = pa.array(list(enum.numbers), pa.string())
    found = pc.index_in(array.cast(pa.string()), value_set=names)
    if found.null_count > array.null_count:
        bad = _first(pc.and_(pc.is_null(found), pc.is_valid(array)))
        some = ", ".join(f"`{name}`" for name in list(enum.numbers)[:10])
        raise RowError(
            place.row(bad),
            f"column `{path}` is `{array[bad]}`, and enum `{enum.name}` has only {some}"
            + (", ..." if len(enum.numbers) > 10 else ""),
        )
    return pa.array(list(enum.numbers.values()), pa.int32()).take(found)


def _known(array: pa.Int32Array, enum: Enum, place: _Place, path: str) -> pa.Int32Array:
    """Numbers go as they are, but a closed enum has only its own."""
    if enum.closed:
        strange = pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, pa.array(list(enum.names), pa.int32()))))
        if pc.any(strange).as_py():
            bad = _first(strange)
            raise RowError(place.row(bad), f"column `{path}` is {array[bad]}, which enum `{enum.name}` does not have")
    return array


def _instants(array: pa.Array, place: _Place, path: str) -> pa.StructArray:
    micros = _int64(array)
    seconds = np.floor_divide(micros, 1_000_000)
    return _seconds_and_nanos(array, seconds, micros, INSTANT_SECONDS, place, path)


def _spans(array: pa.Array, place: _Place, path: str) -> pa.StructArray:
    micros = _int64(array)
    seconds = np.sign(micros) * (np.abs(micros) // 1_000_000)  # both parts have the sign of the whole
    return _seconds_and_nanos(array, seconds, micros, SPAN_SECONDS, place, path)


def _seconds_and_nanos(
    array: pa.Array,
    seconds: npt.NDArray[np.int64],
    micros: npt.NDArray[np.int64],
    bounds: tuple[int, int],
    place: _Place,
    path: str,
) -> pa.StructArray:
    outside = np.flatnonzero((seconds < bounds[0]) | (seconds > bounds[1]))
    if len(outside):
        bad = int(outside[0])
        raise RowError(place.row(bad), f"column `{path}` is {micros[bad]} microseconds, more than its field holds")
    nanos = ((micros - seconds * 1_000_000) * 1_000).astype(np.int32)
    return _nullable_struct({"seconds": pa.array(seconds), "nanos": pa.array(nanos)}, array)


def _int64(array: pa.Array) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = array.cast(pa.int64()).fill_null(0).to_numpy()
    return values


def _json_bytes(array: pa.Array, node: Json, place: _Place, path: str) -> pa.BinaryArray:
    message_class = GetMessageClass(node.message)
    values: list[bytes | None] = []
    for index, text in enumerate(array.to_pylist()):
        message: Any = message_class()
        try:
            if text is not None:
                json.read(text.encode(), message)
        except InvalidMessage as error:
            raise RowError(place.row(index), f"column `{path}` is no `{node.message.name}`: {error}") from None
        values.append(None if text is None else message.SerializeToString())
    return pa.array(values, pa.binary())


def _lists(array: pa.Array, convert: _Convert, place: _Place, path: str) -> pa.ListArray:
    offsets = _offsets(array)
    inner = _Place(place, offsets)
    return pa.ListArray.from_arrays(pa.array(offsets), convert(_complete(array.flatten(), inner, path), inner))


def _maps(array: pa.MapArray, keys: _Convert, values: _Convert, place: _Place, path: str) -> pa.ListArray:
    array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    offsets = _offsets(array)
    inner = _Place(place, offsets)
    entries = array.flatten()
    members = [keys(entries.field(0), inner), values(_complete(entries.field(1), inner, path), inner)]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(members, ["key", "value"]))


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    """Where the lists of `array.flatten()` begin: a null list has nothing in it, whatever lies beneath it."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def _complete(array: pa.Array, place: _Place, path: str) -> pa.Array:
    if array.null_count:
        bad = _first(pc.is_null(array))
        raise RowError(place.row(bad), f"column `{path}` is null, and protobuf has no null inside lists and maps")
    return array


def _structs(array: pa.StructArray, members: _Members, place: _Place) -> pa.StructArray:
    return _nullable_struct(members.arrays(array, place), array)


def _nullable_struct(children: dict[str, pa.Array], like: pa.Array) -> pa.StructArray:
    """A struct of `children`, null where `like` is."""
    type_ = pa.struct([pa.field(name, child.type) for name, child in children.items()])
    validity = pc.is_valid(like).buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(type_, len(like), [validity], children=list(children.values()))


def _first(mask: pa.BooleanArray) -> int:
    """Where `mask` is true first."""
    return int(pc.index(mask, True).as_py())

"""Arrow rows to Avro messages, column by column.

`compile_rows` makes a plan of a schema and a type: functions of arrays, bound to the plans of their parts. It fits the
columns of a DataFrame to the schema (`codec.rows`): the types of `types`, or narrower ones. A field without a column
becomes its default, or null. If only the column is nullable, the first null is an error of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.bound import Bound
from pubsub_spark.codec.arrays import entries_of, list_offsets
from pubsub_spark.codec.avro import byte_columns, decimals
from pubsub_spark.codec.avro.byte_columns import Buffer, ByteColumn, Present
from pubsub_spark.codec.avro.columns import constant
from pubsub_spark.codec.avro.types import column_of, variants, widened
from pubsub_spark.codec.rows import Inside, Unwritable, child, find_columns, fits, spelled, unfit
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.avro.compatibility import Unresolvable
from pubsub_spark.schema.avro.schema_tree import Array, Enum, Field, Fixed, Map, Node, Primitive, Record, Union

Write = Callable[[pa.Array, Present], list[Buffer]]

# Rows written at once: the values of one field then stay in the processor's cache.
MAX_BATCH_ROWS: Final = 1 << 14
_MILLIS: Final = ("timestamp-millis", "local-timestamp-millis")


def compile_rows(
    root: Node, type_: pa.DataType, ignore_extra: bool = False
) -> Callable[[pa.StructArray], pa.BinaryArray]:
    """Raises SchemaError with every column that cannot fit. The returned function raises RowError. ignore_extra:
    columns without a field are left out.
    """
    if not pa.types.is_struct(column_of(root).type):
        root = Record("row", [Field("value", root)])
    return Bound(_rows, _compile(root, type_, "", ignore_extra))


def _rows(write: Write, array: pa.StructArray) -> pa.BinaryArray:
    parts = []
    for start in range(0, len(array), MAX_BATCH_ROWS):
        some = array.slice(start, MAX_BATCH_ROWS)
        try:
            parts.append(byte_columns.join(write(some, None), len(some)))
        except Unwritable as unwritable:
            raise unwritable.row_error(start) from None
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


def _constant(data: bytes, array: pa.Array, present: Present) -> list[Buffer]:
    return [byte_columns.constant(data, len(array), present)]


# -------------------------------------------------------------------------------------------------------- compiling


def _compile(node: Node, source: pa.DataType, path: str, ignore_extra: bool) -> Write:
    match node:
        case Union():
            return _compile_union(node, source, path, ignore_extra)
        case Record() if pa.types.is_struct(source):
            return _compile_record(node, source, path, ignore_extra)
        case Array(items) if pa.types.is_list(source) or pa.types.is_large_list(source):
            return Bound(_lists, _compile(items, source.value_type, f"{path}[]", ignore_extra))
        case Map(values) if pa.types.is_map(source) and fits(pa.string(), source.key_type):
            key = _compile(Primitive("string"), source.key_type, f"{path}{{}}", ignore_extra)
            return Bound(_maps, key, _compile(values, source.item_type, f"{path}{{}}", ignore_extra))
        case Enum() | Fixed() | Primitive() if fits(wanted := column_of(node).type, source):
            write = _compile_scalar(node, wanted)
            return Bound(_scalars, write if source == wanted else Bound(_cast, wanted, write))
    raise unfit(path, source, column_of(node).type)


def _compile_scalar(node: Enum | Fixed | Primitive, type_: pa.DataType) -> Write:
    if isinstance(node, Enum):
        return Bound(_symbols, node.name, node.symbols)
    if pa.types.is_decimal(type_):
        return Bound(_decimals, node.size if isinstance(node, Fixed) else None)
    if isinstance(node, Fixed):
        return Bound(_fixed, node.size)
    if node.kind in ("int", "long"):
        return Bound(_integers, 1000 if node.logical and node.logical.name in _MILLIS else 1)
    return _WRITERS[node.kind]


def _compile_record(node: Record, source: pa.StructType, path: str, ignore_extra: bool) -> Write:
    indices, problems = find_columns([field.name for field in node.fields], source, path, ignore_extra)
    fields: list[tuple[str, int | None, Write]] = []
    for field in node.fields:
        here, at = child(path, field.name), indices.get(field.name)
        try:
            write = _absent(field, here) if at is None else _compile(field.node, source[at].type, here, ignore_extra)
            fields.append((f".{field.name}", at, write))
        except SchemaError as error:
            problems.append(str(error))
    if problems:
        raise SchemaError("; ".join(problems))
    return Bound(_structs, tuple(fields))


def _absent(field: Field, path: str) -> Write:
    type_ = column_of(field.node).type
    if field.has_default:
        try:
            value = constant(field)
        except Unresolvable as error:
            raise SchemaError(f"Column `{path}` is missing and {error.reason}. Add the column") from None
    elif isinstance(field.node, Union) and len(variants(field.node)) < len(field.node.branches):
        value = pa.nulls(1, type_)
    else:
        raise SchemaError(f"Column `{path}` is missing: the schema wants `{spelled(type_)}` and has no default for it")
    return Bound(_constant, byte_columns.join(_compile(field.node, type_, path, False)(value, None), 1)[0].as_py())


def _compile_union(node: Union, source: pa.DataType, path: str, ignore_extra: bool) -> Write:
    kinds = variants(node)
    null = next((index for index, branch in enumerate(node.branches) if branch.kind == "null"), None)
    if null is not None and pa.types.is_null(source):
        return Bound(_constant, bytes([2 * null]))
    wide = widened(node)
    if wide:
        index = next(index for index, branch in enumerate(node.branches) if branch.kind == wide.kind)
        return Bound(_nullable, _compile(wide, source, path, ignore_extra), index, null)
    if len(kinds) == 1:
        return Bound(_nullable, _compile(kinds[0], source, path, ignore_extra), node.branches.index(kinds[0]), null)
    names = [f"member{index}" for index in range(len(kinds))]
    if not pa.types.is_struct(source) or [column.name for column in source] != names:
        raise unfit(path, source, column_of(node).type)
    members: list[tuple[str, int, Write]] = []
    for kind, member in zip(kinds, source, strict=True):
        write = _compile(kind, member.type, child(path, member.name), ignore_extra)
        members.append((f".{member.name}", node.branches.index(kind), write))
    return Bound(_unions, tuple(members), null)


# ---------------------------------------------------------------------------------------------------------- scalars


def _scalars(write: Write, array: pa.Array, present: Present) -> list[Buffer]:
    _check_nulls(array, present)
    return write(array, present)


def _cast(type_: pa.DataType, write: Write, array: pa.Array, present: Present) -> list[Buffer]:
    return write(array.cast(type_), present)


def _nothing(_: pa.Array, __: Present) -> list[Buffer]:
    return []


def _booleans(array: pa.Array, present: Present) -> list[Buffer]:
    values = array.fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8)
    return [byte_columns.fixed(values, present)]


def _floats(width: type[Any], array: pa.Array, present: Present) -> list[Buffer]:
    return [byte_columns.fixed(_numpy(array, width), present)]


def _bytes(array: pa.Array, present: Present) -> list[Buffer]:
    return byte_columns.sized(array.cast(pa.binary()), present)


_WRITERS: Final[dict[str, Write]] = {
    "null": _nothing,
    "boolean": _booleans,
    "float": Bound(_floats, np.float32),
    "double": Bound(_floats, np.float64),
    "bytes": _bytes,
    "string": _bytes,
}


def _integers(unit: int, array: pa.Array, present: Present) -> list[Buffer]:
    values = _numpy(array, np.int32 if array.type.bit_width == 32 else np.int64).astype(np.int64, copy=False)
    return byte_columns.varints(values // unit if unit > 1 else values, present)


def _fixed(size: int, array: pa.Array, _: Present) -> list[Buffer]:
    wrong = pc.not_equal(pc.binary_length(array), size).fill_null(False)
    if pc.any(wrong).as_py():
        index = pc.index(wrong, True).as_py()
        raise Unwritable(index, f"has {len(array[index].as_py())} bytes, the schema wants {size}")
    return [array]


def _symbols(enum: str, symbols: tuple[str, ...], array: pa.Array, present: Present) -> list[Buffer]:
    index = pc.index_in(array, value_set=pa.array(symbols, pa.string()))
    unknown = pc.and_(index.is_null(), array.is_valid())
    if pc.any(unknown).as_py():
        at = pc.index(unknown, True).as_py()
        raise Unwritable(at, f"is `{array[at].as_py()}`, which is no symbol of enum `{enum}`")
    return byte_columns.varints(index.fill_null(0).to_numpy().astype(np.int64), present)


def _decimals(size: int | None, array: pa.Array, present: Present) -> list[Buffer]:
    if size is not None:
        return [ByteColumn(decimals.as_fixed(array, size), present)]
    data, kept = decimals.as_bytes(array)
    return [*byte_columns.varints(kept.sum(axis=1), present), *byte_columns.ragged(data, kept, present)]


def _numpy(array: pa.Array, width: type[Any]) -> npt.NDArray[Any]:
    """A null's value is meaningless."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), width)
    return np.frombuffer(data, width, len(array), array.offset * np.dtype(width).itemsize)


# --------------------------------------------------------------------------------------------------- nested columns


def _structs(
    fields: tuple[tuple[str, int | None, Write], ...], array: pa.StructArray, present: Present
) -> list[Buffer]:
    """fields: each with its step of the path, the index of its column if it has one, and its plan."""
    _check_nulls(array, present)
    children = array.flatten()
    made: list[Buffer] = []
    for step, index, write in fields:
        with Inside(step):
            made += write(array if index is None else children[index], present)
    return made


def _lists(item: Write, lists: pa.ListArray, present: Present) -> list[Buffer]:
    _check_nulls(lists, present)
    offsets, items = list_offsets(lists), lists.flatten()
    with Inside("[]", offsets):
        return byte_columns.blocks(byte_columns.join(item(items, None), len(items)), offsets, present)


def _maps(key: Write, value: Write, maps: pa.MapArray, present: Present) -> list[Buffer]:
    _check_nulls(maps, present)
    offsets, (keys, values) = list_offsets(maps), entries_of(maps).flatten()
    with Inside("{}", offsets):
        entries = byte_columns.join(key(keys, None) + value(values, None), len(keys))
    return byte_columns.blocks(entries, offsets, present)


def _unions(
    members: tuple[tuple[str, int, Write], ...], null: int | None, array: pa.StructArray, present: Present
) -> list[Buffer]:
    """members: each with its step of the path, the index of its branch, and its plan. null: that of null."""
    children = array.flatten()
    valid = np.zeros((len(children), len(array)), np.bool_)
    for branch, column in enumerate(children):
        valid[branch] = column.is_valid().to_numpy(zero_copy_only=False)
    number = valid.sum(axis=0)
    wrong = (number > 1) | ((number < 1) & (null is None))
    if present is not None:
        wrong &= present
    if wrong.any():
        at = int(wrong.argmax())
        raise Unwritable(at, f"has {number[at]} members that are not null, a union's value has one")
    index = np.where(number == 1, np.array([index for _, index, _ in members], np.int64) @ valid, null or 0)
    made = byte_columns.varints(index.astype(np.int64), present)
    for (step, _, write), column, some in zip(members, children, valid, strict=True):
        with Inside(step):
            made += write(column, some)
    return made


def _nullable(write: Write, index: int, null: int | None, array: pa.Array, present: Present) -> list[Buffer]:
    if not array.null_count or null is None:
        return [*_constant(bytes([2 * index]), array, present), *write(array, present)]
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    tags = np.where(valid, np.uint8(2 * index), np.uint8(2 * null))
    return [ByteColumn(tags, present), *write(array, valid)]


def _check_nulls(array: pa.Array, present: Present) -> None:
    if not array.null_count or pa.types.is_null(array.type):
        return
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if present is not None:
        missing = missing & present
    if missing.any():
        raise Unwritable(int(missing.argmax()), "is null, the schema wants a value")

"""Arrow rows to Avro messages, column by column.

`compile_rows` fits the columns of a DataFrame to the schema (`codec.rows`): the types of `types`, or narrower ones. A
field without a column becomes its default, or null. If only the column is nullable, the first null is an error of the
data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.arrays import entries_of, list_offsets
from pubsub_spark.codec.avro import byte_columns, decimals
from pubsub_spark.codec.avro.byte_columns import Buffer, ByteColumn, Present
from pubsub_spark.codec.avro.columns import constant
from pubsub_spark.codec.avro.types import column_of, variants, widened
from pubsub_spark.codec.rows import Unwritable, child, find_columns, fits, inside, spelled, unfit
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
    write = _compile(root, type_, "", ignore_extra)

    def rows(array: pa.StructArray) -> pa.BinaryArray:
        parts = []
        for start in range(0, len(array), MAX_BATCH_ROWS):
            some = array.slice(start, MAX_BATCH_ROWS)
            try:
                parts.append(byte_columns.join(write(some, None), len(some)))
            except Unwritable as unwritable:
                raise unwritable.row_error(start) from None
        return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())

    return rows


def _compile(node: Node, type_: pa.DataType, path: str, ignore_extra: bool) -> Write:
    nested = _NESTED.get(node.kind)
    return nested(node, type_, path, ignore_extra) if nested else _scalar(node, type_, path)


# ---------------------------------------------------------------------------------------------------------- scalars


def _scalar(node: Node, source: pa.DataType, path: str) -> Write:
    wanted = column_of(node).type
    if not fits(wanted, source):
        raise unfit(path, source, wanted)
    write = _writer(node, wanted)

    def scalar(array: pa.Array, present: Present) -> list[Buffer]:
        _check_nulls(array, present)
        return write(array if source == wanted else array.cast(wanted), present)

    return scalar


def _writer(node: Node, type_: pa.DataType) -> Write:
    if isinstance(node, Enum):
        return partial(_symbols, node)
    if pa.types.is_decimal(type_):
        return partial(_decimals, node.size if isinstance(node, Fixed) else None)
    if isinstance(node, Fixed):
        return partial(_fixed, node.size)
    if isinstance(node, Primitive) and node.kind in ("int", "long"):
        return partial(_integers, 1000 if node.logical and node.logical.name in _MILLIS else 1)
    return _WRITERS[node.kind]


def _booleans(array: pa.Array, present: Present) -> list[Buffer]:
    values = array.fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8)
    return [byte_columns.fixed(values, present)]


def _floats(width: type[Any], array: pa.Array, present: Present) -> list[Buffer]:
    return [byte_columns.fixed(_numpy(array, width), present)]


def _bytes(array: pa.Array, present: Present) -> list[Buffer]:
    return byte_columns.sized(array.cast(pa.binary()), present)


_WRITERS: Final[dict[str, Write]] = {
    "null": lambda *_: [],
    "boolean": _booleans,
    "float": partial(_floats, np.float32),
    "double": partial(_floats, np.float64),
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


def _symbols(node: Enum, array: pa.Array, present: Present) -> list[Buffer]:
    index = pc.index_in(array, value_set=pa.array(node.symbols, pa.string()))
    unknown = pc.and_(index.is_null(), array.is_valid())
    if pc.any(unknown).as_py():
        at = pc.index(unknown, True).as_py()
        raise Unwritable(at, f"is `{array[at].as_py()}`, which is no symbol of enum `{node.name}`")
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


def _record(node: Record, source: pa.DataType, path: str, ignore_extra: bool) -> Write:
    if not pa.types.is_struct(source):
        raise unfit(path, source, column_of(node).type)
    indices, problems = find_columns([field.name for field in node.fields], source, path, ignore_extra)
    steps: list[tuple[str, int, Write] | bytes] = []
    for field in node.fields:
        here, index = child(path, field.name), indices.get(field.name)
        try:
            if index is None:
                steps.append(_absent(field, here))
            else:
                steps.append((f".{field.name}", index, _compile(field.node, source[index].type, here, ignore_extra)))
        except SchemaError as error:
            problems.append(str(error))
    if problems:
        raise SchemaError("; ".join(problems))

    def record(array: pa.StructArray, present: Present) -> list[Buffer]:
        _check_nulls(array, present)
        children = array.flatten()
        made: list[Buffer] = []
        for field in steps:
            if isinstance(field, bytes):
                made.append(byte_columns.constant(field, len(array), present))
            else:
                step, index, write = field
                with inside(step):
                    made += write(children[index], present)
        return made

    return record


def _absent(field: Field, path: str) -> bytes:
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
    data: bytes = byte_columns.join(_compile(field.node, type_, path, False)(value, None), 1)[0].as_py()
    return data


def _array(node: Array, source: pa.DataType, path: str, ignore_extra: bool) -> Write:
    if not (pa.types.is_list(source) or pa.types.is_large_list(source)):
        raise unfit(path, source, column_of(node).type)
    item = _compile(node.items, source.value_type, f"{path}[]", ignore_extra)

    def array(lists: pa.ListArray, present: Present) -> list[Buffer]:
        _check_nulls(lists, present)
        offsets, items = list_offsets(lists), lists.flatten()
        with inside("[]", offsets):
            return byte_columns.blocks(byte_columns.join(item(items, None), len(items)), offsets, present)

    return array


def _map(node: Map, source: pa.DataType, path: str, ignore_extra: bool) -> Write:
    if not pa.types.is_map(source) or not fits(pa.string(), source.key_type):
        raise unfit(path, source, column_of(node).type)
    key = _compile(Primitive("string"), source.key_type, f"{path}{{}}", ignore_extra)
    value = _compile(node.values, source.item_type, f"{path}{{}}", ignore_extra)

    def map_(maps: pa.MapArray, present: Present) -> list[Buffer]:
        _check_nulls(maps, present)
        offsets, (keys, values) = list_offsets(maps), entries_of(maps).flatten()
        with inside("{}", offsets):
            entries = byte_columns.join(key(keys, None) + value(values, None), len(keys))
        return byte_columns.blocks(entries, offsets, present)

    return map_


def _union(node: Union, source: pa.DataType, path: str, ignore_extra: bool) -> Write:
    kinds = variants(node)
    null = next((index for index, branch in enumerate(node.branches) if branch.kind == "null"), None)
    if null is not None and pa.types.is_null(source):
        return lambda array, present: [byte_columns.constant(bytes([2 * null]), len(array), present)]
    wide = widened(node)
    if wide:
        index = next(index for index, branch in enumerate(node.branches) if branch.kind == wide.kind)
        return _nullable(_compile(wide, source, path, ignore_extra), index, null)
    if len(kinds) == 1:
        return _nullable(_compile(kinds[0], source, path, ignore_extra), node.branches.index(kinds[0]), null)
    names = [f"member{index}" for index in range(len(kinds))]
    if not pa.types.is_struct(source) or [column.name for column in source] != names:
        raise unfit(path, source, column_of(node).type)
    members = [
        _compile(kind, member.type, child(path, member.name), ignore_extra)
        for kind, member in zip(kinds, source, strict=True)
    ]
    indices = np.array([node.branches.index(kind) for kind in kinds], np.int64)

    def union(array: pa.StructArray, present: Present) -> list[Buffer]:
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
        index = np.where(number == 1, indices @ valid, null or 0)
        made = byte_columns.varints(index.astype(np.int64), present)
        for member, write, column, some in zip(source, members, children, valid, strict=True):
            with inside(f".{member.name}"):
                made += write(column, some)
        return made

    return union


def _nullable(write: Write, index: int, null: int | None) -> Write:
    tag = bytes([2 * index])

    def nullable(array: pa.Array, present: Present) -> list[Buffer]:
        if not array.null_count or null is None:
            return [byte_columns.constant(tag, len(array), present), *write(array, present)]
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        tags = np.where(valid, np.uint8(2 * index), np.uint8(2 * null))
        return [ByteColumn(tags, present), *write(array, valid)]

    return nullable


def _check_nulls(array: pa.Array, present: Present) -> None:
    if not array.null_count or pa.types.is_null(array.type):
        return
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if present is not None:
        missing = missing & present
    if missing.any():
        raise Unwritable(int(missing.argmax()), "is null, the schema wants a value")


_NESTED: Final[dict[str, Callable[[Any, pa.DataType, str, bool], Write]]] = {
    "union": _union,
    "record": _record,
    "array": _array,
    "map": _map,
}

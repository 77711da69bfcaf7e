"""Arrow rows to Avro messages, column by column.

`compile_rows(node, type)` fits the columns of a DataFrame to the schema: what `types` makes of the schema fits, and so
does what is narrower without loss (Spark's own `to_avro` is as strict). Fields are found by name, then by name without
case. A field without a column takes its default, or null. A column may be nullable where the schema is not: the first
null is then an error of the data. The result writes all rows at once: each field contributes `buffers`, which are
joined once per message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.avro import byte_columns, decimals
from pubsub_spark.codec.avro.byte_columns import Buffer, ByteColumn, Present
from pubsub_spark.codec.avro.columns import constant
from pubsub_spark.codec.avro.cursor_arrays import offsets_of
from pubsub_spark.codec.avro.types import column_of, variants, widened
from pubsub_spark.errors import RowError, SchemaError
from pubsub_spark.schema.avro.mismatch import Unresolvable
from pubsub_spark.schema.avro.schema_tree import Array, Enum, Field, Fixed, Map, Node, Primitive, Record, Union

RowOf = Callable[[int], int]  # the row of the DataFrame that an item belongs to
Write = Callable[[pa.Array, Present, RowOf], list[Buffer]]

# What a column may be, besides what is read from the schema: narrower, and nothing is lost.
_NARROWER: Final[dict[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int32(): (pa.int8(), pa.int16()),
    pa.int64(): (pa.int8(), pa.int16(), pa.int32()),
    pa.float64(): (pa.float32(), pa.int8(), pa.int16(), pa.int32()),
    pa.float32(): (pa.int8(), pa.int16()),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
}
# Rows written at once: the values of one field then stay in the processor's cache.
MAX_BATCH_ROWS: Final = 1 << 14
_MILLIS: Final = ("timestamp-millis", "local-timestamp-millis")


def compile_rows(root: Node, type_: pa.DataType) -> Callable[[pa.StructArray], pa.BinaryArray]:
    """The writer of messages; SchemaError, with path, expected and found type of every column that cannot fit."""
    if not pa.types.is_struct(column_of(root).type):
        root = Record("row", [Field("value", root)])
    write = _compile(root, type_, "")

    def rows(array: pa.StructArray) -> pa.BinaryArray:
        made = [
            byte_columns.join(
                write(array.slice(start, MAX_BATCH_ROWS), None, start.__add__), min(MAX_BATCH_ROWS, len(array) - start)
            )
            for start in range(0, len(array), MAX_BATCH_ROWS)
        ]
        return pa.concat_arrays(made) if made else pa.array([], pa.binary())

    return rows


def _compile(node: Node, type_: pa.DataType, path: str) -> Write:
    match node:
        case Union():
            return _union(node, type_, path)
        case Record():
            return _record(node, type_, path)
        case Array():
            return _array(node, type_, path)
        case Map():
            return _map(node, type_, path)
        case Primitive() | Fixed() | Enum():
            return _scalar(node, type_, path)


# ---------------------------------------------------------------------------------------------------------- scalars


def _scalar(node: Primitive | Fixed | Enum, found: pa.DataType, path: str) -> Write:
    wanted = column_of(node).type
    if not _fits(wanted, found):
        raise _unfit(node, found, path)
    write = _writer(node, wanted, path)

    def scalar(array: pa.Array, present: Present, row_of: RowOf) -> list[Buffer]:
        _check_nulls(array, present, path, row_of)
        return write(array if found == wanted else array.cast(wanted), present, row_of)

    return scalar


def _fits(wanted: pa.DataType, found: pa.DataType) -> bool:
    if pa.types.is_decimal(wanted) and pa.types.is_decimal(found):
        whole, found_whole = wanted.precision - wanted.scale, found.precision - found.scale
        return bool(found.scale <= wanted.scale and found_whole <= whole)
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(found):
        return found.unit == "us" and (wanted.tz is None) == (found.tz is None)
    return found == wanted or found in _NARROWER.get(wanted, ())


def _writer(node: Primitive | Fixed | Enum, type_: pa.DataType, path: str) -> Write:
    if isinstance(node, Enum):
        return partial(_symbols, node, path)
    if pa.types.is_decimal(type_):
        return partial(_decimals, node.size if isinstance(node, Fixed) else None)
    if isinstance(node, Fixed):
        return partial(_fixed, node.size, path)
    if node.kind in ("int", "long"):
        return partial(_integers, 1000 if node.logical and node.logical.name in _MILLIS else 1)
    return _WRITERS[node.kind]


def _nulls(array: pa.Array, present: Present, row_of: RowOf) -> list[Buffer]:  # noqa: ARG001
    return []


def _booleans(array: pa.Array, present: Present, _: RowOf) -> list[Buffer]:
    values = array.fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8)
    return [byte_columns.fixed(values, present)]


def _floats(width: type[Any], array: pa.Array, present: Present, _: RowOf) -> list[Buffer]:
    return [byte_columns.fixed(_numpy(array, width), present)]


def _bytes(array: pa.Array, present: Present, _: RowOf) -> list[Buffer]:
    return byte_columns.sized(array.cast(pa.binary()), present)


_WRITERS: Final[dict[str, Write]] = {
    "null": _nulls,
    "boolean": _booleans,
    "float": partial(_floats, np.float32),
    "double": partial(_floats, np.float64),
    "bytes": _bytes,
    "string": _bytes,
}


def _integers(unit: int, array: pa.Array, present: Present, _: RowOf) -> list[Buffer]:
    values = _numpy(array, np.int32 if array.type.bit_width == 32 else np.int64).astype(np.int64, copy=False)
    return byte_columns.varints(values // unit if unit > 1 else values, present)


def _fixed(size: int, path: str, array: pa.Array, _: Present, row_of: RowOf) -> list[Buffer]:
    wrong = pc.not_equal(pc.binary_length(array), size).fill_null(False)
    if pc.any(wrong).as_py():
        index = pc.index(wrong, True).as_py()
        raise _error(row_of(index), path, f"has {len(array[index].as_py())} bytes, the schema wants {size}")
    return [array]


def _symbols(node: Enum, path: str, array: pa.Array, present: Present, row_of: RowOf) -> list[Buffer]:
    index = pc.index_in(array, value_set=pa.array(node.symbols, pa.string()))
    unknown = pc.and_(index.is_null(), array.is_valid())
    if pc.any(unknown).as_py():
        at = pc.index(unknown, True).as_py()
        raise _error(row_of(at), path, f"is `{array[at].as_py()}`, which is no symbol of enum `{node.name}`")
    return byte_columns.varints(index.fill_null(0).to_numpy().astype(np.int64), present)


def _decimals(size: int | None, array: pa.Array, present: Present, _: RowOf) -> list[Buffer]:
    if size is not None:
        return [ByteColumn(decimals.as_fixed(array, size), present)]
    data, kept = decimals.as_bytes(array)
    return [*byte_columns.varints(kept.sum(axis=1), present), *byte_columns.ragged(data, kept, present)]


def _numpy(array: pa.Array, width: type[Any]) -> npt.NDArray[Any]:
    """The values as they lie in memory; where the array has a null, something meaningless."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), width)
    return np.frombuffer(data, width, len(array), array.offset * np.dtype(width).itemsize)


# --------------------------------------------------------------------------------------------------- nested columns


def _record(node: Record, found: pa.DataType, path: str) -> Write:
    if not pa.types.is_struct(found):
        raise _unfit(node, found, path)
    columns = _columns(node, found)
    steps: list[tuple[int, Write] | bytes] = []
    problems: list[str] = []
    for field in node.fields:
        here = _inside(path, field.name)
        place = columns[field.name]
        try:
            step = _absent(field, here) if place is None else (place, _compile(field.node, found[place].type, here))
            steps.append(step)
        except SchemaError as error:
            problems.append(str(error))
    if problems:
        raise SchemaError("; ".join(problems))

    def record(array: pa.StructArray, present: Present, row_of: RowOf) -> list[Buffer]:
        _check_nulls(array, present, path, row_of)
        children = array.flatten()
        made: list[Buffer] = []
        for step in steps:
            if isinstance(step, bytes):
                made.append(byte_columns.constant(step, len(array), present))
            else:
                made += step[1](children[step[0]], present, row_of)
        return made

    return record


def _columns(node: Record, found: pa.StructType) -> dict[str, int | None]:
    """The index of each field's column; of two fields that differ only in case, a column is that of one or of none."""
    names = [column.name for column in found]
    fields = [field.name for field in node.fields]
    folded_columns = [None if name in fields else name.casefold() for name in names]
    folded_fields = Counter(name.casefold() for name in fields if name not in names)
    places: dict[str, int | None] = {}
    for field in fields:
        if field in names:
            places[field] = names.index(field)
        else:
            same = [place for place, name in enumerate(folded_columns) if name == field.casefold()]
            places[field] = same[0] if len(same) == 1 == folded_fields[field.casefold()] else None
    return places


def unknown_columns(root: Node, type_: pa.DataType) -> list[str]:
    """The columns, with their paths, that the schema has no field for."""
    if not pa.types.is_struct(column_of(root).type):
        root = Record("row", [Field("value", root)])
    return _unknown(root, type_, "")


def _unknown(node: Node, found: pa.DataType, path: str) -> list[str]:
    if isinstance(node, Union) and len(variants(node)) == 1:
        return _unknown(variants(node)[0], found, path)
    if isinstance(node, Union) and pa.types.is_struct(found):
        members = zip(variants(node), found, strict=False)
        return [name for kind, member in members for name in _unknown(kind, member.type, _inside(path, member.name))]
    if isinstance(node, Array) and pa.types.is_list(found):
        return _unknown(node.items, found.value_type, f"{path}[]")
    if isinstance(node, Map) and pa.types.is_map(found):
        return _unknown(node.values, found.item_type, f"{path}{{}}")
    if not isinstance(node, Record) or not pa.types.is_struct(found):
        return []
    places = _columns(node, found)
    unknown: list[str] = []
    for place, column in enumerate(found):
        here = _inside(path, column.name)
        field = next((field for field in node.fields if places[field.name] == place), None)
        unknown += [here] if field is None else _unknown(field.node, column.type, here)
    return unknown


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _absent(field: Field, path: str) -> bytes:
    """The bytes of a field without a column: its default, or null."""
    type_ = column_of(field.node).type
    if field.has_default:
        try:
            value = constant(field)
        except Unresolvable as error:
            raise SchemaError(f"Column `{path}` is missing and {error.reason}. Add the column") from None
    elif isinstance(field.node, Union) and len(variants(field.node)) < len(field.node.branches):
        value = pa.nulls(1, type_)
    else:
        raise SchemaError(f"Column `{path}` is missing: the schema wants `{_spelled(type_)}` and has no default for it")
    data: bytes = byte_columns.join(_compile(field.node, type_, path)(value, None, int), 1)[0].as_py()
    return data


def _array(node: Array, found: pa.DataType, path: str) -> Write:
    if not (pa.types.is_list(found) or pa.types.is_large_list(found)):
        raise _unfit(node, found, path)
    item = _compile(node.items, found.value_type, f"{path}[]")

    def array(lists: pa.ListArray, present: Present, row_of: RowOf) -> list[Buffer]:
        _check_nulls(lists, present, path, row_of)
        counts, row_of_item = _counts(lists, row_of)
        items = lists.flatten()
        return byte_columns.blocks(byte_columns.join(item(items, None, row_of_item), len(items)), counts, present)

    return array


def _map(node: Map, found: pa.DataType, path: str) -> Write:
    if not pa.types.is_map(found) or not _fits(pa.string(), found.key_type):
        raise _unfit(node, found, path)
    key = _compile(Primitive("string"), found.key_type, f"{path}{{}}")
    value = _compile(node.values, found.item_type, f"{path}{{}}")

    def map_(maps: pa.MapArray, present: Present, row_of: RowOf) -> list[Buffer]:
        _check_nulls(maps, present, path, row_of)
        counts, row_of_entry = _counts(maps, row_of)
        keys, values = _entries(maps)
        made = key(keys, None, row_of_entry) + value(values, None, row_of_entry)
        return byte_columns.blocks(byte_columns.join(made, len(keys)), counts, present)

    return map_


def _counts(lists: pa.ListArray, row_of: RowOf) -> tuple[npt.NDArray[np.int64], RowOf]:
    counts = np.diff(offsets_of(lists))
    if lists.null_count:
        counts[lists.is_null().to_numpy(zero_copy_only=False)] = 0
    ends = np.cumsum(counts)
    return counts, lambda index: row_of(int(np.searchsorted(ends, index, side="right")))


def _entries(maps: pa.MapArray) -> list[pa.Array]:
    """The keys and values of all maps; Arrow cannot flatten a map, but it can a list over the same memory."""
    entries = pa.StructArray.from_arrays([maps.keys, maps.items], ["key", "value"])
    type_ = pa.list_(entries.type)
    lists = pa.Array.from_buffers(type_, len(maps), maps.buffers()[:2], offset=maps.offset, children=[entries])
    columns: list[pa.Array] = lists.flatten().flatten()
    return columns


def _union(node: Union, found: pa.DataType, path: str) -> Write:
    kinds = variants(node)
    null = next((index for index, branch in enumerate(node.branches) if branch.kind == "null"), None)
    if null is not None and pa.types.is_null(found):
        return lambda array, present, _: [byte_columns.constant(bytes([2 * null]), len(array), present)]
    wide = widened(node)
    if wide:
        index = next(index for index, branch in enumerate(node.branches) if branch.kind == wide.kind)
        return _nullable(_compile(wide, found, path), index, null)
    if len(kinds) == 1:
        return _nullable(_compile(kinds[0], found, path), node.branches.index(kinds[0]), null)
    if not pa.types.is_struct(found) or [column.name for column in found] != [f"member{i}" for i in range(len(kinds))]:
        raise _unfit(node, found, path)
    members = [
        _compile(kind, member.type, _inside(path, member.name)) for kind, member in zip(kinds, found, strict=True)
    ]
    indices = np.array([node.branches.index(kind) for kind in kinds], np.int64)

    def union(array: pa.StructArray, present: Present, row_of: RowOf) -> list[Buffer]:
        children = array.flatten()
        given = np.zeros((len(children), len(array)), np.bool_)
        for place, child in enumerate(children):
            given[place] = child.is_valid().to_numpy(zero_copy_only=False)
        number = given.sum(axis=0)
        wrong = (number > 1) | ((number < 1) & (null is None))
        if present is not None:
            wrong &= present
        if wrong.any():
            at = int(wrong.argmax())
            raise _error(row_of(at), path, f"has {number[at]} members that are not null, a union's value has one")
        index = np.where(number == 1, indices @ given, null or 0)
        made = byte_columns.varints(index.astype(np.int64), present)
        for write, child, some in zip(members, children, given, strict=True):
            made += write(child, some, row_of)
        return made

    return union


def _nullable(write: Write, index: int, null: int | None) -> Write:
    """A union of one type, with null or alone."""
    tag = bytes([2 * index])

    def nullable(array: pa.Array, present: Present, row_of: RowOf) -> list[Buffer]:
        if not array.null_count or null is None:
            return [byte_columns.constant(tag, len(array), present), *write(array, present, row_of)]
        given = array.is_valid().to_numpy(zero_copy_only=False)
        tags = np.where(given, np.uint8(2 * index), np.uint8(2 * null))
        return [ByteColumn(tags, present), *write(array, given, row_of)]

    return nullable


# ------------------------------------------------------------------------------------------------------------ errors


def _check_nulls(array: pa.Array, present: Present, path: str, row_of: RowOf) -> None:
    if not array.null_count or pa.types.is_null(array.type):
        return
    missing = array.is_null().to_numpy(zero_copy_only=False)
    if present is not None:
        missing = missing & present
    if missing.any():
        raise _error(row_of(int(missing.argmax())), path, "is null, the schema wants a value")


def _error(row: int, path: str, reason: str) -> RowError:
    return RowError(row, f"column `{path}` {reason}" if path else f"the row {reason}")


def _unfit(node: Node, found: pa.DataType, path: str) -> SchemaError:
    where = f"Column `{path}`" if path else "The row"
    return SchemaError(f"{where} is `{_spelled(found)}`, the schema wants `{_spelled(column_of(node).type)}`")


def _spelled(type_: pa.DataType) -> str:
    from pubsub_spark.codec.spark_types import type_name  # which needs Spark; the emulator does without

    return type_name(type_)

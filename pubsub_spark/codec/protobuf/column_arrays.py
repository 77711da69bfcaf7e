"""The columns of decoded messages: the arrays of ptars, in the form that Spark has by the column tree.

Unsigned integers become signed, enum numbers names, seconds and nanoseconds microseconds, messages of any shape JSON
text. An absent field gets its default. Buffers are shared wherever the bytes are the same. Message objects are many
times slower. They are for field numbers that are too high for ptars, and to find why a message has no place in the
columns.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.json_format import MessageToJson
from google.protobuf.message_factory import GetMessageClass

from pubsub_spark.codec.arrays import structs
from pubsub_spark.codec.protobuf import ptars_schema
from pubsub_spark.codec.protobuf.column_tree import Array, Column, Enum, Json, Map, Node, Scalar, Struct, Time
from pubsub_spark.codec.protobuf.types import MAX_SECONDS, UNSIGNED, ptars_type


class UnreadableMessage(ValueError):  # noqa: N818 (a finding, not a failure)
    """A message is malformed, or has a value that has no place in its column."""


def message_column(array: pa.StructArray, struct: Struct, type_: pa.StructType, present: bool) -> pa.StructArray:
    """`present`: none of its values may be null, as in lists and maps."""
    children = [_column(array.field(ptars_schema.field_name(c)), c, type_.field(c.name).type) for c in struct.columns]
    return structs(type_, len(array), children, None if present else array)


def _column(array: pa.Array, column: Column, type_: pa.DataType) -> pa.Array:
    values = _values(array, column.node, type_, column.path)
    if column.default is not None and values.null_count:
        if isinstance(column.node, Enum):
            return values.fill_null(column.node.name_of(column.default))
        return values.fill_null(pa.scalar(column.default, ptars_type(column.node)).cast(type_, safe=False))
    if column.required and values.null_count:  # below an absent message, or in a row that has an error
        return _without_nulls(values)
    return values


def _values(array: pa.Array, node: Node, type_: pa.DataType, path: str) -> pa.Array:
    match node:
        case Scalar(kind):
            return array.view(type_) if kind in UNSIGNED else array
        case Enum():
            return _enum_names(array, node)
        case Time():
            return _micros(array, type_, path)
        case Json():
            return _json(array, node, path)
        case Array(element):
            values = _elements(array.values, element, type_.value_type, f"{path}[]")
            return pa.ListArray.from_arrays(array.offsets, values, type=type_)
        case Map(key, value):
            keys = _values(array.values.field("key"), key, type_.key_type, path)
            items = _elements(array.values.field("value"), value, type_.item_type, f"{path}{{}}")
            entries = structs(pa.struct([type_.key_field, type_.item_field]), len(keys), [keys, items])
            return pa.Array.from_buffers(type_, len(array), [None, array.offsets.buffers()[1]], children=[entries])
        case Struct():
            return message_column(array, node, type_, present=False)


def _elements(array: pa.Array, node: Node, type_: pa.DataType, path: str) -> pa.Array:
    """An absent message among the elements is an empty one."""
    if isinstance(node, Struct):
        return message_column(array, node, type_, present=True)
    return _values(_without_nulls(array) if array.null_count else array, node, type_, path)


def _enum_names(array: pa.Int32Array, enum: Enum) -> pa.StringArray:
    encoded = array.dictionary_encode()
    return pa.array(map(enum.name_of, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)


def _micros(array: pa.StructArray, type_: pa.DataType, path: str) -> pa.Array:
    seconds, nanos = pc.struct_field(array, "seconds"), pc.struct_field(array, "nanos")
    for extreme in pc.min_max(seconds).values():
        if abs(extreme.as_py() or 0) > MAX_SECONDS:
            raise UnreadableMessage(f"Field `{path}` is out of range: {extreme} seconds")
    return pc.add(pc.multiply(seconds, 1_000_000), pc.divide(nanos, 1_000).cast(pa.int64())).view(type_)


def _json(array: pa.BinaryArray, node: Json, path: str) -> pa.StringArray:
    read = GetMessageClass(node.message).FromString
    try:
        texts = [
            None if value is None else MessageToJson(read(value), indent=None, sort_keys=True)
            for value in array.to_pylist()
        ]
    except ValueError as error:  # a number that JSON does not have
        raise UnreadableMessage(f"Field `{path}` has no JSON form: {error}") from None
    return pa.array(texts, pa.string())


def _without_nulls(array: pa.Array) -> pa.Array:
    """ptars leaves the type's zero instead of a null."""
    if pa.types.is_struct(array.type):
        return structs(array.type, len(array), [array.field(index) for index in range(array.type.num_fields)])
    return pa.Array.from_buffers(array.type, len(array), [None, *array.buffers()[1:]])


def object_values(value: Any, node: Node, path: str) -> Any:
    """Return the value that ptars would read from a message object or a field's value, for `pa.array`."""
    match node:
        case Scalar("string") if isinstance(value, bytes):  # of proto2
            raise UnreadableMessage(f"Field `{path}` is not valid UTF-8")
        case Scalar() | Enum():
            return value
        case Struct(columns=columns):
            has = type(value).HasField
            return {
                ptars_schema.field_name(column): object_values(getattr(value, column.name), column.node, column.path)
                for column in columns
                if not column.presence or has(value, column.name)
            }
        case Array(element):
            return [object_values(item, element, f"{path}[]") for item in value]
        case Map(key, item):
            for name in value:
                object_values(name, key, f"{path}{{}}")  # is UTF-8, so names compare
            return [{"key": name, "value": object_values(value[name], item, f"{path}{{}}")} for name in sorted(value)]
        case Time():
            return {"seconds": value.seconds, "nanos": value.nanos}
        case Json():
            return type(value).SerializePartialToString(value)

"""The proto3 JSON mapping by Arrow's JSON reader: JSON messages to the columns that `ptars` writes, in C++ throughout.

For schemas without maps, and batches of messages that all have the common form of each field, with the names that
proto3 gives JSON; others are read by `json_columns`, which calls this first. Arrow's reader (RapidJSON) is as strict as
the mapping is: a name given twice, an unknown name, a value of another type, or a text that is no JSON is an error.

Arrow reads a stream of objects and does not say which text an object was in. So the texts are joined by newlines, which
no JSON string may have, and each must begin with `{` and end with `}`: a text that does not end its last object makes
an error with the `{` of the next, and each has an object, so that as many objects as texts are one in each.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyarrow import json as arrow_json

from pubsub_spark.codec.protobuf import json_arrays, ptars_schema
from pubsub_spark.codec.protobuf.column_tree import Array, Enum, Map, Node, Scalar, Struct
from pubsub_spark.codec.protobuf.types import SCALARS, UNSIGNED
from pubsub_spark.schema.protobuf.json_mapping import NULL_TYPES, WELL_KNOWN, WRAPPERS, duration

_OPEN, _CLOSE = b"{}"


class _Plan(NamedTuple):
    """The type as which Arrow reads a field's JSON, and what becomes of its array; null where the field is absent."""

    json_type: pa.DataType
    convert: Callable[[pa.Array], pa.Array]


class JsonBatchReader:
    """The reader of batches of JSON messages of one schema."""

    def __init__(self, plan: _Plan) -> None:
        self._convert = plan.convert
        self._options = arrow_json.ParseOptions(
            explicit_schema=pa.schema(list(plan.json_type)), unexpected_field_behavior="error"
        )

    def read(self, texts: pa.BinaryArray) -> pa.StructArray:
        """The columns of the messages; ValueError where one does not have the common form."""
        _check_ends(texts)
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), b"\n")
        data = joined.buffers()[2]
        str(data, "utf-8")  # Arrow takes any bytes for a string
        read_options = arrow_json.ReadOptions(use_threads=False, block_size=data.size + 1)
        table = arrow_json.read_json(pa.BufferReader(data), read_options, self._options)
        json_arrays.require(table.num_rows == len(texts))
        return self._convert(table.combine_chunks().to_struct_array().combine_chunks())


def compile_reader(struct: Struct, message: Descriptor) -> JsonBatchReader | None:
    """The reader of a schema's JSON messages; None if a field has a form that Arrow does not read."""
    plan = _object(struct, message)
    return plan and JsonBatchReader(plan)


def _check_ends(texts: pa.BinaryArray) -> None:
    """Raise ValueError unless each text begins with `{` and ends with `}`."""
    json_arrays.require(pc.min(pc.binary_length(texts)).as_py() >= len("{}"))
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2], np.uint8)
    json_arrays.require(bool((data[offsets[:-1]] == _OPEN).all() and (data[offsets[1:] - 1] == _CLOSE).all()))


def _object(struct: Struct, message: Descriptor) -> _Plan | None:
    """The plan of a message, null or not."""
    fields = [message.fields_by_number[column.number] for column in struct.columns]
    plans = [_field(column.node, field) for column, field in zip(struct.columns, fields, strict=True)]
    names = [field.json_name for field in fields]
    known = [plan for plan in plans if plan is not None]
    if not known or len(known) < len(message.fields) or len(set(names)) < len(names):
        return None
    columns = [ptars_schema.field_name(column) for column in struct.columns]
    oneofs = json_arrays.oneofs(struct, columns)

    def convert(array: pa.StructArray) -> pa.StructArray:
        arrays = [plan.convert(array.field(place)) for place, plan in enumerate(known)]
        for members in oneofs:
            json_arrays.check_oneof([arrays[place] for place in members])
        return json_arrays.structs(columns, arrays, len(array), json_arrays.validity(array))

    return _Plan(pa.struct([(name, plan.json_type) for name, plan in zip(names, known, strict=True)]), convert)


def _field(node: Node, field: FieldDescriptor) -> _Plan | None:
    """The plan of a field."""
    if isinstance(node, Map):
        return None
    if not isinstance(node, Array):
        return _element(node, field)
    plan = _element(node.element, field)
    if plan is None:
        return None
    convert_items = plan.convert

    def convert(array: pa.ListArray) -> pa.ListArray:
        json_arrays.require(not array.values.null_count)
        items = convert_items(array.values)
        return pa.ListArray.from_arrays(array.offsets, items)  # a null is the empty list

    return _Plan(pa.list_(plan.json_type), convert)


def _element(node: Node, field: FieldDescriptor) -> _Plan | None:
    """The plan of a value."""
    if field.message_type is None:
        return _scalar(node, field)
    name = field.message_type.full_name
    if name in WELL_KNOWN:
        convert = _TIMES.get(name)
        return convert and _Plan(pa.string(), convert)
    if not isinstance(node, Struct):  # a message that has only the shape of a time
        return None
    if name not in WRAPPERS:
        return _object(node, field.message_type)
    inner = _element(node.columns[0].node, field.message_type.fields_by_name["value"])
    if inner is None:
        return None
    convert_value, column = inner.convert, ptars_schema.field_name(node.columns[0])
    return _Plan(
        inner.json_type,
        lambda array: json_arrays.structs([column], [convert_value(array)], len(array), json_arrays.validity(array)),
    )


def _scalar(node: Node, field: FieldDescriptor) -> _Plan | None:
    if isinstance(node, Enum):
        return None if field.enum_type.full_name in NULL_TYPES else _Plan(pa.string(), _enum(field))
    assert isinstance(node, Scalar)
    type_ = UNSIGNED.get(node.kind) or SCALARS[node.kind]
    if pa.types.is_integer(type_) and type_.bit_width == 64:
        return _Plan(pa.string(), lambda array: _long_integers(array, type_))
    if pa.types.is_floating(type_):
        return _Plan(pa.float64(), lambda array: _floats(array, type_))
    if pa.types.is_binary(type_):
        return _Plan(pa.string(), _bytes)
    return _Plan(type_, lambda array: array)


def _floats(numbers: pa.Array, type_: pa.DataType) -> pa.Array:
    """Doubles, rounded to the type; no negative zero, for of `-0` json_format makes 0, and of `-0.0` a negative one."""
    values = numbers.drop_null().to_numpy()
    json_arrays.require(not np.signbit(values[values == 0]).any())
    return json_arrays.floats(numbers, type_)


def _long_integers(texts: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Integers of 64 bits, which proto3 writes as strings; in the one form that writing them again gives."""
    numbers = texts.cast(type_)
    json_arrays.require(numbers.cast(pa.string()).equals(texts))
    return numbers


def _bytes(texts: pa.StringArray) -> pa.BinaryArray:
    values = texts.to_pylist()
    return pa.array(
        [None if value is None else binascii.a2b_base64(value, strict_mode=True) for value in values], pa.binary()
    )


def _enum(field: FieldDescriptor) -> Callable[[pa.Array], pa.Array]:
    numbers = {value.name: value.number for value in field.enum_type.values}

    def convert(names: pa.StringArray) -> pa.Array:
        encoded = names.dictionary_encode()
        return pa.array([numbers[name] for name in encoded.dictionary.to_pylist()], pa.int32()).take(encoded.indices)

    return convert


_TIMES: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {
    "google.protobuf.Timestamp": json_arrays.timestamps,
    "google.protobuf.Duration": lambda array: pa.array(
        [None if value is None else duration(value) for value in array.to_pylist()], json_arrays.TIME
    ),
}

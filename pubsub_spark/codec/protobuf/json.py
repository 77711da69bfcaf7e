"""The proto3 JSON mapping by the JSON reader and writer: between texts and the columns of `ptars`.

The columns are those of `ptars_schema.payload_writer`, so JSON messages become binary ones and are decoded as those
are. Here is only the common form, which is also the written one: `lowerCamel` names, absent fields left out.
`json_mapping` decides about all forms.
"""

from __future__ import annotations

import binascii
import json
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from pubsub_spark.bound import Bound
from pubsub_spark.codec.arrays import list_offsets, named_structs, repeats
from pubsub_spark.codec.json import reader, writer
from pubsub_spark.codec.json.reader import JsonReader, Plan
from pubsub_spark.codec.json.writer import Write
from pubsub_spark.codec.protobuf import ptars_schema
from pubsub_spark.codec.protobuf.column_tree import Array, Enum, Map, Node, Struct, build_column_tree, time_node
from pubsub_spark.codec.protobuf.types import ptars_type
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.protobuf import json_mapping
from pubsub_spark.schema.protobuf.definition import ProtobufDefinition
from pubsub_spark.schema.protobuf.descriptors import is_repeated, well_known_name

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_TIME: Final = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z$"


def compile_reader(definition: ProtobufDefinition) -> JsonReader:
    exact = Bound(_exact_message, definition)
    try:
        struct = build_column_tree(definition.message)
    except SchemaError:
        return JsonReader(None, pa.binary(), exact, exact)
    plan = _objects(struct, definition.message)
    write = Bound(_payloads, ptars_schema.payload_writer(struct))
    return JsonReader(plan and reader.required(plan), pa.binary(), write, exact, unique_names=True, min_rows=64)


def _exact_message(definition: ProtobufDefinition, text: bytes) -> bytes:
    message = definition.json_reader.read(text)
    return bytes(type(message).SerializePartialToString(message, deterministic=True))


def _payloads(handler: Any, columns: pa.StructArray) -> pa.BinaryArray:
    return ptars_schema.call(handler.record_batch_to_array, pa.RecordBatch.from_struct_array(columns))


def compile_writer(definition: ProtobufDefinition) -> Write:
    """The returned function raises Unwritable for a value without a JSON form."""
    return _message_writer(definition.message, definition.json_pool)


def _message_writer(message: Descriptor, pool: DescriptorPool) -> Write:
    fields = sorted(message.fields, key=lambda field: field.number)
    column = attrgetter("name") if time_node(message) else ptars_schema.field_name
    return Bound(_objects_text, tuple((column(field), field.json_name, _field_writer(field, pool)) for field in fields))


# ---------------------------------------------------------------------------------------------------------- reading


def _objects(struct: Struct, message: Descriptor) -> Plan | None:
    """Return the plan of messages, or None if no field has a common form. Other fields are unknown names here."""
    fields: list[tuple[tuple[str, ...], Plan]] = []
    columns: list[str] = []
    oneofs: dict[str, list[int]] = {}
    spelled = {field.name: field.number for field in message.fields}
    spelled |= {field.json_name: field.number for field in message.fields}  # take precedence over original names
    for column in struct.columns:
        field = message.fields_by_number[column.number]
        plan = _field(column.node, field)
        if plan is not None:
            if column.oneof:
                oneofs.setdefault(column.oneof, []).append(len(fields))
            names = dict.fromkeys((field.json_name, field.name))
            fields.append((tuple(name for name in names if spelled[name] == column.number), plan))
            columns.append(ptars_schema.field_name(column))
    groups = tuple(tuple(members) for members in oneofs.values() if len(members) > 1)
    return reader.Objects(tuple(fields), Bound(_structs, tuple(columns), groups)) if fields else None


def _structs(
    names: tuple[str, ...], oneofs: tuple[tuple[int, ...], ...], arrays: list[pa.Array], length: int
) -> pa.Array:
    """oneofs: the indices of the members of each."""
    for members in oneofs:
        if length:
            reader.require(reader.values_per_row([arrays[at] for at in members]).max() < 2)
    return reader.structs(names, arrays, length)


def _field(node: Node, field: FieldDescriptor) -> Plan | None:
    if isinstance(node, Map):
        item = _value(node.value, field.message_type.fields_by_name["value"])
        return item and reader.Maps(_key(node.key), reader.required(item), as_lists=True)
    if isinstance(node, Array):
        item = _value(node.element, field)
        return item and reader.Lists(reader.required(item))
    return _value(node, field)


def _value(node: Node, field: FieldDescriptor) -> Plan | None:
    message = field.message_type
    if message is None:
        return _scalar(node, field)
    name = well_known_name(message)
    if name in json_mapping.WELL_KNOWN or not isinstance(node, Struct):  # which has only the shape of a time
        return _TIMES.get(name)
    if name not in json_mapping.WRAPPERS:
        return _objects(node, message)
    value = _value(node.columns[0].node, message.fields_by_name["value"])
    return value and reader.wrapped(value, ptars_schema.field_name(node.columns[0]))


def _scalar(node: Node, field: FieldDescriptor) -> Plan | None:
    if isinstance(node, Enum):
        is_null = well_known_name(field.enum_type) in json_mapping.NULL_TYPES
        return None if is_null else reader.Leaf(pa.string(), Bound(_enum_numbers, node.numbers))
    type_ = ptars_type(node)
    if pa.types.is_integer(type_):
        return reader.integers(type_, as_text=type_.bit_width == 64)
    if pa.types.is_floating(type_):
        return reader.floats(type_)
    if pa.types.is_binary(type_):
        return reader.each_text(Bound(binascii.a2b_base64, strict_mode=True), type_)
    return reader.exactly(type_)


def _key(node: Node) -> Plan:
    type_ = ptars_type(node)
    if pa.types.is_boolean(type_):
        return reader.each_text(Bound(dict.__getitem__, {"true": True, "false": False}), type_)
    return reader.exactly(type_) if pa.types.is_string(type_) else reader.integers(type_, as_text=True)


def _enum_numbers(numbers: dict[str, int], array: pa.Array) -> pa.Int32Array:
    if pa.types.is_integer(array.type):
        array = array.cast(pa.int32())
        known = pa.array(numbers.values(), pa.int32())
        reader.require(pc.all(pc.is_in(array.drop_null(), known)).as_py() is not False)
        return array
    encoded = array.dictionary_encode()
    return pa.array([numbers[name] for name in encoded.dictionary.to_pylist()], pa.int32()).take(encoded.indices)


def _timestamps(texts: pa.StringArray) -> pa.StructArray:
    reader.require(pc.all(pc.match_substring_regex(texts, _TIME)).as_py() is not False)
    seconds = pc.utf8_slice_codeunits(texts, 0, len("2026-01-31T12:00:00")).cast(pa.timestamp("s")).cast(pa.int64())
    nanos = pc.utf8_rpad(pc.utf8_slice_codeunits(texts, len("2026-01-31T12:00:00."), -1), 9, "0").cast(pa.int32())
    reader.require((pc.min(seconds).as_py() or 0) >= json_mapping.LEAST_SECONDS)
    return named_structs({"seconds": seconds, "nanos": nanos}, len(texts), texts)


_SECONDS_AND_NANOS: Final = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
_TIMES: Final[dict[str, Plan]] = {
    _TIMESTAMP: reader.texts(_timestamps),
    "google.protobuf.Duration": reader.each_text(json_mapping.duration, _SECONDS_AND_NANOS),
}


# ---------------------------------------------------------------------------------------------------------- writing


def _objects_text(members: tuple[tuple[str, str, Write], ...], array: pa.StructArray) -> pa.StringArray:
    columns = {array.type.field(index).name: index for index in range(array.type.num_fields)}
    return writer.objects(
        [(name, array.field(columns[column]), write) for column, name, write in members if column in columns], array
    )


def _field_writer(field: FieldDescriptor, pool: DescriptorPool) -> Write:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return Bound(_maps, _value_writer(key, pool), _value_writer(value, pool))
    write = _value_writer(field, pool)
    if is_repeated(field):
        return Bound(_lists, write)
    # Without presence zero is absent. Positive floating zeros are null already.
    if field.has_presence or field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return write
    return Bound(_unless_zero, write)


def _maps(write_key: Write, write: Write, array: pa.ListArray) -> pa.StringArray:
    return _without(pc.equal(pc.list_value_length(array), 0), writer.maps(write_key, write, _last_of_keys(array)))


def _lists(write: Write, array: pa.ListArray) -> pa.StringArray:
    return _without(pc.equal(pc.list_value_length(array), 0), writer.lists(write, array))


def _unless_zero(write: Write, array: pa.Array) -> pa.StringArray:
    return _without(_is_zero(array), write(array))


def _without(absent: pa.BooleanArray, texts: pa.StringArray) -> pa.StringArray:
    return pc.if_else(absent, writer.NULL, texts)


def _is_zero(array: pa.Array) -> pa.BooleanArray:
    if pa.types.is_boolean(array.type):
        return pc.invert(array)
    array = pc.binary_length(array) if array.type in (pa.string(), pa.binary()) else array
    return pc.equal(array, writer.constant(0, array.type))


def _last_of_keys(array: pa.ListArray) -> pa.ListArray:
    if not repeats(array.flatten().field(0), list_offsets(array)).any():
        return array
    return pa.array([list({entry["key"]: entry for entry in row}.values()) for row in array.to_pylist()], array.type)


def _value_writer(field: FieldDescriptor, pool: DescriptorPool) -> Write:
    message = field.message_type
    if field.enum_type is not None:
        return _enum_writer(field)
    if message is None:
        return writer.base64 if field.type == FieldDescriptor.TYPE_BYTES else _WRITERS[field.cpp_type]
    name = well_known_name(message)
    if name == _TIMESTAMP:
        return _timestamp_texts
    if name in json_mapping.WRAPPERS:  # `json_format` writes the largest float too large
        zero = json.dumps(json_format.MessageToDict(GetMessageClass(message)()))
        return Bound(_wrapped, zero, _value_writer(message.fields_by_name["value"], pool))
    if name in json_mapping.WELL_KNOWN:
        columns = {ptars_schema.field_name(field): field.name for field in message.fields}
        return Bound(_each_message, GetMessageClass(message), columns, pool)
    return _message_writer(message, pool)


def _enum_writer(field: FieldDescriptor) -> Write:
    if well_known_name(field.enum_type) in json_mapping.NULL_TYPES:
        return _null_values
    return Bound(_enum_names, {number: value.name for number, value in field.enum_type.values_by_number.items()})


def _null_values(array: pa.Array) -> pa.StringArray:
    return pc.if_else(array.is_valid(), writer.constant("null"), writer.NULL)


def _enum_names(names: dict[int, str], array: pa.Int32Array) -> pa.StringArray:
    texts = pa.array([f'"{name}"' for name in names.values()], pa.string())
    index = pc.index_in(array, value_set=pa.array(names, pa.int32()))
    return pc.coalesce(texts.take(index), array.cast(pa.string()))


def _wrapped(zero: str, write: Write, array: pa.StructArray) -> pa.StringArray:
    made = write(array.field(0)).fill_null(zero) if array.type.num_fields else pa.repeat(zero, len(array))
    return pc.if_else(array.is_valid(), made, writer.NULL)


def _each_message(message_class: Any, columns: dict[str, str], pool: DescriptorPool, array: pa.Array) -> pa.StringArray:
    """columns: their names, with those of the fields."""

    def text(value: Any) -> str:
        try:
            if isinstance(value, bytes):
                made = message_class.FromString(value)
            else:
                fields = {columns.get(name, name): part for name, part in value.items() if part is not None}
                made = message_class(**fields)
            value = json_format.MessageToDict(made, descriptor_pool=pool)
            return json.dumps(value, allow_nan=False, ensure_ascii=False)
        except json_mapping.UNCOMMON as error:
            raise ValueError(" ".join(str(error).split())) from None

    return writer.one_by_one(text, array.to_pylist())


def _timestamp_texts(array: pa.StructArray) -> pa.StringArray:
    text = pc.replace_substring(array.field("seconds").cast(pa.timestamp("s")).cast(pa.string()), " ", "T")
    nanos = array.field("nanos").dictionary_encode()
    fractions = pa.array([_fraction(nanos) for nanos in nanos.dictionary.to_pylist()], pa.string())
    made = writer.joined('"', text, fractions.take(nanos.indices), 'Z"')
    return pc.if_else(array.is_valid(), made, writer.NULL) if array.null_count else made


def _fraction(nanos: int) -> str:
    if not nanos:
        return ""
    digits = f".{nanos:09}"
    return digits[:4] if digits.endswith("000000") else digits[:7] if digits.endswith("000") else digits


_WRITERS: Final[dict[int, Write]] = {
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32), writer.plain),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64), writer.quoted),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT), writer.floats),
    FieldDescriptor.CPPTYPE_BOOL: writer.plain,
    FieldDescriptor.CPPTYPE_STRING: writer.strings,
}

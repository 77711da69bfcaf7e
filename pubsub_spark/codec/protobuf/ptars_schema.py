"""The schema given to `ptars`: derived from the column tree, with the same wire format and no type of special meaning.

`ptars` turns bytes into Arrow by a descriptor, and treats some types in its own way: Timestamp and the wrappers become
values of their own, an enum's number becomes text, maps keep duplicates, messages that contain themselves become bytes.
So it gets a schema made for it in place of the topic's:

    enum            int32                         Timestamp, Duration   a message of two integers
    map<k, v>       repeated message {k=1, v=2}   Struct, Value, ...    bytes (a message is length-delimited, too)

Fields are named by their numbers. For reading, the root message is the envelope. For writing, values that must be
written although they are zero (map keys and values, -0.0) are given presence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from ptars import HandlerPool, PtarsConfig

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
)

# ptars allocates, per batch, a slot for every field number up to the highest, in every message of its schema; beyond
# this many (4 MiB of them) messages are read as Python objects (`row_reader`) instead.
MAX_FIELD_SLOTS: Final = 1 << 18

_PACKAGE: Final = "pubsub_spark_ptars"
_FLOATING: Final = ("double", "float")


def batch_reader(struct: Struct) -> Any | None:
    """The handler that turns envelopes into batches of one list of structs; None when numbers are too high for it."""
    if _slots(struct) > MAX_FIELD_SLOTS:
        return None
    row = _message("Row", struct.columns, writing=False)
    rows = _field("rows", 1, FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.Root.Row", repeated=True)
    return _handler(DescriptorProto(name="Root", field=[rows], nested_type=[row]))


def payload_writer(struct: Struct) -> Any:
    """The handler that turns batches into payloads."""
    return _handler(_message("Root", struct.columns, writing=True))


@cache
def envelope_writer() -> Any:
    """The handler that turns a list of payloads into the envelope that holds them."""
    messages = _field("messages", 1, FieldDescriptorProto.TYPE_BYTES, repeated=True)
    return _handler(DescriptorProto(name="Root", field=[messages]))


def call(function: Callable[[Any], Any], argument: Any) -> Any:
    """The result of a function of ptars; ValueError when it fails or panics."""
    try:
        return function(argument)
    except BaseException as error:  # PanicException is no Exception, and has no importable name
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"ptars panicked: {error}") from None


def field_name(column: Column | FieldDescriptor) -> str:
    """The name of the field in the schema given to ptars."""
    return f"f{column.number}"


def _handler(root: DescriptorProto) -> Any:
    """The handler of ptars for a message."""
    _qualify(root, f".{_PACKAGE}")
    file = FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3", message_type=[root])
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.Root")
    config = PtarsConfig(list_value_name="element")
    return HandlerPool([descriptor.file], config=config).get_for_message(descriptor)


def _qualify(message: DescriptorProto, scope: str) -> None:
    """Give the types of all fields, which are names of nested messages, their full names."""
    scope = f"{scope}.{message.name}"
    for field in message.field:
        if field.type_name and not field.type_name.startswith("."):
            field.type_name = f"{scope}.{field.type_name}"
    for nested in message.nested_type:
        _qualify(nested, scope)


def _message(name: str, columns: tuple[Column, ...], writing: bool) -> DescriptorProto:
    """The message that has these columns as its fields."""
    message = DescriptorProto(name=name)
    for column in sorted(columns, key=lambda column: column.number):  # the order in which protobuf writes fields
        _add(message, field_name(column), column.number, column.node, column.presence, writing)
    return message


def _add(message: DescriptorProto, name: str, number: int, node: Node, presence: bool, writing: bool) -> None:
    """Add a field for `node`, and the message that it needs."""
    repeated = isinstance(node, Array | Map)
    element = node.element if isinstance(node, Array) else node
    nested = _nested(f"M{number}", element, writing)
    if nested is not None:
        message.nested_type.append(nested)
        message.field.append(_field(name, number, FieldDescriptorProto.TYPE_MESSAGE, nested.name, repeated))
        return
    field = _field(name, number, _scalar_type(element), repeated=repeated)
    signed_zero = writing and isinstance(element, Scalar) and element.kind in _FLOATING
    if not repeated and (presence or signed_zero):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    message.field.append(field)


def _nested(name: str, node: Node, writing: bool) -> DescriptorProto | None:
    """The message that a node is in the schema for ptars; None for a scalar."""
    match node:
        case Struct(columns=columns):
            return _message(name, columns, writing)
        case Timestamp(seconds, nanos) | Duration(seconds, nanos):
            message = DescriptorProto(name=name)
            for field, number, kind in sorted([("seconds", seconds, "int64"), ("nanos", nanos, "int32")], key=_number):
                _add(message, field, number, Scalar(kind), False, writing)
            return message
        case Map(key, value):
            entry = DescriptorProto(name=name)
            _add(entry, "key", 1, key, writing, writing)
            _add(entry, "value", 2, value, writing, writing)
            return entry
    return None


def _number(item: tuple[str, int, str]) -> int:
    return item[1]


def _scalar_type(node: Node) -> Any:
    """The field type of a node that is not a message."""
    match node:
        case Scalar(kind):
            return FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        case Enum():
            return FieldDescriptorProto.TYPE_INT32
        case Json():
            return FieldDescriptorProto.TYPE_BYTES
    raise AssertionError(f"{node} is a message in the schema for ptars")


def _field(name: str, number: int, type_: Any, type_name: str = "", repeated: bool = False) -> FieldDescriptorProto:
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    field = FieldDescriptorProto(name=name, number=number, type=type_, label=label)
    if type_name:
        field.type_name = type_name
    return field


def _slots(node: Node) -> int:
    """The number of field slots that ptars allocates for a node."""
    match node:
        case Struct(columns=columns):
            return max((c.number for c in columns), default=0) + sum(_slots(c.node) for c in columns)
        case Array(inner) | Map(value=inner):
            return _slots(inner)
        case Timestamp(seconds, nanos) | Duration(seconds, nanos):
            return max(seconds, nanos)
    return 0

"""The schema made for `ptars`: derived from the column tree, with the same wire format and no type of special meaning.

`ptars` treats some types in its own way. So it gets a schema made for it instead of the topic's:

    enum            int32                         Timestamp, Duration   a message of two integers
    map<k, v>       repeated message {k=1, v=2}   Struct, Value, ...    bytes (a message is also length-delimited)

Fields are named by their numbers. For reading, the root message is the envelope. For writing, values that must be
written although they are zero (map keys and values, -0.0) have presence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from ptars import HandlerPool, PtarsConfig

from pubsub_spark.codec.protobuf.column_tree import Array, Column, Enum, Json, Map, Node, Scalar, Struct, Time

# ptars allocates, per batch, a slot for every field number up to the highest, in every message of its schema. Beyond
# this many (4 MiB of them) messages are read as Python objects (`row_reader`) instead.
MAX_FIELD_SLOTS: Final = 1 << 18

_PACKAGE: Final = "pubsub_spark_ptars"
_ROOT: Final = f".{_PACKAGE}.Root"
_FLOATING: Final = ("double", "float")


def batch_reader(struct: Struct) -> Any | None:
    """Return the handler from envelopes to batches of one list, or None if field numbers are too high for it."""
    if _slots(struct) > MAX_FIELD_SLOTS:
        return None
    root = DescriptorProto(name="Root")
    _add(root, _ROOT, "rows", 1, Array(struct), writing=False)
    return _handler(root)


def payload_writer(struct: Struct) -> Any:
    """The handler turns batches into payloads."""
    root = DescriptorProto(name="Root")
    _add_members(root, _ROOT, struct, writing=True)
    return _handler(root)


@cache
def envelope_writer() -> Any:
    """The handler turns a list of payloads into an envelope."""
    root = DescriptorProto(name="Root")
    _add(root, _ROOT, "messages", 1, Array(Scalar("bytes")), writing=True)
    return _handler(root)


def call(function: Callable[[Any], Any], argument: Any) -> Any:
    """Raises ValueError when the function of ptars fails or panics."""
    try:
        return function(argument)
    except BaseException as error:  # PanicException is no Exception, and has no importable name
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"ptars panicked: {error}") from None


def field_name(column: Column | FieldDescriptor) -> str:
    return f"f{column.number}"


def _handler(root: DescriptorProto) -> Any:
    file = FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3", message_type=[root])
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.Root")
    config = PtarsConfig(list_value_name="element")
    return HandlerPool([descriptor.file], config=config).get_for_message(descriptor)


def _add(
    message: DescriptorProto, scope: str, name: str, number: int, node: Node, presence: bool = False, *, writing: bool
) -> None:
    """Add a field for `node`, and the message that it needs. scope: the full name of `message`."""
    repeated = isinstance(node, Array | Map)
    element = node.element if isinstance(node, Array) else node
    field = message.field.add(name=name, number=number)
    field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    match element:
        case Scalar(kind):
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        case Enum():
            field.type = FieldDescriptorProto.TYPE_INT32
        case Json():
            field.type = FieldDescriptorProto.TYPE_BYTES
        case _:
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f"{scope}.M{number}"
            _add_members(message.nested_type.add(name=f"M{number}"), field.type_name, element, writing)
            return
    signed_zero = writing and isinstance(element, Scalar) and element.kind in _FLOATING
    if not repeated and (presence or signed_zero):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def _add_members(message: DescriptorProto, scope: str, node: Node, writing: bool) -> None:
    match node:
        case Struct(columns=columns):
            for column in sorted(columns, key=lambda column: column.number):  # as protobuf writes them
                _add(message, scope, field_name(column), column.number, column.node, column.presence, writing=writing)
        case Time(_, seconds, nanos):
            for number, name, kind in sorted([(seconds, "seconds", "int64"), (nanos, "nanos", "int32")]):
                _add(message, scope, name, number, Scalar(kind), writing=writing)
        case Map(key, value):
            _add(message, scope, "key", 1, key, presence=writing, writing=writing)
            _add(message, scope, "value", 2, value, presence=writing, writing=writing)


def _slots(node: Node) -> int:
    match node:
        case Struct(columns=columns):
            return max((c.number for c in columns), default=0) + sum(_slots(c.node) for c in columns)
        case Array(inner) | Map(value=inner):
            return _slots(inner)
        case Time(_, seconds, nanos):
            return max(seconds, nanos)
    return 0

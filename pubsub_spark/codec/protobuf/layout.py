"""The tree of columns as `ptars` is told about it: a `.proto` of our own that reads and writes the same bytes.

`ptars` turns bytes into Arrow by a descriptor, and has opinions: Timestamp and the wrappers become values of their own,
an enum's number becomes text, maps keep duplicates, messages that contain themselves become bytes. So it is not shown
the schema but a layout derived from the tree, equal on the wire and free of anything special:

    enum            int32                         Timestamp, Duration   a message of two integers
    map<k, v>       repeated message {k=1, v=2}   Struct, Value, ...    bytes (a message is length-delimited, too)

Fields are named by their numbers. Reading, the root is the envelope. Writing, what must be written although it is zero
(map keys and values, -0.0) is given presence.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from ptars import HandlerPool, PtarsConfig

from pubsub_spark.codec.protobuf.schema import Array, Column, Enum, Instant, Json, Map, Node, Scalar, Span, Struct

# ptars keeps a slot for every number up to a message's highest, in every message of the layout, and makes them anew for
# every batch; beyond this many (4 MiB of them) Python objects are the lesser evil.
MAX_SLOTS: Final = 1 << 18

_PACKAGE: Final = "pubsub_spark_layout"
_FLOATING: Final = ("double", "float")


def reader(struct: Struct) -> Any | None:
    """The handler that turns envelopes into batches of one list of structs; None when numbers are too high for it."""
    if _slots(struct) > MAX_SLOTS:
        return None
    row = _message("Row", struct.columns, writing=False)
    rows = _field("rows", 1, FieldDescriptorProto.TYPE_MESSAGE, f".{_PACKAGE}.Root.Row", repeated=True)
    return _handler(DescriptorProto(name="Root", field=[rows], nested_type=[row]))


def writer(struct: Struct) -> Any:
    """The handler that turns batches into payloads."""
    return _handler(_message("Root", struct.columns, writing=True))


@cache
def envelope_writer() -> Any:
    """The handler that turns a list of payloads into the envelope that holds them."""
    messages = _field("messages", 1, FieldDescriptorProto.TYPE_BYTES, repeated=True)
    return _handler(DescriptorProto(name="Root", field=[messages]))


def run(call: Callable[[Any], Any], argument: Any) -> Any:
    """Call a handler; ValueError when it cannot, a panic included."""
    try:
        return call(argument)
    except BaseException as error:  # PanicException is no Exception, and has no importable name
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"ptars panicked: {error}") from None


def name_of(column: Column) -> str:
    """What the column is called in the layout."""
    return f"f{column.number}"


def _handler(root: DescriptorProto) -> Any:
    _qualify(root, f".{_PACKAGE}")
    file = FileDescriptorProto(name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3", message_type=[root])
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.Root")
    config = PtarsConfig(list_value_name="element")
    return HandlerPool([descriptor.file], config=config).get_for_message(descriptor)


def _qualify(message: DescriptorProto, scope: str) -> None:
    """Types are named by the nested message that they are; give them full names."""
    scope = f"{scope}.{message.name}"
    for field in message.field:
        if field.type_name and not field.type_name.startswith("."):
            field.type_name = f"{scope}.{field.type_name}"
    for nested in message.nested_type:
        _qualify(nested, scope)


def _message(name: str, columns: tuple[Column, ...], writing: bool) -> DescriptorProto:
    message = DescriptorProto(name=name)
    for column in sorted(columns, key=lambda column: column.number):  # the order in which protobuf writes them
        _add(message, name_of(column), column.number, column.node, column.presence, writing)
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
    match node:
        case Struct(columns=columns):
            return _message(name, columns, writing)
        case Instant(seconds, nanos) | Span(seconds, nanos):
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
    match node:
        case Scalar(kind):
            return FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        case Enum():
            return FieldDescriptorProto.TYPE_INT32
        case Json():
            return FieldDescriptorProto.TYPE_BYTES
    raise AssertionError(f"{node} is a message in the layout")


def _field(name: str, number: int, type_: Any, type_name: str = "", repeated: bool = False) -> FieldDescriptorProto:
    label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    field = FieldDescriptorProto(name=name, number=number, type=type_, label=label)
    if type_name:
        field.type_name = type_name
    return field


def _slots(node: Node) -> int:
    match node:
        case Struct(columns=columns):
            return max((c.number for c in columns), default=0) + sum(_slots(c.node) for c in columns)
        case Array(inner) | Map(value=inner):
            return _slots(inner)
        case Instant(seconds, nanos) | Span(seconds, nanos):
            return max(seconds, nanos)
    return 0

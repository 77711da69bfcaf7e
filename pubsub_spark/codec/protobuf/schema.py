"""A message's descriptor as a tree of columns: what docs/types.md says, node by node.

`columns_of` walks the descriptor once and decides everything that depends on the schema alone: which fields become
columns, which have presence, what stands for a field that is not there. All else (Spark and Arrow types, the layout for
`ptars`, decoding, encoding) is a walk over this tree. Refused here, with the path: messages that contain themselves,
and schemas that would unfold into more columns than any table has. Pure; values are immutable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from pubsub_spark.codec.protobuf.fault import is_closed, is_repeated
from pubsub_spark.errors import SchemaError

# A message type used twice is two sets of columns, so a small schema can unfold into a huge one.
MAX_COLUMNS: Final = 10_000
MAX_DEPTH: Final = 90  # upb reads 100 levels, one of them is the envelope's

# protobuf's scalar types by the name they have in a `.proto` file
SCALARS: Final = {
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_UINT64: "uint64",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_FIXED64: "fixed64",
    FieldDescriptor.TYPE_FIXED32: "fixed32",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_SFIXED32: "sfixed32",
    FieldDescriptor.TYPE_SFIXED64: "sfixed64",
    FieldDescriptor.TYPE_SINT32: "sint32",
    FieldDescriptor.TYPE_SINT64: "sint64",
}

# Messages of any shape: each contains itself, and each is a JSON value by definition.
JSON_MESSAGES: Final = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})


@dataclass(frozen=True, slots=True)
class Scalar:
    kind: str


@dataclass(frozen=True, slots=True, eq=False)
class Enum:
    """`names` has every number, with the first name declared for it; `numbers` has every name."""

    name: str
    names: dict[int, str]
    numbers: dict[str, int]
    closed: bool

    def name_of(self, number: int) -> str:
        """The name of `number`; what Java, and so Spark, calls a number that an open enum does not have."""
        return self.names.get(number, f"UNKNOWN_ENUM_VALUE_{self.name}_{number}")


@dataclass(frozen=True, slots=True)
class Instant:
    """A Timestamp: a message with `seconds` and `nanos`; the numbers of the two fields."""

    seconds: int
    nanos: int


@dataclass(frozen=True, slots=True)
class Span:
    """A Duration: a message with `seconds` and `nanos`; the numbers of the two fields."""

    seconds: int
    nanos: int


@dataclass(frozen=True, slots=True, eq=False)
class Json:
    """A Struct, Value or ListValue, as JSON text."""

    message: Descriptor


@dataclass(frozen=True, slots=True)
class Array:
    element: Node


@dataclass(frozen=True, slots=True)
class Map:
    key: Scalar
    value: Node


@dataclass(frozen=True, slots=True)
class Struct:
    """A message. `lost` are the paths of required fields that have no column: it can be read, but not written."""

    name: str
    columns: tuple[Column, ...]
    lost: tuple[str, ...] = ()


Node = Scalar | Enum | Instant | Span | Json | Array | Map | Struct


@dataclass(frozen=True, slots=True)
class Column:
    """A field that becomes a column.

    `presence`: the wire tells absent from zero. Absent is then `default` if the schema declares one, else null; without
    presence it is the type's zero. `oneof` names the group of which at most one is set.
    """

    name: str
    number: int
    path: str
    node: Node
    required: bool = False
    presence: bool = False
    default: Any = None
    oneof: str | None = None


def columns_of(message: Descriptor) -> Struct:
    """The tree of the schema's message; SchemaError when its type has no end."""
    return _Walk().struct(message, "", (message,))


class _Walk:
    def __init__(self) -> None:
        self.count = 0

    def struct(self, message: Descriptor, path: str, outer: tuple[Descriptor, ...]) -> Struct:
        columns, lost = [], []
        for field in message.fields:
            here = f"{path}.{field.name}" if path else field.name
            self.count += 1
            if self.count > MAX_COLUMNS:
                raise SchemaError(f"Message `{outer[0].full_name}` unfolds into more than {MAX_COLUMNS:,} columns")
            node = self.field(field, here, outer)
            if node is not None:
                columns.append(
                    Column(
                        name=field.name,
                        number=field.number,
                        path=here,
                        node=node,
                        required=is_required(field),
                        presence=field.has_presence,
                        default=field.default_value if field.has_default_value else None,
                        oneof=_oneof(field),
                    )
                )
            elif is_required(field):
                lost.append(here)
        return Struct(message.full_name, tuple(columns), tuple(lost))

    def field(self, field: FieldDescriptor, path: str, outer: tuple[Descriptor, ...]) -> Node | None:
        """The node of a field; None for a message without columns, which Spark cannot hold and drops."""
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            node = self.single(value, f"{path}{{}}", outer)
            return Map(Scalar(SCALARS[key.type]), node) if node else None
        if is_repeated(field):
            node = self.single(field, f"{path}[]", outer)
            return Array(node) if node else None
        return self.single(field, path, outer)

    def single(self, field: FieldDescriptor, path: str, outer: tuple[Descriptor, ...]) -> Node | None:
        if field.type == FieldDescriptor.TYPE_ENUM:
            return _enum(field.enum_type)
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            return Scalar(SCALARS[field.type])
        message = field.message_type
        if message.full_name in JSON_MESSAGES:
            return Json(message)
        if time := _time(message):
            return time
        if message in outer:
            chain = " → ".join(f"`{m.full_name}`" for m in (*outer[outer.index(message) :], message))
            raise SchemaError(
                f"Field `{path}` makes message `{message.full_name}` contain itself ({chain}); "
                "a column's type must end somewhere"
            )
        if len(outer) > MAX_DEPTH:
            raise SchemaError(f"Field `{path}` is nested deeper than {MAX_DEPTH} messages")
        struct = self.struct(message, path, (*outer, message))
        return struct if struct.columns else None


def _enum(enum: EnumDescriptor) -> Enum:
    names: dict[int, str] = {}
    for value in enum.values:
        names.setdefault(value.number, value.name)
    return Enum(enum.name, names, {value.name: value.number for value in enum.values}, is_closed(enum))


def _time(message: Descriptor) -> Instant | Span | None:
    """Spark goes by the message's own name and its two fields, whatever the package; so a schema can bring its own."""
    if message.name not in ("Timestamp", "Duration") or len(message.fields) != 2:
        return None
    shape = [(f.name, SCALARS.get(f.type)) for f in message.fields]
    if shape != [("seconds", "int64"), ("nanos", "int32")]:
        return None
    if any(is_repeated(f) or f.has_default_value or _oneof(f) for f in message.fields):
        return None
    seconds, nanos = (field.number for field in message.fields)
    return Instant(seconds, nanos) if message.name == "Timestamp" else Span(seconds, nanos)


def is_required(field: FieldDescriptor) -> bool:
    """Whether a message without the field is none (proto2)."""
    required: Any = getattr(field, "is_required", None)  # since protobuf 6.31, where `label` begins to warn
    return bool(field.label == FieldDescriptor.LABEL_REQUIRED) if required is None else bool(required)


def has_required(message: Descriptor, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a message must have some field, at any depth."""
    if message.full_name in seen:
        return False
    seen |= {message.full_name}
    return any(
        is_required(field) or (field.message_type is not None and has_required(field.message_type, seen))
        for field in message.fields
    )


def _oneof(field: FieldDescriptor) -> str | None:
    """The oneof that the schema declares; `optional` in proto3 makes one of its own, which does not count."""
    oneof = field.containing_oneof
    if oneof is None or (len(oneof.fields) == 1 and oneof.name == f"_{field.name}"):
        return None
    return str(oneof.name)

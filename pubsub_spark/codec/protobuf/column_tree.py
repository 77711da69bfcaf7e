"""The column tree: a message's descriptor as the columns that it becomes, by the rules of docs/types.md.

`build_column_tree` decides everything that depends on the schema alone. All else (Spark and Arrow types, the schema
made for `ptars`, decoding, encoding) is a walk over this tree. Pure. Values are immutable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.protobuf.descriptors import (
    declared_oneof,
    is_closed,
    is_repeated,
    is_required,
    well_known_name,
)
from pubsub_spark.schema.protobuf.json_mapping import JSON_MESSAGES

# A message type used twice is two sets of columns, so a small schema can unfold into a huge one.
MAX_COLUMNS: Final = 10_000
MAX_NESTING_LEVELS: Final = 90  # upb reads 100 levels, one of them for the envelope

# protobuf's scalar types by the name they have in a `.proto` file
_PARTED: Final = ("TYPE_ENUM", "TYPE_GROUP", "TYPE_MESSAGE")
SCALARS: Final = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in FieldDescriptorProto.Type.items()
    if name not in _PARTED
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number, bool, string or bytes. `kind` is its type's name in a `.proto` file."""

    kind: str


@dataclass(frozen=True, slots=True)
class Enum:
    """An enum: `names` has every number, with the first name declared for it. `numbers` has every name.

    closed: a number that the enum does not declare is an unknown field (proto2), not a value.
    """

    name: str
    names: dict[int, str]
    numbers: dict[str, int]
    closed: bool

    def name_of(self, number: int) -> str:
        """Return the name of `number`. An open enum names undeclared numbers as Java and Spark do."""
        return self.names.get(number, f"UNKNOWN_ENUM_VALUE_{self.name}_{number}")


@dataclass(frozen=True, slots=True)
class Time:
    """A Timestamp or Duration (`name`), with the numbers of its fields `seconds` and `nanos`."""

    name: str
    seconds: int
    nanos: int


@dataclass(frozen=True, slots=True)
class Json:
    """A Struct, Value or ListValue, as JSON text."""

    message: Descriptor


@dataclass(frozen=True, slots=True)
class Array:
    """A repeated field."""

    element: Node


@dataclass(frozen=True, slots=True)
class Map:
    """A map field."""

    key: Scalar
    value: Node


@dataclass(frozen=True, slots=True)
class Struct:
    """A message. If it has `unmapped`, paths of required fields without a column, it cannot be written."""

    name: str
    columns: tuple[Column, ...]
    unmapped: tuple[str, ...] = ()


Node = Scalar | Enum | Time | Json | Array | Map | Struct


@dataclass(frozen=True, slots=True)
class Column:
    """presence: an absent field differs from zero. It is then `default` if the schema declares one, else null. Without
    presence it is the type's zero
    oneof: the name of a group of fields with at most one set
    """

    name: str
    number: int
    path: str
    node: Node
    required: bool = False
    presence: bool = False
    default: Any = None
    oneof: str | None = None


def build_column_tree(message: Descriptor) -> Struct:
    """Raises SchemaError if the message contains itself or has too many columns."""
    return _TreeBuilder().struct(message, "", (message,))


class _TreeBuilder:
    def __init__(self) -> None:
        self.count = 0

    def struct(self, message: Descriptor, path: str, enclosing: tuple[Descriptor, ...]) -> Struct:
        columns, unmapped = [], []
        for field in message.fields:
            here = f"{path}.{field.name}" if path else field.name
            self.count += 1
            if self.count > MAX_COLUMNS:
                raise SchemaError(f"Message `{enclosing[0].full_name}` unfolds into more than {MAX_COLUMNS:,} columns")
            node = self.field(field, here, enclosing)
            if node is not None:
                default = field.default_value if field.has_default_value else None
                properties = is_required(field), field.has_presence, default, declared_oneof(field)
                columns.append(Column(field.name, field.number, here, node, *properties))
            elif is_required(field):
                unmapped.append(here)
        return Struct(message.full_name, tuple(columns), tuple(unmapped))

    def field(self, field: FieldDescriptor, path: str, enclosing: tuple[Descriptor, ...]) -> Node | None:
        """Return None for a message without columns, which Spark cannot hold."""
        if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            node = self.single(value, f"{path}{{}}", enclosing)
            return Map(Scalar(SCALARS[key.type]), node) if node else None
        if is_repeated(field):
            node = self.single(field, f"{path}[]", enclosing)
            return Array(node) if node else None
        return self.single(field, path, enclosing)

    def single(self, field: FieldDescriptor, path: str, enclosing: tuple[Descriptor, ...]) -> Node | None:
        if field.type == FieldDescriptor.TYPE_ENUM:
            return _enum(field.enum_type)
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            return Scalar(SCALARS[field.type])
        message = field.message_type
        if well_known_name(message) in JSON_MESSAGES:
            return Json(message)
        if time := time_node(message):
            return time
        if message in enclosing:
            chain = " → ".join(f"`{m.full_name}`" for m in (*enclosing[enclosing.index(message) :], message))
            raise SchemaError(
                f"Field `{path}` makes message `{message.full_name}` contain itself ({chain}), and "
                "a column's type must end somewhere"
            )
        if len(enclosing) > MAX_NESTING_LEVELS:
            raise SchemaError(f"Field `{path}` is nested deeper than {MAX_NESTING_LEVELS} messages")
        struct = self.struct(message, path, (*enclosing, message))
        return struct if struct.columns else None


def _enum(enum: EnumDescriptor) -> Enum:
    names: dict[int, str] = {}
    for value in enum.values:
        names.setdefault(value.number, value.name)
    return Enum(enum.name, names, {value.name: value.number for value in enum.values}, is_closed(enum))


def time_node(message: Descriptor) -> Time | None:
    """Return the node of a time, or None. Spark knows it by its name and two fields, in any package."""
    if message.name not in ("Timestamp", "Duration") or len(message.fields) != 2:
        return None
    shape = [(f.name, SCALARS.get(f.type)) for f in message.fields]
    if shape != [("seconds", "int64"), ("nanos", "int32")]:
        return None
    if any(is_repeated(f) or f.has_default_value or declared_oneof(f) for f in message.fields):
        return None
    return Time(message.name, *(field.number for field in message.fields))

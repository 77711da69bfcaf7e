"""The tree of an Avro schema.

Nodes are immutable once `parser.parse` returns. Named types appear as one object wherever they are referred to, so a
recursive schema is a cyclic graph: walk it with a memo, or refuse the cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
INT: Final = (-(2**31), 2**31 - 1)
LONG: Final = (-(2**63), 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type that fits its underlying type. Precision and scale belong to `decimal`."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """One of Avro's eight types without parts."""

    kind: str
    logical: Logical | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """A named type of `size` bytes."""

    kind: ClassVar[str] = "fixed"
    name: str
    size: int
    aliases: tuple[str, ...] = ()
    logical: Logical | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Enum:
    kind: ClassVar[str] = "enum"
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    kind: ClassVar[str] = "array"
    items: Node


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """A list of entries, whose keys are strings."""

    kind: ClassVar[str] = "map"
    values: Node


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """A choice of branches. `number` distinguishes a schema's unions (see `json_encoding.branch_name`)."""

    kind: ClassVar[str] = "union"
    branches: tuple[Node, ...]
    number: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A record's field. `default` is the datum (see `json_encoding`) of a field that has one."""

    name: str
    node: Node
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    kind: ClassVar[str] = "record"
    name: str
    fields: list[Field] = field(default_factory=list)  # filled while parsing: a field may refer to its record
    aliases: tuple[str, ...] = ()


Node = Primitive | Fixed | Enum | Array | Map | Union | Record
Named = Fixed | Enum | Record


def type_name(node: Node) -> str:
    """Return the name of a union's branch: a named type's full name, or the kind."""
    return node.name if isinstance(node, Named) else node.kind


def weight(node: Node, known: dict[Record, int] | None = None) -> int:
    """Return the number of nodes. Each use of a type counts, one inside of itself as one."""
    known = {} if known is None else known
    match node:
        case Record(fields=fields):
            if node not in known:
                known[node] = 1
                known[node] = 1 + sum(weight(field.node, known) for field in fields)
            return known[node]
        case Array(inner) | Map(inner):
            return 1 + weight(inner, known)
        case Union(branches):
            return 1 + sum(weight(branch, known) for branch in branches)
        case _:
            return 1


def without_logical(node: Node, known: dict[Record, Record] | None = None) -> Node:
    known = {} if known is None else known
    match node:
        case Primitive(kind):
            return Primitive(kind)
        case Fixed(name, size):
            return Fixed(name, size)
        case Array(items):
            return Array(without_logical(items, known))
        case Map(values):
            return Map(without_logical(values, known))
        case Union(branches, number):
            return Union(tuple(without_logical(branch, known) for branch in branches), number)
        case Record(name=name, fields=fields):
            if node not in known:
                known[node] = Record(name)
                known[node].fields.extend(Field(part.name, without_logical(part.node, known)) for part in fields)
            return known[node]
    return node

"""Avro schema text as a tree of nodes.

`parse` follows the Avro specification the way Java's parser does: a name is defined once and before it is used, a
default must fit its field, and a logical type that does not fit its underlying type is ignored. Beyond the
specification, and as in Java, names have letters and digits of any script, namespaces have any printable characters,
and a null namespace is the enclosing one. `fastavro.parse_schema` (1.13) is no substitute: its errors have no path,
and it takes an int's default of 2**31 or of `true`, a record's of `{}`, an illegal or repeated field name, a union in
a union, a branch twice and a fixed of -1 bytes.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any, Final

from pubsub_spark.schema.avro.json_encoding import NOT_NUMBERS, no_constant, read_default
from pubsub_spark.schema.avro.mismatch import Mismatch
from pubsub_spark.schema.avro.schema_tree import (
    INT,
    PRIMITIVES,
    Array,
    Enum,
    Field,
    Fixed,
    Logical,
    Map,
    Named,
    Node,
    Primitive,
    Record,
    Union,
    type_name,
    weight,
)
from pubsub_spark.schema.definition import InvalidSchema

# logical type -> the underlying types it may sit on; what is not here, or sits elsewhere, is ignored as Avro demands
LOGICAL: Final[dict[str, frozenset[str]]] = {
    "decimal": frozenset({"bytes", "fixed"}),
    "uuid": frozenset({"string", "fixed"}),
    "date": frozenset({"int"}),
    "time-millis": frozenset({"int"}),
    "time-micros": frozenset({"long"}),
    "timestamp-millis": frozenset({"long"}),
    "timestamp-micros": frozenset({"long"}),
    "timestamp-nanos": frozenset({"long"}),
    "local-timestamp-millis": frozenset({"long"}),
    "local-timestamp-micros": frozenset({"long"}),
    "local-timestamp-nanos": frozenset({"long"}),
    "duration": frozenset({"fixed"}),
}
_ORDERS: Final = ("ascending", "descending", "ignore")  # the specification's; Java accepts capitals as well
# Deeper than any schema a person wrote, shallow enough for Python's stack in every walk over the tree.
MAX_DEPTH: Final = 100

# Forty records that each use the next one twice stand for a trillion fields: no message has them, no table, and walking
# them is a way to make a server busy. Far more than any real schema, which is 300 kB of text at most.
MAX_WEIGHT: Final = 100_000


def parse(text: str) -> Node:
    """The root of a schema; InvalidSchema says what is wrong and where."""
    try:
        declared = json.loads(text, parse_constant=no_constant)
    except RecursionError:
        raise InvalidSchema("The schema is nested too deeply") from None
    except ValueError as error:
        raise InvalidSchema(f"The schema is not JSON: {error}") from None
    root = _Parser().node(declared, namespace="", path="", depth=0)
    if weight(root) > MAX_WEIGHT:
        raise InvalidSchema(f"The schema stands for more than {MAX_WEIGHT} fields: its types use each other too often")
    return root


class _Parser:
    """The named types that were met on the way through one schema's text."""

    def __init__(self) -> None:
        self._named: dict[str, Named] = {}
        self._unions = count()

    def node(self, declared: Any, namespace: str, path: str, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"The schema is nested deeper than {MAX_DEPTH} levels")
        if isinstance(declared, str):
            return self._reference(declared, namespace, path)
        if isinstance(declared, list):
            return self._union(declared, namespace, path, depth)
        if not isinstance(declared, dict):
            raise InvalidSchema(f"{_at(path)} must be a type's name, an object or a list, not `{_short(declared)}`")
        kind = declared.get("type")
        if isinstance(kind, dict | list):
            raise InvalidSchema(f"{_at(path)} must have a name as its `type`, not an object or a list")
        if kind in PRIMITIVES:
            return Primitive(kind, _logical(declared, kind))
        match kind:
            case "array":
                return Array(self.node(_required(declared, "items", path), namespace, f"{path}[]", depth + 1))
            case "map":
                return Map(self.node(_required(declared, "values", path), namespace, f"{path}{{}}", depth + 1))
            case "record" | "error":
                return self._record(declared, namespace, path, depth)
            case "enum":
                return self._enum(declared, namespace, path)
            case "fixed":
                return self._fixed(declared, namespace, path)
            case str():
                return self._reference(kind, namespace, path)
        raise InvalidSchema(f"{_at(path)} has no `type`")

    def _reference(self, name: str, namespace: str, path: str) -> Node:
        if name in PRIMITIVES:
            return Primitive(name)
        for full in (_full_name(name, namespace), name):
            if full in self._named:
                return self._named[full]
        raise InvalidSchema(f"{_at(path)} has the unknown type `{name}`")

    def _union(self, declared: list[Any], namespace: str, path: str, depth: int) -> Union:
        branches = tuple(self.node(branch, namespace, path, depth + 1) for branch in declared)
        seen: set[str] = set()
        for branch in branches:
            if isinstance(branch, Union):
                raise InvalidSchema(f"{_at(path)} is a union that directly contains a union")
            if type_name(branch) in seen:
                raise InvalidSchema(f"{_at(path)} is a union with two branches of type `{type_name(branch)}`")
            seen.add(type_name(branch))
        return Union(branches, next(self._unions))

    def _record(self, declared: dict[str, Any], namespace: str, path: str, depth: int) -> Record:
        name, inner, aliases = self._name(declared, namespace, path)
        record = Record(name, aliases=aliases)
        self._named[name] = record
        fields = _required(declared, "fields", path)
        if not isinstance(fields, list):
            raise InvalidSchema(f"The `fields` of record `{name}` must be a list")
        seen: set[str] = set()
        for item in fields:
            record.fields.append(self._field(item, record, inner, path, depth))
            if item["name"] in seen:
                raise InvalidSchema(f"Record `{name}` has two fields named `{item['name']}`")
            seen.add(item["name"])
        return record

    def _field(self, declared: Any, record: Record, namespace: str, path: str, depth: int) -> Field:
        if not isinstance(declared, dict) or not isinstance(declared.get("name"), str):
            raise InvalidSchema(f"A field of record `{record.name}` has no `name`")
        name = declared["name"]
        if not _is_name(name):
            raise InvalidSchema(f"Record `{record.name}` has a field with the illegal name `{name}`")
        here = f"{path}.{name}" if path else name
        node = self.node(_required(declared, "type", here), namespace, here, depth + 1)
        aliases = _strings(declared, "aliases", here)
        order = declared.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            raise InvalidSchema(
                f"{_at(here)} must have one of {', '.join(_ORDERS)} as its `order`, not `{_short(order)}`"
            )
        if "default" not in declared:
            return Field(name, node, aliases)
        default = declared["default"]
        if node.kind in ("float", "double") and isinstance(default, str):
            default = NOT_NUMBERS.get(default, default)  # as Java reads and writes them here, and only here
        try:
            default = read_default(node, default)
        except Mismatch as mismatch:
            raise InvalidSchema(
                f"{_at(here)} has a default that does not fit: {mismatch.sentence('the value')}"
            ) from None
        return Field(name, node, aliases, True, default)

    def _enum(self, declared: dict[str, Any], namespace: str, path: str) -> Enum:
        name, _, aliases = self._name(declared, namespace, path)
        symbols = _strings(declared, "symbols", path)
        if "symbols" not in declared:
            raise InvalidSchema(f"Enum `{name}` has no `symbols`")
        for symbol in symbols:
            if not _is_name(symbol):
                raise InvalidSchema(f"Enum `{name}` has the illegal symbol `{symbol}`")
        if len(set(symbols)) < len(symbols):
            raise InvalidSchema(f"Enum `{name}` has a symbol twice")
        default = declared.get("default")
        if default is not None and default not in symbols:
            raise InvalidSchema(f"Enum `{name}` has the default `{default}`, which is not one of its symbols")
        enum = Enum(name, symbols, default, aliases)
        self._named[name] = enum
        return enum

    def _fixed(self, declared: dict[str, Any], namespace: str, path: str) -> Fixed:
        name, _, aliases = self._name(declared, namespace, path)
        size = _required(declared, "size", path)
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= INT[1]:
            raise InvalidSchema(f"Fixed `{name}` must have a `size` of 0 or more, got `{_short(size)}`")
        fixed = Fixed(name, size, aliases, _logical(declared, "fixed", size))
        self._named[name] = fixed
        return fixed

    def _name(self, declared: dict[str, Any], namespace: str, path: str) -> tuple[str, str, tuple[str, ...]]:
        """The full name, the namespace for what is inside, and the full names of the aliases."""
        name = declared.get("name")
        if not isinstance(name, str):
            raise InvalidSchema(f"{_at(path)} is of type `{declared['type']}` and needs a `name`")
        own = declared.get("namespace")
        if not isinstance(own, str | None):
            raise InvalidSchema(f"{_at(path)} has a `namespace` that is not a string")
        full = _full_name(name, namespace if own is None else own)
        inner, _, simple = full.rpartition(".")
        if not (_is_name(simple) and full.isprintable()):  # half of a surrogate pair is not
            raise InvalidSchema(f"{_at(path)} defines a type with the illegal name `{full}`")
        if full in PRIMITIVES:
            raise InvalidSchema(f"{_at(path)} defines a type with the name of a primitive, `{full}`")
        if full in self._named:
            raise InvalidSchema(f"The type `{full}` is defined twice")
        return full, inner, tuple(_full_name(alias, inner) for alias in _strings(declared, "aliases", path))


def _full_name(name: str, namespace: str) -> str:
    """The name in its namespace, which is all that is before its last dot, if it has one."""
    before, dot, simple = name.rpartition(".")
    space = before if dot else namespace
    return f"{space}.{simple}" if space else simple


def _is_name(text: str) -> bool:
    """True for letters, digits and underscores, of which a digit is not the first."""
    letters = text.replace("_", "a")
    return letters[:1].isalpha() and all(letter.isalpha() or letter.isdecimal() for letter in letters)


def _logical(declared: dict[str, Any], kind: str, size: int | None = None) -> Logical | None:
    name = declared.get("logicalType")
    if not isinstance(name, str) or kind not in LOGICAL.get(name, ()):
        return None
    if name == "decimal":
        precision, scale = declared.get("precision"), declared.get("scale", 0)
        if type(precision) is not int or type(scale) is not int:
            return None
        if not 0 < precision <= _digits(size) or not 0 <= scale <= precision:
            return None
        return Logical(name, precision, scale)
    sizes = {"uuid": 16, "duration": 12}
    return None if kind == "fixed" and size != sizes[name] else Logical(name)


def _digits(size: int | None) -> int:
    """The number of decimal digits that a signed integer of `size` bytes can always hold (unbounded for `bytes`)."""
    if size is None:
        return INT[1]
    return len(str(2 ** (8 * min(size, 64) - 1) - 1)) - 1 if size else 0


def _required(declared: dict[str, Any], key: str, path: str) -> Any:
    if key not in declared:
        raise InvalidSchema(f"{_at(path)} has no `{key}`")
    return declared[key]


def _strings(declared: dict[str, Any], key: str, path: str) -> tuple[str, ...]:
    value = declared.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidSchema(f"{_at(path)} must have a list of strings as its `{key}`")
    return tuple(value)


def _at(path: str) -> str:
    return f"Field `{path}`" if path else "The schema"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."

"""Avro schema text as a tree of nodes.

`parse` follows the specification as Java's parser does: a name is defined once and before it is used, a default must
fit its field, and a logical type that does not fit is ignored. As in Java, names may have letters and digits of any
script, namespaces any printable characters, and a null namespace is the enclosing one.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any, Final

from pubsub_spark.schema.avro import schema_tree as tree
from pubsub_spark.schema.avro.json_encoding import NOT_NUMBERS, no_constant, read_default, shortened
from pubsub_spark.schema.definition import InvalidSchema, Mismatch

# logical type -> the underlying types that it fits. Any other combination is ignored, as Avro demands
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
_ORDERS: Final = ("ascending", "descending", "ignore")  # the specification's (Java accepts capitals as well)
# Deeper than any schema a person wrote, shallow enough for Python's stack in every walk over the tree.
MAX_DEPTH: Final = 100

# Forty records that each use the next one twice stand for a trillion fields: no message has them, no table, and walking
# them is a way to make a server busy. Far more than any real schema, which is 300 kB of text at most.
MAX_WEIGHT: Final = 100_000


def parse(text: str) -> tree.Node:
    """Return the root of a schema. Raises InvalidSchema with the problem and its place."""
    try:
        declared = json.loads(text, parse_constant=no_constant)
    except RecursionError:
        raise InvalidSchema("The schema is nested too deeply") from None
    except ValueError as error:
        raise InvalidSchema(f"The schema is not JSON: {error}") from None
    try:
        root = _Parser().node(declared, namespace="", depth=0)
    except Mismatch as mismatch:
        raise InvalidSchema(mismatch.sentence("The schema")) from None
    if tree.weight(root) > MAX_WEIGHT:
        raise InvalidSchema(f"The schema stands for more than {MAX_WEIGHT} fields: its types use each other too often")
    return root


class _Parser:
    """Errors are Mismatches, which have a path."""

    def __init__(self) -> None:
        self._named: dict[str, tree.Named] = {}
        self._unions = count()

    def node(self, declared: Any, namespace: str, depth: int, step: str = "") -> tree.Node:
        if depth > MAX_DEPTH:
            raise InvalidSchema(f"The schema is nested deeper than {MAX_DEPTH} levels")
        try:
            if isinstance(declared, str):
                return self._reference(declared, namespace)
            if isinstance(declared, list):
                return self._union(declared, namespace, depth)
            return self._object(declared, namespace, depth)
        except Mismatch as mismatch:
            raise mismatch.inside(step) from None

    def _object(self, declared: Any, namespace: str, depth: int) -> tree.Node:
        if not isinstance(declared, dict):
            raise Mismatch(f"must be a type's name, an object or a list, not `{shortened(declared)}`")
        kind = declared.get("type")
        if isinstance(kind, dict | list):
            raise Mismatch("must have a name as its `type`, not an object or a list")
        if kind in tree.PRIMITIVES:
            return tree.Primitive(kind, _logical(declared, kind))
        match kind:
            case "array":
                return tree.Array(self.node(_required(declared, "items"), namespace, depth + 1, "[]"))
            case "map":
                return tree.Map(self.node(_required(declared, "values"), namespace, depth + 1, "{}"))
            case "record" | "error":
                return self._record(declared, namespace, depth)
            case "enum":
                return self._enum(declared, namespace)
            case "fixed":
                return self._fixed(declared, namespace)
            case str():
                return self._reference(kind, namespace)
        raise Mismatch("has no `type`")

    def _reference(self, name: str, namespace: str) -> tree.Node:
        if name in tree.PRIMITIVES:
            return tree.Primitive(name)
        for full in (_full_name(name, namespace), name):
            if full in self._named:
                return self._named[full]
        raise Mismatch(f"has the unknown type `{name}`")

    def _union(self, declared: list[Any], namespace: str, depth: int) -> tree.Union:
        branches = tuple(self.node(branch, namespace, depth + 1) for branch in declared)
        seen: set[str] = set()
        for branch in branches:
            if isinstance(branch, tree.Union):
                raise Mismatch("is a union that directly contains a union")
            if tree.type_name(branch) in seen:
                raise Mismatch(f"is a union with two branches of type `{tree.type_name(branch)}`")
            seen.add(tree.type_name(branch))
        return tree.Union(branches, next(self._unions))

    def _record(self, declared: dict[str, Any], namespace: str, depth: int) -> tree.Record:
        name, inner, aliases = self._name(declared, namespace)
        record = tree.Record(name, aliases=aliases)
        self._named[name] = record
        fields = _required(declared, "fields")
        if not isinstance(fields, list):
            raise InvalidSchema(f"The `fields` of record `{name}` must be a list")
        seen: set[str] = set()
        for item in fields:
            if not isinstance(item, dict) or not isinstance(item.get("name"), str):
                raise InvalidSchema(f"A field of record `{name}` has no `name`")
            if not _is_name(item["name"]):
                raise InvalidSchema(f"Record `{name}` has a field with the illegal name `{item['name']}`")
            try:
                record.fields.append(self._field(item, inner, depth))
            except Mismatch as mismatch:
                raise mismatch.inside(f".{item['name']}") from None
            if item["name"] in seen:
                raise InvalidSchema(f"Record `{name}` has two fields named `{item['name']}`")
            seen.add(item["name"])
        return record

    def _field(self, declared: dict[str, Any], namespace: str, depth: int) -> tree.Field:
        name = declared["name"]
        node = self.node(_required(declared, "type"), namespace, depth + 1)
        aliases = _strings(declared, "aliases")
        order = declared.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            raise Mismatch(f"must have one of {', '.join(_ORDERS)} as its `order`, not `{shortened(order)}`")
        if "default" not in declared:
            return tree.Field(name, node, aliases)
        default = declared["default"]
        if node.kind in ("float", "double") and isinstance(default, str):
            default = NOT_NUMBERS.get(default, default)  # as Java reads and writes them here, and only here
        try:
            default = read_default(node, default)
        except Mismatch as mismatch:
            raise Mismatch(f"has a default that does not fit: {mismatch.sentence('the value')}") from None
        return tree.Field(name, node, aliases, True, default)

    def _enum(self, declared: dict[str, Any], namespace: str) -> tree.Enum:
        name, _, aliases = self._name(declared, namespace)
        symbols = _strings(declared, "symbols")
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
        self._named[name] = enum = tree.Enum(name, symbols, default, aliases)
        return enum

    def _fixed(self, declared: dict[str, Any], namespace: str) -> tree.Fixed:
        name, _, aliases = self._name(declared, namespace)
        size = _required(declared, "size")
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= tree.INT[1]:
            raise InvalidSchema(f"Fixed `{name}` must have a `size` of 0 or more, got `{shortened(size)}`")
        self._named[name] = fixed = tree.Fixed(name, size, aliases, _logical(declared, "fixed", size))
        return fixed

    def _name(self, declared: dict[str, Any], namespace: str) -> tuple[str, str, tuple[str, ...]]:
        """Return the full name, the namespace for the types inside, and the full names of the aliases."""
        name = declared.get("name")
        if not isinstance(name, str):
            raise Mismatch(f"is of type `{declared['type']}` and needs a `name`")
        own = declared.get("namespace")
        if not isinstance(own, str | None):
            raise Mismatch("has a `namespace` that is not a string")
        full = _full_name(name, namespace if own is None else own)
        inner, _, simple = full.rpartition(".")
        if not (_is_name(simple) and full.isprintable()):  # half of a surrogate pair is not
            raise Mismatch(f"defines a type with the illegal name `{full}`")
        if full in tree.PRIMITIVES:
            raise Mismatch(f"defines a type with the name of a primitive, `{full}`")
        if full in self._named:
            raise InvalidSchema(f"The type `{full}` is defined twice")
        return full, inner, tuple(_full_name(alias, inner) for alias in _strings(declared, "aliases"))


def _full_name(name: str, namespace: str) -> str:
    before, dot, simple = name.rpartition(".")
    space = before if dot else namespace
    return f"{space}.{simple}" if space else simple


def _is_name(text: str) -> bool:
    letters = text.replace("_", "a")
    return letters[:1].isalpha() and all(letter.isalpha() or letter.isdecimal() for letter in letters)


def _logical(declared: dict[str, Any], kind: str, size: int | None = None) -> tree.Logical | None:
    name = declared.get("logicalType")
    if not isinstance(name, str) or kind not in LOGICAL.get(name, ()):
        return None
    if name == "decimal":
        precision, scale = declared.get("precision"), declared.get("scale", 0)
        if type(precision) is not int or type(scale) is not int:
            return None
        if not 0 < precision <= _digits(size) or not 0 <= scale <= precision:
            return None
        return tree.Logical(name, precision, scale)
    sizes = {"uuid": 16, "duration": 12}
    return None if kind == "fixed" and size != sizes[name] else tree.Logical(name)


def _digits(size: int | None) -> int:
    """Return how many decimal digits a signed integer of `size` bytes always holds. For `bytes`, unbounded."""
    if size is None:
        return tree.INT[1]
    return len(str(2 ** (8 * min(size, 64) - 1) - 1)) - 1 if size else 0


def _required(declared: dict[str, Any], key: str) -> Any:
    if key not in declared:
        raise Mismatch(f"has no `{key}`")
    return declared[key]


def _strings(declared: dict[str, Any], key: str) -> tuple[str, ...]:
    value = declared.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Mismatch(f"must have a list of strings as its `{key}`")
    return tuple(value)

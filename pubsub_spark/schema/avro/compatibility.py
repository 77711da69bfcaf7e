"""The compatibility rules: whether data of one Avro schema can be read with another, as the specification says.

Pub/Sub accepts a new revision if the old and the new can each read the other's data. `codec.avro.columns` uses the same
rules about names.
"""

from __future__ import annotations

from typing import Final

from pubsub_spark.schema.avro.schema_tree import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Named,
    Node,
    Primitive,
    Record,
    Union,
    type_name,
)
from pubsub_spark.schema.definition import Mismatch

# the writer's type -> the types that a reader may read it as
PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


class Unresolvable(Mismatch):
    """No data written with one schema can be read with the other."""


def unresolvable(writer: Node, reader: Node) -> Unresolvable:
    if isinstance(reader, Union):
        return Unresolvable(f"was written as {_name(writer)}, and the reader's union has no branch for it")
    return Unresolvable(f"was written as {_name(writer)} and cannot be read as {_name(reader)}")


def unreadable(writer: Node, reader: Node) -> str | None:
    """Return why `reader` cannot read all data of `writer`, or None if it can."""
    try:
        _check(writer, reader, set())
    except Unresolvable as finding:
        return finding.sentence("The schema")
    return None


def same_name(writer: Named, reader: Named) -> bool:
    """Return whether named types match: by unqualified name, or by one of the reader's aliases."""
    return _simple(writer.name) == _simple(reader.name) or writer.name in reader.aliases


def written_field(writer: Record, reader_field: Field) -> int | None:
    """Return the index of the writer's field for the reader's field, by its name, else by its aliases."""
    names = [field.name for field in writer.fields]
    for name in (reader_field.name, *reader_field.aliases):
        if name in names:
            return names.index(name)
    return None


def best_branch(writer: Node, reader: Union) -> int | None:
    """Return the index of the branch for the writer's values: the same type first, then a promotion."""
    for index, branch in enumerate(reader.branches):
        if branch.kind == writer.kind and type_name(branch) == type_name(writer):
            return index
    for index, branch in enumerate(reader.branches):
        if branch.kind == writer.kind and (not isinstance(branch, Named) or same_name(writer, branch)):  # type: ignore[arg-type]
            return index
    for index, branch in enumerate(reader.branches):
        if branch.kind in PROMOTIONS.get(writer.kind, ()):
            return index
    return None


def _check(writer: Node, reader: Node, seen: set[tuple[Node, Node]], step: str = "") -> None:
    """Raise Unresolvable unless `reader` can read all of `writer`.

    seen: pairs under way or done count as readable, so that recursive schemas come to an end.
    """
    if (writer, reader) not in seen:
        seen.add((writer, reader))
        try:
            _check_pair(writer, reader, seen)
        except Unresolvable as finding:
            raise finding.inside(step) from None


def _check_pair(writer: Node, reader: Node, seen: set[tuple[Node, Node]]) -> None:
    if isinstance(writer, Union):
        for branch in writer.branches:
            _check(branch, reader, seen)
        return
    if isinstance(reader, Union):
        index = best_branch(writer, reader)
        if index is None:
            raise unresolvable(writer, reader)
        _check(writer, reader.branches[index], seen)
        return
    if writer.kind != reader.kind and reader.kind not in PROMOTIONS.get(writer.kind, ()):
        raise unresolvable(writer, reader)
    match writer, reader:
        case (Fixed(), Fixed()) if writer.size != reader.size:
            raise Unresolvable(f"was written with {writer.size} fixed bytes and is read with {reader.size}")
        case (Record() | Enum() | Fixed(), Record() | Enum() | Fixed()) if not same_name(writer, reader):
            raise Unresolvable(
                f"was written as {_name(writer)} and is read as {_name(reader)}, which has no such alias"
            )
        case Record(), Record():
            for field in reader.fields:
                index = written_field(writer, field)
                if index is not None:
                    _check(writer.fields[index].node, field.node, seen, f".{field.name}")
                elif not field.has_default:
                    missing = Unresolvable("has no default, and the other revision does not write it")
                    raise missing.inside(f".{field.name}")
        case Enum(), Enum():
            unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
            if unknown and reader.default is None:
                raise Unresolvable(
                    f"may hold the symbol `{unknown[0]}`, which the other revision lacks without a default symbol"
                )
        case Array(), Array():
            _check(writer.items, reader.items, seen, "[]")
        case Map(), Map():
            _check(writer.values, reader.values, seen, "{}")


def _name(node: Node) -> str:
    logical = node.logical if isinstance(node, Fixed | Primitive) else None
    if logical and logical.name == "decimal":
        return f"decimal({logical.precision}, {logical.scale})"
    return f"{node.kind} `{node.name}`" if isinstance(node, Named) else f"`{node.kind}`"


def _simple(name: str) -> str:
    return name.rpartition(".")[2]

"""The compatibility rules: whether data of one Avro schema can be read with another, as the specification says.

`unreadable(writer, reader)` is None or the first reason, with its path. Pub/Sub takes a new revision when the old and
the new can each read what the other wrote. The rules about names are here too, for `codec.avro.columns`, which
applies to values what is decided here about schemas.
"""

from __future__ import annotations

from typing import Final

from pubsub_spark.schema.avro.schema_tree import Array, Enum, Field, Fixed, Map, Named, Node, Record, Union, type_name

# what the writer wrote -> what a reader may take it for
PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


def unreadable(writer: Node, reader: Node) -> str | None:
    """Why `reader` cannot read all that `writer` may have written, as a sentence; None when it can."""
    found = _Walk().reason(writer, reader, "")
    if found is None:
        return None
    path, reason = found
    return f"Field `{path}` {reason}" if path else f"The schema {reason}"


def same_name(writer: Named, reader: Named) -> bool:
    """True if two named types are meant to be one: by unqualified name, or by one of the reader's aliases."""
    return _simple(writer.name) == _simple(reader.name) or writer.name in reader.aliases


def written_field(writer: Record, reader_field: Field) -> int | None:
    """The index of the writer's field that the reader calls `reader_field`, by its name, else by its aliases."""
    names = [field.name for field in writer.fields]
    for name in (reader_field.name, *reader_field.aliases):
        if name in names:
            return names.index(name)
    return None


def best_branch(writer: Node, reader: Union) -> int | None:
    """The branch of the reader's union that takes what `writer` wrote: the same type first, a promotion second."""
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


class _Walk:
    """One comparison; pairs under way are taken for readable, so that recursive schemas come to an end."""

    def __init__(self) -> None:
        self._seen: set[tuple[Node, Node]] = set()

    def reason(self, writer: Node, reader: Node, path: str) -> tuple[str, str] | None:
        if (writer, reader) in self._seen:
            return None
        self._seen.add((writer, reader))
        if isinstance(writer, Union):
            return next(filter(None, (self.reason(branch, reader, path) for branch in writer.branches)), None)
        if isinstance(reader, Union):
            index = best_branch(writer, reader)
            if index is None:
                return path, f"was written as {_name(writer)}, which no branch of the reader's union takes"
            return self.reason(writer, reader.branches[index], path)
        match writer, reader:
            case Record(), Record():
                return self._names(writer, reader, path) or self._fields(writer, reader, path)
            case Enum(), Enum():
                return self._names(writer, reader, path) or self._symbols(writer, reader, path)
            case Fixed(), Fixed():
                if writer.size != reader.size:
                    return path, f"was written with {writer.size} fixed bytes and is read with {reader.size}"
                return self._names(writer, reader, path)
            case Array(), Array():
                return self.reason(writer.items, reader.items, f"{path}[]")
            case Map(), Map():
                return self.reason(writer.values, reader.values, f"{path}{{}}")
        if writer.kind == reader.kind or reader.kind in PROMOTIONS.get(writer.kind, ()):
            return None
        return path, f"was written as {_name(writer)} and cannot be read as {_name(reader)}"

    def _names(self, writer: Named, reader: Named, path: str) -> tuple[str, str] | None:
        if same_name(writer, reader):
            return None
        return path, f"was written as {_name(writer)} and is read as {_name(reader)}, which has no such alias"

    def _fields(self, writer: Record, reader: Record, path: str) -> tuple[str, str] | None:
        for field in reader.fields:
            here = f"{path}.{field.name}" if path else field.name
            index = written_field(writer, field)
            if index is not None:
                found = self.reason(writer.fields[index].node, field.node, here)
                if found:
                    return found
            elif not field.has_default:
                return here, "has no default, and the other revision does not write it"
        return None

    def _symbols(self, writer: Enum, reader: Enum, path: str) -> tuple[str, str] | None:
        unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
        if unknown and reader.default is None:
            return path, f"may hold the symbol `{unknown[0]}`, which the other revision lacks without a default symbol"
        return None


def _name(node: Node) -> str:
    return f"{node.kind} `{node.name}`" if isinstance(node, Named) else f"`{node.kind}`"


def _simple(name: str) -> str:
    return name.rpartition(".")[2]

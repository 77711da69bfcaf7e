"""The rules by which a written value becomes the reader's, where the specification leaves them open or to the reader.

A timestamp keeps its instant when the reader counts in another unit (Java keeps the number, and the instant is off by a
thousand). Decimals of another scale do not resolve. The rules about names and branches are in `compatibility`; the
columns apply both. `fastavro` (1.13) is not asked to resolve: it has no path for a value without a rule, takes the
first of a union's branches that can be promoted to, rounds long to float twice, and gives defaults as they stand in
the text (bytes as a string, a record without its own defaults).
"""

from __future__ import annotations

from typing import Final

from pubsub_spark.schema.avro.mismatch import Unresolvable
from pubsub_spark.schema.avro.schema_tree import Array, Enum, Fixed, Map, Named, Node, Primitive, Record, Union

# nanoseconds in the unit that a timestamp is written in, and in that of its column
_WRITTEN_NANOSECONDS: Final = {
    f"{local}timestamp-{unit}": nanoseconds
    for local in ("", "local-")
    for unit, nanoseconds in (("millis", 1_000_000), ("micros", 1_000), ("nanos", 1))
}
_COLUMN_NANOSECONDS: Final = {name: 1 if name.endswith("nanos") else 1_000 for name in _WRITTEN_NANOSECONDS}


def unresolvable(writer: Node, reader: Node) -> Unresolvable:
    """The error of two types that have nothing to do with each other."""
    if isinstance(reader, Union):
        return Unresolvable(f"was written as {_name(writer)}, for which the reader's union has no branch")
    return Unresolvable(f"was written as {_name(writer)} and cannot be read as {_name(reader)}")


def enum_symbols(writer: Enum, reader: Enum) -> list[str | None]:
    """The reader's symbol for each of the writer's; None where it has neither symbol nor default."""
    return [symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols]


def time_scale(writer: Fixed | Primitive, reader: Fixed | Primitive) -> tuple[int, int]:
    """The factor and the divisor that make an integer the reader's column: (1, 1) if it is no timestamp."""
    wanted = reader.logical.name if reader.logical else ""
    if wanted not in _COLUMN_NANOSECONDS:
        return 1, 1
    unit = _WRITTEN_NANOSECONDS.get(writer.logical.name if writer.logical else "", _WRITTEN_NANOSECONDS[wanted])
    column = _COLUMN_NANOSECONDS[wanted]
    return max(1, unit // column), max(1, column // unit)


def check_logical(writer: Fixed | Primitive, reader: Fixed | Primitive) -> None:
    """Raise Unresolvable when both are decimals, of different scales."""
    one, other = writer.logical, reader.logical
    if one and other and one.name == other.name == "decimal" and one.scale != other.scale:
        raise unresolvable(writer, reader)


def _name(node: Node) -> str:
    name = f"{node.kind} `{node.name}`" if isinstance(node, Named) else f"`{node.kind}`"
    logical = None if isinstance(node, Enum | Record | Array | Map | Union) else node.logical
    return f"decimal({logical.precision}, {logical.scale})" if logical and logical.name == "decimal" else name

"""The writer's datum as the reader's value: the slow path's second half, and the rules that both paths share.

`compile_values(writer, reader)` is a function from a datum (see `datum`) to what Arrow makes a column of: structs as
tuples, maps as lists of pairs, decimals as Decimal, dates and timestamps as integers. The rules are those of the Avro
specification, with two that it leaves open. A timestamp keeps its instant when the reader counts in another unit (Java
keeps the number, and the instant is off by a thousand). Decimals of another scale do not resolve.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np

from pubsub_spark.codec.avro.compatibility import best_branch, written_field
from pubsub_spark.codec.avro.datum import Mismatch
from pubsub_spark.codec.avro.json import spelled
from pubsub_spark.codec.avro.schema import (
    LONG,
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
)
from pubsub_spark.codec.avro.types import MAX_PRECISION, variants, widened

Convert = Callable[[Any], Any]

# nanoseconds in the unit that a timestamp is written in, and in that of its column
_WRITTEN: Final = {
    f"{local}timestamp-{unit}": nanos
    for local in ("", "local-")
    for unit, nanos in (("millis", 1_000_000), ("micros", 1_000), ("nanos", 1))
}
_COLUMN: Final = {name: 1 if name.endswith("nanos") else 1_000 for name in _WRITTEN}


class Unresolvable(Mismatch):
    """Nothing that was written with this schema can be read with that one."""


def unresolvable(writer: Node, reader: Node) -> Unresolvable:
    """The error of two types that have nothing to do with each other."""
    if isinstance(reader, Union):
        return Unresolvable(f"was written as {_name(writer)}, for which the reader's union has no branch")
    return Unresolvable(f"was written as {_name(writer)} and cannot be read as {_name(reader)}")


def compile_values(writer: Node, reader: Node) -> Convert:
    """The reader's value of a writer's datum; Mismatch, when called, where the rules give none."""
    try:
        return _compile(writer, reader)
    except Unresolvable as error:
        return _refused(error)


def constant(field: Field) -> Any:
    """The value of a reader's field that was not written; Unresolvable where no default gives one."""
    if not field.has_default:
        raise Unresolvable("was not written and has no default")
    try:
        return compile_values(field.node, field.node)(field.default)
    except Mismatch as mismatch:
        raise Unresolvable(
            f"takes its default `{spelled(field.node, field.default)}`, for which Spark has no value: "
            f"{mismatch.sentence('it')}"
        ) from None


def enum_symbols(writer: Enum, reader: Enum) -> list[str | None]:
    """What the reader makes of each of the writer's symbols; None where it has neither symbol nor default."""
    return [symbol if symbol in reader.symbols else reader.default for symbol in writer.symbols]


def time_scale(writer: Fixed | Primitive, reader: Fixed | Primitive) -> tuple[int, int]:
    """What an integer is multiplied by, or divided by, to become the reader's column: (1, 1) if it is no timestamp."""
    wanted = reader.logical.name if reader.logical else ""
    if wanted not in _COLUMN:
        return 1, 1
    unit = _WRITTEN.get(writer.logical.name if writer.logical else "", _WRITTEN[wanted])
    return max(1, unit // _COLUMN[wanted]), max(1, _COLUMN[wanted] // unit)


def check_logical(writer: Fixed | Primitive, reader: Fixed | Primitive) -> None:
    """Unresolvable when both are decimals, of different scales."""
    one, other = writer.logical, reader.logical
    if one and other and one.name == other.name == "decimal" and one.scale != other.scale:
        raise unresolvable(writer, reader)


def _compile(writer: Node, reader: Node) -> Convert:
    if isinstance(writer, Union):
        return _written_union(writer, reader)
    if isinstance(reader, Union):
        return _into_union(writer, reader)
    match writer, reader:
        case Record(), Record():
            return _record(writer, reader)
        case Array(), Array():
            return _array(_compile(writer.items, reader.items))
        case Map(), Map():
            return _map(_compile(writer.values, reader.values))
        case Enum(), Enum():
            return _enum(writer, reader)
        case ((Fixed() | Primitive()), (Fixed() | Primitive())):
            return _scalar(writer, reader)
    raise unresolvable(writer, reader)


def _scalar(writer: Fixed | Primitive, reader: Fixed | Primitive) -> Convert:
    check_logical(writer, reader)
    match writer.kind, reader.kind:
        case (("int" | "long"), ("int" | "long")):
            if writer.kind == "long" and reader.kind == "int":
                raise unresolvable(writer, reader)
            times, over = time_scale(writer, reader)
            return _same if times == over else _times(times, over)
        case (("int" | "long"), "float"):
            return lambda datum: float(np.float32(datum))  # rounded once: by way of a double it would be twice
        case (("int" | "long" | "float"), "double"):
            return float
        case ("bytes", "bytes") | ("fixed", "fixed"):
            if isinstance(writer, Fixed) and isinstance(reader, Fixed) and writer.size != reader.size:
                raise unresolvable(writer, reader)
            return _bytes(reader)
        case "bytes", "string":
            return _text
        case "string", "bytes":
            take = _bytes(reader)
            return lambda datum: take(datum.encode())
    if writer.kind != reader.kind:
        raise unresolvable(writer, reader)
    return _same


def _bytes(reader: Fixed | Primitive) -> Convert:
    return _decimal(reader.logical) if reader.logical and reader.logical.name == "decimal" else _same


def _same(datum: Any) -> Any:
    return datum


def _text(datum: bytes) -> str:
    try:
        return datum.decode("utf-8")
    except UnicodeDecodeError:
        raise Mismatch("is not valid UTF-8") from None


def _times(times: int, over: int) -> Convert:
    def convert(datum: int) -> int:
        if not LONG[0] <= datum * times <= LONG[1]:
            raise Mismatch(f"is a timestamp of value {datum}, beyond Spark's range")
        return datum * times // over

    return convert


def _decimal(logical: Logical) -> Convert:
    most = 10**logical.precision

    def convert(datum: bytes) -> Decimal:
        if not datum:
            raise Mismatch("is a decimal of no bytes")
        unscaled = int.from_bytes(datum, "big", signed=True)
        if abs(unscaled) >= most:
            raise Mismatch(f"is a decimal of more than {logical.precision} digits")
        return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -logical.scale))

    assert logical.precision <= MAX_PRECISION
    return convert


def _enum(writer: Enum, reader: Enum) -> Convert:
    symbols = dict(zip(writer.symbols, enum_symbols(writer, reader), strict=True))

    def convert(datum: str) -> str:
        symbol = symbols[datum]
        if symbol is None:
            raise Mismatch(f"has the symbol `{datum}`, which enum `{reader.name}` of the reader lacks")
        return symbol

    return convert


def _array(item: Convert) -> Convert:
    def convert(datum: list[Any]) -> list[Any]:
        value: list[Any] = []
        try:
            for element in datum:
                value.append(item(element))  # noqa: PERF401 (its length is where an element failed)
        except Mismatch as mismatch:
            raise mismatch.inside(f"[{len(value)}]") from None
        return value

    return convert


def _map(item: Convert) -> Convert:
    def convert(datum: dict[str, Any]) -> list[tuple[str, Any]]:
        value: list[tuple[str, Any]] = []
        key = ""
        try:
            for key, element in datum.items():
                value.append((key, item(element)))
        except Mismatch as mismatch:
            raise mismatch.inside(f"[{key!r}]") from None
        return value

    return convert


def _record(writer: Record, reader: Record) -> Convert:
    fields: list[tuple[str, int | None, Any]] = []
    for field in reader.fields:
        index = written_field(writer, field)
        try:
            made = constant(field) if index is None else _compile(writer.fields[index].node, field.node)
        except Unresolvable as error:
            raise error.inside(f".{field.name}") from None
        fields.append((field.name, index, made))

    def convert(datum: tuple[Any, ...]) -> tuple[Any, ...]:
        value = []
        name = ""
        try:
            for name, index, made in fields:  # noqa: B007 (read when the loop is left by an exception)
                value.append(made if index is None else made(datum[index]))
        except Mismatch as mismatch:
            raise mismatch.inside(f".{name}") from None
        return tuple(value)

    return convert


def _written_union(writer: Union, reader: Node) -> Convert:
    branches = [compile_values(branch, reader) for branch in writer.branches]
    return lambda datum: branches[datum[0]](datum[1])


def _into_union(writer: Node, reader: Union) -> Convert:
    index = best_branch(writer, reader)
    if index is None:
        raise unresolvable(writer, reader)
    branch = reader.branches[index]
    if branch.kind == "null":
        return lambda _: None
    kinds = variants(reader)
    inner = _compile(writer, widened(reader) or branch)
    if widened(reader) or len(kinds) == 1:
        return inner
    place, count = kinds.index(branch), len(kinds)
    return lambda datum: tuple(inner(datum) if member == place else None for member in range(count))


def _refused(error: Mismatch) -> Convert:
    steps = list(error.steps)

    def convert(_: Any) -> Any:
        mismatch = Mismatch(error.reason)
        for step in steps:
            mismatch.inside(step)
        raise mismatch

    return convert


def _name(node: Node) -> str:
    name = f"{node.kind} `{node.name}`" if isinstance(node, Named) else f"`{node.kind}`"
    logical = None if isinstance(node, Enum | Record | Array | Map | Union) else node.logical
    return f"decimal({logical.precision}, {logical.scale})" if logical and logical.name == "decimal" else name

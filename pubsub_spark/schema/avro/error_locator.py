"""The error locator: where a binary message does not fit its schema, checked strictly, one message at a time.

`check` checks a message for Publish, and finds the reason for a message that the columns refused. `end` and `items` are
for values that cannot be found for all messages at once. Hostile input costs no more than its length: counts are
checked against the bytes left, and items of no bytes have a budget.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from pubsub_spark.schema.avro.schema_tree import INT, Array, Enum, Fixed, Map, Node, Primitive, Record, Union, weight
from pubsub_spark.schema.definition import Mismatch

Data = bytes | memoryview
Check = Callable[[Any, Data, int, "_Budget"], int]  # of a node: where the value that begins there ends

# Items of no bytes (an array of nulls) that one message may have: its size does not bound their number.
MAX_EMPTY_ITEMS: Final = 10_000

_LEAST_BYTES: Final = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


class _Budget:
    """The number of items without bytes that a message may still have."""

    left = MAX_EMPTY_ITEMS


def check(root: Node, data: bytes) -> None:
    """Raise Mismatch unless `data` is exactly one message."""
    after = end(root, data)
    if after != len(data):
        raise Mismatch(f"has {len(data) - after} bytes after its end")


def end(node: Node, data: Data) -> int:
    """Return where the value that `data` begins with ends. Raises Mismatch if there is no such value."""
    try:
        return _CHECKS[node.kind](node, data, 0, _Budget())
    except RecursionError:
        raise Mismatch("is nested too deeply") from None


def items(node: Array | Map, data: Data, count: int) -> tuple[list[int], int]:
    """Return where items begin, and where the array or map ends. count: of items in the first block."""
    least, _ = _sizes(node)
    budget = _Budget()
    starts: list[int] = []
    at = 0
    while count:
        for _ in range(count):
            starts.append(at)
            at = _item(node, data, at, budget)
        count, at = _block(data, at, least, 0, budget)
    return starts, at


def least_bytes(node: Node, known: dict[Record, int] | None = None) -> int:
    """Return the fewest bytes that a value can have: 0 for null, empty fixed and records of those."""
    known = {} if known is None else known
    match node:
        case Primitive(kind):
            return _LEAST_BYTES[kind]
        case Fixed(size=size):
            return size
        case Record(fields=fields):
            if node not in known:
                known[node] = 1  # met again below: a record that must contain itself has no finite value at all
                known[node] = sum(least_bytes(field.node, known) for field in fields)
            return known[node]
        case _:
            return 1


@lru_cache(1024)
def _sizes(node: Array | Map) -> tuple[int, int]:
    if isinstance(node, Map):
        return 1, 0  # of its key
    least = least_bytes(node.items)
    return least, 0 if least else weight(node.items)


def _number(data: Data, at: int) -> tuple[int, int]:
    """Return the varint at `at`, and where it ends."""
    try:
        byte = data[at]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        value = byte & 0x7F
        for shift in range(7, 70, 7):
            at += 1
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 64:
                    break
                return (value >> 1) ^ -(value & 1), at + 1
    except IndexError:
        raise Mismatch("is cut off: the message ends inside a number") from None
    raise Mismatch("has a number of more than 64 bits")


def _text(data: Data, at: int) -> tuple[str, int]:
    size, start = _number(data, at)
    after = _segment_end(size, data, start)
    try:
        return str(data[start:after], "utf-8"), after
    except UnicodeDecodeError:
        raise Mismatch("is not valid UTF-8") from None


def _block(data: Data, at: int, least: int, empty: int, budget: _Budget) -> tuple[int, int]:
    """Return the count of the block at `at`, and where its items begin. empty: the cost of one without bytes."""
    count, at = _number(data, at)
    if count < 0:  # a negative count is followed by the block's size in bytes
        count = -count
        size, at = _number(data, at)
        if not 0 <= size <= len(data) - at:
            raise Mismatch(f"has a block of {size} bytes, but the message ends after {len(data) - at}")
    if not least:
        budget.left -= count * empty
        if budget.left < 0:
            raise Mismatch(f"has more than {MAX_EMPTY_ITEMS} items of no bytes")
    elif count * least > len(data) - at:
        raise Mismatch(f"has a block of {count} items, but the message ends after {len(data) - at} bytes")
    return count, at


def _boolean(_: Node, data: Data, at: int, __: _Budget) -> int:
    if _sized(1, "a boolean", data, at) and data[at] > 1:
        raise Mismatch(f"is a boolean of value {data[at]}, neither 0 nor 1")
    return at + 1


def _int(_: Node, data: Data, at: int, __: _Budget) -> int:
    value, at = _number(data, at)
    if not INT[0] <= value <= INT[1]:
        raise Mismatch(f"is an int of value {value}, more than 32 bits")
    return at


def _bytes(_: Node, data: Data, at: int, __: _Budget) -> int:
    size, at = _number(data, at)
    return _segment_end(size, data, at)


def _segment_end(size: int, data: Data, at: int) -> int:
    if size < 0:
        raise Mismatch(f"has the length {size}")
    if at + size > len(data):
        raise Mismatch(f"has the length {size}, but the message ends after {len(data) - at} bytes")
    return at + size


def _sized(size: int, kind: str, data: Data, at: int) -> int:
    if at + size > len(data):
        raise Mismatch(f"is cut off: the message ends inside {kind}")
    return at + size


def _enum(node: Enum, data: Data, at: int, _: _Budget) -> int:
    index, at = _number(data, at)
    if not 0 <= index < len(node.symbols):
        raise Mismatch(f"has the symbol {index}, but enum `{node.name}` has {len(node.symbols)}")
    return at


def _item(node: Array | Map, data: Data, at: int, budget: _Budget) -> int:
    if isinstance(node, Array):
        return _CHECKS[node.items.kind](node.items, data, at, budget)
    key, at = _text(data, at)
    try:
        return _CHECKS[node.values.kind](node.values, data, at, budget)
    except Mismatch as mismatch:
        raise mismatch.inside(f"[{key!r}]") from None


def _items(node: Array | Map, data: Data, at: int, budget: _Budget) -> int:
    least, empty = _sizes(node)
    done = 0
    count, at = _block(data, at, least, empty, budget)
    while count:
        try:
            for _ in range(count):
                at = _item(node, data, at, budget)
                done += 1
        except Mismatch as mismatch:
            raise mismatch.inside(f"[{done}]") if isinstance(node, Array) else mismatch from None
        count, at = _block(data, at, least, empty, budget)
    return at


def _union(node: Union, data: Data, at: int, budget: _Budget) -> int:
    index, at = _number(data, at)
    if not 0 <= index < len(node.branches):
        raise Mismatch(f"has the union branch {index}, but there are {len(node.branches)}")
    branch = node.branches[index]
    return _CHECKS[branch.kind](branch, data, at, budget)


def _record(node: Record, data: Data, at: int, budget: _Budget) -> int:
    try:
        for field in node.fields:
            at = _CHECKS[field.node.kind](field.node, data, at, budget)
    except Mismatch as mismatch:
        raise mismatch.inside(f".{field.name}") from None
    return at


_CHECKS: Final[dict[str, Check]] = {
    "null": lambda _, __, at, ___: at,
    "boolean": _boolean,
    "int": _int,
    "long": lambda _, data, at, __: _number(data, at)[1],
    "float": lambda _, data, at, __: _sized(4, "a float", data, at),
    "double": lambda _, data, at, __: _sized(8, "a double", data, at),
    "bytes": _bytes,
    "string": lambda _, data, at, __: _text(data, at)[1],
    "fixed": lambda node, data, at, _: _sized(node.size, f"{node.size} fixed bytes", data, at),
    "enum": _enum,
    "array": _items,
    "map": _items,
    "union": _union,
    "record": _record,
}

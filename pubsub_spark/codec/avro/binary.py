"""Avro's binary encoding, one message at a time: bytes to a datum, exactly, with the path of what is wrong.

The slow path. It is what `validate` asks, and what decides over every message that `columns` (all messages of a batch
in step) does not find plainly right. Strict where Java's decoder is lenient: a varint must fit its type, an index its
range, a length its bytes, a string UTF-8, and nothing may follow the message. Hostile input costs no more than its own
length: counts are checked against the bytes left, and items without bytes (nulls, empty records) have a budget.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from pubsub_spark.codec.avro.datum import Mismatch
from pubsub_spark.codec.avro.schema import INT, Array, Enum, Fixed, Map, Node, Primitive, Record, Union, weight

Reader = Callable[[bytes, int], tuple[Any, int]]

# Items of no bytes (an array of nulls) that one message may have: its size says nothing about their number.
MAX_EMPTY_ITEMS: Final = 10_000

_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")


def message_reader(node: Node) -> Callable[[bytes], Any]:
    """Compile the decoder of whole messages: bytes to a datum, or Mismatch."""
    budget = _Budget()
    read = _compile(node, {}, budget)

    def message(data: bytes) -> Any:
        budget.left = MAX_EMPTY_ITEMS
        try:
            datum, end = read(data, 0)
        except RecursionError:
            raise Mismatch("is nested too deeply") from None
        if end != len(data):
            raise Mismatch(f"has {len(data) - end} bytes after its end")
        return datum

    return message


def least_bytes(node: Node, known: dict[Record, int] | None = None) -> int:
    """The fewest bytes that a value can have: 0 for null, empty fixed and records of those, else 1 or more."""
    known = {} if known is None else known
    match node:
        case Primitive(kind):
            return _LEAST[kind]
        case Fixed(size=size):
            return size
        case Record(fields=fields):
            if node not in known:
                known[node] = 1  # met again below: a record that must contain itself has no finite value at all
                known[node] = sum(least_bytes(field.node, known) for field in fields)
            return known[node]
        case _:
            return 1


_LEAST: Final = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}


class _Budget(threading.local):
    """How many items without bytes the message at hand may still have; each thread reads its own message."""

    left = MAX_EMPTY_ITEMS


def _compile(node: Node, named: dict[Node, Reader], budget: _Budget) -> Reader:
    match node:
        case Primitive(kind):
            return _PRIMITIVES[kind]
        case Fixed():
            return _fixed(node.size)
        case Enum():
            return _enum(node)
        case Array(items):
            empty = 0 if least_bytes(items) else weight(items)
            return _array(_compile(items, named, budget), least_bytes(items), empty, budget)
        case Map(values):
            return _map(_compile(values, named, budget))
        case Union():
            return _union([_compile(branch, named, budget) for branch in node.branches])
        case Record():
            if node not in named:
                return _record(node, named, budget)
            return lambda data, at: named[node](data, at)


def _null(_: bytes, at: int) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if at >= len(data):
        raise _truncated("a boolean")
    if data[at] > 1:
        raise Mismatch(f"is a boolean of value {data[at]}, neither 0 nor 1")
    return data[at] == 1, at + 1


def _long(data: bytes, at: int) -> tuple[int, int]:
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
        raise _truncated("a number") from None
    raise Mismatch("has a number of more than 64 bits")


def _int(data: bytes, at: int) -> tuple[int, int]:
    value, at = _long(data, at)
    if not INT[0] <= value <= INT[1]:
        raise Mismatch(f"is an int of value {value}, more than 32 bits")
    return value, at


def _float(data: bytes, at: int) -> tuple[float, int]:
    if at + 4 > len(data):
        raise _truncated("a float")
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _double(data: bytes, at: int) -> tuple[float, int]:
    if at + 8 > len(data):
        raise _truncated("a double")
    return _DOUBLE.unpack_from(data, at)[0], at + 8


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    end = at + size
    if size < 0:
        raise Mismatch(f"has the length {size}")
    if end > len(data):
        raise Mismatch(f"has the length {size}, but the message ends after {len(data) - at} bytes")
    return data[at:end], end


def _string(data: bytes, at: int) -> tuple[str, int]:
    text, at = _bytes(data, at)
    try:
        return text.decode("utf-8"), at
    except UnicodeDecodeError:
        raise Mismatch("is not valid UTF-8") from None


_PRIMITIVES: Final[dict[str, Reader]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}


def _fixed(size: int) -> Reader:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise _truncated(f"{size} fixed bytes")
        return data[at:end], end

    return read


def _enum(node: Enum) -> Reader:
    symbols = node.symbols

    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(symbols):
            raise Mismatch(f"has the symbol {index}, but enum `{node.name}` has {len(symbols)}")
        return symbols[index], at

    return read


def _block(data: bytes, at: int, least: int, empty: int, budget: _Budget) -> tuple[int, int]:
    """The number of items in the block at `at`, and where they start; `empty` is the work of an item of no bytes."""
    count, at = _long(data, at)
    if count < 0:  # a negative count is followed by the block's size in bytes
        count = -count
        size, at = _long(data, at)
        if not 0 <= size <= len(data) - at:
            raise Mismatch(f"has a block of {size} bytes, but the message ends after {len(data) - at}")
    if not least:
        budget.left -= count * empty
        if budget.left < 0:
            raise Mismatch(f"has more than {MAX_EMPTY_ITEMS} items of no bytes")
    elif count * least > len(data) - at:
        raise Mismatch(f"has a block of {count} items, but the message ends after {len(data) - at} bytes")
    return count, at


def _array(item: Reader, least: int, empty: int, budget: _Budget) -> Reader:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        datum: list[Any] = []
        count, at = _block(data, at, least, empty, budget)
        while count:
            try:
                for _ in range(count):
                    element, at = item(data, at)
                    datum.append(element)
            except Mismatch as mismatch:
                raise mismatch.inside(f"[{len(datum)}]") from None
            count, at = _block(data, at, least, empty, budget)
        return datum, at

    return read


def _map(item: Reader) -> Reader:
    budget = _Budget()  # a key has at least one byte, so none is ever spent

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        datum: dict[str, Any] = {}
        count, at = _block(data, at, 1, 0, budget)
        while count:
            for _ in range(count):
                key, at = _string(data, at)
                try:
                    datum[key], at = item(data, at)
                except Mismatch as mismatch:
                    raise mismatch.inside(f"[{key!r}]") from None
            count, at = _block(data, at, 1, 0, budget)
        return datum, at

    return read


def _union(branches: list[Reader]) -> Reader:
    def read(data: bytes, at: int) -> tuple[tuple[int, Any], int]:
        index, at = _long(data, at)
        if not 0 <= index < len(branches):
            raise Mismatch(f"has the union branch {index}, but there are {len(branches)}")
        value, at = branches[index](data, at)
        return (index, value), at

    return read


def _record(node: Record, named: dict[Node, Reader], budget: _Budget) -> Reader:
    fields: list[tuple[str, Reader]] = []

    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        datum = []
        name = ""
        try:
            for name, field in fields:  # noqa: B007 (read when the loop is left by an exception)
                value, at = field(data, at)
                datum.append(value)
        except Mismatch as mismatch:
            raise mismatch.inside(f".{name}") from None
        return tuple(datum), at

    named[node] = read
    fields.extend((field.name, _compile(field.node, named, budget)) for field in node.fields)
    return read


def _truncated(what: str) -> Mismatch:
    return Mismatch(f"is cut off: the message ends inside {what}")

"""Rows of Python message objects, value by value, by protobuf's own getters: the reference for decoded columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.protobuf.json_format import MessageToJson

from pubsub_spark.codec.protobuf.column_tree import Array, Column, Enum, Json, Map, Node, Scalar, Struct, Time
from pubsub_spark.codec.protobuf.types import MAX_SECONDS, UNSIGNED, arrow_type


class UnreadableMessage(ValueError):  # noqa: N818 (a finding, not a failure)
    """A message with a value that has no place in its column, as a sentence."""


def compile_row_reader(struct: Struct) -> Callable[[Any], dict[str, Any]]:
    """Return a function from a message to its row, for `pa.array`. It raises UnreadableMessage."""
    getters = [(column.name, _getter(column)) for column in struct.columns]

    def row(message: Any) -> dict[str, Any]:
        return {name: get(message) for name, get in getters}

    return row


def json_text(message: Any) -> str:
    """Return the JSON text of a Struct, Value or ListValue, the same text for the same value."""
    return str(MessageToJson(message, indent=None, sort_keys=True))


def _getter(column: Column) -> Callable[[Any], Any]:
    """Return a function from a message to the value of a field's column."""
    name, convert = column.name, _converter(column.node, column.path)
    if not column.presence:
        return lambda message: convert(getattr(message, name))
    default = None if column.default is None else convert(column.default)
    return lambda message: convert(getattr(message, name)) if type(message).HasField(message, name) else default


def _converter(node: Node, path: str) -> Callable[[Any], Any]:
    """Return a function from a field's value to its column's."""
    match node:
        case Scalar("string"):
            return lambda value: _text(value, path)
        case Scalar(kind) if kind in UNSIGNED:
            bits = UNSIGNED[kind].bit_width
            return lambda value: value - (1 << bits) if value >> (bits - 1) else value
        case Scalar():
            return lambda value: value
        case Enum():
            return node.name_of
        case Time():
            return lambda value: _micros(value, node, path)
        case Json():
            return lambda value: _json(value, path)
        case Array(element):
            one = _converter(element, f"{path}[]")
            return lambda values: [one(value) for value in values]
        case Map(_, value):
            key, one = _converter(node.key, f"{path}{{}}"), _converter(value, f"{path}{{}}")

            def read(entries: Any) -> list[tuple[Any, Any]]:
                keys = {k: key(k) for k in entries}  # refuses a key that is not UTF-8 before keys are compared
                return [(keys[k], one(entries[k])) for k in sorted(entries)]

            return read
        case Struct():
            return compile_row_reader(node)


def _text(value: Any, path: str) -> str:
    if isinstance(value, bytes):  # a proto2 string that is not UTF-8
        raise UnreadableMessage(f"Field `{path}` is not valid UTF-8")
    return str(value)


def _micros(value: Any, node: Node, path: str) -> pa.Scalar:
    if abs(value.seconds) > MAX_SECONDS:
        raise UnreadableMessage(f"Field `{path}` is out of range: {value.seconds} seconds")
    nanos = value.nanos
    micros = value.seconds * 1_000_000 + (nanos // 1000 if nanos >= 0 else -(-nanos // 1000))
    return pa.scalar(micros, pa.int64()).cast(arrow_type(node))


def _json(value: Any, path: str) -> str:
    try:
        return json_text(value)
    except ValueError as error:  # a number that JSON does not have
        raise UnreadableMessage(f"Field `{path}` has no JSON form: {error}") from None

"""Avro's JSON encoding: parsed JSON to a datum, strictly; and the defaults of a schema, which differ in two points.

In a message a union's value is tagged with its branch, `{"string": "x"}`, null is plain, and each field of a record
must be there, no other may. In a default a union's value is plain (the first branch that fits is meant) and a missing
field takes its own default. Bytes are strings of the characters U+0000 to U+00FF. NaN and the infinities are the
strings "NaN", "Infinity" and "-Infinity", as Java's Avro writes them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

from pubsub_spark.codec.avro.datum import Mismatch, is_int
from pubsub_spark.codec.avro.schema import INT, LONG, Array, Enum, Fixed, Map, Node, Primitive, Record, Union, type_name

Reader = Callable[[Any], Any]
Writer = Callable[[Any], Any]

NOT_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def message_reader(node: Node) -> Callable[[bytes], Any]:
    """Compile the decoder of whole messages: bytes of JSON text to a datum, or Mismatch."""
    read = _compile(node, {}, tagged=True)

    def message(data: bytes) -> Any:
        try:
            declared = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        except UnicodeDecodeError:
            raise Mismatch("is not valid UTF-8") from None
        except RecursionError:
            raise Mismatch("is nested too deeply") from None
        except ValueError as error:
            raise Mismatch(f"is not JSON: {error}") from None
        try:
            return read(declared)
        except RecursionError:
            raise Mismatch("is nested too deeply") from None

    return message


def message_writer(node: Node) -> Callable[[Any], bytes]:
    """Compile the encoder of whole messages: a datum to bytes of JSON text."""
    write = _compile_writer(node, {})
    return lambda datum: json.dumps(write(datum), ensure_ascii=False, separators=(",", ":")).encode()


def read_default(node: Node, declared: Any) -> Any:
    """The datum of a default in a schema; Mismatch when it does not fit."""
    return _compile(node, {}, tagged=False)(declared)


def spelled(node: Node, datum: Any) -> str:
    """A datum as a message would have it, for a sentence: the beginning of it where it is long."""
    return _spelled(_compile_writer(node, {})(datum))


def _compile(node: Node, named: dict[Node, Reader], tagged: bool) -> Reader:
    match node:
        case Primitive(kind):
            return _PRIMITIVES[kind]
        case Fixed():
            return _fixed(node)
        case Enum():
            return _enum(node)
        case Array(items):
            return _array(_compile(items, named, tagged))
        case Map(values):
            return _map(_compile(values, named, tagged))
        case Union():
            return _tagged(node, named) if tagged else _plain(node, named)
        case Record():
            if node not in named:
                return _record(node, named, tagged)
            return lambda value: named[node](value)


def _null(value: Any) -> None:
    if value is not None:
        raise _expected("null", value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _expected("true or false", value)
    return value


def _int(value: Any) -> int:
    if not is_int(value, INT):
        raise _expected("a 32-bit integer", value)
    return int(value)


def _long(value: Any) -> int:
    if not is_int(value, LONG):
        raise _expected("a 64-bit integer", value)
    return int(value)


def _double(value: Any) -> float:
    if type(value) is str and value in NOT_NUMBERS:
        return NOT_NUMBERS[value]
    if type(value) is not float and type(value) is not int:
        raise _expected("a number", value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _string(value: Any) -> str:
    if type(value) is not str:
        raise _expected("a string", value)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Mismatch("has half of a surrogate pair in its string") from None
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not str:
        raise _expected("a string that stands for bytes", value)
    try:
        return value.encode("iso-8859-1")
    except UnicodeEncodeError:
        raise Mismatch("is a string that stands for bytes but has a character above U+00FF") from None


_PRIMITIVES: Final[dict[str, Reader]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _double,
    "double": _double,
    "string": _string,
    "bytes": _bytes,
}


def _fixed(node: Fixed) -> Reader:
    def read(value: Any) -> bytes:
        data = _bytes(value)
        if len(data) != node.size:
            raise Mismatch(f"must have {node.size} bytes, has {len(data)}")
        return data

    return read


def _enum(node: Enum) -> Reader:
    symbols = frozenset(node.symbols)

    def read(value: Any) -> str:
        if type(value) is not str or value not in symbols:
            raise _expected(f"a symbol of enum `{node.name}`", value)
        return value

    return read


def _array(item: Reader) -> Reader:
    def read(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _expected("an array", value)
        datum: list[Any] = []
        try:
            for element in value:
                datum.append(item(element))  # noqa: PERF401 (its length is where an element failed)
        except Mismatch as mismatch:
            raise mismatch.inside(f"[{len(datum)}]") from None
        return datum

    return read


def _map(item: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _expected("an object", value)
        datum: dict[str, Any] = {}
        key = ""
        try:
            for key, element in value.items():
                datum[_string(key)] = item(element)
        except Mismatch as mismatch:
            raise mismatch.inside(f"[{key!r}]") from None
        return datum

    return read


def _record(node: Record, named: dict[Node, Reader], tagged: bool) -> Reader:
    fields: list[tuple[str, Reader]] = []
    defaults = {} if tagged else {field.name: field.default for field in node.fields if field.has_default}
    names: set[str] = set()

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not dict:
            raise _expected(f"an object, the record `{node.name}`", value)
        datum = []
        name = ""
        try:
            for name, field in fields:
                if name in value:
                    datum.append(field(value[name]))
                elif name in defaults:
                    datum.append(defaults[name])
                else:
                    raise Mismatch("is missing")
        except Mismatch as mismatch:
            raise mismatch.inside(f".{name}") from None
        if tagged and len(value) > len(fields):
            raise Mismatch(f"has the unknown field `{next(key for key in value if key not in names)}`")
        return tuple(datum)

    named[node] = read
    fields.extend((field.name, _compile(field.node, named, tagged)) for field in node.fields)
    names.update(field.name for field in node.fields)
    return read


def _tagged(node: Union, named: dict[Node, Reader]) -> Reader:
    branches = {
        type_name(branch): (index, _compile(branch, named, tagged=True))
        for index, branch in enumerate(node.branches)
        if branch.kind != "null"
    }
    null = next((index for index, branch in enumerate(node.branches) if branch.kind == "null"), None)
    wanted = "null or " * (null is not None) + f"an object tagged with one of {', '.join(branches)}"

    def read(value: Any) -> tuple[int, Any]:
        if value is None and null is not None:
            return null, None
        if type(value) is not dict or len(value) != 1:
            raise _expected(wanted, value)
        [(tag, inner)] = value.items()
        if tag not in branches:
            raise _expected(wanted, value)
        index, branch = branches[tag]
        return index, branch(inner)

    return read


def _plain(node: Union, named: dict[Node, Reader]) -> Reader:
    branches = [_compile(branch, named, tagged=False) for branch in node.branches]

    def read(value: Any) -> tuple[int, Any]:
        for index, branch in enumerate(branches):
            try:
                return index, branch(value)
            except Mismatch:
                continue
        raise _expected("a value of one of the union's branches", value)

    return read


def _compile_writer(node: Node, named: dict[Node, Writer]) -> Writer:
    match node:
        case Primitive("float" | "double"):
            return lambda datum: datum if math.isfinite(datum) else _NAMES[str(datum)]
        case Primitive("bytes") | Fixed():
            return lambda datum: datum.decode("iso-8859-1")
        case Array(items):
            item = _compile_writer(items, named)
            return lambda datum: [item(element) for element in datum]
        case Map(values):
            value = _compile_writer(values, named)
            return lambda datum: {key: value(element) for key, element in datum.items()}
        case Union(branches):
            tags = [(type_name(branch), _compile_writer(branch, named)) for branch in branches]
            return lambda datum: None if datum[1] is None else {tags[datum[0]][0]: tags[datum[0]][1](datum[1])}
        case Record():
            if node in named:
                return lambda datum: named[node](datum)
            fields: list[tuple[str, Writer]] = []
            named[node] = lambda datum: {name: write(value) for (name, write), value in zip(fields, datum, strict=True)}
            fields.extend((field.name, _compile_writer(field.node, named)) for field in node.fields)
            return named[node]
        case Primitive() | Enum():
            return lambda datum: datum


_NAMES: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _expected(what: str, value: Any) -> Mismatch:
    return Mismatch(f"must be {what}, is {_spelled(value)}")


def _spelled(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number; Avro writes the string {json.dumps(name)}")

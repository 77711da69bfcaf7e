"""Avro's JSON encoding: JSON to a datum, strictly, and a datum to JSON. Also the defaults of a schema.

A datum is a value as `fastavro` reads and writes it: dict, list, str, bytes, int, float, bool, None. A union's value is
the pair (the name of its branch, {"value": datum}), see `datum`. Logical types do not show.

In a message a union's value is tagged with its branch, `{"string": "x"}`, null is plain, and a record has exactly its
fields. NaN and the infinities are the strings "NaN", "Infinity" and "-Infinity", as Java's Avro writes them. Bytes are
strings of the characters U+0000 to U+00FF.

In a default a union's value is plain, and a missing field has its own default. The default of a union belongs to the
first branch that it fits (specification 1.12). The default of a float or double is a number: "NaN" for `["double",
"string"]` is a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, Final

from pubsub_spark.schema.avro.schema_tree import INT, LONG, Array, Enum, Fixed, Map, Node, Record, Union, type_name
from pubsub_spark.schema.definition import Mismatch

# node, JSON value, whether unions are tagged -> datum
Reader = Callable[[Any, Any, bool], Any]

NOT_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAMES: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

_MAX_QUOTED_CHARACTERS: Final = 40  # of a value in an error message


def read_message(node: Node, data: bytes) -> Any:
    """Return the datum of a message. Raises Mismatch."""
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=no_constant)
        return _READERS[node.kind](node, value, True)
    except UnicodeDecodeError:
        raise Mismatch("is not valid UTF-8") from None
    except RecursionError:
        raise Mismatch("is nested too deeply") from None
    except Mismatch:
        raise
    except ValueError as error:
        raise Mismatch(f"is not JSON: {error}") from None


def write_message(node: Node, datum: Any) -> bytes:
    return json.dumps(_written(node, datum), ensure_ascii=False, separators=(",", ":")).encode()


def read_default(node: Node, declared: Any) -> Any:
    """Return the datum of a default in a schema. Raises Mismatch if it does not fit."""
    return _READERS[node.kind](node, declared, False)


def quoted(node: Node, datum: Any) -> str:
    """Return a datum as in a message, for an error message: its beginning if it is long."""
    return shortened(_written(node, datum))


def no_constant(name: str) -> float:
    """Refuse `NaN` and the infinities, which Python's `json` reads."""
    raise ValueError(f"{name} is not a JSON number. Avro writes the string {json.dumps(name)}")


def branch_name(union: Union, index: int) -> str:
    """Return the name of the record that a union's branch is for fastavro."""
    return f"union{union.number}_{index}"


def _plain(wanted: str, fits: Callable[[Any], bool]) -> Reader:
    def read(_: Node, value: Any, __: bool) -> Any:
        if not fits(value):
            raise _expected(wanted, value)
        return value

    return read


def _integer(bounds: tuple[int, int]) -> Callable[[Any], bool]:
    least, most = bounds
    return lambda value: type(value) is int and least <= value <= most


def _number(_: Node, value: Any, tagged: bool) -> float:
    if type(value) is float:
        return value
    if tagged and type(value) is str and value in NOT_NUMBERS:
        return NOT_NUMBERS[value]
    if type(value) is not int:
        raise _expected("a number", value)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _string(_: Node, value: Any, __: bool) -> str:
    if type(value) is not str:
        raise _expected("a string", value)
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Mismatch("has half of a surrogate pair in its string") from None
    return value


def _bytes(node: Node, value: Any, _: bool) -> bytes:
    if type(value) is not str:
        raise _expected("a string that stands for bytes", value)
    try:
        data = value.encode("iso-8859-1")
    except UnicodeEncodeError:
        raise Mismatch("is a string that stands for bytes but has a character above U+00FF") from None
    if isinstance(node, Fixed) and len(data) != node.size:
        raise Mismatch(f"must have {node.size} bytes, has {len(data)}")
    return data


def _enum(node: Enum, value: Any, _: bool) -> str:
    if type(value) is not str or value not in node.symbols:
        raise _expected(f"a symbol of enum `{node.name}`", value)
    return value


def _array(node: Array, value: Any, tagged: bool) -> list[Any]:
    if type(value) is not list:
        raise _expected("an array", value)
    items, read = node.items, _READERS[node.items.kind]
    datum: list[Any] = []
    try:
        for item in value:
            datum.append(read(items, item, tagged))  # noqa: PERF401 (its length is where an item failed)
    except Mismatch as mismatch:
        raise mismatch.inside(f"[{len(datum)}]") from None
    return datum


def _map(node: Map, value: Any, tagged: bool) -> dict[str, Any]:
    if type(value) is not dict:
        raise _expected("an object", value)
    values, read = node.values, _READERS[node.values.kind]
    datum: dict[str, Any] = {}
    key = ""
    try:
        for key, item in value.items():
            datum[_string(values, key, tagged)] = read(values, item, tagged)
    except Mismatch as mismatch:
        raise mismatch.inside(f"[{key!r}]") from None
    return datum


def _record(node: Record, value: Any, tagged: bool) -> dict[str, Any]:
    if type(value) is not dict:
        raise _expected(f"an object, the record `{node.name}`", value)
    datum = {}
    name = ""
    try:
        for field in node.fields:
            name = field.name
            if name in value:
                datum[name] = _READERS[field.node.kind](field.node, value[name], tagged)
            elif field.has_default and not tagged:
                datum[name] = field.default
            else:
                raise Mismatch("is missing")
    except Mismatch as mismatch:
        raise mismatch.inside(f".{name}") from None
    if tagged and len(value) > len(datum):
        raise Mismatch(f"has the unknown field `{next(key for key in value if key not in datum)}`")
    return datum


def _union(node: Union, value: Any, tagged: bool) -> tuple[str, dict[str, Any]]:
    if not tagged:
        return _first_that_fits(node, value)
    tag, inner = next(iter(value.items())) if type(value) is dict and len(value) == 1 else (None, value)
    for index, branch in enumerate(node.branches):
        if (value is None) if branch.kind == "null" else tag == type_name(branch):
            return branch_name(node, index), {"value": _READERS[branch.kind](branch, inner, True)}
    tags = ", ".join(type_name(branch) for branch in node.branches if branch.kind != "null")
    null = "null or " if any(branch.kind == "null" for branch in node.branches) else ""
    raise _expected(f"{null}an object tagged with one of {tags}", value)


def _first_that_fits(node: Union, value: Any) -> tuple[str, dict[str, Any]]:
    for index, branch in enumerate(node.branches):
        try:
            return branch_name(node, index), {"value": _READERS[branch.kind](branch, value, False)}
        except Mismatch:
            continue
    raise _expected("a value of one of the union's branches", value)


_READERS: Final[dict[str, Reader]] = {
    "null": _plain("null", lambda value: value is None),
    "boolean": _plain("true or false", lambda value: type(value) is bool),
    "int": _plain("a 32-bit integer", _integer(INT)),
    "long": _plain("a 64-bit integer", _integer(LONG)),
    "float": _number,
    "double": _number,
    "string": _string,
    "bytes": _bytes,
    "fixed": _bytes,
    "enum": _enum,
    "array": _array,
    "map": _map,
    "record": _record,
    "union": _union,
}


def _written(node: Node, datum: Any) -> Any:
    write = _WRITERS.get(node.kind)
    return write(node, datum) if write else datum


def _written_union(node: Union, datum: Any) -> Any:
    branch = node.branches[int(datum[0].rpartition("_")[2])]
    value = datum[1]["value"]
    return None if value is None else {type_name(branch): _written(branch, value)}


_WRITERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(("float", "double"), lambda _, datum: datum if math.isfinite(datum) else _NAMES[str(datum)]),
    **dict.fromkeys(("bytes", "fixed"), lambda _, datum: datum.decode("iso-8859-1")),
    "array": lambda node, datum: [_written(node.items, item) for item in datum],
    "map": lambda node, datum: {key: _written(node.values, item) for key, item in datum.items()},
    "record": lambda node, datum: {field.name: _written(field.node, datum[field.name]) for field in node.fields},
    "union": _written_union,
}


def _expected(form: str, value: Any) -> Mismatch:
    return Mismatch(f"must be {form}, is {shortened(value)}")


def shortened(value: Any) -> str:
    """Return a value as JSON, for an error message: its beginning if it is long."""
    text = json.dumps(value)
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else f"{text[: _MAX_QUOTED_CHARACTERS - 3]}..."

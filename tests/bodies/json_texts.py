"""JSON texts by the grammar of RFC 8259, and texts that break it, as the value of a field.

Each text is the value of a field of many types. Protobuf's own `json_format` is the judge of Protocol Buffers, the
specification's table of Avro's JSON encoding that of Avro, and the grammar is the judge of both: a text that breaks it
is refused. All texts are read alone and together in one batch: a text must not change the outcome of another one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from google.protobuf import json_format

from pubsub_spark.codec.registry import codec_of
from pubsub_spark.schema import schema_types
from pubsub_spark.schema.definition import InvalidMessage
from tests.bodies.count import Count

# number = [ minus ] int [ frac ] [ exp ]
_INTS = ("0", "-0", "1", "-1", "12", "2147483647", "2147483648", "-2147483648", "-2147483649", "4294967296")
_LONGS = ("9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551615", "1" * 30)
_FRACTIONS = ("", ".0", ".5", ".000", ".123456789012345678")
_EXPONENTS = ("", "e0", "E2", "e+1", "E-1", "e-400", "e400", "e19")
_NUMBERS = [*map("".join, itertools.product((*_INTS, *_LONGS), _FRACTIONS, _EXPONENTS))]
_NO_NUMBERS = (
    "01", "-01", "00", "+1", ".5", "-.5", "1.", "1.e1", "1e", "1e+", "1E", "0x1", "0b1", "1_000", "1,000", "--1", "-",
    "- 1", "1 2", "1 e1", "Infinity", "-Infinity", "NaN", "inf", "nan", "1f", "1L", "\uff11", "\u0661", "1.2.3",
)  # fmt: skip
# char = unescaped / escape
_ESCAPES = (*'"\\/bfnrt', "u0041", "u00e4", "u00E4", "u0000", "u001f", "u2028", "ud83d\\ude80", "uFFFF")
_STRINGS = [
    '""', '"a"', '"A"', '" "', '"1"', '"-1"', '"1.5"', '"true"', '"null"', '"NaN"', '"Infinity"', '"-Infinity"',
    '"\u00e4"', '"\u20ac"', '"\U0001f680"', '"\u007f\u0080"', '"\u2028\u2029"', '"\ufeff"', '"YQ=="', '"YQ"', '"a-_"',
    '"2020-01-01T00:00:00Z"', '"1s"', '"9223372036854775808"', f'"{"x" * 300}"',
    *(f'"{escape}"' for escape in (f"\\{each}" for each in _ESCAPES)),
    *(f'"b\\{each}c"' for each in _ESCAPES),
    r'"\ud800"', r'"\udc00\ud800"', r'"\ud83dx"',
]  # fmt: skip
_NO_STRINGS = [
    '"', '"a', "a", "'a'", '"a"b', '"a" "b"', '"\\', '"\\"', r'"\x41"', r'"\u12"', r'"\u12g4"', r'"\u{41}"', r'"\'"',
    r'"\a"', r'"\0"', '"\\\n"', "\u201ca\u201d", "`a`", *(f'"{chr(code)}"' for code in range(32)),
]  # fmt: skip
_LITERALS = ["true", "false", "null"]
_NO_LITERALS = [
    "True",
    "TRUE",
    "nul",
    "nulll",
    "tru",
    "None",
    "undefined",
    "//",
    "/**/1",
    "1//",
    "#",
    "",
    " ",
    "true 1",
]
_INNER = ["1", '"a"', "null", "true", "1.5", "[]", "{}"]
_ARRAYS = [
    "[]",
    "[ ]",
    *(f"[{a}]" for a in _INNER),
    *(f"[{a},{b}]" for a, b in itertools.product(_INNER, _INNER)),
    "[[1]]",
]
_OBJECTS = [
    "{}", "{ }", '{"":1}', '{"a":1,"a":2}', '{"a":1,"b":"x"}', '{"\\u0061":1}', '{"string":"a"}', '{"int":1}',
    '{"@type":"x"}', *(f'{{"a":{a}}}' for a in _INNER), *(f'{{"x":{a}}}' for a in _INNER),
]  # fmt: skip
_NO_STRUCTURES = [
    "[", "]", "[1", "1]", "[1,]", "[,1]", "[,]", "[1,,2]", "[1 2]", "[1;2]", "(1)", "[1}", "{", "}", "{]", '{"a"}',
    '{"a":}', '{"a" 1}', '{"a"=1}', "{a:1}", "{'a':1}", '{"a":1,}', '{,"a":1}', '{"a":1 "b":2}', '{"a":1,,"b":2}',
    "{1:2}", "{null:1}", '{"a":1}}', "[1]]", "[" * 50, '{"a":' * 50, "[1]/**/", "[1,//\n2]", "[\u00a01]", "[\x0b1]",
    "[\x0c1]", "\ufeff1", "[1\u2003]",
]  # fmt: skip
_SPACES = [
    f"{a}{value}{b}"
    for value in ("1", '"a"', "[1 , 2]", '{ "a" : 1 }')
    for a, b in itertools.product(" \t\n\r", " \t\n\r")
]
VALUES = [*_NUMBERS, *_STRINGS, *_LITERALS, *_ARRAYS, *_OBJECTS, *_SPACES]
NO_VALUES = [*_NO_NUMBERS, *_NO_STRINGS, *_NO_LITERALS, *_NO_STRUCTURES]

_AVRO: list[Any] = [
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "enum", "name": "E", "symbols": ["a", "A"]},
    {"type": "fixed", "name": "F", "size": 1},
    {"type": "array", "items": "int"},
    {"type": "array", "items": "string"},
    {"type": "map", "values": "int"},
    ["null", "string"],
    ["int", "string"],
    {"type": "record", "name": "N", "fields": [{"name": "a", "type": "int"}]},
]
_PROTOBUF = [
    *(
        "bool",
        "int32",
        "int64",
        "uint32",
        "uint64",
        "sint64",
        "fixed32",
        "float",
        "double",
        "string",
        "bytes",
        "E",
        "N",
    ),
    *(
        "repeated int32",
        "repeated string",
        "repeated N",
        "map<string, int32>",
        "map<string, string>",
        "map<int32, bool>",
    ),
    *(f"google.protobuf.{name}" for name in ("Value", "Struct", "ListValue", "Timestamp", "Duration", "Int32Value")),
    *(f"google.protobuf.{name}" for name in ("StringValue", "BytesValue", "DoubleValue", "BoolValue", "FieldMask")),
]
_IMPORTS = ("struct", "timestamp", "duration", "wrappers", "field_mask")
_INFINITE = "a number in a `Value` beyond a double is malformed"


def count(whole: bool) -> Iterator[Count]:
    """Yield the counts of all texts for each type, or of every seventh."""
    texts = [*VALUES, *NO_VALUES][:: 1 if whole else 7]
    avro = Count("JSON texts by the grammar of RFC 8259 as fields of Avro", "the specification")
    for type_ in _AVRO:
        _of_avro(type_, texts, avro)
    yield avro
    protobuf = Count("JSON texts by the grammar of RFC 8259 as fields of Protocol Buffers", "google.protobuf")
    for field in _PROTOBUF:
        _of_protobuf(field, texts, protobuf)
    yield protobuf


def is_json(text: str) -> bool:
    """Return whether a text is JSON by the grammar."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


class _Number(str):
    """A number as it is written."""


def _of_avro(type_: Any, texts: list[str], counted: Count) -> None:
    definition = schema_types.parse("AVRO", json.dumps(_record(type_)))
    read = _reader("AVRO", definition)
    fields = [f'{{"f":{text}}}' for text in texts]
    for text, (alone, together) in zip(fields, read(fields), strict=True):
        expected = is_json(text) and _fits(type_, json.loads(text, parse_int=_Number, parse_float=_Number)["f"])
        counted.check(expected == _accepts(definition, text) == alone[0] and alone == together, (type_, text, alone))


def _record(type_: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": type_}]}


def _is_integer(value: Any, bits: int) -> bool:
    if not isinstance(value, _Number) or set(value) & set(".eE"):
        return False
    return -(1 << bits - 1) <= int(value) < 1 << bits - 1


def _fits(type_: Any, value: Any) -> bool:
    """Return whether a JSON value is one of a type, by the specification's "JSON Encoding"."""
    is_text = isinstance(value, str) and not isinstance(value, _Number)
    match type_:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            return _is_integer(value, 32 if type_ == "int" else 64)
        case "float" | "double":
            return isinstance(value, _Number) or (is_text and value in ("NaN", "Infinity", "-Infinity"))
        case "bytes":
            return is_text and all(char <= "\u00ff" for char in value)
        case "string":
            return is_text and not any("\ud800" <= char <= "\udfff" for char in value)
        case {"type": "enum"}:
            return is_text and bool(value in type_["symbols"])
        case {"type": "fixed"}:
            return is_text and len(value) == type_["size"] and value <= "\u00ff"
        case {"type": "array"}:
            return isinstance(value, list) and all(_fits(type_["items"], each) for each in value)
        case {"type": "map"}:
            return isinstance(value, dict) and all(_fits(type_["values"], each) for each in value.values())
        case {"type": "record"}:
            return isinstance(value, dict) and [*value] == ["a"] and _fits("int", value["a"])
        case list():
            if value is None:
                return "null" in type_
            return isinstance(value, dict) and len(value) == 1 and any(b in value and _fits(b, value[b]) for b in type_)
    raise AssertionError(type_)


def _of_protobuf(field: str, texts: list[str], counted: Count) -> None:
    nested = "enum E { a = 0; b = 1; } message N { int32 a = 1; string b = 2; }"
    imports = "".join(f'import "google/protobuf/{name}.proto";' for name in _IMPORTS)
    text = f'syntax = "proto3"; {imports} message M {{ {nested} {field} f = 1; }}'
    definition: Any = schema_types.parse("PROTOCOL_BUFFER", text)
    read = _reader("PROTOCOL_BUFFER", definition)
    fields = [f'{{"f":{text}}}' for text in texts]
    for text, (alone, together) in zip(fields, read(fields), strict=True):
        expected = _judged(definition, text) if is_json(text) else None
        try:
            found = definition.read(text.encode(errors="surrogatepass"), "JSON")
        except InvalidMessage:
            found = None
        case = (field, text, str(expected), str(found), alone)
        if found is None and "number_value: inf" in str(expected).replace("-", ""):
            counted.differences[_INFINITE] += 1
        else:
            counted.check(expected == found and alone == together, case)


def _judged(definition: Any, text: str) -> Any:
    """Return the message of a text by google.protobuf, or None if that refuses it."""
    message = definition.message_class()
    try:
        json_format.Parse(text, message)
        message.SerializeToString()
    except Exception:  # of a text: also RecursionError and UnicodeEncodeError
        return None
    return message


def _reader(kind: Any, definition: Any) -> Callable[[list[str]], Iterator[tuple[Any, Any]]]:
    decode = codec_of(kind).decoder(definition, definition, "JSON")

    def outcomes(texts: list[bytes]) -> list[tuple[bool, Any]]:
        rows, reasons = decode(pa.array(texts, pa.binary()))
        return [(reason is None, repr(row)) for row, reason in zip(rows, reasons.to_pylist(), strict=True)]

    def read(texts: list[str]) -> Iterator[tuple[Any, Any]]:
        """Yield the outcome of each text alone, and among all."""
        data = [text.encode(errors="surrogatepass") for text in texts]
        return zip((outcomes([each])[0] for each in data), outcomes(data), strict=True)

    return read


def _accepts(definition: Any, text: str) -> bool:
    try:
        definition.validate(text.encode(errors="surrogatepass"), "JSON")
    except InvalidMessage:
        return False
    return True

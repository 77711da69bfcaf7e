"""Avro schemas of the structure of Apache Avro's and fastavro's own tests, and messages of them.

The texts are ours. They try the same cases as `test_schema.py`, `test_io.py` and `schema-tests.txt` of Apache Avro and
`test_schema.py`, `test_fastavro.py` and `test_json.py` of fastavro. VALID and INVALID follow the specification (1.12),
and Java's Avro for names. Messages of the valid ones are made, written and read back by fastavro.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.utils import generate_many

from pubsub_spark.codec.registry import codec_of
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema import schema_types
from pubsub_spark.schema.definition import Encoding, InvalidMessage, InvalidSchema
from tests.bodies.count import Count
from tests.properties.avro_strategies import without_logical

_NAMED = ("record", "error", "enum", "fixed")
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    """Return a record of fields: whole ones, or types, which get names."""
    named = [field if _is_field(field) else {"name": f"f{place}", "type": field} for place, field in enumerate(fields)]
    return {"type": "record", "name": name, "fields": named, **more}


def _is_field(declared: Any) -> bool:
    return isinstance(declared, dict) and "name" in declared and declared.get("type") not in _NAMED


def enum(*symbols: Any, name: Any = "E", **more: Any) -> dict[str, Any]:
    """Return an enum."""
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(size: Any, name: Any = "F", **more: Any) -> dict[str, Any]:
    """Return a fixed."""
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any, **more: Any) -> dict[str, Any]:
    """Return an array."""
    return {"type": "array", "items": items, **more}


def mapping(values: Any, **more: Any) -> dict[str, Any]:
    """Return a map."""
    return {"type": "map", "values": values, **more}


def logical(type_: str, name: str, **more: Any) -> dict[str, Any]:
    """Return a logical type."""
    return {"type": type_, "logicalType": name, **more}


def with_default(type_: Any, default: Any) -> dict[str, Any]:
    """Return a record of one field with a default."""
    return record({"name": "d", "type": type_, "default": default})


_DEFAULTS: list[tuple[Any, list[Any], list[Any]]] = [  # a type, valid defaults, invalid ones
    ("null", [None], ["", 0]),
    ("boolean", [True, False], [0, "true", None]),
    ("int", [0, -(2**31), 2**31 - 1], [2**31, -(2**31) - 1, "1", None, 1.5]),
    ("long", [0, 2**63 - 1, -(2**63)], [2**63, "1", None]),
    ("float", [0, 1.5, -2], ["1.5", None, True]),
    ("double", [0, 1e300, -2], ["1.5", None, []]),
    ("string", ["", "\u00e4\U0001f680"], [0, None, ["a"]]),
    ("bytes", ["", "\u00ff\u0000"], [0, None, "\u0100"]),
    (enum("A", "B"), ["A", "B"], ["C", 0, None]),
    (fixed(2), ["ab", "\u00ff\u0000"], ["a", "abc", 0, "\u0100a"]),
    (array("int"), [[], [1, 2]], [{}, ["a"], None, 1]),
    (mapping("int"), [{}, {"a": 1}], [[], {"a": "b"}, None]),
    (record("int", name="Inner"), [{"f0": 1}], [{}, {"f0": "a"}, None]),
    (record({"name": "a", "type": "int", "default": 3}, "string", name="Inner"), [{"f1": "x"}], [{"a": 1}]),
    (["null", "int"], [None], []),
    (["int", "null"], [1], []),
    (["string", "int"], ["a"], []),
    (logical("int", "date"), [0, -1], ["2020-01-01"]),
    (logical("bytes", "decimal", precision=4, scale=2), ["\u0001"], [1.5]),
]
_INTEROP = record(
    "int",
    "long",
    "string",
    "boolean",
    "float",
    "double",
    "bytes",
    "null",
    array("double"),
    mapping(record({"name": "label", "type": "string"}, name="Foo")),
    ["boolean", "double", array("bytes")],
    enum("A", "B", "C", name="Kind"),
    fixed(16, name="MD5"),
    record({"name": "label", "type": "string"}, {"name": "children", "type": array("Node")}, name="Node"),
    name="Interop",
    namespace="org.example",
)
_HANDSHAKE = record(
    {"name": "match", "type": enum("BOTH", "CLIENT", "NONE", name="HandshakeMatch")},
    {"name": "serverProtocol", "type": ["null", "string"]},
    {"name": "serverHash", "type": ["null", fixed(16, name="MD5")]},
    {"name": "meta", "type": ["null", mapping("bytes")]},
    name="HandshakeResponse",
    namespace="org.example.ipc",
)
VALID: list[Any] = [
    *_PRIMITIVES,
    *({"type": each} for each in _PRIMITIVES),
    *(record(each) for each in _PRIMITIVES),
    *(array(each) for each in _PRIMITIVES),
    *(mapping(each) for each in _PRIMITIVES),
    *([each] for each in _PRIMITIVES),
    *(["null", each] for each in _PRIMITIVES[1:]),
    *([each, "null"] for each in _PRIMITIVES[1:]),
    fixed(1),
    fixed(0),
    fixed(700),
    fixed(4, name="My", namespace="org.example.hacks"),
    fixed(4, name="org.example.hacks.My"),
    fixed(4, aliases=["Old", "org.example.Older"]),
    enum("A"),
    enum("A", "B", "_c", "D1"),
    enum("A", "B", default="A"),
    enum("A", "B", namespace="x.y", doc="two", aliases=["Old"]),
    array(enum("A", "B")),
    array(array(array("long"))),
    array(record("int")),
    array(mapping(array("string"))),
    array(["null", "int", "string"]),
    mapping(enum("A", "B")),
    mapping(mapping("long")),
    mapping(record("int", "string")),
    mapping(["null", "double"]),
    ["string", "null", "long"],
    ["null", enum("A"), fixed(2), record("int")],
    ["null", array("int"), mapping("int"), "int"],
    [record("int", name="A"), record("int", name="B")],
    [fixed(1, name="A"), fixed(1, name="B")],
    [enum("A", name="X"), enum("A", name="Y")],
    [logical("int", "date"), "string"],
    ["int", "long", "float", "double"],
    [],
    record(),
    record("int", name="a.b.C"),
    record("int", namespace="a.b"),
    record("int", name="C", namespace=""),
    record("int", name="a.C", namespace="ignored"),
    record("int", aliases=["Old"], doc="a record", namespace="a"),
    record({"name": "a", "type": "int", "doc": "d", "aliases": ["b"], "order": "ignore"}),
    *(record({"name": "a", "type": "int", "order": order}) for order in ("ascending", "descending", "ignore")),
    record({"name": "a", "type": "int", "extra": {"deep": [1, None]}}, other="kept"),
    record({"name": "a", "type": enum("A")}, {"name": "b", "type": "E"}, {"name": "c", "type": array("E")}),
    record({"name": "a", "type": fixed(3)}, {"name": "b", "type": ["null", "F"]}),
    record({"name": "a", "type": record("int", name="Inner")}, {"name": "b", "type": "Inner"}),
    record({"name": "a", "type": record("int", name="Inner", namespace="other")}, {"name": "b", "type": "other.Inner"}),
    record({"name": "a", "type": record("int", name="Inner")}, {"name": "b", "type": "n.Inner"}, namespace="n"),
    record(
        {"name": "a", "type": record({"name": "b", "type": enum("A")}, name="x.Inner")}, {"name": "c", "type": "x.E"}
    ),
    record({"name": "next", "type": ["null", "R"]}, {"name": "value", "type": "int"}),
    record({"name": "children", "type": array("R")}),
    record({"name": "named", "type": mapping("R")}),
    record({"name": "car", "type": ["null", "string", record("Lisp", name="Cons")]}, name="Lisp"),
    {"type": "error", "name": "Err", "fields": [{"name": "message", "type": "string"}]},
    _INTEROP,
    _HANDSHAKE,
    record(*(fixed(size, name=f"F{size}") for size in range(6))),
    record(*({"name": f"n{place}", "type": ["null", "string"], "default": None} for place in range(60))),
    logical("int", "date"),
    logical("int", "time-millis"),
    logical("long", "time-micros"),
    logical("long", "timestamp-millis"),
    logical("long", "timestamp-micros"),
    logical("long", "local-timestamp-millis"),
    logical("long", "local-timestamp-micros"),
    logical("string", "uuid"),
    logical("bytes", "decimal", precision=4, scale=2),
    logical("bytes", "decimal", precision=4),
    logical("bytes", "decimal", precision=38, scale=38),
    fixed(8, logicalType="decimal", precision=18, scale=2),
    fixed(12, logicalType="duration"),
    # A logical type that does not fit is ignored: these are the types below them.
    logical("bytes", "decimal", precision=2, scale=4),
    logical("bytes", "decimal"),
    logical("bytes", "decimal", precision=0),
    logical("bytes", "decimal", precision=-1),
    logical("bytes", "decimal", precision="4"),
    logical("bytes", "decimal", precision=4, scale=-2),
    logical("bytes", "decimal", precision=4, scale="2"),
    fixed(1, logicalType="decimal", precision=30),
    logical("long", "date"),
    logical("int", "timestamp-millis"),
    logical("string", "decimal", precision=4),
    logical("int", "unheard-of"),
    fixed(11, logicalType="duration"),
    record({"name": "a", "type": "long", "logicalType": "timestamp-millis"}),
    *(with_default(type_, default) for type_, defaults, _ in _DEFAULTS for default in defaults),
    with_default(["null", "int"], 1),
    with_default(["null", "string", "int"], "x"),
    # Names that the specification does not have and Java's Avro accepts, so that a topic can have them.
    fixed(4, name="a..b"),
    *(fixed(4, namespace=namespace) for namespace in (None, ".x", "a-b", "com.acme$Inner", "1", "été")),
    record({"name": "höhe", "type": "int"}, name="Größe"),
    enum("ä", "日本", name="É"),
    record({"name": "a", "type": fixed(2, namespace=None)}, {"name": "b", "type": "n.F"}, namespace="n"),
]
INVALID: list[Any] = [
    "True",
    "Int",
    "",
    {},
    {"no_type": "int"},
    {"type": "panther"},
    {"type": ["int", "panther"]},
    {"type": 3},
    True,
    1,
    None,
    fixed(1, name=None),
    fixed(None),
    fixed("314"),
    fixed(-1),
    fixed(1.5),
    {"type": "fixed", "size": 4},
    {"type": "fixed", "name": "NoSize"},
    fixed(4, name=""),
    fixed(4, name="1st"),
    fixed(4, name="a-b"),
    {"type": "enum", "name": "E"},
    {"type": "enum", "symbols": ["A"]},
    enum("A", name=None),
    enum("A", name=["E"]),
    enum("A", "A"),
    enum("A", ""),
    enum("A", 1),
    enum("A", None),
    enum("A", "a-b"),
    enum("A", "1a"),
    enum("A", "a.b"),
    enum("A", default="B"),
    {"type": "enum", "name": "E", "symbols": "AB"},
    {"type": "enum", "name": "E", "symbols": {"A": 0}},
    {"type": "array"},
    {"type": "array", "values": "int"},
    {"type": "map"},
    {"type": "map", "items": "int"},
    array("Unknown"),
    mapping("Unknown"),
    ["null", "null"],
    ["long", "long"],
    [array("long"), array("string")],
    [mapping("long"), mapping("string")],
    ["int", ["null", "string"]],
    ["null", ["null"]],
    [fixed(1), fixed(1)],
    [record("int"), record("int")],
    ["string", logical("string", "uuid")],
    {"type": "record", "name": "R"},
    {"type": "record", "fields": []},
    {"type": "record", "name": "R", "fields": {}},
    {"type": "record", "name": "R", "fields": "a"},
    {"type": "record", "name": "R", "fields": [{"name": "a"}]},
    {"type": "record", "name": "R", "fields": [{"type": "int"}]},
    {"type": "record", "name": "R", "fields": ["int"]},
    {"type": "record", "name": "R", "fields": [{"name": 1, "type": "int"}]},
    record({"name": "a", "type": "int"}, {"name": "a", "type": "long"}),
    record({"name": "1a", "type": "int"}),
    record({"name": "a-b", "type": "int"}),
    record({"name": "", "type": "int"}),
    record({"name": "a", "type": "Unknown"}),
    record({"name": "a", "type": "Later"}, {"name": "b", "type": fixed(2, name="Later")}),
    record({"name": "a", "type": fixed(2)}, {"name": "b", "type": fixed(2)}),
    record({"name": "a", "type": record("int", name="R")}),
    record("int", name="int"),
    record("int", name="a b"),
    record("int", name="1a"),
    record({"name": "a", "type": record("int", name="Inner", namespace="other")}, {"name": "b", "type": "Inner"}),
    *(with_default(type_, default) for type_, _, defaults in _DEFAULTS for default in defaults),
    with_default(["null", "int"], "x"),
    with_default("double", float("nan")),
    with_default("float", float("-inf")),
    *(record({"name": "a", "type": "int", "order": order}) for order in ("bogus", "", None, 1, ["ignore"])),
]
# Documented in docs/types.md.
_NO_COLUMN = "a recursive record or a decimal of more than 38 digits is refused as a column"
BEYOND = "a decimal, date or timestamp beyond Spark's range is malformed"
BEYOND_WORDS = ("digits", "no bytes", "beyond Spark's range")  # the reason has one of them


def count(whole: bool) -> Iterator[Count]:
    """Yield the counts of the schemas and their messages."""
    yield _schemas()
    yield from _messages(30 if whole else 3)


def _parsed(declared: Any) -> Any:
    return schema_types.parse("AVRO", json.dumps(declared))


def _schemas() -> Count:
    counted = Count(
        "Avro schemas of the structure of Apache Avro's and fastavro's tests",
        "the specification, for names Java's Avro",
    )
    for declared, is_valid in [*((each, True) for each in VALID), *((each, False) for each in INVALID)]:
        try:
            _parsed(declared)
            accepted = True
        except InvalidSchema:
            accepted = False
        counted.check(accepted == is_valid, f"{'valid' if is_valid else 'invalid'}: {json.dumps(declared)[:300]}")
    return counted


def _messages(number: int) -> Iterator[Count]:
    binary = Count("messages of them: bytes validated, decoded and encoded again", "fastavro")
    texts = Count("messages of them: JSON validated, decoded and encoded again", "fastavro")
    for place, declared in enumerate(VALID):
        random.seed(place)  # fastavro draws from it
        try:
            parsed = fastavro.parse_schema(without_logical(json.loads(json.dumps(declared))))
            values = list(generate_many(parsed, number))
        except (fastavro.schema.SchemaParseException, ValueError, RecursionError):
            binary.left_out += number  # fastavro does not know the schema, or makes no end of a message
            texts.left_out += number
            continue
        _of_schema(_parsed(declared), parsed, values, binary, texts)
    yield binary
    yield texts


def _of_schema(definition: Any, parsed: Any, values: list[Any], binary: Count, texts: Count) -> None:
    data = [_written(parsed, value) for value in values]
    try:
        json_data = [_text(parsed, value) for value in values]
    except Exception:  # fastavro fails on a record without fields, with an exception of no class
        json_data = []
        texts.left_out += len(values)
    codec = codec_of("AVRO")
    try:
        codec.value_type(definition)
    except SchemaError:
        _validate(definition, data, "BINARY", binary)
        _validate(definition, json_data, "JSON", texts)
        return
    rows, reasons = codec.decoder(definition, definition, "BINARY")(pa.array(data, pa.binary()))
    _and_back(definition, parsed, data, rows, reasons, "BINARY", binary)
    found, reasons = codec.decoder(definition, definition, "JSON")(pa.array(json_data, pa.binary()))
    for row, json_row, text in zip(rows, found, json_data, strict=False):
        if row != json_row:
            texts.check(False, ("another row", definition.text, text))
    _and_back(definition, parsed, json_data, found, reasons, "JSON", texts)


def _validate(definition: Any, messages: list[bytes], encoding: Encoding, counted: Count) -> None:
    for message in messages:
        if _accepts(definition, message, encoding):
            counted.differences[_NO_COLUMN] += 1
        else:
            counted.check(False, ("refused", definition.text, message))


def _and_back(
    definition: Any,
    parsed: Any,
    messages: list[bytes],
    rows: pa.Array,
    reasons: pa.Array,
    encoding: Encoding,
    counted: Count,
) -> None:
    """Check that fastavro reads the same values from the encoded rows as from the messages."""
    encode = codec_of("AVRO").encoder(definition, encoding, rows.type, False)
    again = iter(encode(rows.filter(reasons.is_null())).to_pylist())
    read_again = rewritten if encoding == "BINARY" else read_text
    for message, reason in zip(messages, reasons.to_pylist(), strict=True):
        if reason is None:
            agrees = _accepts(definition, message, encoding) and read_again(parsed, message) == read_again(
                parsed, next(again)
            )
            counted.check(agrees, (definition.text, message))
        elif any(word in reason for word in BEYOND_WORDS):
            counted.differences[BEYOND] += 1
        else:
            counted.check(False, (reason, definition.text, message))


def _accepts(definition: Any, message: bytes, encoding: Encoding) -> bool:
    try:
        definition.validate(message, encoding)
    except InvalidMessage:
        return False
    return True


def _written(parsed: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, value)
    return out.getvalue()


def _text(parsed: Any, value: Any) -> bytes:
    out = io.StringIO()
    fastavro.json_writer(out, parsed, [value])
    return out.getvalue().encode()


def read(parsed: Any, message: bytes) -> Any:
    """Return the value that fastavro reads."""
    return fastavro.schemaless_reader(io.BytesIO(message), parsed, None)


def rewritten(parsed: Any, message: bytes) -> bytes:
    """Return the value that fastavro reads, as it writes it: of a union it drops the branch."""
    return _written(parsed, read(parsed, message))


def read_text(parsed: Any, text: bytes) -> bytes:
    """Return the value that fastavro reads of a text, as bytes: a number of a `float` may have more digits in text."""
    [value] = fastavro.json_reader(io.StringIO(text.decode()), parsed)
    return _written(parsed, value)

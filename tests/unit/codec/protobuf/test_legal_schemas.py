"""The features of legal schemas in decode, encode and validation, with google.protobuf as the reference."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format

from pubsub_spark.codec import protobuf as codec
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.compiled_protobuf import CompiledSchema
from pubsub_spark.schema.definition import Encoding, InvalidMessage, InvalidSchema
from pubsub_spark.schema.protobuf import parse
from pubsub_spark.schema.protobuf.protoc import compile_text
from tests.unit.codec.protobuf.definitions import proto3

_KEYS = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), (-(2**31), 2**31 - 1)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), (-(2**63), 2**63 - 1)),
    **dict.fromkeys(("uint32", "fixed32"), (0, 2**32 - 1)),
    **dict.fromkeys(("uint64", "fixed64"), (0, 2**64 - 1)),
    "bool": (False, True),
    "string": ("", "é"),
}
_MAPS = " ".join(f"map<{key}, string> m_{key} = {number};" for number, key in enumerate(_KEYS, 1))
_JSON_OF_MAPS = {
    f"m{key.capitalize()}": {str(each).lower() if key == "bool" else str(each): "x" for each in ends}
    for key, ends in _KEYS.items()
}
_SIGNED: dict[Any, int] = {2**32 - 1: -1, 2**64 - 1: -1}  # Spark has no unsigned numbers
_ROW_OF_MAPS = {
    f"m_{key}": [(_SIGNED.get(each, each) if "u" in key or key.startswith("f") else each, "x") for each in ends]
    for key, ends in _KEYS.items()
}
# situation: (definition, JSON of a message, its row)
SCHEMAS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "maps with keys of every type": (proto3(_MAPS), _JSON_OF_MAPS, _ROW_OF_MAPS),
    "an enum with aliases": (
        proto3(
            "enum E { option allow_alias = true; A = 0; B = -1; C = -1; } "
            "E e = 1; repeated E es = 2; map<string, E> m = 3;"
        ),
        {"e": "C", "es": ["C", "A", "B"], "m": {"k": "C"}},
        {"e": "B", "es": ["B", "A", "B"], "m": [("k", "B")]},
    ),
    "optional in proto3": (
        proto3(
            "enum E { A = 0; } message N { optional bool b = 1; } optional int32 i = 1; optional string s = 2; "
            "optional E e = 3; optional N n = 4; optional double d = 5; optional N none = 6; optional int32 no = 7;"
        ),
        {"i": 0, "s": "", "e": "A", "n": {"b": False}, "d": 0},
        {"i": 0, "s": "", "e": "A", "n": {"b": False}, "d": 0.0, "none": None, "no": None},
    ),
    "a oneof of every kind": (
        proto3(
            "enum E { A = 0; } message N2 { int32 z = 1; } "
            "message N { oneof c { int64 i = 1; E e = 2; bytes r = 3; N2 n = 4; } } "
            "repeated N ns = 1; oneof d { N one = 2; string s = 3; }"
        ),
        {"ns": [{"i": "0"}, {"e": "A"}, {"r": ""}, {"n": {}}, {}], "s": ""},
        {
            "ns": [
                dict.fromkeys("iern") | each for each in ({"i": 0}, {"e": "A"}, {"r": b""}, {"n": {"z": 0}}, {})
            ],
            "one": None,
            "s": "",
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
@pytest.mark.parametrize("situation", SCHEMAS)
def test_a_message_is_validated_read_and_written(situation, encoding: Encoding):
    """Alone and among many, the row and the written message equal those of google.protobuf."""
    text, fields, expected = SCHEMAS[situation]
    definition = parse(text)
    message = json_format.ParseDict(fields, definition.message_class())
    data = message.SerializeToString() if encoding == "BINARY" else json.dumps(fields).encode()

    assert message == definition.read(data, encoding)
    for count in (1, 50):
        assert definition.first_invalid([data] * count, encoding) is None
        assert count == definition.first_invalid([data] * count + [b"\xff"], encoding)
        rows, error = codec.decoder(definition, definition, encoding)(pa.array([data] * count, pa.binary()))
        assert count == error.null_count
        read = {name: sorted(row) if name.startswith("m_") else row for name, row in rows[-1].as_py().items()}
        assert {n: sorted(row) if n.startswith("m_") else row for n, row in expected.items()} == read
        written = codec.encoder(definition, encoding, rows.type, False)(rows).to_pylist()
        assert message == definition.read(written[-1], encoding)


@pytest.mark.parametrize(
    ("situation", "text"),
    [
        ("maps with keys of every type", '{"mInt32": {"2147483648": "x"}}'),
        ("maps with keys of every type", '{"mInt64": {"x": "x"}}'),
        ("maps with keys of every type", '{"mFixed32": {"-1": "x"}}'),
        ("maps with keys of every type", '{"mBool": {"True": "x"}}'),
        ("maps with keys of every type", '{"mString": {"k": null}}'),
        ("an enum with aliases", '{"e": "D"}'),
        ("optional in proto3", '{"n": {"b": 0}}'),
        ("a oneof of every kind", '{"one": {}, "s": ""}'),
        ("a oneof of every kind", '{"ns": [{"i": 1, "e": "A"}]}'),
    ],
)
def test_json_that_google_refuses_is_refused(situation, text):
    """Validation refuses the JSON, and so does decoding it as a row. The neighbours are read."""
    definition = parse(SCHEMAS[situation][0])
    with pytest.raises(json_format.ParseError):
        json_format.Parse(text, definition.message_class())

    with pytest.raises(InvalidMessage):
        definition.validate(text.encode(), "JSON")
    _, error = codec.decoder(definition, definition, "JSON")(pa.array([b"{}", text.encode(), b"{}"], pa.binary()))
    assert [True, False, True] == error.is_null().to_pylist()


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
def test_a_message_that_contains_itself_is_validated(encoding: Encoding):
    """A message may contain itself directly, in lists, in maps or through another message, as deep as protobuf reads. A
    column of it is refused.
    """
    definition = parse(
        proto3(
            "message N { M back = 1; } string name = 1; M next = 2; repeated M many = 3; map<bool, M> by = 4; N n = 5;"
        )
    )
    leaf = definition.message_class(name="x")
    message = definition.message_class(next=leaf, many=[leaf, leaf], by={True: leaf}, n={"back": leaf})
    deep, too_deep = definition.message_class(), definition.message_class()
    for whole, levels in ((deep, 90), (too_deep, 110)):
        inner = whole
        for _ in range(levels):
            inner = inner.next
        inner.name = "x"

    def data(of: Any) -> bytes:
        text: str = json_format.MessageToJson(of)
        return text.encode() if encoding == "JSON" else of.SerializeToString()

    assert [message, deep] == [definition.read(data(each), encoding) for each in (message, deep)]
    assert definition.first_invalid([data(message), data(deep)], encoding) is None
    assert 1 == definition.first_invalid([data(message), data(too_deep)], encoding)
    with pytest.raises(InvalidMessage, match=r"nested|too deep"):
        definition.validate(data(too_deep), encoding)
    with pytest.raises(SchemaError, match="contain itself"):
        codec.value_type(definition)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('edition = "2023"; message M { int32 a = 1; }', "an edition, and Pub/Sub knows"),
        ('/* " */ edition = "2024"; message M { int32 a = 1; }', "an edition, and Pub/Sub knows"),
        ('syntax = "proto2"; message M { optional group G = 1 { optional int32 a = 1; } }', "`M.g` is a group"),
        ('syntax = "proto2"; message M { message N { repeated group G = 1 {} } }', "`M.N.g` is a group"),
    ],
)
def test_groups_and_editions_are_refused_by_name(text, sentence):
    """Groups and editions are refused as text and as a compiled schema. Pub/Sub's schemas do not have them."""
    with pytest.raises(InvalidSchema, match=sentence):
        parse(text)
    if "group" in text:
        with pytest.raises(InvalidSchema, match=sentence):
            parse(CompiledSchema("M", compile_text(text).SerializeToString()).text())

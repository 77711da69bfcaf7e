"""Protocol Buffers payloads in the JSON encoding: the forms of the mapping, read and written, and what has none."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.json_format import MessageToJson

from pubsub_spark.codec.protobuf.codec import decoder, encoder, value_type
from pubsub_spark.codec.protobuf.json_text import JsonWriter
from pubsub_spark.errors import DataError
from pubsub_spark.schema.protobuf import parse
from tests.unit.codec.protobuf.definitions import proto2, proto3, read


def test_json_has_the_forms_of_the_mapping():
    """All forms of the JSON mapping are read: both spellings, numbers in strings, base64, enum numbers."""
    text = proto3(
        "int64 big_number = 1; bytes b = 2; enum E { A = 0; B = 1; } repeated E es = 3; "
        "google.protobuf.Timestamp t = 4; google.protobuf.Duration d = 5; google.protobuf.BoolValue w = 6; "
        "google.protobuf.Struct s = 7; map<int32, string> m = 8; double x = 9; google.protobuf.FieldMask f = 10;"
    )
    row = {
        "big_number": 2**63 - 1,
        "b": b"\xff\xfe",
        "es": ["B", "B", "UNKNOWN_ENUM_VALUE_E_7"],
        "t": dt.datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=dt.UTC),
        "d": dt.timedelta(seconds=-1, microseconds=-500_000),
        "w": {"value": True},
        "s": '{"a": [1.0, null]}',
        "m": [(-1, "x")],
        "x": float("-inf"),
        "f": {"paths": ["a.b_c", "d"]},
    }
    payload = (
        b'{"bigNumber": "9223372036854775807", "b": "//4=", "es": ["B", 1, 7], "t": "2024-02-29T12:00:00.123456Z", '
        b'"d": "-1.5s", "w": true, "s": {"a": [1, null]}, "m": {"-1": "x"}, "x": "-Infinity", "f": "a.bC,d"}'
    )

    assert [row, row] == read(text, payload, payload.replace(b"bigNumber", b"big_number"), encoding="JSON")


@pytest.mark.parametrize(
    ("body", "text", "row"),
    [
        ("float f = 1;", b'{"f": 3.4028235e38}', {"f": 3.4028234663852886e38}),
        ("M f = 1; int32 i = 2;", b'{"i": "3"}', None),
        ("int32 snake_case = 1; int32 i = 2;", b'{"snakeCase": null, "i": 1e2}', {"snake_case": 0, "i": 100}),
        ("oneof c { int32 a = 1; int32 b = 2; }", b'{"a": 1, "b": null}', {"a": 1, "b": None}),
        ("google.protobuf.Value f = 1;", b'{"f": null}', {"f": "null"}),
        ("map<bool, string> f = 1;", b'{"f": {"true": "x"}}', {"f": [(True, "x")]}),
        (
            "google.protobuf.Timestamp f = 1;",
            b'{"f": "1970-01-01T01:00:00+01:00"}',
            {"f": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)},
        ),
    ],
)
def test_json_in_usual_and_unusual_forms(body, text, row):
    """JSON in the common forms is read by the compiled reader, in any other by json_format."""
    definition = parse(proto3(body))
    if row is None:
        assert 3 == getattr(definition.json_reader.read(text), "i")  # noqa: B009 (its class is made at run time)
    else:
        assert [row] == read(definition.text, text, encoding="JSON")


def test_json_that_does_not_fit_says_why():
    """JSON that does not fit has its reason row by row, whatever the schema requires of the others."""
    rows = read(proto2("required int32 a = 1;"), b'{"a": 1}', b"{}", b'{"a": "x"}', b"\xff", b"", encoding="JSON")

    assert {"a": 1} == rows[0]
    assert "Field `a` is required and missing" == rows[1]
    assert rows[2].startswith("The message does not fit: Failed to parse")
    assert "The message is not valid UTF-8, and JSON is" == rows[3]
    assert "The message is not a JSON object" == rows[4]


def test_a_map_has_the_same_order_each_time():
    """Rows of a batch are the same however often it is read."""
    definition = parse(proto3("map<string, int32> m = 1;"))
    message: Any = definition.message_class(m={f"k{n}": n for n in range(50)})
    shuffled: Any = definition.message_class(m={f"k{n}": n for n in reversed(range(50))})

    one, other = read(definition.text, message.SerializeToString(), shuffled.SerializeToString())

    assert one == other


def test_json_is_that_of_the_mapping():
    """JSON has names in camel case, 64-bit numbers in strings, times as text, and no defaults."""
    definition = parse(
        proto3(
            "int64 big_number = 1; google.protobuf.Timestamp at = 2; enum E { A = 0; B = 1; } E e = 3; string s = 4;"
        )
    )
    rows = pa.array(
        [{"big_number": 2**60, "at": dt.datetime(2024, 1, 1, 0, 0, 0, 1000, tzinfo=dt.UTC), "e": "B", "s": ""}, {}],
        value_type(definition),
    )

    full, empty = encoder(definition, "JSON", rows.type, False)(rows).to_pylist()

    assert {"bigNumber": "1152921504606846976", "at": "2024-01-01T00:00:00.001Z", "e": "B"} == json.loads(full)
    assert {} == json.loads(empty)


def written_as_json(text: str, **fields: Any) -> Any:
    """The JSON of a message, through its columns."""
    definition = parse(text)
    payload = definition.message_class(**fields).SerializeToString()
    rows, _ = decoder(definition, definition, "BINARY")(pa.array([payload], pa.binary()))
    [written] = encoder(definition, "JSON", rows.type, False)(rows).to_pylist()
    return json.loads(written)


@pytest.mark.parametrize(
    ("field", "value", "written"),
    [
        ("int64 f = 1;", -5, "-5"),
        ("uint64 f = 1;", 2**64 - 1, "18446744073709551615"),
        ("fixed32 f = 1;", 7, 7),
        ("float f = 1;", 0.1, 0.1),
        ("float f = 1;", 3.4028234663852886e38, 3.4028234663852886e38),
        ("double f = 1;", float("-inf"), "-Infinity"),
        ("float f = 1;", float("nan"), "NaN"),
        ("bytes f = 1;", b"\xff\xfe", "//4="),
        ("string f = 1;", "€\n", "€\n"),
        ("enum E { A = 0; B = 1; } repeated E f = 1;", [1, 0], ["B", "A"]),
        ("map<bool, int64> f = 1;", {True: 1}, {"true": "1"}),
        ("map<uint32, bytes> f = 1;", {5: b""}, {"5": ""}),
        ("optional int32 f = 1;", 0, 0),
        ("N f = 1; message N { optional bool snake_case = 1; }", {"snake_case": False}, {"snakeCase": False}),
        ("google.protobuf.Duration f = 1;", {"seconds": -1, "nanos": -500_000_000}, "-1.500s"),
    ],
)
def test_values_have_their_json_forms(field, value, written):
    """Numbers of 64 bits in strings, bytes in base64, what JSON has no number for in words."""
    assert {"f": written} == written_as_json(proto3(field), f=value)


@pytest.mark.parametrize("kind", ["Timestamp", "Duration"])
@pytest.mark.parametrize("fields", ["int64 seconds = 1; int32 nanos = 2;", "int64 seconds = 7; int32 nanos = 3;"])
def test_a_message_of_the_shape_of_a_time_is_an_object_in_json(kind, fields):
    """A message of the user's own that Spark takes for a time keeps its fields: only Google's own are texts in JSON."""
    text = proto3(f"message {kind} {{ {fields} }} repeated {kind} f = 1; map<string, {kind}> g = 2;")
    time = {"seconds": 5, "nanos": 7_000}

    written = {"seconds": "5", "nanos": 7_000}
    assert {"f": [written], "g": {"a": written}} == written_as_json(text, f=[time], g={"a": time})


def test_a_value_without_a_json_form_names_its_row():
    """The error for a value without a JSON form, an Any of unknown type, names its row."""
    definition = parse(
        'syntax = "proto3"; import "google/protobuf/any.proto"; message M { google.protobuf.Any f = 1; }'
    )
    rows = pa.array([{"f": None}, {"f": {"type_url": "x/y", "value": b"z"}}], value_type(definition))

    with pytest.raises(DataError, match=r"^Row 1: the row has no JSON form: "):
        encoder(definition, "JSON", rows.type, False)(rows)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"t": {"seconds": 0, "nanos": 0}, "d": -0.0, "f": 0.1},
        {"t": {"seconds": -62_135_596_800, "nanos": 1}, "d": float("nan"), "f": float("-inf")},
        {"t": {"seconds": 253_402_300_799, "nanos": 999_999_000}, "o": 0, "b": b"\xff", "s": 'é"\n'},
        {"t": {"seconds": -1, "nanos": 120_000_000}, "m": {True: "x"}, "r": [0, 2, 7], "u": 2**64 - 1},
    ],
)
def test_the_text_of_json_is_that_of_json_format(fields):
    """Field by field the text that `json_format` writes on one line."""
    definition = parse(
        """syntax = "proto3"; import "google/protobuf/timestamp.proto";
        message M {
          enum E { A = 0; B = 2; }
          google.protobuf.Timestamp t = 9; double d = 2; float f = 3; optional int32 o = 4; bytes b = 5; string s = 6;
          map<bool, string> m = 7; repeated E r = 8; uint64 u = 1;
        }"""
    )
    message: Any = definition.message_class(**fields)

    assert MessageToJson(message, indent=None).encode() == JsonWriter(definition.message_class).write(message)

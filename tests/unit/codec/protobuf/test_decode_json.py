"""Protocol Buffers payloads in the JSON encoding as columns: the forms of the mapping, and what does not fit."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from pubsub_spark.codec.protobuf import parse
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
    json = (
        b'{"bigNumber": "9223372036854775807", "b": "//4=", "es": ["B", 1, 7], "t": "2024-02-29T12:00:00.123456Z", '
        b'"d": "-1.5s", "w": true, "s": {"a": [1, null]}, "m": {"-1": "x"}, "x": "-Infinity", "f": "a.bC,d"}'
    )

    assert [row, row] == read(text, json, json.replace(b"bigNumber", b"big_number"), encoding="JSON")


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

"""Malformed Protocol Buffers payloads: the reason in place of each row, and the neighbouring rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pubsub_spark.codec.protobuf.decode import BLOCK_ROWS, ProtobufDecoder
from pubsub_spark.schema.protobuf import parse
from tests.unit.codec.protobuf.definitions import proto2, proto3, read


@pytest.mark.parametrize(
    ("body", "payload", "sentence"),
    [
        ("string s = 1;", b"\x0a\x02\xff\xfe", "Field `s` is not valid UTF-8"),
        (
            "message N { map<string, string> m = 2; } N n = 1;",
            b"\x0a\x05\x12\x03\x12\x01\xff",
            "Field `n.m.value` is not valid UTF-8",
        ),
        ("google.protobuf.Timestamp t = 1;", b"\x0a\x0a\x08" + b"\xff" * 8 + b"\x7f", "Field `t` is out of range: "),
        (
            "message N { google.protobuf.Duration d = 1; } repeated N ns = 1;",
            b"\x0a\x0c\x0a\x0a\x08" + b"\xff" * 8 + b"\x7f",
            "Field `ns[].d` is out of range: ",
        ),
        ("repeated double d = 1;", b"\x0a\x07\x00\x00\x00\x00\x00\x00\x00", "Field `d` has 7 bytes of packed values"),
        ("int32 i = 1;", b"\x12\xf6\xff\xff\xff\xff\xff\xff\xff\xff\x01", "The message breaks off"),
        ("int32 i = 1;", b"\x88\x80\x80\x80\x80\x80\x01\x01", "The message has no valid field number at byte 0"),
        ("google.protobuf.Value v = 1;", b"\x0a\x09\x11\x00\x00\x00\x00\x00\x00\xf0\x7f", "Field `v` has no JSON form"),
        ("int32 i = 1;", b"\x13" * 100 + b"\x14" * 100, "The message is nested too deeply"),
        ("int32 i = 1;", b"\x13" * 101 + b"\x14" * 101, "The message is nested deeper than 100 levels"),
        ("int32 i = 1;", b"\x13" * 100_000, "The message is nested deeper than 100 levels"),
    ],
)
def test_a_payload_without_a_row_says_why(body, payload, sentence):
    """A payload without a row has a reason. The rows before and after it are decoded."""
    good, reason, also_good = read(proto3(body), b"", payload, b"")

    assert good == also_good
    assert isinstance(good, dict)
    assert str(reason).startswith(sentence)


def test_text_must_be_utf8_in_proto2_as_well():
    """protobuf accepts text that is not UTF-8, but a string column cannot hold it."""
    assert ["Field `s` is not valid UTF-8", {"s": "x"}] == read(
        proto2("optional string s = 1;"), b"\x0a\x01\xff", b"\x0a\x01x"
    )


def test_required_fields_are_required():
    """A payload without a required field, at any depth, has a reason. An empty payload also has one."""
    text = proto2("required int32 a = 1; message N { required string x = 1; } repeated N ns = 2;")

    assert [
        {"a": 1, "ns": [{"x": ""}]},
        "Field `a` is required and missing",
        "Field `ns[0].x` is required and missing",
    ] == read(text, b"\x08\x01\x12\x02\x0a\x00", b"", b"\x08\x01\x12\x00")


class Counting(ProtobufDecoder):
    """A decoder that counts the payloads that it checks one by one."""

    looked_at = 0

    def _parse_error(self, payload: bytes) -> str:
        self.looked_at += 1
        return super()._parse_error(payload)


def test_a_bad_payload_leaves_its_neighbours_on_the_fast_path():
    """Of a hundred thousand payloads, only the bad one is checked alone."""
    count, bad = 100_000, 54_321
    payloads = [b"\x08\x05"] * count
    payloads[bad] = b"\x08"
    decoder = Counting(parse(proto3("int32 i = 1;")))

    value, error = decoder.decode(pa.array(payloads, pa.binary()))

    assert count > 6 * BLOCK_ROWS
    assert 1 == decoder.looked_at
    assert "Field `i` breaks off in a number at byte 1" == error[bad].as_py()
    assert (1, count - 1) == (value.null_count, error.null_count)
    assert 5 * (count - 1) == sum(row["i"] for row in value.to_pylist() if row)


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_bad_payloads_anywhere_are_replaced_by_reasons(syntax):
    """Bad payloads are found anywhere in the parts that are parsed at once, among messages whose length takes one to
    three bytes.
    """
    sizes = [0, 1, 127, 128, 16_383, 16_384, 20_000]
    good = [b"\x08\x05" + _bytes_field(b"x" * sizes[row % len(sizes)]) for row in range(211)]
    bad = {row: payload for row, payload in enumerate(good) if row % 7 == 3 or row in (0, 15, 16, 31, 32, 33, 210)}
    damaged = {row: (payload[:1], b"\xff", b"\x10\x01\x08")[row % 3] for row, payload in bad.items()}
    label = "required" if syntax == "proto2" else ""
    definition = parse(f'syntax = "{syntax}"; message M {{ {label} int32 i = 1; {label} bytes b = 2; }}')

    rows = read(definition.text, *[damaged.get(row, payload) for row, payload in enumerate(good)])

    assert list(bad) == [row for row, value in enumerate(rows) if isinstance(value, str)]
    assert [rows[row] for row in bad] == [read(definition.text, payload)[0] for payload in damaged.values()]
    assert [{"i": 5, "b": b"x" * sizes[row % len(sizes)]} for row in range(211) if row not in bad] == [
        value for value in rows if isinstance(value, dict)
    ]


def _bytes_field(value: bytes) -> bytes:
    length = len(value)
    encoded = bytearray()
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return b"\x12" + bytes([*encoded, length]) + value


def test_nothing_but_bad_payloads_is_as_many_reasons():
    """A block of bad payloads alone has a reason for each. No row is lost or added."""
    rows = read(proto3("int32 i = 1;"), *[b"\x08"] * 2000)

    assert ["Field `i` breaks off in a number at byte 1"] * 2000 == rows


@pytest.mark.parametrize(
    "field", ["repeated float f = 1;", "map<string, int32> f = 1;", "google.protobuf.Duration f = 1;"]
)
def test_a_reason_is_text_whatever_it_quotes(field):
    """Half of a surrogate pair, allowed in JSON and not in UTF-8, is escaped where the reason quotes it."""
    [reason, other] = read(proto3(field), b'{"f": "\\ud800"}', b"{}", encoding="JSON")

    assert r"\ud800" in reason
    assert "f" in other

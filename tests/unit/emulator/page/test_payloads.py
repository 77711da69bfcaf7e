"""Payloads as text: by schema, as JSON, as text, as bytes. Long ones are cut."""

from __future__ import annotations

import json

from pubsub_spark.emulator.page.payloads import SchemaOfMessage, shown
from pubsub_spark.schema import schema_types

AVRO = schema_types.parse("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}')
SCHEMA = SchemaOfMessage("24d6fc25", AVRO, "BINARY")


def test_payload_is_decoded_by_its_schema():
    """A binary message is shown as JSON, with the revision that it fits."""
    found = shown(b"\x04hi", SCHEMA)

    assert {"a": "hi"} == json.loads(found.text)
    assert ("AVRO, BINARY, revision 24d6fc25", '{ "a": "hi" }') == (found.kind, found.preview)


def test_payload_that_does_not_fit_is_shown_as_it_is():
    """A payload that the schema refuses is shown as text or bytes, with the reason."""
    found = shown(b"\x04h", SCHEMA)

    assert ("04 68", "2 bytes") == (found.text, found.kind)
    assert "ends" in found.problem or "`a`" in found.problem


def test_payload_that_is_nested_deeply_is_shown_as_it_is():
    """A message of two hundred levels fits the schema, but as JSON it exceeds Python's recursion limit."""
    text = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}'
    schema = SCHEMA._replace(definition=schema_types.parse("AVRO", text))

    found = shown(b"\x02" * 200 + b"\0", schema)

    assert "it is nested too deeply to be shown as JSON" == found.problem


def test_payload_without_schema():
    """JSON is indented, text is text, and anything else is hexadecimal."""
    assert ("JSON", '{\n  "a": 1\n}') == (shown(b'{"a":1}', None).kind, shown(b'{"a":1}', None).text)
    assert ("text", "grüß\ndich") == (shown("grüß\ndich".encode(), None).kind, shown("grüß\ndich".encode(), None).text)
    assert ("2 bytes", "ff 00") == (shown(b"\xff\0", None).kind, shown(b"\xff\0", None).text)
    assert ("text", "[not json") == (shown(b"[not json", None).kind, shown(b"[not json", None).text)
    assert ("text", "") == (shown(b"", None).kind, shown(b"", None).preview)


def test_long_payloads_are_cut():
    """Ten megabytes cost the page ten thousand characters."""
    for data in (b"x" * 10_000_000, b"\xff" * 10_000_000, b"[" * 10_000_000):
        found = shown(data, SCHEMA)
        assert len(found.text) < 10_100
        assert "10,000,000" in found.text
        assert len(found.preview) <= 121

"""Payloads as a person reads them: decoded by the schema that they were published with, or else as JSON, text or bytes.

Pure. A long payload is cut. A payload that cannot be decoded is shown as it is, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.protobuf import json_format

from pubsub_spark.emulator.state.schema_store import Schemas
from pubsub_spark.schema.definition import Definition, Encoding, InvalidMessage

_MAX_CHARACTERS = 10_000  # of one payload, and a page has dozens
_MAX_DECODED_BYTES = 100_000  # a longer one would take longer to decode than a page should
_MAX_SHOWN_BYTES = 512  # of bytes that are not text
_PREVIEW_CHARACTERS = 120
_NAME, _REVISION, _ENCODING = (f"googclient_schema{suffix}" for suffix in ("name", "revisionid", "encoding"))
SCHEMA_MARK = _NAME.encode()  # in the bytes of a message that has a schema
SCHEMA_NAMES = frozenset({_NAME, _REVISION, _ENCODING})  # the attributes that name the schema of a message


class Payload(NamedTuple):
    """`problem` is the reason if the schema of the payload could not be used."""

    text: str
    kind: str
    problem: str = ""

    @property
    def preview(self) -> str:
        line = " ".join(self.text[: 4 * _PREVIEW_CHARACTERS].split())
        return line if len(line) <= _PREVIEW_CHARACTERS else f"{line[:_PREVIEW_CHARACTERS]}…"


class SchemaOfMessage(NamedTuple):
    revision: str
    definition: Definition
    encoding: Encoding


def schema_of(attributes: Mapping[str, str], schemas: Schemas) -> SchemaOfMessage | None:
    """Return None if the attributes name no schema or it is deleted."""
    schema = schemas.get(attributes.get(_NAME, ""))
    revision = schema and schema.find(attributes.get(_REVISION, ""))
    if not revision:
        return None
    encoding: Encoding = "JSON" if attributes.get(_ENCODING) == "JSON" else "BINARY"
    return SchemaOfMessage(revision.id, revision.definition, encoding)


def shown(data: bytes, schema: SchemaOfMessage | None) -> Payload:
    if schema is None or len(data) > _MAX_DECODED_BYTES:
        return _plain(data)
    kind = f"{schema.definition.type}, {schema.encoding}, revision {schema.revision}"
    try:
        return Payload(_cut(_indented(decoded(data, schema))), kind)
    except (InvalidMessage, ValueError) as problem:
        return _plain(data)._replace(problem=str(problem))
    except RecursionError:
        return _plain(data)._replace(problem="it is nested too deeply to be shown as JSON")


def decoded(data: bytes, schema: SchemaOfMessage) -> Any:
    """Raise InvalidMessage if the data does not fit the schema."""
    definition: Any = schema.definition
    definition.validate(data, schema.encoding)
    if schema.encoding == "JSON":
        return json.loads(data)
    if definition.type == "AVRO":
        from pubsub_spark.schema.avro import json_encoding

        return json.loads(json_encoding.write_message(definition.root, definition.datum.read(data)))
    message = definition.json_class.FromString(data)
    pool = definition.json_pool
    return json_format.MessageToDict(message, always_print_fields_with_no_presence=True, descriptor_pool=pool)


def _plain(data: bytes) -> Payload:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Payload(_hexadecimal(data), f"{len(data):,} bytes")
    if not text.isprintable() and any(char < " " and char not in "\t\r\n" for char in text[:_MAX_CHARACTERS]):
        return Payload(_hexadecimal(data), f"{len(data):,} bytes")
    if text[:1] in ("{", "[") and len(data) <= _MAX_DECODED_BYTES:
        try:
            return Payload(_cut(_indented(json.loads(text))), "JSON")
        except (ValueError, RecursionError):
            pass
    return Payload(_cut(text), "text")


def _hexadecimal(data: bytes) -> str:
    text = data[:_MAX_SHOWN_BYTES].hex(" ")
    return text if len(data) <= _MAX_SHOWN_BYTES else f"{text} … ({len(data):,} bytes)"


def _indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _cut(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    return f"{text[:_MAX_CHARACTERS]}… ({len(text):,} characters)"

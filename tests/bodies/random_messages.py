"""Schemas and messages that hypothesis makes up, there and back, against google.protobuf and fastavro.

Their messages are decoded, and encoded again for them to read, as bytes and as JSON. Their JSON is decoded to the same
rows. hypothesis draws the same examples in each run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import json_format
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pubsub_spark.codec.registry import codec_of
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema import schema_types
from pubsub_spark.schema.definition import Encoding
from pubsub_spark.schema.protobuf.descriptors import is_repeated
from tests.bodies import avro_schemas
from tests.bodies.count import Count
from tests.properties import avro_strategies, protobuf_strategies

_DROPPED = "a message without fields has no column, so that its presence is not written back"
_SHORTER = "a decimal is written back in as few bytes as it needs"
_DEFAULT = "an absent field with a default is read as the default, and written"


def count(whole: bool) -> Iterator[Count]:
    """Yield the counts of random schemas of each type."""
    examples = 1000 if whole else 25
    yield _drawn(Count("random Avro schemas and messages", "fastavro"), examples, _avro(), _of_avro)
    yield _drawn(
        Count("random Protocol Buffers schemas and messages", "google.protobuf"),
        examples,
        protobuf_strategies.schemas_and_messages(),
        _of_protobuf,
    )


def _drawn(
    counted: Count, examples: int, strategy: st.SearchStrategy[Any], check: Callable[[Any, Any, Count], None]
) -> Count:
    """Return the count after some examples of a strategy."""

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(drawn: tuple[Any, Any]) -> None:
        check(*drawn, counted)

    run()
    return counted


@st.composite
def _avro(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    declared = draw(avro_strategies.schemas(least=1))
    return declared, draw(st.lists(avro_strategies.values(declared), min_size=1, max_size=8))


def _of_avro(declared: Any, values: list[Any], counted: Count) -> None:
    plain = fastavro.parse_schema(avro_strategies.without_logical(declared))
    logical = fastavro.parse_schema(declared)
    definition, codec = schema_types.parse("AVRO", json.dumps(declared)), codec_of("AVRO")
    data = [avro_strategies.written(declared, value) for value in values]
    rows, reasons = codec.decoder(definition, definition, "BINARY")(pa.array(data, pa.binary()))
    readable = reasons.is_null()
    written = {
        encoding: iter(codec.encoder(definition, encoding, rows.type, False)(rows.filter(readable)).to_pylist())
        for encoding in ("BINARY", "JSON")
    }
    for message, reason in zip(data, reasons.to_pylist(), strict=True):
        if reason is not None:
            if any(word in reason for word in avro_schemas.BEYOND_WORDS):
                counted.differences[avro_schemas.BEYOND] += 1
            else:
                counted.check(False, (reason, declared, message))
            continue
        expected = avro_schemas.read(plain, message)
        binary, text = next(written["BINARY"]), next(written["JSON"])
        agrees = expected == avro_schemas.read(plain, binary)
        is_same_text = _same_text(definition, plain, text, binary)
        if is_same_text and not agrees and avro_schemas.read(logical, message) == avro_schemas.read(logical, binary):
            counted.differences[_SHORTER] += 1
        else:
            counted.check(agrees and is_same_text, (declared, message, binary, text))


def _same_text(definition: Any, plain: Any, text: bytes, binary: bytes) -> bool:
    """Return whether fastavro reads the same of text and bytes. Its JSON has no infinity, so our codec reads that."""
    if b"Infinity" in text:
        codec = codec_of("AVRO")
        json_rows, _ = codec.decoder(definition, definition, "JSON")(pa.array([text], pa.binary()))
        rows, _ = codec.decoder(definition, definition, "BINARY")(pa.array([binary], pa.binary()))
        return bool(rows == json_rows)
    return avro_schemas.read_text(plain, text) == avro_schemas.rewritten(plain, binary)


def _of_protobuf(definition: Any, messages: list[Any], counted: Count) -> None:
    codec = codec_of("PROTOCOL_BUFFER")
    try:
        type_ = codec.value_type(definition)
        encoders = [codec.encoder(definition, encoding, type_, False) for encoding in ("BINARY", "JSON")]
    except SchemaError:  # a required message without fields can be read and not written
        counted.left_out += len(messages)
        return
    data: dict[Encoding, list[bytes]] = {
        "BINARY": [message.SerializeToString() for message in messages],
        "JSON": [json_format.MessageToJson(message).encode() for message in messages],
    }
    [binary_rows, json_rows], reasons = zip(
        *(codec.decoder(definition, definition, encoding)(pa.array(data[encoding], pa.binary())) for encoding in data),
        strict=True,
    )
    if any(each.null_count < len(each) for each in reasons) or binary_rows != json_rows:
        counted.unexplained += [f"{reasons} {definition.text} {data}"] * len(messages)
        return
    written = [encode(binary_rows).to_pylist() for encode in encoders]
    for message, binary, text in zip(messages, *written, strict=True):
        expected, whole = type(message)(), message.SerializeToString(deterministic=True)
        expected.CopyFrom(message)
        sentences = list(dict.fromkeys(_as_columns(expected, type_)))
        found = definition.message_class.FromString(binary), json_format.Parse(text, definition.message_class())
        if found != (expected, expected):
            counted.check(False, (definition.text, whole, binary, text))
        elif sentences:
            counted.differences[sentences[0]] += 1
        else:
            counted.check(True, None)


def _as_columns(message: Any, type_: pa.DataType) -> Iterator[str]:
    """Change a message to the values that its row can have, and yield the documented reason of each difference."""
    for field in message.DESCRIPTOR.fields:
        place = type_.get_field_index(field.name)
        if place < 0:
            if _is_set(message, field):
                message.ClearField(field.name)
                yield _DROPPED
            continue
        if field.has_default_value and not message.HasField(field.name):
            setattr(message, field.name, field.default_value)
            yield _DEFAULT
        if not _is_set(message, field) or field.message_type is None:
            continue
        inner, value = type_[place].type, getattr(message, field.name)
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is None:
                continue
            inner, value = inner.item_type, value.values()
        elif is_repeated(field):
            inner = inner.value_type
        else:
            value = [value]
        if pa.types.is_struct(inner):
            for each in value:
                yield from _as_columns(each, inner)


def _is_set(message: Any, field: Any) -> bool:
    return any(field.name == each.name for each, _ in message.ListFields())

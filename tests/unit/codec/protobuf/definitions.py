"""Definitions of one message, and the rows of its payloads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pubsub_spark.codec import protobuf as codec
from pubsub_spark.codec.protobuf.json import compile_reader
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.protobuf import ProtobufDefinition, parse

IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto"; '
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)


def proto3(body: str) -> str:
    return f'syntax = "proto3"; package p; {IMPORTS} message M {{ {body} }}'


def proto2(body: str) -> str:
    return f'syntax = "proto2"; package p; {IMPORTS} message M {{ {body} }}'


def read(text: str, *payloads: bytes, encoding: Encoding = "BINARY", writer: str | None = None) -> list[Any]:
    """Return the rows, with the reason in place of a row that could not be read."""
    value, error = codec.decoder(parse(writer or text), parse(text), encoding)(pa.array(payloads, pa.binary()))
    value.validate(full=True)
    pairs = zip(value.to_pylist(), error.to_pylist(), strict=True)
    return [row if reason is None else reason for row, reason in pairs]


def read_in_columns(definition: ProtobufDefinition, texts: list[bytes]) -> dict[int, bytes]:
    """Return the binary form of the texts that the plan reads, by their rows."""

    def exact(_: bytes) -> bytes:
        raise InvalidMessage("It is not in the common form")

    payloads, _ = compile_reader(definition)._replace(exact=exact).read(pa.array(texts, pa.binary()))
    return {row: payload for row, payload in enumerate(payloads.to_pylist()) if payload is not None}

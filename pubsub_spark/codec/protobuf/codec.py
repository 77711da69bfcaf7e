"""The codec of schema type PROTOCOL_BUFFER (`interface.Codec`): the type of column `value`, a decoder, an encoder."""

from __future__ import annotations

from typing import cast

import pyarrow as pa

from pubsub_spark.codec.interface import DecodeMessages, EncodeRows
from pubsub_spark.codec.protobuf.column_tree import build_column_tree
from pubsub_spark.codec.protobuf.decode import ProtobufDecoder
from pubsub_spark.codec.protobuf.encode import ProtobufEncoder
from pubsub_spark.codec.protobuf.types import struct_type
from pubsub_spark.schema.definition import Definition, Encoding
from pubsub_spark.schema.protobuf.definition import ProtobufDefinition

__all__ = ["decoder", "encoder", "value_type"]


def value_type(definition: Definition) -> pa.StructType:
    """Return the type of the column `value`. Raises SchemaError with the path of a type that Spark cannot hold."""
    return struct_type(build_column_tree(cast("ProtobufDefinition", definition).message))


def decoder(writer: Definition, reader: Definition, encoding: Encoding) -> DecodeMessages:
    """Return the function from messages to (values of the reader's type, reasons). One of them is null in each row."""
    return ProtobufDecoder(cast("ProtobufDefinition", reader), encoding, cast("ProtobufDefinition", writer)).decode


def encoder(definition: Definition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool) -> EncodeRows:
    """Return the function from rows to messages, which raises RowError if a row does not fit.

    Raises SchemaError if a column does not fit.
    """
    return ProtobufEncoder(cast("ProtobufDefinition", definition), encoding, source_type, ignore_extra).encode

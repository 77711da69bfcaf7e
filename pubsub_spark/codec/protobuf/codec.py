"""What `codec.registry` asks of a schema type, for Protocol Buffers: the type of `value`, a decoder, an encoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pyarrow as pa

from pubsub_spark.codec.definition import Definition, Encoding
from pubsub_spark.codec.protobuf.columns import Reader
from pubsub_spark.codec.protobuf.definition import ProtobufDefinition
from pubsub_spark.codec.protobuf.encode import Writer
from pubsub_spark.codec.protobuf.schema import columns_of
from pubsub_spark.codec.protobuf.types import struct_type

__all__ = ["decoder", "encoder", "value_type"]


def value_type(definition: Definition) -> pa.StructType:
    """The type of the column `value`; SchemaError with the path of what Spark cannot hold."""
    return struct_type(columns_of(cast("ProtobufDefinition", definition).message))


def decoder(
    writer: Definition, reader: Definition, encoding: Encoding
) -> Callable[[pa.BinaryArray], tuple[pa.StructArray, pa.StringArray]]:
    """From messages to (values of the reader's type, reasons): one of the two is null in each row."""
    columns = Reader(cast("ProtobufDefinition", reader))
    written = cast("ProtobufDefinition", writer)
    return lambda data: columns.read(data, encoding, written)


def encoder(
    definition: Definition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool
) -> Callable[[pa.StructArray], pa.BinaryArray]:
    """From rows to messages; SchemaError at once when a column does not fit, RowError when a row does not."""
    return Writer(cast("ProtobufDefinition", definition), encoding, source_type, ignore_extra).write

"""Protocol Buffers: binary and JSON messages to columns and back. The functions here are a `registry.Codec`.

types          a column's type in Arrow                        decode  payloads to columns
column_tree    a message's descriptor as a tree of columns     encode  columns to payloads
column_arrays  the arrays that ptars makes, as columns         json    the plans and writers of JSON messages
ptars_schema   the schema made for `ptars`
"""

from collections.abc import Callable

import pyarrow as pa

from pubsub_spark.codec.protobuf.column_tree import build_column_tree
from pubsub_spark.codec.protobuf.decode import ProtobufDecoder
from pubsub_spark.codec.protobuf.encode import ProtobufEncoder
from pubsub_spark.codec.protobuf.types import struct_type
from pubsub_spark.schema.definition import Encoding
from pubsub_spark.schema.protobuf import ProtobufDefinition

__all__ = ["decoder", "encoder", "value_type"]


def value_type(definition: ProtobufDefinition) -> pa.StructType:
    return struct_type(build_column_tree(definition.message))


def decoder(
    writer: ProtobufDefinition, reader: ProtobufDefinition, encoding: Encoding
) -> Callable[[pa.BinaryArray], tuple[pa.StructArray, pa.StringArray]]:
    return ProtobufDecoder(reader, encoding, writer).decode


def encoder(
    definition: ProtobufDefinition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool
) -> Callable[[pa.StructArray], pa.BinaryArray]:
    return ProtobufEncoder(definition, encoding, source_type, ignore_extra).encode

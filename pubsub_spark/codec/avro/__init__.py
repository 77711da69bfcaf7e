"""Avro: binary and JSON messages to columns, and columns to messages. The functions here are a `registry.Codec`.

types          a node's column, in Arrow                    decimals      decimals between Avro and Arrow
columns        all messages of a batch to Arrow             byte_columns  the buffers that messages are joined from
cursor_arrays  Arrow arrays of the values at cursors        encode        rows to messages
decode         columns, and a reason for the rest           json          the plans and writers of JSON messages
"""

from collections.abc import Callable

import pyarrow as pa

from pubsub_spark.bound import Bound
from pubsub_spark.codec.avro import types
from pubsub_spark.codec.avro.decode import AvroDecoder
from pubsub_spark.codec.avro.encode import compile_rows
from pubsub_spark.codec.avro.json import compile_writer
from pubsub_spark.schema.avro import AvroDefinition
from pubsub_spark.schema.definition import Encoding

__all__ = ["decoder", "encoder", "value_type"]

Encode = Callable[[pa.Array], pa.BinaryArray]

decoder = AvroDecoder


def value_type(definition: AvroDefinition) -> pa.StructType:
    return types.value_type(definition.root)


def encoder(definition: AvroDefinition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool) -> Encode:
    value_type(definition)
    binary = compile_rows(definition.root, source_type, ignore_extra)
    return Bound(_json_rows, compile_writer(definition), binary) if encoding == "JSON" else binary


def _json_rows(to_json: Encode, binary: Encode, rows: pa.StructArray) -> pa.BinaryArray:
    return to_json(binary(rows))

"""The functions that `codec.registry` calls for Avro: a column's type, a decoder, an encoder."""

from __future__ import annotations

import pyarrow as pa

from pubsub_spark.codec.avro import types
from pubsub_spark.codec.avro.decode import AvroDecoder
from pubsub_spark.codec.avro.encode import compile_rows
from pubsub_spark.codec.avro.json import compile_writer
from pubsub_spark.codec.interface import DecodeMessages, EncodeRows
from pubsub_spark.schema.avro.definition import AvroDefinition
from pubsub_spark.schema.definition import Definition, Encoding


def value_type(definition: Definition) -> pa.StructType:
    """The type of the column `value`; SchemaError with the path of what Spark cannot hold."""
    return types.value_type(_avro(definition).root)


def decoder(writer: Definition, reader: Definition, encoding: Encoding) -> DecodeMessages:
    """From messages to values and the reasons of those that have none."""
    return AvroDecoder(_avro(writer), _avro(reader), encoding)


def encoder(definition: Definition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool) -> EncodeRows:
    """From rows to messages; SchemaError at once with every column that does not fit, RowError when a row does not."""
    avro = _avro(definition)
    types.value_type(avro.root)
    binary = compile_rows(avro.root, source_type, ignore_extra)
    if encoding == "BINARY":
        return binary
    to_json = compile_writer(avro)
    return lambda rows: to_json(binary(rows))


def _avro(definition: Definition) -> AvroDefinition:
    assert isinstance(definition, AvroDefinition)
    return definition

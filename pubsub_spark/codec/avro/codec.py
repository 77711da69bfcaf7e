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
    """Return the type of the column `value`. Raises SchemaError with the path of a type that Spark cannot hold."""
    return types.value_type(_avro(definition).root)


def decoder(writer: Definition, reader: Definition, encoding: Encoding) -> DecodeMessages:
    """Return the function from messages to values, and to reasons for messages without one."""
    return AvroDecoder(_avro(writer), _avro(reader), encoding)


def encoder(definition: Definition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool) -> EncodeRows:
    """Return the function from rows to messages, which raises RowError if a row does not fit.

    Raises SchemaError with every column that does not fit.
    """
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

"""The registry of codecs: the decoders and encoders of a task, by schema revision and encoding.

`TopicSchema` is chosen once, on the driver, and travels to the tasks as plain values. A task's `Decoder` groups its
messages by revision, and decodes each group with a codec compiled for (that revision, the reader's, the encoding).
Parsed definitions and compiled codecs are kept for the life of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, get_args

import numpy as np
import pyarrow as pa

from pubsub_spark.errors import OptionsError, SchemaError
from pubsub_spark.schema.definition import Definition, Encoding, InvalidSchema
from pubsub_spark.schema.schema_types import SCHEMA_TYPES, SchemaType, parse

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["Decoded", "Decoder", "SchemaRevision", "TopicSchema", "codec_of"]

# Definitions, and decoders, cached per process: the revisions that a schema may have (20), times a few schemas and two
# encodings.
_CACHED_REVISIONS = 256

# From messages to (values, reasons): in each row one of the two is null
DecodeMessages = Callable[[pa.BinaryArray], tuple[pa.StructArray, pa.StringArray]]
# From rows to messages. Raises RowError with the row and the column that cannot be encoded
EncodeRows = Callable[[pa.StructArray], pa.BinaryArray]


class Codec(Protocol):
    """The interface of a schema type's package (`codec.avro`, `codec.protobuf`). `schema` parses the definitions."""

    def value_type(self, definition: Definition) -> pa.StructType:
        """Raises SchemaError for a type that Spark cannot hold."""

    def decoder(self, writer: Definition, reader: Definition, encoding: Encoding) -> DecodeMessages:
        """The values have the type of `reader`."""

    def encoder(
        self, definition: Definition, encoding: Encoding, source_type: pa.StructType, ignore_extra: bool
    ) -> EncodeRows:
        """Raises SchemaError with every column that does not fit."""


@dataclass(frozen=True)
class SchemaRevision:
    """One revision of a schema resource, as SchemaService returns it."""

    name: str
    revision_id: str
    type: SchemaType
    definition: str

    def __str__(self) -> str:
        return f"{self.name}@{self.revision_id}"

    def parsed(self) -> Definition:
        """Return the definition. Raises SchemaError, or OptionsError if this Python lacks the compiler."""
        try:
            return _parsed(self.type, self.definition)
        except InvalidSchema as error:
            raise SchemaError(f"The schema `{self}` cannot be parsed: {error}") from None
        except ModuleNotFoundError as error:  # which no decoder takes for a malformed message
            raise OptionsError(
                [f"the schema `{self}` cannot be compiled: {error} on the driver and all workers"]
            ) from None


@dataclass(frozen=True)
class TopicSchema:
    """The encoding of a topic's messages, and the revision for reading or writing."""

    encoding: Encoding
    reader: SchemaRevision

    def arrow_type(self) -> pa.StructType:
        """Return the type of the column `value`, as Spark's `to_arrow_schema(timezone="UTC")` does."""
        parsed = self.reader.parsed()
        try:
            return codec_of(self.reader.type).value_type(parsed)
        except SchemaError as error:
            raise SchemaError(f"The schema `{self.reader}` cannot be a column of Spark: {error}") from None

    def encoder(self, source_type: pa.StructType, ignore_extra: bool = False) -> EncodeRows:
        codec, definition = codec_of(self.reader.type), self.reader.parsed()
        try:
            return codec.encoder(definition, self.encoding, source_type, ignore_extra)
        except SchemaError as error:
            raise SchemaError(f"The columns do not fit the schema `{self.reader}`: {error}") from None

    def struct_type(self) -> StructType:
        from pubsub_spark.codec.spark_types import struct_type

        return struct_type(self.arrow_type())


class Decoded(NamedTuple):
    """The rows of messages: the value, or the reason for its absence, and the revision that wrote the message."""

    value: pa.StructArray
    revision: pa.StringArray
    error: pa.StringArray


class Decoder:
    """writer: the encoding and revision of messages whose attributes name none, by default the reader's."""

    def __init__(
        self, topic_schema: TopicSchema, fetch: Callable[[str], SchemaRevision], writer: TopicSchema | None = None
    ) -> None:
        self._topic_schema = topic_schema
        self._writer = writer or topic_schema
        self._type = topic_schema.arrow_type()
        self._fetch = fetch
        self._groups: dict[tuple[str, ...], DecodeMessages] = {}

    def decode(
        self,
        data: pa.BinaryArray,
        revisions: pa.StringArray,
        encodings: pa.StringArray,
        names: pa.StringArray | None = None,
    ) -> Decoded:
        """Decode each message by the revision and encoding in its attributes, else by those of `writer`.

        names: the schemas of the revisions, because the topic's schema may have been replaced meanwhile
        """
        writer = self._writer.reader
        revisions = revisions.fill_null(writer.revision_id)
        encodings = encodings.fill_null(self._writer.encoding)
        names = pa.repeat(writer.name, len(data)) if names is None else names.fill_null(writer.name)
        if data.null_count:
            data = data.fill_null(b"")
        values: list[pa.StructArray] = []
        errors: list[pa.StringArray] = []
        places: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        for group, group_rows in _groups(names, revisions, encodings):
            messages = data if len(group_rows) == len(data) else data.take(pa.array(group_rows))
            if group not in self._groups:
                self._groups[group] = self._compile(*group)
            value, error = self._groups[group](messages)
            values.append(value)
            errors.append(error)
            places.append(group_rows)
        if len(values) == 1:
            return Decoded(values[0], revisions, errors[0])
        order = pa.array(np.argsort(np.concatenate([np.zeros(0, np.int64), *places])))
        value = pa.concat_arrays([pa.nulls(0, self._type), *values]).take(order)
        error = pa.concat_arrays([pa.nulls(0, pa.string()), *errors]).take(order)
        return Decoded(value, revisions, error)

    def _compile(self, name: str, revision: str, encoding: str) -> DecodeMessages:
        """If a group of messages cannot be decoded, each row has the reason."""
        if encoding not in get_args(Encoding):
            return self._refusing(f"The message's encoding is `{encoding}`, which is neither BINARY nor JSON")
        reader = self._topic_schema.reader
        try:
            writer = self._revision(name, revision)
        except LookupError as error:
            return self._refusing(error.args[0] if error.args else f"The schema `{name}@{revision}` does not exist")
        if writer.type != reader.type:
            return self._refusing(
                f"The schema `{writer}` is {writer.type}, but the column was planned from {reader.type}"
            )
        try:
            writer.parsed()
        except SchemaError as error:
            return self._refusing(error)
        return _decode(reader.type, writer.definition, reader.definition, cast("Encoding", encoding))

    def _refusing(self, reason: object) -> DecodeMessages:
        return lambda data: (pa.nulls(len(data), self._type), pa.repeat(str(reason), len(data)))

    def _revision(self, name: str, revision_id: str) -> SchemaRevision:
        for known in (self._writer.reader, self._topic_schema.reader):
            if (name, revision_id) == (known.name, known.revision_id):
                return known
        return self._fetch(f"{name}@{revision_id}")


@lru_cache(_CACHED_REVISIONS)
def _parsed(type_: SchemaType, definition: str) -> Definition:
    return parse(type_, definition)


@lru_cache(_CACHED_REVISIONS)
def _decode(type_: SchemaType, writer: str, reader: str, encoding: Encoding) -> DecodeMessages:
    return codec_of(type_).decoder(_parsed(type_, writer), _parsed(type_, reader), encoding)


def codec_of(type_: SchemaType) -> Codec:
    return cast("Codec", import_module(f"pubsub_spark.codec.{SCHEMA_TYPES[type_].package}"))


def _groups(*columns: pa.StringArray) -> list[tuple[tuple[str, ...], np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Return groups with equal values in all columns: (the values, the rising indices)."""
    encoded = [column.dictionary_encode() for column in columns]
    sizes = [len(column.dictionary) for column in encoded]
    if all(size == 1 for size in sizes):
        return [(tuple(column.dictionary[0].as_py() for column in encoded), np.arange(len(columns[0])))]
    group = np.zeros(len(columns[0]), np.int64)
    for column, size in zip(encoded, sizes, strict=True):
        group = group * size + np.asarray(column.indices)
    groups = []
    for key in np.unique(group).tolist():
        rows = np.flatnonzero(group == key)
        groups.append((tuple(column[int(rows[0])].as_py() for column in encoded), rows))
    return groups

"""A parsed revision of an Avro schema, as `codec.definition` wants it: parse, validate, compare revisions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pubsub_spark.codec.avro import error_locator, json_encoding, schema_parser
from pubsub_spark.codec.avro.columns import ColumnReader, compile_columns
from pubsub_spark.codec.avro.compatibility import unreadable
from pubsub_spark.codec.avro.cursors import MIN_VECTORISED_ROWS
from pubsub_spark.codec.avro.json_columns import JsonReader, JsonWriter, compile_reader, compile_writer
from pubsub_spark.codec.avro.messages import Messages
from pubsub_spark.codec.avro.mismatch import Mismatch
from pubsub_spark.codec.avro.nodes import without_logical
from pubsub_spark.codec.definition import Definition, Encoding, IncompatibleSchema, InvalidMessage
from pubsub_spark.errors import SchemaError


class AvroDefinition:
    """One parsed revision. The readers are compiled when first asked for: most revisions are only looked at."""

    type: Literal["AVRO"] = "AVRO"
    imports: tuple[str, ...] = ()

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = schema_parser.parse(text)

    @cached_property
    def messages(self) -> Messages:
        """The reader and writer of one message's datum."""
        return Messages(self.root)

    @cached_property
    def json_reader(self) -> JsonReader | None:
        """The reader of many messages in JSON; None if only `read_json` can."""
        return compile_reader(self.root)

    @cached_property
    def json_writer(self) -> JsonWriter | None:
        """The writer of many messages in JSON; None if they can only be written one by one."""
        return compile_writer(self.root)

    def read_json(self, data: bytes) -> Any:
        """The datum of a message in JSON; Mismatch when the text is not one message."""
        return json_encoding.read_message(self.root, data)

    def validate(self, data: bytes, encoding: Encoding) -> None:
        """Raise InvalidMessage unless `data` is exactly one message."""
        try:
            error_locator.check(self.root, data) if encoding == "BINARY" else self.read_json(data)
        except Mismatch as mismatch:
            raise InvalidMessage(mismatch.sentence()) from None

    def first_invalid(self, messages: Sequence[bytes], encoding: Encoding) -> int | None:
        """The index of the first message that `validate` refuses, or None.

        A Publish request's worth of binary messages is read at once, some ten times faster than one by one.
        """
        suspects: Iterable[int] = range(len(messages))
        if encoding == "BINARY" and self._columns is not None and len(messages) >= MIN_VECTORISED_ROWS:
            _, batch = self._columns.decode(pa.array(messages, pa.binary()))
            suspects = np.flatnonzero(batch.fell_back).tolist()
        for index in suspects:
            try:
                self.validate(messages[index], encoding)
            except InvalidMessage:
                return index
        return None

    @cached_property
    def _columns(self) -> ColumnReader | None:
        try:
            return compile_columns(self.root, without_logical(self.root))
        except SchemaError:  # it may contain itself, or stands for too many columns
            return None


def parse(text: str) -> AvroDefinition:
    """The parsed revision; InvalidSchema when `text` is not an Avro schema."""
    return AvroDefinition(text)


def check_compatible(old: Definition, new: Definition) -> None:
    """Raise IncompatibleSchema unless each revision can read what the other writes."""
    assert isinstance(old, AvroDefinition)
    assert isinstance(new, AvroDefinition)
    reason = unreadable(writer=old.root, reader=new.root)
    if reason:
        raise IncompatibleSchema(f"The new revision cannot read messages of the old one: {reason}")
    reason = unreadable(writer=new.root, reader=old.root)
    if reason:
        raise IncompatibleSchema(f"The old revision cannot read messages of the new one: {reason}")

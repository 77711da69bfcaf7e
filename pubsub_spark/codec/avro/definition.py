"""What `codec.definition` promises, for Avro: parse, validate, compare revisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from pubsub_spark.codec.avro import binary, json, schema
from pubsub_spark.codec.avro.columns import Columns, NotInStep, compile_columns
from pubsub_spark.codec.avro.compatibility import unreadable
from pubsub_spark.codec.avro.datum import Mismatch
from pubsub_spark.codec.avro.lanes import FEW
from pubsub_spark.codec.definition import Definition, Encoding, IncompatibleSchema, InvalidMessage


class AvroDefinition:
    """One parsed revision. The readers are compiled when first asked for: most revisions are only looked at."""

    type: Literal["AVRO"] = "AVRO"

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = schema.parse(text)

    @cached_property
    def read_binary(self) -> Callable[[bytes], Any]:
        """A message's datum; Mismatch when the bytes are not one message."""
        return binary.message_reader(self.root)

    @cached_property
    def read_json(self) -> Callable[[bytes], Any]:
        """A message's datum; Mismatch when the text is not one message."""
        return json.message_reader(self.root)

    def validate(self, data: bytes, encoding: Encoding) -> None:
        """Raise InvalidMessage unless `data` is exactly one message."""
        try:
            self.read_binary(data) if encoding == "BINARY" else self.read_json(data)
        except Mismatch as mismatch:
            raise InvalidMessage(mismatch.sentence()) from None

    def first_invalid(self, messages: Sequence[bytes], encoding: Encoding) -> int | None:
        """The index of the first message that `validate` refuses, or None.

        A Publish request's worth of binary messages is read in step, some ten times faster than one by one.
        """
        suspects: Iterable[int] = range(len(messages))
        if encoding == "BINARY" and self._columns is not None and len(messages) >= FEW:
            _, left = self._columns.decode(pa.array(messages, pa.binary()))
            suspects = np.flatnonzero(left).tolist()
        read = self.read_binary if encoding == "BINARY" else self.read_json
        for index in suspects:
            try:
                read(messages[index])
            except Mismatch:
                return index
        return None

    @cached_property
    def _columns(self) -> Columns | None:
        try:
            return compile_columns(self.root, self.root)
        except NotInStep:
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

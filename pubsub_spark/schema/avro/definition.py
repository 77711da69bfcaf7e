"""A parsed revision of an Avro schema, by the interface of `schema.definition`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

from pubsub_spark.schema.avro import batch_check, datum, error_locator, json_encoding, parser
from pubsub_spark.schema.avro.compatibility import unreadable
from pubsub_spark.schema.avro.cursors import MIN_VECTORISED_ROWS
from pubsub_spark.schema.definition import Definition, Encoding, IncompatibleSchema, InvalidMessage


class AvroDefinition:
    """The readers of messages are made when first used: most revisions are only compared."""

    type: Literal["AVRO"] = "AVRO"
    imports: tuple[str, ...] = ()

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = parser.parse(text)

    @cached_property
    def datum(self) -> datum.DatumSerializer:
        return datum.DatumSerializer(self.root)

    def fastavro_schema(self, logical: bool = True, is_reader: bool = False) -> Any:
        return datum.fastavro_schema(self.text, self.root, logical, is_reader)

    def read_json(self, data: bytes) -> Any:
        """Return the datum of a message in JSON. Raises Mismatch."""
        return json_encoding.read_message(self.root, data)

    def validate(self, data: bytes, encoding: Encoding) -> None:
        error_locator.check(self.root, data) if encoding == "BINARY" else self.read_json(data)

    def first_invalid(self, messages: Sequence[bytes], encoding: Encoding) -> int | None:
        suspects: Iterable[int] = range(len(messages))
        if encoding == "BINARY" and len(messages) >= MIN_VECTORISED_ROWS:
            suspects = batch_check.suspects(self.root, self._check, messages)
        for index in suspects:
            try:
                self.validate(messages[index], encoding)
            except InvalidMessage:
                return index
        return None

    @cached_property
    def _check(self) -> batch_check.Check:
        return batch_check.compile_check(self.root)


def parse(text: str) -> AvroDefinition:
    return AvroDefinition(text)


def check_compatible(old: Definition, new: Definition) -> None:
    assert isinstance(old, AvroDefinition)
    assert isinstance(new, AvroDefinition)
    if reason := unreadable(writer=old.root, reader=new.root):
        raise IncompatibleSchema(f"The new revision cannot read messages of the old one: {reason}")
    if reason := unreadable(writer=new.root, reader=old.root):
        raise IncompatibleSchema(f"The old revision cannot read messages of the new one: {reason}")

"""A schema definition: text in, a parsed revision out, with the three questions Pub/Sub asks of it.

Does the text parse (`parse`), does a message fit (`Definition.validate`, at Publish and ValidateMessage), may a new
revision follow an old one (`check_compatible`, at CommitSchema). The emulator asks all three, the connector the first.
Pure: no Spark, no I/O, nothing kept between calls. The answers are given by `codec.avro` and `codec.protobuf`, which
are imported when first needed. An error is one sentence about the text or the message; the caller adds whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

SchemaType = Literal["AVRO", "PROTOCOL_BUFFER"]
Encoding = Literal["BINARY", "JSON"]

__all__ = [
    "Definition",
    "Encoding",
    "IncompatibleSchema",
    "InvalidMessage",
    "InvalidSchema",
    "SchemaType",
    "check_compatible",
    "parse",
]


class _Finding(ValueError):  # noqa: N818 (not a failure)
    """A sentence, which may quote the text or the message; half of a surrogate pair, which UTF-8 lacks, is escaped."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence.encode(errors="backslashreplace").decode())


class InvalidSchema(_Finding):
    """The text is not a schema of its type."""


class InvalidMessage(_Finding):
    """The bytes are not a message of the schema in that encoding."""


class IncompatibleSchema(_Finding):
    """The new revision may not follow the old one."""


class Definition(Protocol):
    """One parsed revision; immutable, safe to share between threads."""

    @property
    def type(self) -> SchemaType: ...

    @property
    def text(self) -> str: ...

    def validate(self, data: bytes, encoding: Encoding) -> None:
        """Raise InvalidMessage unless `data` is exactly one message, with nothing left over."""

    def first_invalid(self, messages: Sequence[bytes], encoding: Encoding) -> int | None:
        """The index of the first message that `validate` refuses, or None; made for whole Publish requests."""


def parse(type: SchemaType, text: str) -> Definition:  # noqa: A002 (Pub/Sub's name for it)
    """The parsed revision; InvalidSchema when `text` is not a schema of that type."""
    if type == "AVRO":
        from pubsub_spark.codec import avro

        return avro.parse(text)
    if type == "PROTOCOL_BUFFER":
        from pubsub_spark.codec import protobuf

        return protobuf.parse(text)
    raise InvalidSchema(f"A schema's type is AVRO or PROTOCOL_BUFFER, not `{type}`")


def check_compatible(old: Definition, new: Definition) -> None:
    """Raise IncompatibleSchema unless `new` may be committed as a revision after `old`."""
    if old.type != new.type:
        raise IncompatibleSchema(f"A revision keeps its schema's type: {old.type} cannot become {new.type}")
    if old.type == "AVRO":
        from pubsub_spark.codec import avro

        avro.check_compatible(old, new)
    else:
        from pubsub_spark.codec import protobuf

        protobuf.check_compatible(old, new)

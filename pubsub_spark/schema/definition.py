"""A schema definition: the interface of one parsed revision, and the errors about schemas and messages.

Pub/Sub asks three questions of a schema: does its text parse (`schema_types.parse`), does a message fit
(`Definition.validate`, at Publish and ValidateMessage), may a new revision follow an old one
(`schema_types.check_compatible`, at CommitSchema). The emulator asks all three, the connector the first. They are
answered by `schema.avro` and `schema.protobuf`, which import this module; it imports neither. Pure: no Spark, no I/O,
nothing kept between calls. An error is one sentence about the text or the message; the caller adds whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Encoding = Literal["BINARY", "JSON"]

__all__ = [
    "Definition",
    "Encoding",
    "ForbiddenImport",
    "IncompatibleSchema",
    "InvalidMessage",
    "InvalidSchema",
    "Mismatch",
]


class _SchemaFinding(ValueError):  # noqa: N818 (about a text or a message; nothing failed)
    """A sentence, which may quote the text or the message; half of a surrogate pair, which UTF-8 lacks, is escaped."""

    def __str__(self) -> str:
        return self.sentence().encode(errors="backslashreplace").decode()

    def sentence(self) -> str:
        """The sentence as it is."""
        return super().__str__()


class InvalidSchema(_SchemaFinding):
    """The text is not a schema of its type."""


class ForbiddenImport(InvalidSchema):
    """The text imports a file that no definition may import; `name` is its path."""

    def __init__(self, sentence: str, name: str) -> None:
        super().__init__(sentence)
        self.name = name


class InvalidMessage(_SchemaFinding):
    """The bytes are not a message of the schema in that encoding."""


class Mismatch(InvalidMessage):
    """A value that does not fit its schema; the path is put together while the error travels outwards."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []  # innermost first

    def inside(self, step: str) -> Mismatch:
        """The same finding, one step further out: `.name`, `[3]` or `['key']` led to the value."""
        self.steps.append(step)
        return self

    def sentence(self, root: str = "The message") -> str:
        """`Field `legs[3].carrier` is not valid UTF-8`; without a path the subject is `root`."""
        path = "".join(reversed(self.steps)).removeprefix(".")
        return f"Field `{path}` {self.reason}" if path else f"{root} {self.reason}"


class IncompatibleSchema(_SchemaFinding):
    """The new revision may not follow the old one."""


class Definition(Protocol):
    """One parsed revision; immutable, safe to share between threads."""

    @property
    def type(self) -> str:
        """The schema type, a `schema_types.SchemaType`."""

    @property
    def text(self) -> str:
        """The text of the definition, as it was given."""

    @property
    def imports(self) -> Sequence[str]:
        """The files that the definition imports: some of Protocol Buffers' well-known types."""

    def validate(self, data: bytes, encoding: Encoding) -> None:
        """Raise InvalidMessage unless `data` is exactly one message, with nothing left over."""

    def first_invalid(self, messages: Sequence[bytes], encoding: Encoding) -> int | None:
        """The index of the first message that `validate` refuses, or None; made for whole Publish requests."""

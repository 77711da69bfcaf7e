"""A schema definition: the interface of one parsed revision, and the errors about schemas and messages.

Pub/Sub asks three questions of a schema: does its text parse (`schema_types.parse`), does a message fit
(`Definition.validate`, at Publish and ValidateMessage), may a new revision follow an old one
(`schema_types.check_compatible`, at CommitSchema). `schema.avro` and `schema.protobuf` answer them. An error is one
sentence about the text or the message. The caller adds whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Encoding = Literal["BINARY", "JSON"]


class _SchemaFinding(ValueError):  # noqa: N818 (about a text or a message, not a failure)
    """A sentence. Half of a surrogate pair, which UTF-8 lacks, is escaped."""

    def __str__(self) -> str:
        return self.sentence().encode(errors="backslashreplace").decode()

    def sentence(self) -> str:
        return super().__str__()


class InvalidSchema(_SchemaFinding):
    """A text is not a schema of its type."""


class ForbiddenImport(InvalidSchema):
    """A text imports a file that no definition may import. `name` is its path."""

    def __init__(self, sentence: str, name: str) -> None:
        super().__init__(sentence)
        self.name = name


class InvalidMessage(_SchemaFinding):
    """Bytes are not a message of the schema in that encoding."""


class Mismatch(InvalidMessage):
    """A value does not fit its schema. The path is put together while the error travels outwards."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []  # innermost first

    def inside(self, step: str) -> Mismatch:
        """Return the same finding, one step further out: `.name`, `[3]` or `['key']` led to the value."""
        self.steps.append(step)
        return self

    def sentence(self, root: str = "The message") -> str:
        """Return `Field `legs[3].carrier` is not valid UTF-8`. Without a path the subject is `root`."""
        path = "".join(reversed(self.steps)).removeprefix(".")
        return f"Field `{path}` {self.reason}" if path else f"{root} {self.reason}"


class IncompatibleSchema(_SchemaFinding):
    """A new revision may not follow the old one."""


class Definition(Protocol):
    """One parsed revision. Immutable, safe to share between threads."""

    @property
    def type(self) -> str:
        """The schema type, a `schema_types.SchemaType`."""

    @property
    def text(self) -> str:
        """The original text of the definition."""

    @property
    def imports(self) -> Sequence[str]:
        """The files that the definition imports: some of Protocol Buffers' well-known types."""

    def validate(self, data: bytes, encoding: Encoding) -> None:
        """Raise InvalidMessage unless `data` is exactly one message, with nothing left over."""

    def first_invalid(self, messages: Sequence[bytes], encoding: Encoding) -> int | None:
        """Return the index of the first message that `validate` refuses, or None."""

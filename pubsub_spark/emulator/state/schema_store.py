"""Schemas and their revisions.

Pure. A revision is parsed once, when it is made; what it says about a message is its Definition's business
(`pubsub_spark.codec.definition`). Revisions are kept oldest first; questions are answered newest first, as the service
tries them at Publish.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from pubsub_spark.codec.definition import Definition


@dataclass(frozen=True)
class Revision:
    """One definition under one id, for good."""

    id: str
    number: int  # in the order of creation
    created: float
    definition: Definition


@dataclass(eq=False)
class Schema:
    """A name and its revisions, oldest first, never empty; and the number of each that it has ever had."""

    name: str
    revisions: list[Revision] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def latest(self) -> Revision:
        return self.revisions[-1]

    def find(self, revision_id: str) -> Revision | None:
        return next((revision for revision in self.revisions if revision.id == revision_id), None)

    def allowed(self, first: str, last: str) -> Iterator[Revision]:
        """The revisions between two ids, both inclusive and both optional, newest first.

        A revision that was deleted is a bound still.
        """
        low, high = self.numbers.get(first, 0), self.numbers.get(last, len(self.numbers))
        return (revision for revision in reversed(self.revisions) if low <= revision.number <= high)


class Schemas:
    """All schemas of the emulator."""

    def __init__(self) -> None:
        self._schemas: dict[str, Schema] = {}
        self._random = Random()

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemas)

    def get(self, name: str) -> Schema | None:
        return self._schemas.get(name)

    def create(self, name: str, definition: Definition, now: float) -> Schema:
        schema = self._schemas[name] = Schema(name)
        self.commit(schema, definition, now)
        return schema

    def commit(self, schema: Schema, definition: Definition, now: float) -> Revision:
        """A new newest revision, with an id of eight hexadecimal digits that the schema has never had."""
        revision_id = f"{self._random.getrandbits(32):08x}"
        while revision_id in schema.numbers:
            revision_id = f"{self._random.getrandbits(32):08x}"
        revision = Revision(revision_id, len(schema.numbers), now, definition)
        schema.revisions.append(revision)
        schema.numbers[revision_id] = revision.number
        return revision

    def clear(self) -> None:
        self._schemas.clear()

    def delete(self, name: str) -> None:
        del self._schemas[name]

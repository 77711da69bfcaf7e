"""Schemas and their revisions. A revision is parsed once, when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import NamedTuple

from pubsub_spark.emulator.state.events import Created, Deleted, Event, Updated
from pubsub_spark.schema.definition import Definition


class Revision(NamedTuple):
    id: str
    number: int  # in the order of creation
    created: float
    definition: Definition


class Schema(NamedTuple):
    """`revisions` are oldest first, and never empty. `numbers` has every revision that the schema ever had.

    It is never changed in place: with another revision it is another Schema.
    """

    name: str
    revisions: tuple[Revision, ...]
    numbers: Mapping[str, int]

    @property
    def latest(self) -> Revision:
        return self.revisions[-1]

    def find(self, revision_id: str) -> Revision | None:
        return next((revision for revision in self.revisions if revision.id == revision_id), None)

    def allowed(self, first: str, last: str) -> Iterator[Revision]:
        """Return the revisions between two ids, both inclusive and optional, newest first, as the service tries them.

        A deleted revision still is a bound.
        """
        low, high = self.numbers.get(first, 0), self.numbers.get(last, len(self.numbers))
        return (revision for revision in reversed(self.revisions) if low <= revision.number <= high)


class Schemas:
    def __init__(self, events: list[Event], on_delete: Callable[[str], None]) -> None:
        self._events = events
        self._on_delete = on_delete
        self._schemas: dict[str, Schema] = {}
        self._random = Random()

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemas)

    def get(self, name: str) -> Schema | None:
        return self._schemas.get(name)

    def create(self, name: str, definition: Definition, now: float) -> Schema:
        self._add(Schema(name, (), {}), definition, now)
        schema = self._schemas[name]
        self._events.append(Created(name, schema))
        return schema

    def commit(self, schema: Schema, definition: Definition, now: float) -> Revision:
        revision = self._add(schema, definition, now)
        self._events.append(Updated(schema.name, self._schemas[schema.name]))
        return revision

    def delete_revision(self, schema: Schema, revision: Revision) -> Schema:
        revisions = tuple(other for other in schema.revisions if other is not revision)
        changed = self._schemas[schema.name] = schema._replace(revisions=revisions)
        self._events.append(Updated(schema.name, changed))
        return changed

    def _add(self, schema: Schema, definition: Definition, now: float) -> Revision:
        """The revision has an id of eight hexadecimal digits that the schema has never had."""
        revision_id = f"{self._random.getrandbits(32):08x}"
        while revision_id in schema.numbers:
            revision_id = f"{self._random.getrandbits(32):08x}"
        revision = Revision(revision_id, len(schema.numbers), now, definition)
        numbers = {**schema.numbers, revision_id: revision.number}
        self._schemas[schema.name] = Schema(schema.name, (*schema.revisions, revision), numbers)
        return revision

    def clear(self) -> None:
        self._schemas.clear()

    def delete(self, name: str) -> None:
        del self._schemas[name]
        self._on_delete(name)
        self._events.append(Deleted(name))

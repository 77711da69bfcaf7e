"""The schema of the topic: revisions that are committed and deleted while a query decodes.

Each revision has a field more, so that a reader of any revision takes messages of any other, and default values of its
own, so that rows tell which reader has decoded them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pubsub_spark.codec.registry import SchemaRevision, TopicSchema

NAME = "projects/shop/schemas/order"
LATE_SECONDS = (0.0, 0.0, 1.0, 30.0)  # after which the service shows a revision
_MOST_REVISIONS = 5


@dataclass
class Revision:
    """A revision. since: the virtual time when the service begins to show it. is_deleted: whether it is gone."""

    number: int
    since: float
    is_deleted: bool = False

    @property
    def schema(self) -> SchemaRevision:
        """The responses of SchemaService."""
        default = 100 * self.number
        fields = [{"name": f"f{n}", "type": ["int", "null"], "default": default} for n in range(self.number)]
        record = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}, *fields]}
        return SchemaRevision(NAME, f"{self.number:08x}", "AVRO", json.dumps(record))


class Schema:
    """The schema resource of one history."""

    def __init__(self) -> None:
        self.revisions = [Revision(0, 0.0)]

    def body(self, number: int) -> bytes:
        """Return the payload of a message that the newest revision has written."""
        fields = {f"f{n}": {"int": number} for n in range(self.revisions[-1].number)}
        return json.dumps({"n": number} | fields).encode()

    @property
    def attributes(self) -> dict[str, str]:
        """Return the attributes that the service adds to such a message."""
        return {
            "googclient_schemaname": NAME,
            "googclient_schemaencoding": "JSON",
            "googclient_schemarevisionid": self.revisions[-1].schema.revision_id,
        }

    def commit(self, since: float) -> None:
        """Commit another revision, which is shown from a time on."""
        if len(self.revisions) < _MOST_REVISIONS:
            self.revisions.append(Revision(len(self.revisions), since))

    def delete(self, index: int) -> None:
        """Delete a revision. The service keeps the newest."""
        if index < len(self.revisions) - 1:
            self.revisions[index].is_deleted = True

    def find(self, name: str, now: float) -> SchemaRevision | None:
        """Return the revision of a full name, the newest without one, or None if the service does not show it."""
        shown = [each.schema for each in self.revisions if not each.is_deleted and each.since <= now]
        _, _, revision = name.partition("@")
        found = [each for each in shown if revision in ("", each.revision_id)]
        return found[-1] if found else None

    @property
    def reader(self) -> TopicSchema:
        """The schema of a query that starts now."""
        return TopicSchema("JSON", self.revisions[-1].schema)

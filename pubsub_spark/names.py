"""Resource names of Pub/Sub: `projects/{project}/{collection}/{id}`.

Users write a short id or a full name. Everything behind the options sees full names only. Source of the rules:
https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Collection = Literal["topics", "subscriptions", "snapshots", "schemas"]

# 3 to 255 characters, a letter first, and `goog` is the service's own prefix.
_ID = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")
_RULE = "3 to 255 of letters, digits and `-_.~+%`, a letter first, not `goog`"
_FULL = re.compile(r"projects/(?P<project>[^/]+)/(?P<collection>[a-z]+)/(?P<id>[^/]+)")

RESERVED_PREFIX = "goog"
"""Attributes whose name begins so, in any case, are Google's own."""

SCHEMA_NAME = "googclient_schemaname"
SCHEMA_REVISION = "googclient_schemarevisionid"
SCHEMA_ENCODING = "googclient_schemaencoding"
"""The attributes that name the schema revision that validated a message. A publish may not have them."""

SCHEMA_PREFIX = "googclient_schema"
"""Their names begin so."""

TRACE_ATTRIBUTES = ("googclient_traceparent", "googclient_tracestate", "googclient_baggage")
"""OpenTelemetry's context. Client libraries add it to messages, and Pub/Sub accepts it in spite of its prefix."""

DELETED_TOPIC = "_deleted-topic_"
DELETED_SCHEMA = "_deleted-schema_"


class Name(NamedTuple):
    """`str(name)` is the full name again."""

    project: str
    collection: Collection
    id: str

    def __str__(self) -> str:
        return f"projects/{self.project}/{self.collection}/{self.id}"


def is_id(text: str) -> bool:
    """Return whether `text` is a legal id of a topic, subscription, snapshot or schema."""
    return _ID.fullmatch(text) is not None


def parse(full_name: str, collection: Collection) -> Name:
    """Raises ValueError if `full_name` is not a legal name of that collection."""
    match = _FULL.fullmatch(full_name)
    if match is None or match["collection"] != collection:
        raise ValueError(f"`{full_name}` is not of the form `projects/PROJECT/{collection}/ID`")
    if not is_id(match["id"]):
        raise ValueError(f"`{match['id']}` in `{full_name}` is not an id: {_RULE}")
    return Name(match["project"], collection, match["id"])


def full(id_or_name: str, project: str | None, collection: Collection) -> str:
    """Raises ValueError with the problem."""
    if "/" in id_or_name:
        return str(parse(id_or_name, collection))
    if not is_id(id_or_name):
        raise ValueError(f"`{id_or_name}` is not an id: {_RULE}")
    if not project:
        raise ValueError(f"`{id_or_name}` needs `projectId`, or write `projects/PROJECT/{collection}/{id_or_name}`")
    return f"projects/{project}/{collection}/{id_or_name}"

"""The calls of the command line on topics, subscriptions, snapshots and schemas, through Google's generated clients.

One table says for each collection which calls there are, and how its request names what it is about. Each method takes
full names and returns protobuf messages; errors, retries and sentences are those of `admin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, NamedTuple

import grpc
from google.api_core import exceptions
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import types

from ..names import Collection
from .admin import Admin
from .status import failure

_PAGE = 1000  # resources asked for at a time: the most that the service gives


class _Kind(NamedTuple):
    """A collection of resources: the word for one of them, and the client that has its calls."""

    word: str
    client: str

    @property
    def field(self) -> str:
        """The field of requests that holds one of them, or its name."""
        return self.word.lower()


KINDS: Final[dict[Collection, _Kind]] = {
    "topics": _Kind("Topic", "_publisher"),
    "subscriptions": _Kind("Subscription", "_subscriber"),
    "snapshots": _Kind("Snapshot", "_subscriber"),
    "schemas": _Kind("Schema", "_schemas"),
}

# The fields of a request that name other resources, and the words for these.
_USED: Final = {
    "topic": "Topic",
    "dead_letter_policy.dead_letter_topic": "Topic",
    "schema_settings.schema": "Schema",
    "subscription": "Subscription",
}


class Resources(Admin):
    """The calls on all four collections: list, get, create, update, delete; and messages, one call each."""

    def listed(self, collection: Collection, project: str, most: int | None = None) -> list[Any]:
        """The resources of a collection in a project (its id): all, or `most` of them; schemas without definitions."""
        parent = "parent" if collection == "schemas" else "project"
        request: dict[str, Any] = {parent: f"projects/{project}", "page_size": min(_PAGE, most or _PAGE)}
        found: list[Any] = []
        while True:
            pager = self._call(
                collection, f"list_{collection}", request, f"list the {collection} of", project, "Project"
            )
            page = next(pager.pages)  # the first; each of the others is a call of its own, with its own retries
            found += getattr(page, collection)
            if not page.next_page_token or (most is not None and len(found) >= most):
                return found[:most]
            request["page_token"] = page.next_page_token

    def get(self, collection: Collection, name: str) -> Any:
        """A resource; a schema with its definition, and `name` may end in `@revision`."""
        if collection == "schemas":
            return self.schema(name)
        kind = KINDS[collection]
        return self._call(collection, f"get_{kind.field}", {kind.field: name}, "look at", name)

    def create(self, collection: Collection, request: Any, name: str) -> Any:
        """The resource as created."""
        method = f"create_{KINDS[collection].field}"
        return self._call(collection, method, request, "create", name, others=_used_by(request))

    def update(self, collection: Collection, resource: Any, paths: Iterable[str]) -> Any:
        """The resource after the fields of `paths` were set to what they are in `resource`."""
        field = KINDS[collection].field
        request = {field: resource, "update_mask": field_mask_pb2.FieldMask(paths=sorted(paths))}
        return self._call(collection, f"update_{field}", request, "update", resource.name, others=_used_by(resource))

    def delete(self, collection: Collection, name: str, seconds: float | None = None) -> None:
        """Delete a resource, within so many seconds."""
        field = KINDS[collection].field
        request = {"name" if collection == "schemas" else field: name}
        self._call(collection, f"delete_{field}", request, "delete", name, seconds=seconds)

    def commit_schema(self, name: str, schema: types.Schema) -> types.Schema:
        """The new revision of a schema."""
        committed: types.Schema = self._call(
            "schemas", "commit_schema", {"name": name, "schema": schema}, "commit a revision of", name
        )
        return committed

    def roll_back_schema(self, name: str, revision: str) -> types.Schema:
        """The new revision of a schema, with the definition of an old one (its id)."""
        request = {"name": name, "revision_id": revision}
        rolled_back: types.Schema = self._call(
            "schemas", "rollback_schema", request, "roll back", name, others=[("Schema", name)]
        )
        return rolled_back

    def delete_schema_revision(self, name: str) -> None:
        """Delete the revision of a schema whose full name ends in `@revision`."""
        self._call("schemas", "delete_schema_revision", {"name": name}, "delete", name)

    def validate_schema(self, project: str, schema: types.Schema) -> None:
        """Do nothing where a schema could be created in a project (its id); InvalidError says what is wrong with it."""
        request = {"parent": f"projects/{project}", "schema": schema}
        self._call("schemas", "validate_schema", request, "validate a schema in", project, "Project")

    def validate_message(self, project: str, schema: types.Schema | str, message: bytes, encoding: str) -> None:
        """Do nothing where a message is one of a schema (a full name or a definition); InvalidError says why not."""
        request = {"parent": f"projects/{project}", "message": message, "encoding": encoding}
        if isinstance(schema, str):
            of = {**request, "name": schema}
            self._call("schemas", "validate_message", of, "validate a message against", schema)
        else:
            of = {**request, "schema": schema}
            self._call("schemas", "validate_message", of, "validate a message in", project, "Project")

    def schema_revisions(self, name: str) -> list[types.Schema]:
        """The revisions of a schema with their definitions, the newest first."""
        request = {"name": name, "view": types.SchemaView.FULL, "page_size": 20}  # a schema has 20 at most
        return list(self._call("schemas", "list_schema_revisions", request, "look at", name))

    def publish(self, topic: str, messages: Sequence[types.PubsubMessage]) -> list[str]:
        """The ids of messages that were published in one request."""
        response = self._call("topics", "publish", {"topic": topic, "messages": messages}, "publish to", topic)
        return list(response.message_ids)

    def pull(self, subscription: str, most: int, wait_seconds: float) -> list[types.ReceivedMessage]:
        """Up to `most` messages that are leased to the caller; none when none came for a while."""
        request = {"subscription": subscription, "max_messages": most}
        try:
            response = self._subscriber.pull(request=request, timeout=wait_seconds, retry=None)
        except exceptions.DeadlineExceeded:
            return []
        except exceptions.GoogleAPICallError:
            response = self._call("subscriptions", "pull", request, "pull from", subscription)
        return list(response.received_messages)

    def acknowledge(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """Acknowledge messages."""
        request = {"subscription": subscription, "ack_ids": ack_ids}
        self._call("subscriptions", "acknowledge", request, "acknowledge on", subscription)

    def nack(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """Give messages back, to be delivered again at once."""
        request = {"subscription": subscription, "ack_ids": ack_ids, "ack_deadline_seconds": 0}
        self._call("subscriptions", "modify_ack_deadline", request, "acknowledge on", subscription)

    def granted(self, collection: Collection, name: str, permissions: Sequence[str]) -> frozenset[str] | None:
        """Those of the permissions that the caller has on a resource; None where the service cannot tell."""
        client = getattr(self, KINDS[collection].client)
        request = {"resource": name, "permissions": permissions}
        try:
            answer = client.test_iam_permissions(request=request, timeout=self._timeout)
        except exceptions.GoogleAPICallError as error:
            if error.grpc_status_code in {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED}:
                return None
            code = error.grpc_status_code or grpc.StatusCode.UNKNOWN
            raise failure(code, error.message, "look at", KINDS[collection].word, name, self._address) from None
        return frozenset(answer.permissions)

    def _call(
        self,
        collection: Collection,
        method: str,
        request: Any,
        verb: str,
        name: str,
        word: str | None = None,
        others: Sequence[tuple[str, str]] = (),
        seconds: float | None = None,
    ) -> Any:
        kind = KINDS[collection]
        call = getattr(getattr(self, kind.client), method)
        return self._ask(call, request, verb, word or kind.word, name, others, seconds)


def _used_by(request: Any) -> list[tuple[str, str]]:
    """Kinds and full names of the other resources in a request: NOT_FOUND may mean one of them."""
    found: list[tuple[str, str]] = []
    for path, word in _USED.items():
        with suppress(AttributeError):  # a message without this field
            found.append((word, attrgetter(path)(request)))
    return found

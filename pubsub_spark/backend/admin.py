"""The calls on topics, subscriptions, snapshots and schemas, through google-cloud-pubsub's generated clients.

Methods accept full names and return protobuf messages. A call is retried on retryable codes for `connect_timeout`
seconds, or for the `seconds` of `delete` and `publish`. Then it raises a PubSubError that says what to do.
"""

from __future__ import annotations

import datetime
import logging
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

import grpc
from google.api_core import exceptions
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.schema_service import SchemaServiceClient
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from ..errors import PubSubError
from ..names import Collection
from .status import RETRYABLE, RETRYABLE_FOR_PUBLISH, Retries, delays, failure

_PAGE = 1000  # resources of a page, the most that the service returns
_MAX_REVISIONS = 20  # of a schema
_MAX_PAUSE_SECONDS = 2.0  # between two attempts, within a `connect_timeout` of 20 s
_MISSING = re.compile(r"\(resource=([^)@]+)(@[^)]+)?\)")  # NOT_FOUND names an id, and the revision of a schema
_UNKNOWN_PERMISSIONS = frozenset({grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED})
_log = logging.getLogger(__name__)


class _Kind(NamedTuple):
    word: str
    client: str

    @property
    def field(self) -> str:
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


class Admin:
    """Raises ResourceError and ServiceError with the resource's full name."""

    def __init__(self, channel: grpc.Channel, address: str, timeout: float, proxy: str | None = None) -> None:
        self._address = address
        self._timeout = timeout
        self._proxy = proxy
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        self._schemas = SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel))

    def topic(self, name: str) -> types.Topic:
        return cast("types.Topic", self.get("topics", name))

    def subscription(self, name: str) -> types.Subscription:
        return cast("types.Subscription", self.get("subscriptions", name))

    def schema(self, name: str) -> types.Schema:
        return cast("types.Schema", self.get("schemas", name))

    def get(self, collection: Collection, name: str) -> Any:
        """Return a resource, a schema with its definition. A schema's `name` may end in `@revision`."""
        field = KINDS[collection].field
        request = {"name": name, "view": types.SchemaView.FULL} if collection == "schemas" else {field: name}
        return self._call(collection, f"get_{field}", request, "look at", name)

    def listed(self, collection: Collection, project: str, most: int | None = None) -> list[Any]:
        """Return the resources of a collection in a project (its id): all, or `most`. Schemas lack definitions."""
        parent = "parent" if collection == "schemas" else "project"
        request: dict[str, Any] = {parent: f"projects/{project}", "page_size": min(_PAGE, most or _PAGE)}
        resources: list[Any] = []
        while True:
            pager = self._call(
                collection, f"list_{collection}", request, f"list the {collection} of", project, "Project"
            )
            page = next(pager.pages)  # only the first: each of the others is a call with its own retries
            resources += getattr(page, collection)
            if not page.next_page_token or (most is not None and len(resources) >= most):
                return resources[:most]
            request["page_token"] = page.next_page_token

    def create(self, collection: Collection, request: Any, name: str) -> Any:
        method = f"create_{KINDS[collection].field}"
        return self._call(collection, method, request, "create", name, others=_used_by(request))

    def update(self, collection: Collection, resource: Any, paths: Iterable[str]) -> Any:
        """Return the resource after the fields of `paths` were set to those of `resource`."""
        field = KINDS[collection].field
        request = {field: resource, "update_mask": field_mask_pb2.FieldMask(paths=sorted(paths))}
        return self._call(collection, f"update_{field}", request, "update", resource.name, others=_used_by(resource))

    def delete(self, collection: Collection, name: str, seconds: float | None = None) -> None:
        field = KINDS[collection].field
        request = {"name" if collection == "schemas" else field: name}
        self._call(collection, f"delete_{field}", request, "delete", name, seconds=seconds)

    def subscriptions_of(self, topic: str) -> list[str]:
        """Return the full names of the subscriptions."""
        request = {"topic": topic, "page_size": _PAGE}
        return list(self._call("topics", "list_topic_subscriptions", request, "list the subscriptions of", topic))

    def detach(self, subscription: str) -> None:
        """Detach a subscription from its topic, and delete its backlog. Both remain."""
        request = {"subscription": subscription}
        self._call("topics", "detach_subscription", request, "detach", subscription, "Subscription")

    def seek(self, name: str, target: datetime.datetime | str) -> None:
        """Seek a subscription to a time or to a snapshot (its full name)."""
        field, others = ("snapshot", [("Snapshot", target)]) if isinstance(target, str) else ("time", [])
        self._call("subscriptions", "seek", {"subscription": name, field: target}, "seek", name, others=others)

    def commit_schema(self, name: str, schema: types.Schema) -> types.Schema:
        request = {"name": name, "schema": schema}
        return cast("types.Schema", self._call("schemas", "commit_schema", request, "commit a revision of", name))

    def roll_back_schema(self, name: str, revision: str) -> types.Schema:
        """Return the new revision of a schema, with the definition of an old one (its id)."""
        request = {"name": name, "revision_id": revision}
        others = [("Schema", name)]
        return cast("types.Schema", self._call("schemas", "rollback_schema", request, "roll back", name, others=others))

    def delete_schema_revision(self, name: str) -> None:
        """Delete the revision of a schema whose full name ends in `@revision`."""
        self._call("schemas", "delete_schema_revision", {"name": name}, "delete", name)

    def schema_revisions(self, name: str) -> list[types.Schema]:
        """Return the revisions of a schema with their definitions, the newest first."""
        request = {"name": name, "view": types.SchemaView.FULL, "page_size": _MAX_REVISIONS}
        return list(self._call("schemas", "list_schema_revisions", request, "look at", name))

    def validate_schema(self, project: str, schema: types.Schema) -> None:
        """Raise InvalidError with the reason if a schema could not be created in a project (its id)."""
        request = {"parent": f"projects/{project}", "schema": schema}
        self._call("schemas", "validate_schema", request, "validate a schema in", project, "Project")

    def validate_message(self, project: str, schema: types.Schema | str, message: bytes, encoding: str) -> None:
        """Raise InvalidError with the reason if a message does not match a schema (a full name or a definition)."""
        request = {"parent": f"projects/{project}", "message": message, "encoding": encoding}
        if isinstance(schema, str):
            request |= {"name": schema}
            self._call("schemas", "validate_message", request, "validate a message against", schema)
        else:
            request |= {"schema": schema}
            self._call("schemas", "validate_message", request, "validate a message in", project, "Project")

    def publish(self, topic: str, messages: Sequence[types.PubsubMessage], seconds: float | None = None) -> list[str]:
        """Publish messages in one request, and return their ids."""
        request = {"topic": topic, "messages": messages}
        response = self._call("topics", "publish", request, "publish to", topic, seconds=seconds)
        return list(response.message_ids)

    def pull(self, subscription: str, most: int, wait_seconds: float) -> list[types.ReceivedMessage]:
        """Return up to `most` messages, leased to the caller, or [] after `wait_seconds` without any."""
        request = {"subscription": subscription, "max_messages": most}
        try:
            response = self._subscriber.pull(request=request, timeout=wait_seconds, retry=None)
        except exceptions.DeadlineExceeded:
            return []
        except exceptions.GoogleAPICallError:
            response = self._call("subscriptions", "pull", request, "pull from", subscription)
        return list(response.received_messages)

    def acknowledge(self, subscription: str, ack_ids: Sequence[str]) -> None:
        request = {"subscription": subscription, "ack_ids": ack_ids}
        self._call("subscriptions", "acknowledge", request, "acknowledge on", subscription)

    def lease(self, subscription: str, ack_ids: Sequence[str], seconds: int) -> None:
        """Set the leases of messages to end in `seconds` (up to 600)."""
        request = {"subscription": subscription, "ack_ids": ack_ids, "ack_deadline_seconds": seconds}
        self._call("subscriptions", "modify_ack_deadline", request, "acknowledge on", subscription)

    def nack(self, subscription: str, ack_ids: Sequence[str]) -> None:
        """Have the service redeliver messages at once."""
        self.lease(subscription, ack_ids, 0)

    def granted(self, collection: Collection, name: str, permissions: Sequence[str]) -> frozenset[str] | None:
        """Return those of the permissions that the caller has on a resource, or None if the service does not tell."""
        client = getattr(self, KINDS[collection].client)
        request = {"resource": name, "permissions": permissions}
        try:
            return frozenset(client.test_iam_permissions(request=request, timeout=self._timeout).permissions)
        except exceptions.GoogleAPICallError as error:
            if error.grpc_status_code in _UNKNOWN_PERMISSIONS:
                return None
            code = error.grpc_status_code or grpc.StatusCode.UNKNOWN
            raise failure(code, error.message, "look at", KINDS[collection].word, name, self._address) from None

    def check_permission(self, verb: str, collection: Collection, name: str, permission: str) -> None:
        """Raise ForbiddenError unless the caller has a permission on a resource.

        verb: the use of the permission, such as "pull from". A service that does not answer is a WARNING. An emulator
        has no permissions.
        """
        try:
            granted = self.granted(collection, name, [permission])
        except PubSubError as error:
            word = KINDS[collection].word
            _log.warning("whether `%s` is granted on %s `%s` is not known: %s", permission, word, name, error)
            return
        if granted is not None and permission not in granted:
            detail, code = f"{permission} is not granted", grpc.StatusCode.PERMISSION_DENIED
            raise failure(code, detail, verb, KINDS[collection].word, name, self._address)

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
        """others: kinds and full names of the other resources in the request. NOT_FOUND may mean them, and names the
        id.
        """
        call, word = getattr(getattr(self, KINDS[collection].client), method), word or KINDS[collection].word
        retryable = RETRYABLE_FOR_PUBLISH if method == "publish" else RETRYABLE
        retries = Retries(time.monotonic(), delays(most=_MAX_PAUSE_SECONDS))
        until = retries.started_at + (self._timeout if seconds is None else seconds)
        detail = ""
        while True:
            try:
                return call(request=request, retry=None, timeout=max(0.1, until - time.monotonic()))
            except exceptions.GoogleAPICallError as error:
                if not (detail and error.grpc_status_code is grpc.StatusCode.DEADLINE_EXCEEDED):  # cut off by `until`
                    code, detail = error.grpc_status_code or grpc.StatusCode.UNKNOWN, error.message
                pause = retries.pause(time.monotonic(), until) if code in retryable else None
                if pause is None:
                    if code is grpc.StatusCode.NOT_FOUND:
                        word, name = _missing(detail, others) or (word, name)
                    raise failure(code, detail, verb, word, name, self._address, self._proxy) from None
            time.sleep(pause)


def _used_by(request: Any) -> list[tuple[str, str]]:
    used: list[tuple[str, str]] = []
    for path, word in _USED.items():
        with suppress(AttributeError):  # a message without this field
            used.append((word, attrgetter(path)(request)))
    return used


def _missing(detail: str, others: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    named = _MISSING.search(detail)
    if named is None:
        return None
    of_that_id = (other for other in others if other[1].rpartition("/")[2] == named[1])
    return next(((kind, name + (named[2] or "")) for kind, name in of_that_id), None)

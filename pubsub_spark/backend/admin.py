"""The calls on resources (get, create, seek, delete), through google-cloud-pubsub's generated clients.

Each takes a resource name and returns a protobuf message. It is retried on retryable codes for `connect_timeout`
seconds, and fails with a PubSubError that says what to do.
"""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc
from google.api_core import exceptions, retry
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.schema_service import SchemaServiceClient
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from .status import RETRYABLE, failure

T = TypeVar("T")
_MISSING = re.compile(r"\(resource=([^)@]+)(@[^)]+)?\)")  # NOT_FOUND names an id, and the revision of a schema
_log = logging.getLogger(__name__)


class Admin:
    """The clients of one channel. Raises ResourceError and ServiceError with the resource's full name."""

    def __init__(self, channel: grpc.Channel, address: str, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        self._publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        self._schemas = SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel))

    def topic(self, name: str) -> types.Topic:
        """The topic of a full name."""
        return self._ask(self._publisher.get_topic, {"topic": name}, "look at", "Topic", name)

    def subscription(self, name: str) -> types.Subscription:
        """The subscription of a full name."""
        return self._ask(self._subscriber.get_subscription, {"subscription": name}, "look at", "Subscription", name)

    def create_subscription(self, subscription: types.Subscription) -> types.Subscription:
        """The subscription as the service has created it."""
        return self._ask(
            self._subscriber.create_subscription,
            subscription,
            "create",
            "Subscription",
            subscription.name,
            others=[("Topic", subscription.topic)],
        )

    def delete_subscription(self, name: str) -> None:
        """Delete the subscription of a full name."""
        self._ask(self._subscriber.delete_subscription, {"subscription": name}, "delete", "Subscription", name)

    def seek(self, name: str, target: datetime.datetime | str) -> None:
        """Seek a subscription to a time or to a snapshot (its full name)."""
        field, others = ("snapshot", [("Snapshot", target)]) if isinstance(target, str) else ("time", [])
        request = {"subscription": name, field: target}
        self._ask(self._subscriber.seek, request, "seek", "Subscription", name, others=others)

    def schema(self, name: str) -> types.Schema:
        """The schema of a full name, with its definition; `name` may end in `@revision`."""
        return self._ask(
            self._schemas.get_schema, {"name": name, "view": types.SchemaView.FULL}, "look at", "Schema", name
        )

    def check_permission(self, verb: str, kind: str, name: str, permission: str) -> None:
        """Raise ForbiddenError unless the caller has a permission on a topic or subscription.

        verb: what it is for, such as "pull from". A service that cannot tell is a WARNING; an emulator may not know the
        call, and has no permissions.
        """
        client = self._publisher if kind == "Topic" else self._subscriber
        request = {"resource": name, "permissions": [permission]}
        try:
            granted = client.test_iam_permissions(request=request, timeout=self._timeout).permissions
        except exceptions.MethodNotImplemented:
            return
        except exceptions.GoogleAPIError as error:
            _log.warning("whether `%s` is granted on %s `%s` is not known: %s", permission, kind, name, error)
            return
        if permission not in granted:
            detail = f"{permission} is not granted"
            raise failure(grpc.StatusCode.PERMISSION_DENIED, detail, verb, kind, name, self._address)

    def _ask(
        self,
        call: Callable[..., T],
        request: Any,
        verb: str,
        kind: str,
        name: str,
        others: Sequence[tuple[str, str]] = (),
        seconds: float | None = None,
    ) -> T:
        """The response of a call, retried for `seconds` (by default `connect_timeout`); PubSubError when it fails.

        others: kinds and full names of the other resources in the request; NOT_FOUND may mean them, and names the id.
        """
        timeout = self._timeout if seconds is None else seconds
        again = retry.Retry(
            predicate=lambda error: (
                isinstance(error, exceptions.GoogleAPICallError) and error.grpc_status_code in RETRYABLE
            ),
            initial=0.1,
            maximum=2.0,
            timeout=timeout,
        )
        try:
            return call(request=request, retry=again, timeout=timeout)
        except exceptions.RetryError as error:
            cause = error.cause
            code = getattr(cause, "grpc_status_code", None) or grpc.StatusCode.DEADLINE_EXCEEDED
            raise failure(code, str(getattr(cause, "message", cause)), verb, kind, name, self._address) from None
        except exceptions.GoogleAPICallError as error:
            code = error.grpc_status_code or grpc.StatusCode.UNKNOWN
            if code is grpc.StatusCode.NOT_FOUND:
                kind, name = _missing(error.message, others) or (kind, name)
            raise failure(code, error.message, verb, kind, name, self._address) from None


def _missing(detail: str, others: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Kind and full name of the resource that NOT_FOUND names, where it is one of the others in the request."""
    named = _MISSING.search(detail)
    if named is None:
        return None
    of_that_id = (each for each in others if each[1].rpartition("/")[2] == named[1])
    return next(((kind, name + (named[2] or "")) for kind, name in of_that_id), None)

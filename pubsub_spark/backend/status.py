"""The treatment of gRPC status codes: which are retried, and the error for each of the others.

Tables, and one function that makes the error. Sources: google-cloud-pubsub's streaming_pull_manager
(`_RETRYABLE_STREAM_ERRORS`), its publisher's gapic retry policy, and
https://cloud.google.com/pubsub/docs/reference/error-codes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import grpc

from ..errors import ForbiddenError, InvalidError, MissingError, PubSubError, ResourceError, ServiceError

Code = grpc.StatusCode

RETRYABLE = frozenset(
    {
        Code.ABORTED,
        Code.DEADLINE_EXCEEDED,
        Code.INTERNAL,
        Code.RESOURCE_EXHAUSTED,
        Code.UNAVAILABLE,
        Code.UNKNOWN,
    }
)
# A Publish is cancelled by the service alone. Streams are cancelled by ourselves, and not retried by Google's client.
RETRYABLE_FOR_PUBLISH = RETRYABLE | {Code.CANCELLED}

# Code -> (class, sentence). {resource} is a full name in backticks, {detail} what the service said.
_SENTENCES: dict[grpc.StatusCode, tuple[type[PubSubError], str]] = {
    Code.NOT_FOUND: (
        MissingError,
        "{resource} does not exist at `{address}`. Create it, or correct its name. ({detail})",
    ),
    Code.PERMISSION_DENIED: (
        ForbiddenError,
        "Permission to {verb} {resource} is denied. Grant the caller {role}. ({detail})",
    ),
    Code.UNAUTHENTICATED: (
        ResourceError,
        "`{address}` does not accept the credentials for {resource}. Check `credentialsFile` or the Application "
        "Default Credentials. ({detail})",
    ),
    Code.ALREADY_EXISTS: (ResourceError, "{resource} exists already. ({detail})"),
    Code.FAILED_PRECONDITION: (ResourceError, "{resource} cannot be used this way: {detail}."),
    Code.INVALID_ARGUMENT: (InvalidError, "Pub/Sub refuses to {verb} {resource}: {detail}."),
    Code.OUT_OF_RANGE: (ResourceError, "Pub/Sub refuses to {verb} {resource}: {detail}."),
    Code.UNIMPLEMENTED: (ResourceError, "`{address}` cannot {verb} {resource}: {detail}."),
    Code.UNAVAILABLE: (
        ServiceError,
        "`{address}` did not answer when asked to {verb} {resource}. Check `endpoint`, the network and whether the "
        "server runs. ({detail})",
    ),
    Code.DEADLINE_EXCEEDED: (
        ServiceError,
        "`{address}` did not answer in time when asked to {verb} {resource}. Check `endpoint` and the network. "
        "({detail})",
    ),
}
_OTHERWISE = (ServiceError, "`{address}` failed to {verb} {resource}: {code}: {detail}.")

_CREDENTIALS_FAILED = (
    ForbiddenError,
    "The credentials for `{address}` cannot be used to {verb} {resource}. Check `credentialsFile`, the Application "
    "Default Credentials or the metadata server: they were revoked, have expired or cannot be reached. ({detail})",
)
# gRPC reports as UNAVAILABLE, which is retried, that no token could be had for a call.
_PLUGIN_FAILED = "Getting metadata from plugin failed"
# Of those, a token server that cannot be reached is an outage like another; the metadata server is part of the machine.
_TOKEN_SERVER_UNREACHABLE = re.compile(
    r"HTTPSConnectionPool|Max retries exceeded|TransportError|timed out", re.IGNORECASE
)
_METADATA_SERVER = re.compile(r"metadata\.google\.internal|169\.254\.169\.254|metadata server", re.IGNORECASE)

_SCHEMA_DELETED = (
    ResourceError,
    "{resource} takes no messages, because its schema was deleted. Give the topic another schema, or none. ({detail})",
)
_SCHEMA_IS_DELETED = re.compile(r"schema.*deleted", re.IGNORECASE)  # what NOT_FOUND says of a topic that is there

_ROLES = {
    "publish to": "`roles/pubsub.publisher`",
    "pull from": "`roles/pubsub.subscriber`",
    "acknowledge on": "`roles/pubsub.subscriber`",
    "create": "`roles/pubsub.editor`",
    "update": "`roles/pubsub.editor`",
    "commit a revision of": "`roles/pubsub.editor`",
    "roll back": "`roles/pubsub.editor`",
    "delete": "`roles/pubsub.editor`",
    "seek": "`roles/pubsub.editor`",
}


def is_credential_failure(code: grpc.StatusCode, detail: str) -> bool:
    """Whether a retryable status hides that the credentials are unusable: revoked, expired, no metadata server."""
    if code not in {Code.UNAVAILABLE, Code.UNKNOWN, Code.INTERNAL}:
        return False
    if "invalid_grant" in detail:
        return True
    if _PLUGIN_FAILED not in detail:
        return False
    return bool(_METADATA_SERVER.search(detail)) or not _TOKEN_SERVER_UNREACHABLE.search(detail)


def failure(code: grpc.StatusCode, detail: str, verb: str, kind: str, name: str, address: str) -> PubSubError:
    """The error to raise for a final status.

    verb: what was asked, such as "pull from"; kind and name: the resource, such as "Subscription", its full name.
    """
    cls, sentence = _SENTENCES.get(code, _OTHERWISE)
    if is_credential_failure(code, detail):
        cls, sentence = _CREDENTIALS_FAILED
    elif code is Code.NOT_FOUND and verb == "publish to" and _SCHEMA_IS_DELETED.search(detail.replace(name, "")):
        cls, sentence = _SCHEMA_DELETED
    role = _ROLES.get(verb, "`roles/pubsub.viewer`")
    return cls(
        sentence.format(
            resource=f"{kind} `{name}`",
            verb=verb,
            role=role,
            address=address,
            code=code.name,
            detail=detail.strip().rstrip(".") or code.name,
        )
    )


def delays(first: float = 0.1, most: float = 10.0, factor: float = 2.0) -> Iterator[float]:
    """Seconds to wait before each retry, without end: exponential, with full jitter above half."""
    delay = first
    while True:
        yield delay * random.uniform(0.5, 1.0)
        delay = min(delay * factor, most)


class Retries:
    """When one call is tried again: the policy of every unary call. `delays` alone is that of streams, which reopen.

    started_at: the time of the first attempt, for callers whose deadline depends on it. pauses: those before the next
    attempts, by default `delays()`, which are made when the first is needed.
    """

    __slots__ = ("_pauses", "started_at")

    def __init__(self, started_at: float, pauses: Iterator[float] | None = None) -> None:
        self.started_at = started_at
        self._pauses = pauses

    def pause(self, now: float, until: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None if it would begin after `until`."""
        self._pauses = self._pauses or delays()
        pause = next(self._pauses)
        return pause if now + pause <= until else None

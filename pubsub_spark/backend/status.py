"""The treatment of gRPC status codes: which are retried, and the error for each of the others.

Sources: google-cloud-pubsub's streaming_pull_manager (`_RETRYABLE_STREAM_ERRORS`), its publisher's gapic retry policy,
and https://cloud.google.com/pubsub/docs/reference/error-codes.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from http import HTTPStatus
from urllib.parse import urlsplit

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
# The service may end a stream when its token expires. There is a new token by then, and a limit for refused ones. It
# also cancels streams: https://github.com/googleapis/nodejs-pubsub/issues/979
RETRYABLE_FOR_STREAM = RETRYABLE | {Code.UNAUTHENTICATED, Code.CANCELLED}
# A Publish is cancelled by the service alone.
RETRYABLE_FOR_PUBLISH = RETRYABLE | {Code.CANCELLED}

# Code -> (class, sentence). {resource} is a full name in backticks, {detail} the service's own message.
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
        "Default Credentials{clock}. ({detail})",
    ),
    Code.ALREADY_EXISTS: (ResourceError, "{resource} exists already. ({detail})"),
    Code.FAILED_PRECONDITION: (ResourceError, "{resource} cannot be used this way: {detail}."),
    Code.INVALID_ARGUMENT: (InvalidError, "Pub/Sub refuses to {verb} {resource}: {detail}."),
    Code.OUT_OF_RANGE: (ResourceError, "Pub/Sub refuses to {verb} {resource}: {detail}."),
    Code.UNIMPLEMENTED: (ResourceError, "`{address}` cannot {verb} {resource}: {detail}."),
    Code.UNAVAILABLE: (
        ServiceError,
        "`{address}` did not answer when asked to {verb} {resource}. Check `endpoint`, the network and whether the "
        "server runs.{proxy}{tls} ({detail})",
    ),
    Code.DEADLINE_EXCEEDED: (
        ServiceError,
        "`{address}` did not answer in time when asked to {verb} {resource}. Check `endpoint` and the network.{proxy} "
        "({detail})",
    ),
}
_OTHERWISE = (ServiceError, "`{address}` failed to {verb} {resource}: {code}: {detail}.")

# gRPC reports a call without a token as UNAVAILABLE, which is retried, with this and the text of `no_token`.
_NO_TOKEN = "Getting metadata from plugin failed with error: "  # noqa: S105 (no password)
_IS_OUTAGE = re.compile(r"server `[^`]*` (does not answer|fails with)")
_OUTAGE_STATUSES = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS})  # and all of 500 and more
_MAX_REASON = 300  # characters: token servers answer with pages
_TOKEN_OUTAGE = (
    ServiceError,
    "No token for `{address}` to {verb} {resource}: {detail}. Check the network, and any proxy, between "
    "this machine and that server.",
)
_TOKEN_REFUSED = (
    ForbiddenError,
    "The credentials for `{address}` cannot be used to {verb} {resource}: {detail}. Check `credentialsFile` or the "
    "Application Default Credentials, which may be revoked or expired{clock}.",
)

# Parts of error messages, chosen by a pattern in the detail.
_TIME = re.compile(r"expired|not yet valid|too early|timeframe|in the future|\b(iat|exp|nbf)\b", re.IGNORECASE)
_PLAINTEXT = re.compile(r"WRONG_VERSION_NUMBER")

_SCHEMA_DELETED = (
    ResourceError,
    "{resource} takes no messages, because its schema was deleted. Set another schema on the topic, or none. "
    "({detail})",
)
_SCHEMA_IS_DELETED = re.compile(r"schema.*deleted", re.IGNORECASE)  # NOT_FOUND about a topic that exists

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


def no_token(url: str | None, status: int | None, reason: str) -> str:
    """Return why there is no token for a call: an outage, or for good.

    url: the last request's, or None without any request. status: the HTTP status of its response, or None. reason:
    google-auth's.
    """
    reason = reason[:_MAX_REASON]
    if url is None:
        return f"no token can be made: {reason}"
    server = f"the {'metadata' if 'computeMetadata' in url else 'token'} server `{urlsplit(url).netloc}`"
    if status is None:
        return f"{server} does not answer: {reason}"
    if status in _OUTAGE_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"{server} fails with HTTP {status}"
    return f"{server} refuses a token with HTTP {status}: {reason}"


def is_credential_failure(code: grpc.StatusCode, detail: str) -> bool:
    """Return whether a status for which streams are reopened means refused credentials, not an outage."""
    return code is Code.UNAUTHENTICATED or (
        code is Code.UNAVAILABLE and _NO_TOKEN in detail and not _IS_OUTAGE.search(detail)
    )


def failure(
    code: grpc.StatusCode, detail: str, verb: str, kind: str, name: str, address: str, proxy: str | None = None
) -> PubSubError:
    """Return the error to raise for a final status.

    verb: the call, such as "pull from". kind and name: the resource, such as "Subscription", and its full name.
    proxy: the environment variable that names the proxy of the call, if there is one.
    """
    cls, sentence = _SENTENCES.get(code, _OTHERWISE)
    if code is Code.UNAVAILABLE and _NO_TOKEN in detail:
        cls, sentence = _TOKEN_REFUSED if is_credential_failure(code, detail) else _TOKEN_OUTAGE
        detail = detail.partition(_NO_TOKEN)[2]
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
            proxy=f" `{proxy}` is set, so the call goes through a proxy." if proxy else "",
            tls=" It does not speak TLS: set `backend=emulator` if it is an emulator."
            * bool(_PLAINTEXT.search(detail)),
            clock=", and the clock of this machine" * bool(_TIME.search(detail)),
        )
    )


def delays(first: float = 0.1, most: float = 10.0, factor: float = 2.0) -> Iterator[float]:
    """Yield the seconds to wait before each retry, without end: exponential, with full jitter above half."""
    delay = first
    while True:
        yield delay * random.uniform(0.5, 1.0)
        delay = min(delay * factor, most)


class Retries:
    """When one unary call is tried again. Streams, which reopen, use `delays` alone.

    started_at: the time of the first attempt, for callers whose deadline depends on it. pauses: those before the next
    attempts, by default `delays()`.
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

"""The treatment of gRPC status codes: which are retried, and the error for each of the others.

Tables, and one function that makes the error. Sources: google-cloud-pubsub's streaming_pull_manager
(`_RETRYABLE_STREAM_ERRORS`), its publisher's gapic retry policy, and
https://cloud.google.com/pubsub/docs/reference/error-codes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import grpc

from ..errors import ForbiddenError, MissingError, PubSubError, ResourceError, ServiceError

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
    Code.INVALID_ARGUMENT: (ResourceError, "Pub/Sub refuses to {verb} {resource}: {detail}."),
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

_ROLES = {
    "publish to": "`roles/pubsub.publisher`",
    "pull from": "`roles/pubsub.subscriber`",
    "acknowledge on": "`roles/pubsub.subscriber`",
    "create": "`roles/pubsub.editor`",
    "delete": "`roles/pubsub.editor`",
    "seek": "`roles/pubsub.editor`",
}


def failure(code: grpc.StatusCode, detail: str, verb: str, kind: str, name: str, address: str) -> PubSubError:
    """The error to raise for a final status.

    verb: what was asked, such as "pull from"; kind and name: the resource, such as "Subscription", its full name.
    """
    cls, sentence = _SENTENCES.get(code, _OTHERWISE)
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

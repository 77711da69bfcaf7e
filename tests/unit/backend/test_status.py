"""The treatment of ambiguous status codes: unusable credentials, deleted schemas."""

import grpc
import pytest

from pubsub_spark.backend.status import Retries, delays, failure, is_credential_failure, no_token
from pubsub_spark.errors import ForbiddenError, MissingError, ServiceError

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
PLUGIN = "Getting metadata from plugin failed with error: "


TOKEN, METADATA = "https://oauth2.googleapis.com/token", "http://metadata.google.internal/computeMetadata/v1/token"


@pytest.mark.parametrize(
    ("url", "status", "is_final", "says"),
    [
        (TOKEN, None, False, "the token server `oauth2.googleapis.com` does not answer: why"),
        (TOKEN, 503, False, "the token server `oauth2.googleapis.com` fails with HTTP 503"),
        (TOKEN, 429, False, "the token server `oauth2.googleapis.com` fails with HTTP 429"),
        (TOKEN, 408, False, "the token server `oauth2.googleapis.com` fails with HTTP 408"),
        (METADATA, None, False, "the metadata server `metadata.google.internal` does not answer: why"),
        (METADATA, 404, True, "the metadata server `metadata.google.internal` refuses a token with HTTP 404: why"),
        (TOKEN, 400, True, "the token server `oauth2.googleapis.com` refuses a token with HTTP 400: why"),
        (TOKEN, 403, True, "the token server `oauth2.googleapis.com` refuses a token with HTTP 403: why"),
        (TOKEN, 200, True, "the token server `oauth2.googleapis.com` refuses a token with HTTP 200: why"),
        (None, None, True, "no token can be made: why"),
    ],
)
def test_a_call_without_a_token(url: str | None, status: int | None, is_final: bool, says: str):
    """A server that fails or does not answer is an outage. One that refuses means the credentials."""
    reason = no_token(url, status, "why")

    assert says == reason
    assert is_final == is_credential_failure(UNAVAILABLE, PLUGIN + reason)
    error = failure(UNAVAILABLE, PLUGIN + reason, "pull from", "Subscription", "s", "host:443")
    assert (ForbiddenError if is_final else ServiceError) is type(error)
    assert f"to pull from Subscription `s`: {says}. " in str(error)


def test_credential_failure_among_retryable_statuses():
    """UNAUTHENTICATED is one, and no other status of the service."""
    assert is_credential_failure(grpc.StatusCode.UNAUTHENTICATED, "")
    assert not is_credential_failure(UNAVAILABLE, "failed to connect to all addresses; Connection refused")
    assert not is_credential_failure(grpc.StatusCode.NOT_FOUND, PLUGIN)


@pytest.mark.parametrize(
    ("code", "detail", "names_clock"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "Token is not yet valid", True),
        (grpc.StatusCode.UNAUTHENTICATED, "The JWT has expired", True),
        (grpc.StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials", False),
        (UNAVAILABLE, PLUGIN + no_token(TOKEN, 400, "invalid_grant: Check your iat and exp values in the JWT"), True),
        (UNAVAILABLE, PLUGIN + no_token(TOKEN, 400, "invalid_grant: Bad Request"), False),
    ],
)
def test_the_clock_is_named_for_tokens_of_another_time(code: grpc.StatusCode, detail: str, names_clock: bool):
    """A token that is expired or not yet valid may be one of a machine whose clock is wrong."""
    error = failure(code, detail, "pull from", "Subscription", "s", "host:443")

    assert names_clock == ("the clock of this machine" in str(error))


def test_a_proxy_is_named():
    """The error names the variable instead of its value, which may hold a password."""
    told = [
        str(failure(UNAVAILABLE, "Connection refused", "look at", "Topic", "t", "host:443", proxy))
        for proxy in ("https_proxy", None)
    ]

    assert ["`https_proxy` is set, so the call goes through a proxy." in text for text in told] == [True, False]


def test_deleted_schema_is_not_a_missing_topic():
    """A Publish to a topic whose schema was deleted is NOT_FOUND, as is one to a missing topic."""
    name = "projects/p/topics/schema-deleted"
    texts = ["Schema associated with topic deleted.", f"Resource not found (resource={name})."]
    deleted, missing = (
        failure(grpc.StatusCode.NOT_FOUND, text, "publish to", "Topic", name, "host:443") for text in texts
    )

    assert str(deleted).startswith(f"Topic `{name}` takes no messages, because its schema was deleted. Set another")
    assert isinstance(missing, MissingError)


def test_retries_end_when_the_next_attempt_would_be_too_late():
    """The pauses grow, and a pause that ends after the deadline is not begun."""
    retries = Retries(0.0, iter([1.0, 2.0, 4.0]))

    assert [1.0, 2.0, None] == [retries.pause(now, until=12.0) for now in (0.0, 10.0, 10.0)]


def test_pauses_double_up_to_ten_seconds():
    """Each is at least half of its step, so that many clients do not return at one moment."""
    steps = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]

    assert all(step / 2 <= pause <= step for step, pause in zip(steps, delays(), strict=False))

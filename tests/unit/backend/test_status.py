"""The treatment of status codes that say less than they mean: unusable credentials, deleted schemas."""

import grpc
import pytest

from pubsub_spark.backend.status import Retries, delays, failure, is_credential_failure
from pubsub_spark.errors import ForbiddenError, MissingError, ServiceError

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
PLUGIN = "Getting metadata from plugin failed with error: "


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        (PLUGIN + "('invalid_grant: Token has been expired or revoked.', {})", True),
        (PLUGIN + "Reauthentication is needed. Please run `gcloud auth application-default login`", True),
        (PLUGIN + "Failed to retrieve http://metadata.google.internal/computeMetadata/v1/: timed out", True),
        (PLUGIN + "HTTPSConnectionPool(host='oauth2.googleapis.com', port=443): Max retries exceeded", False),
        ("failed to connect to all addresses; Connection refused", False),
    ],
)
def test_credential_failure_in_unavailable(details: str, expected: bool):
    """Revoked, expired and no metadata server are; a token server that an outage hides as well is not."""
    assert expected == is_credential_failure(UNAVAILABLE, details)
    assert not is_credential_failure(grpc.StatusCode.NOT_FOUND, details)


def test_credential_failure_has_its_own_sentence():
    """UNAVAILABLE with a revoked grant names the credentials, any other the network."""
    texts = [PLUGIN + "('invalid_grant', {})", "Connection refused"]
    revoked, gone = (failure(UNAVAILABLE, text, "pull from", "Subscription", "s", "host:443") for text in texts)

    assert isinstance(revoked, ForbiddenError)
    assert str(revoked).startswith("The credentials for `host:443` cannot be used to pull from Subscription `s`.")
    assert isinstance(gone, ServiceError)


def test_deleted_schema_is_not_a_missing_topic():
    """A Publish to a topic whose schema was deleted is NOT_FOUND, as is one to a topic that is not there."""
    name = "projects/p/topics/schema-deleted"
    texts = ["Schema associated with topic deleted.", f"Resource not found (resource={name})."]
    deleted, missing = (
        failure(grpc.StatusCode.NOT_FOUND, text, "publish to", "Topic", name, "host:443") for text in texts
    )

    assert str(deleted).startswith(f"Topic `{name}` takes no messages, because its schema was deleted. Give the topic")
    assert isinstance(missing, MissingError)


def test_retries_end_when_the_next_attempt_would_be_too_late():
    """The pauses grow, and a pause that ends after the deadline is not begun."""
    retries = Retries(0.0, iter([1.0, 2.0, 4.0]))

    assert [1.0, 2.0, None] == [retries.pause(now, until=12.0) for now in (0.0, 10.0, 10.0)]


def test_pauses_double_up_to_ten_seconds():
    """Each is at least half of its step, so that many clients do not come back at one moment."""
    steps = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]

    assert all(step / 2 <= pause <= step for step, pause in zip(steps, delays(), strict=False))

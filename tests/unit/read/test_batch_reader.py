"""A batch read: up to `maxMessages` messages. All are nacked, also when the read fails."""

import logging
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
from google.pubsub_v1 import types
from pyspark.sql.datasource import InputPartition

from pubsub_spark.errors import ForbiddenError, MissingError
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.batch_reader import PubSubBatchReader
from pubsub_spark.read.rows import Rows
from tests.unit.read.service import AT_ONCE, SUBSCRIPTION, Service, response

LONG = 30.0  # seconds that a test never waits in full
Code = grpc.StatusCode


class _Admin:
    """An admin client without the permission to get a subscription, or with this one."""

    def __init__(self, found: types.Subscription | None = None) -> None:
        self._found = found

    def subscription(self, name: str) -> Any:
        if self._found is None:
            raise ForbiddenError(name)
        return self._found


@dataclass
class _Backend:
    """A backend with one scripted connection."""

    service: Any
    subscription: types.Subscription | None = None

    def connect(self) -> Any:
        self.service.admin = _Admin(self.subscription)
        return self.service


# However slow the machine is, no pause between messages ends a read.
_TIMES = replace(AT_ONCE, idle_after_messages=LONG)


def batch_read(service: Service, **given: Any) -> list[bytes]:
    """Return the payloads of up to three messages."""
    options = ReadOptions(
        subscription_id=SUBSCRIPTION,
        endpoint="fake:443",
        max_messages=3,
        max_fetch_period=LONG,
        idle_timeout=LONG,
        **given,
    )
    backend: Any = _Backend(service)
    batches = PubSubBatchReader(options, backend, Rows(options, backend), _TIMES).read(InputPartition(0))
    return [data for batch in batches for data in batch.column("data").to_pylist()]


@pytest.mark.parametrize(("code", "error"), [(Code.NOT_FOUND, MissingError), (Code.PERMISSION_DENIED, ForbiddenError)])
def test_batch_read_that_ends_for_good_midway_is_no_answer(code: grpc.StatusCode, error: type[Exception]):
    """A read that ends with a final error nacks its messages and fails, or its rows would pass for all there are."""
    service = Service(scripts=[[response("ab"), code]])
    with pytest.raises(error, match=f"`{SUBSCRIPTION}`"):
        batch_read(service)

    assert [(0, ["ack-a", "ack-b"])] == service.modified
    assert [] == service.acked
    assert service.closed


def test_batch_read_goes_on_where_the_service_closed_its_stream():
    """Streams end now and then: the next one brings the rest, and all messages are nacked."""
    service = Service(scripts=[[response("ab"), Code.UNAVAILABLE], [response("c")]])

    assert [b"a", b"b", b"c"] == batch_read(service)
    assert ["ack-a", "ack-b", "ack-c"] == [ack_id for seconds, ids in service.modified if not seconds for ack_id in ids]


def test_batch_read_has_at_most_so_many_messages():
    """The service need not cut a response to the messages that are left."""
    service = Service(scripts=[[response("ab"), response("cd")]])

    assert [b"a", b"b", b"c"] == batch_read(service)
    assert 4 == sum(len(ids) for seconds, ids in service.modified if not seconds)


def test_batch_read_drops_what_was_delivered_twice():
    """A redelivery during the read is not a row. It is nacked like the first delivery."""
    service = Service(scripts=[[response("ab"), response("bc")]])

    assert [b"a", b"b", b"c"] == batch_read(service)
    assert ["ack-a", "ack-b", "ack-b", "ack-c"] == [
        ack_id for seconds, ids in service.modified if not seconds for ack_id in ids
    ]


@pytest.mark.parametrize("policy", [True, False])
def test_batch_read_warns_of_a_dead_letter_policy(caplog: pytest.LogCaptureFixture, policy: bool):
    """A look is a failed delivery. A WARNING reports after how many of them messages go to the dead-letter topic."""
    dead = types.DeadLetterPolicy(dead_letter_topic="projects/p/topics/dead", max_delivery_attempts=5)
    found = types.Subscription(name=SUBSCRIPTION, dead_letter_policy=dead if policy else None)
    options = ReadOptions(subscription_id=SUBSCRIPTION, endpoint="fake:443")
    backend: Any = _Backend(Service(scripts=[]), found)

    PubSubBatchReader(options, backend, Rows(options, backend)).partitions()

    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert policy == bool(warnings)
    assert not policy or "Pub/Sub moves a message to `projects/p/topics/dead` after 5 attempts" in warnings[0]

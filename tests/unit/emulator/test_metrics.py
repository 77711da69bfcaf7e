"""Metrics without a server: calls and events go in, Prometheus' text comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pubsub_spark.emulator import metrics as module
from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.metrics import Histogram, Metrics
from pubsub_spark.emulator.rpc.context import RpcContext
from tests.unit.emulator.conftest import SUBSCRIPTION, TOPIC, Handlers

_SUBSCRIPTION = {"project_id": "p", "subscription_id": "subscription"}
_TOPIC = {"project_id": "p", "topic_id": "topic"}


class Measured(Handlers):
    """The services, with metrics that follow their engine."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics = Metrics(self.engine)
        self.engine.add_listener(self.metrics.follow)

    def call(self, rpc: str, request: bytes = b"", error: BaseException | None = None) -> None:
        """Make a call that ends with a response, or with this error."""

        async def proceed() -> bytes:
            if error is not None:
                raise error
            return b""

        async def run() -> None:
            await self.metrics(RpcContext(f"/google.pubsub.v1.Service/{rpc}", request=request), proceed)

        if error is None:
            asyncio.run(run())
            return
        with pytest.raises(type(error)):
            asyncio.run(run())

    def value(self, name: str, **labels: str) -> Any:
        """Return the sample with that name and those labels, or None."""
        labels = labels or (_TOPIC if name.startswith("topic_") else _SUBSCRIPTION)
        text = self.metrics.text(lambda: {SUBSCRIPTION: 2})
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        found = [each.value for each in samples if each.name == name and each.labels == labels]
        assert len(found) <= 1
        return found[0] if found else None


@pytest.fixture
def measured() -> Iterator[Measured]:
    measured = Measured()
    measured.topic()
    measured.subscription()
    yield measured
    measured.engine.close()


def test_backlog_is_read_when_asked(measured):
    """Gauges have the values of the moment: unacked, outstanding, age of the oldest, open streams."""
    measured.publish("a", "b", "c")
    measured.pull(most=2)
    measured.engine.advance(5)

    assert 3 == measured.value("subscription_num_undelivered_messages")
    assert 2 == measured.value("subscription_num_outstanding_messages")
    assert 5 <= measured.value("subscription_oldest_unacked_message_age") < 6
    assert 2 == measured.value("subscription_open_streaming_pulls")


def test_messages_are_counted(measured):
    """Events of messages are counted by resource: published, delivered, acked, nacked, expired, sought."""
    measured.publish("a", "b", "c", "d")
    acked, nacked, *_ = measured.pull()
    measured.ack(acked)
    measured.modify(0, nacked)
    measured.engine.advance(11)
    measured.snapshots.seek(protos.SeekRequest(subscription=SUBSCRIPTION, time={"seconds": 0}))

    assert 4 == measured.value("topic_send_message_operation_count_total")
    assert 4 == measured.value("subscription_sent_message_count_total")
    assert 1 == measured.value("subscription_ack_message_count_total")
    assert 1 == measured.value("subscription_mod_ack_deadline_message_count_total")
    assert 1 == measured.value("subscription_nack_requests_total")
    assert 2 == measured.value("subscription_expired_ack_deadlines_count_total")
    assert 1 == measured.value("subscription_seek_request_count_total")


def test_dead_letters_are_counted(measured):
    """A message that failed too often is counted on its subscription and as a message of the dead-letter topic."""
    measured.topic("projects/p/topics/dead")
    policy = protos.DeadLetterPolicy(dead_letter_topic="projects/p/topics/dead", max_delivery_attempts=5)
    mortal = "projects/p/subscriptions/mortal"
    measured.subscription(mortal, dead_letter_policy=policy)
    measured.publish("a")
    for _ in range(5):
        measured.modify(
            0, *measured.pull("projects/p/subscriptions/mortal"), subscription="projects/p/subscriptions/mortal"
        )

    labels = {"project_id": "p", "subscription_id": "mortal"}
    assert 1 == measured.value("subscription_dead_letter_message_count_total", **labels)
    assert 1 == measured.value("topic_send_message_operation_count_total", project_id="p", topic_id="dead")


def test_ack_latency_is_from_delivery_to_ack(measured):
    """Each message has the time of its last delivery, on the emulator's clock. A nacked one is in no histogram."""
    measured.publish("a", "b", "c")
    first, second, third = measured.pull()
    measured.modify(0, third)
    measured.engine.advance(2)
    measured.ack(first, second)
    measured.ack(*measured.pull())

    def bucket(bound):
        return measured.value("subscription_ack_latencies_bucket", **_SUBSCRIPTION, le=bound)

    assert (1, 3, 3) == (bucket("1000.0"), bucket("5000.0"), bucket("+Inf"))
    assert 4000 <= measured.value("subscription_ack_latencies_sum") < 6000


def test_only_so_many_deliveries_are_kept(measured, monkeypatch):
    """Unacknowledged deliveries are forgotten beyond a number, and their acks are in no histogram."""
    monkeypatch.setattr(module, "MAX_BATCHES", 2)
    measured.publish("a", "b", "c")
    held = [each for _ in range(3) for each in measured.pull(most=1)]

    measured.ack(*held)

    assert 2 == measured.value("subscription_ack_latencies_count")
    assert 3 == measured.value("subscription_ack_message_count_total")


def test_an_acknowledged_delivery_takes_no_room(measured, monkeypatch):
    """Deliveries that were acknowledged do not count towards that number."""
    monkeypatch.setattr(module, "MAX_BATCHES", 2)
    measured.publish("a", "b", "c", "d")
    [held] = measured.pull(most=1)
    for _ in range(3):
        measured.ack(*measured.pull(most=1))

    measured.ack(held)

    assert 4 == measured.value("subscription_ack_latencies_count")


def test_calls_are_counted_by_status(measured):
    """Calls have their status, including cancelled calls and calls that failed by a bug. Publish has its topic and
    bytes.
    """
    publish = protos.PublishRequest(topic=TOPIC).SerializeToString()
    measured.call("Publish", publish)
    measured.call("Publish", publish, RpcError("UNAVAILABLE", "no"))
    measured.call("Publish", publish, asyncio.CancelledError())
    measured.call("GetTopic", b"", ZeroDivisionError())

    def requests(code):
        return measured.value("topic_send_request_count_total", **_TOPIC, response_code=code)

    assert (1, 1, 1) == (requests("OK"), requests("UNAVAILABLE"), requests("CANCELLED"))
    assert len(publish) == measured.value("topic_byte_cost_total")
    assert 1 == measured.value("pubsub_emulator_rpcs_total", rpc="GetTopic", code="INTERNAL")
    assert 3 == measured.value("pubsub_emulator_rpc_seconds_count", rpc="Publish")


def test_labels_are_those_of_resources_that_exist(measured):
    """A missing resource makes no label, and a deleted one takes its numbers with it."""
    measured.call("Publish", protos.PublishRequest(topic="projects/p/topics/none").SerializeToString())
    measured.call("Publish", b"\xff")
    measured.publish("a")
    measured.pull()
    measured.delete_subscription()
    measured.subscription()

    assert 'topic_id="none"' not in measured.metrics.text(dict)
    assert 0 == measured.value("subscription_sent_message_count_total")
    measured.reset()
    assert measured.value("topic_send_message_operation_count_total") is None


def test_buckets_are_cumulative():
    """A value counts in each bucket whose bound it does not exceed."""
    histogram = Histogram((1.0, 5.0))
    histogram.add(1.0)
    histogram.add(3.0, times=2)
    histogram.add(9.0)

    assert [("1.0", 1), ("5.0", 3), ("+Inf", 4)] == histogram.buckets()
    assert 16.0 == histogram.sum

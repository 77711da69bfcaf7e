"""Steps that the tests of the driver's session share: trigger until something is so, start with messages, crash."""

from __future__ import annotations

import grpc
import pytest
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from pubsub_spark.emulator import Emulator
from tests.conftest import Names
from tests.engine import CrashError, Engine, until

BOUND = 20.0
LEASE = 601.0  # seconds, longer than any lease
MANY = [f"m{n}" for n in range(1500)]  # half as many again as the driver stream buffers


def run_until(query: Engine, rows: int) -> None:
    """Trigger until `rows` rows are committed."""

    def enough() -> bool:
        query.trigger()
        return len(query.rows) >= rows

    until(enough, f"{rows} rows, got {len(query.rows)}")


def acked(query: Engine, count: int) -> None:
    """Trigger until `count` messages are acknowledged. An idle query also acknowledges."""

    def enough() -> bool:
        query.trigger()
        return sum(m.acked for m in query.emulator.messages(query.options.subscription)) >= count

    until(enough, f"{count} acks")


def buffered(query: Engine, count: int) -> None:
    """Wait until the driver stream has buffered `count` messages."""
    stream = query.opened.stream

    def arrived() -> bool:
        stream.poll(0.01)
        return bool(stream.message_count >= count)

    until(arrived, f"{count} buffered messages")


def start_with(query: Engine, names: Names, *texts: str) -> None:
    """Start, publish, and wait until the driver stream has buffered these messages or as many as it can."""
    query.start()
    query.trigger()
    query.emulator.publish(names.topic, *texts)
    buffered(query, min(len(texts), query.opened.stream.settings.max_messages))


def start_and_acknowledge(query: Engine, names: Names, *texts: str) -> None:
    """Start, and read each message in a batch of its own until it is acknowledged and its files are deleted."""
    query.start()
    query.trigger()  # nothing yet, even on a slow machine
    for count, text in enumerate(texts, 1):
        query.emulator.publish(names.topic, text)
        run_until(query, count)
        acked(query, count)


def die_in_a_batch(query: Engine, parts: int) -> None:
    """Crash after `parts` partitions of the next batch were read."""
    with pytest.raises(CrashError):
        query.trigger(crash_after=parts)


def acknowledged_after_its_lease(query: Engine, names: Names) -> None:
    """Batch 1, of one message: the driver was down for longer than its lease, and the message is not redelivered yet
    when its acks are answered and its files deleted."""
    start_with(query, names, "a")
    die_in_a_batch(query, parts=1)
    query.emulator.advance(LEASE)
    query.emulator.fail("StreamingPull", "UNAVAILABLE", count=10_000)
    query.start()
    query.trigger()  # the replay
    assert query.session is not None
    query.session.latest_offset(query.offsets[-1], query.budget)
    until(lambda: query.opened.staging.last_acknowledged() == 1, "batch 1 is acknowledged and deleted")
    assert 1 == query.emulator.backlog(names.subscription)


def google(emulator: Emulator) -> SubscriberClient:
    """Return Google's client on the emulator, to look at resources."""
    return SubscriberClient(transport=SubscriberGrpcTransport(channel=grpc.insecure_channel(emulator.endpoint)))

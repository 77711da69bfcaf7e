"""The end of an export's batch."""

from __future__ import annotations

from pubsub_spark.emulator.sinks.export_batch import NEVER, Limits, OpenBatch
from pubsub_spark.emulator.state.delivery import UNLIMITED, Lease
from pubsub_spark.emulator.state.message import Message


def leases(count: int, size: int = 10) -> list[Lease]:
    return [Lease(number, Message(number, 0.0, "", b"x" * size), 0) for number in range(count)]


def test_empty_batch_never_ends():
    """An empty batch never ends, so nothing is written."""
    batch = OpenBatch(Limits(60))

    assert not batch.is_due(1e9)
    assert NEVER == batch.ends


def test_time_counts_from_the_first_message():
    """A batch's time counts from its first message."""
    batch = OpenBatch(Limits(60))
    batch.add(leases(1), now=100)
    batch.add(leases(1), now=150)

    assert (100, 160) == (batch.opened, batch.ends)
    assert not batch.is_due(159.9)
    assert batch.is_due(160)


def test_messages_end_it():
    """A batch ends at its maximum number of messages."""
    batch = OpenBatch(Limits(60, messages=3))
    batch.add(leases(2), now=0)

    assert 1 == batch.room[0]
    batch.add(leases(1), now=0)
    assert batch.is_due(0)


def test_bytes_end_it():
    """The message that reaches the maximum of bytes is still in the batch."""
    batch = OpenBatch(Limits(60, bytes=25))
    batch.add(leases(2), now=0)

    assert (UNLIMITED - 2, 5) == batch.room
    batch.add(leases(1), now=0)
    assert batch.is_due(0)

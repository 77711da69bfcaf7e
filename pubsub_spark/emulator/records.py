"""Snapshots of the state for tests: the history of a message, and the backlog of each subscription. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Delivery, message_of


@dataclass(frozen=True)
class Record:
    """The history of one message on one subscription."""

    message_id: str
    data: bytes
    attributes: dict[str, str]
    ordering_key: str
    publish_time: float  # seconds since the epoch
    deliveries: int  # times handed out
    acks: int
    modacks: int  # deadline changes, nacks among them
    failures: int  # nacks and passed deadlines
    acked: bool
    ack_deadline: float | None  # when the present lease runs out, or None without a lease


def backlogs(broker: Broker, now: float) -> dict[str, dict[str, float]]:
    """Return the backlog of each subscription: unacked messages, leased messages, the age of the oldest in seconds."""
    return {
        name: {
            "undelivered": broker.backlog(subscription),
            "leased": broker.outstanding(subscription),
            "oldestUnackedSeconds": round(max(0.0, now - (broker.oldest_unacked(subscription) or now)), 3),
        }
        for name, subscription in broker.subscriptions.items()
    }


def record_of(entry: Any, now: float) -> Record:
    message = message_of(entry)
    known = entry if isinstance(entry, Delivery) else Delivery(*message)
    lease_ends = known.deadline if known.holder is not None and known.deadline > now else None
    content = message.id, message.data, dict(message.attributes), message.key, message.published
    counts = known.deliveries, known.acks, known.modacks, known.failures
    return Record(*content, *counts, known.acked, lease_ends)

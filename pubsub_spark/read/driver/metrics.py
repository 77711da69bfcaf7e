"""The metrics of a streaming query: those in `lastProgress`, and the counts of its batches. Pure.

A message is buffered (in the driver stream), then in flight (in a batch that is planned and not committed), then
committed. It is unacked until Pub/Sub has answered its ack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..pull.health import StreamHealth
from ..staging.part import Footer


def batch_counts(footers: Sequence[Footer], malformed: int, dead_letters: int) -> dict[str, int]:
    """Return the counts of a batch, from the footers of its parts, by their names in `lastProgress` and in the log."""
    return {
        "messages": sum(footer.rows for footer in footers),
        "bytes": sum(footer.bytes for footer in footers),
        "redeliveriesDropped": sum(footer.dropped + footer.redelivered for footer in footers),
        "malformed": malformed,
        "deadLetters": dead_letters,
    }


def health_metrics(health: StreamHealth, now: float) -> dict[str, Any]:
    """Return the metrics of the driver stream's connection. now: on the clock of `health`."""
    response = health.last_response
    return {
        "connected": health.is_connected(now),
        "lastResponseSeconds": None if response is None else round(now - response, 3),
        "reopenedStreams": health.reopened,
        "lastError": health.last_error,
        "outageSeconds": round(health.outage_seconds(now), 3),
    }


def unacked_metrics(
    buffered: int, oldest_buffered: float | None, footers: Sequence[Footer], now: float
) -> dict[str, Any]:
    """Return the number of messages that are not acknowledged, and the age of the oldest.

    oldest_buffered: a publish time. footers: of the parts of batches in flight and unacked. now: seconds since the
    epoch.
    """
    times = [oldest_buffered, *(footer.oldest for footer in footers)]
    oldest = min((published for published in times if published is not None), default=None)
    return {
        "unackedMessages": buffered + sum(footer.acks for footer in footers),
        "oldestUnackedSeconds": 0 if oldest is None else max(0.0, round(now - oldest, 3)),
    }

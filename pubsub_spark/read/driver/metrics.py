"""The metrics of a streaming query: those in `lastProgress`, and the counts of its batches. Pure.

A message is buffered (in the driver stream), then in flight (in a batch that is planned and not committed), then
committed. It is unacked until Pub/Sub has answered its ack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from ..pull.health import StreamHealth
from ..staging.part import Footer


@dataclass(frozen=True)
class ReadCounts:
    """The counts of batches. dropped: redeliveries. malformed: payloads that could not be decoded."""

    messages: int = 0
    bytes: int = 0
    dropped: int = 0
    malformed: int = 0
    dead_letters: int = 0

    @classmethod
    def of(cls, footers: Sequence[Footer], malformed: int, dead_letters: int) -> ReadCounts:
        """Return the counts of one batch, from the footers of its parts."""
        rows, volume = (sum(getattr(footer, name) for footer in footers) for name in ("rows", "bytes"))
        dropped = sum(footer.dropped + footer.redelivered for footer in footers)
        return cls(rows, volume, dropped, malformed, dead_letters)

    def __add__(self, other: ReadCounts) -> ReadCounts:
        return ReadCounts(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def metrics(self) -> dict[str, int]:
        """The counts by their names in `lastProgress` and in the log."""
        names = ("messages", "bytes", "redeliveriesDropped", "malformed", "deadLetters")
        return dict(zip(names, astuple(self), strict=True))


def unacked_count(footers: Iterable[Footer]) -> int:
    """Return the number of acks that parts wait for: of rows and of dropped redeliveries."""
    return sum(footer.rows + footer.dropped for footer in footers)


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
        "unackedMessages": buffered + unacked_count(footers),
        "oldestUnackedSeconds": 0 if oldest is None else max(0.0, round(now - oldest, 3)),
    }

"""The lease of messages: how long the service delivers them to no other client, and when to extend it.

Pure: no clock, `now` is always an argument, in seconds of `Runtime.boottime`.

    (none)    the messages are delivered                   -> leased for STREAM_LEASE_SECONDS
    leased    an extension, answered before the end        -> leased for LEASE_SECONDS from then on
    leased    its end is reached, or the service refuses   -> expired: its messages may be delivered again
    expired   an extension                                 -> expired for ever
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

LEASE_SECONDS = 600.0  # the longest ack deadline, https://cloud.google.com/pubsub/docs/lease-management
STREAM_LEASE_SECONDS = 60.0  # of a stream's deliveries at first, as in Google's clients for exactly-once delivery
EXTEND_AFTER = 1 / 4  # of the lease, which leaves time for a failed request and another

TRANSIT_SECONDS = 5.0  # that a response may be on its way, while the leases of its messages last
STANDSTILL_SECONDS = 5.0  # between two looks, which shows that the process was stopped or its machine slept


@dataclass(frozen=True)
class Lease:
    """The lease of messages that were leased together. expired: whether it has ended, if only for a while."""

    start: float
    seconds: float
    expired: bool = False

    @property
    def end(self) -> float:
        return self.start + self.seconds

    def is_due(self, now: float) -> bool:
        return now - self.start >= self.seconds * EXTEND_AFTER

    def is_expired(self, now: float) -> bool:
        """Return whether the service may have delivered the messages again."""
        return self.expired or now >= self.end

    def extended(self, sent: float, answered: float, refused: bool) -> Lease:
        """Return the lease after an extension, sent and answered at these times."""
        return Lease(sent, LEASE_SECONDS, expired=refused or self.is_expired(answered))


class Redelivered(NamedTuple):
    """Messages that were delivered again. has_keys: whether any has an ordering key."""

    lease: Lease
    receipts: pa.RecordBatch
    has_keys: bool


@dataclass
class Arrivals:
    """The looks for new messages. A message may have been leased TRANSIT_SECONDS before the previous look.

    After a standstill sockets may hold messages that were sent long ago, and a first look may come before gRPC has read
    them. So the look that counts for messages within STANDSTILL_SECONDS after it is the one at its beginning.
    """

    last: float
    _since: float = 0.0
    _settled_at: float = -math.inf

    def look(self, now: float, waited: float = 0.0) -> float:
        """Record a look. Return the earliest lease time of messages found now. waited: for messages, on purpose."""
        if now - self.last - waited >= STANDSTILL_SECONDS:
            if self.is_settled(self.last):
                self._since = self.last
            self._settled_at = now + STANDSTILL_SECONDS
        elif self.is_settled(now):
            self._since = self.last
        self.last = now
        return self._since - TRANSIT_SECONDS

    def is_settled(self, now: float) -> bool:
        """Return whether messages that were sent during a standstill have been found."""
        return now >= self._settled_at


def pull_lease_seconds(max_fetch_period: float) -> int:
    """Return the lease of a task's stream: twice its longest pull, and half a minute for staging."""
    return int(max(STREAM_LEASE_SECONDS, 2 * max_fetch_period + 30))

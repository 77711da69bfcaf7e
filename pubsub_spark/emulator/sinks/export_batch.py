"""The batch of an export: messages that are leased until they are written together. Pure: `now` is an argument.

The message that reaches the limit of bytes is included. The lease of its messages is longer than its open time, so the
batch always ends before its leases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pubsub_spark.emulator.state.delivery import UNLIMITED, Lease

NEVER = float("inf")


class Limits(NamedTuple):
    """0 messages or bytes mean no limit."""

    seconds: float
    messages: int = 0
    bytes: int = 0


class OpenBatch:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.leases: list[Lease] = []
        self.opened = 0.0
        self.ends = NEVER
        self._bytes = 0

    @property
    def room(self) -> tuple[int, int]:
        messages, size = self._limits.messages or UNLIMITED, self._limits.bytes or UNLIMITED
        return messages - len(self.leases), size - self._bytes

    def add(self, leases: Iterable[Lease], now: float) -> None:
        """The first messages open the batch."""
        if not self.leases:
            self.opened, self.ends = now, now + self._limits.seconds
        for lease in leases:
            self.leases.append(lease)
            self._bytes += len(lease.message.frame)

    def is_due(self, now: float) -> bool:
        messages, size = self.room
        return bool(self.leases) and (now >= self.ends or messages <= 0 or size <= 0)

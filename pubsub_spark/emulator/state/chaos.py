"""Chaos from a seed: reordering, redelivery and early ends of leases, as at-least-once delivery allows.

Guarantees still hold: the order of a key, and all of exactly-once delivery. Each chance is below one, so in the end
every message is acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from pubsub_spark.emulator.state.delivery import Delivery
from pubsub_spark.emulator.state.leases import Leases

_SHORTENED_FRACTION = 0.1  # of all leases
_LOST_ACKS_FRACTION = 0.1  # of all acks
_MAX_LEASE_SECONDS = 1.0


class Chaos:
    def __init__(self, seed: int, subscription: str) -> None:
        self._random = Random(f"{seed} {subscription}")

    def portion(self, most: int) -> int:
        return self._random.randint(1, most) if most > 1 else most

    def reordered(self, batch: list[Delivery]) -> list[Delivery]:
        keyless = [delivery for delivery in batch if not delivery.key]
        self._random.shuffle(keyless)
        shuffled = iter(keyless)
        return [delivery if delivery.key else next(shuffled) for delivery in batch]

    def shorten(self, leases: Leases, numbers: Iterable[int], now: float) -> None:
        for number in numbers:
            if self._random.random() < _SHORTENED_FRACTION:
                seconds = self._random.uniform(0, _MAX_LEASE_SECONDS)
                if (delivery := leases.get(number)) is not None:
                    leases.extend([delivery], now + seconds)

    def loses(self) -> bool:
        """Return whether this ack is forgotten and its message redelivered."""
        return self._random.random() < _LOST_ACKS_FRACTION

"""Chaos from a seed: reordering, redelivery and early ends of leases, as at-least-once delivery allows.

Pure. At-least-once leaves much open: messages come in any order, come again though they were acknowledged, and leases
end early. A program that survives this survives the service. What was promised stays promised: the order of a key, and
of exactly-once delivery everything. Each chance is below one, so in the end every message is acknowledged.
"""

from __future__ import annotations

from random import Random

from pubsub_spark.emulator.state.delivery import Delivery

_SHORTENED_FRACTION = 0.1  # of all leases
_LOST_ACKS_FRACTION = 0.1  # of all acks
_MAX_SECONDS = 1.0


class Chaos:
    """The seeded choices of chaos for one subscription."""

    def __init__(self, seed: int, subscription: str) -> None:
        self._random = Random(f"{seed} {subscription}")

    def portion(self, most: int) -> int:
        """The number of messages to deliver at once, at most `most`."""
        return self._random.randint(1, most) if most > 1 else most

    def reorder(self, batch: list[Delivery]) -> None:
        """Shuffle the messages without an ordering key; the others keep their places."""
        places = [place for place, delivery in enumerate(batch) if not delivery.message.key]
        shuffled = [batch[place] for place in places]
        self._random.shuffle(shuffled)
        for place, delivery in zip(places, shuffled, strict=True):
            batch[place] = delivery

    def shortens(self) -> float | None:
        """After how many seconds this lease ends early; None when it does not."""
        return self._random.uniform(0, _MAX_SECONDS) if self._random.random() < _SHORTENED_FRACTION else None

    def loses(self) -> bool:
        """Whether this ack is forgotten, and the message comes again."""
        return self._random.random() < _LOST_ACKS_FRACTION

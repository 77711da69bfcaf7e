"""What is known of one message on one subscription once it has been handed out, and who holds it.

Plain records; the rules that move them are in `subscription`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pubsub_spark.emulator.message import Message

UNLIMITED = 1 << 62


class Consumer:
    """Somebody who takes messages: a stream, a waiting Pull, a push loop. Knows what it has outstanding.

    `bell` is whatever the wire layer wants back when there is something to take; this layer never touches it.
    """

    __slots__ = (
        "__weakref__",
        "ack_deadline",
        "bell",
        "blocked",
        "closed",
        "max_messages",
        "max_size",
        "messages",
        "size",
    )

    def __init__(self, ack_deadline: float = 0, max_messages: int = 0, max_size: int = 0, bell: Any = None) -> None:
        self.ack_deadline = ack_deadline  # 0: the subscription's own
        self.max_messages = max_messages if max_messages > 0 else UNLIMITED
        self.max_size = max_size if max_size > 0 else UNLIMITED
        self.bell = bell
        self.messages = 0  # outstanding: sent and neither acked, nacked nor expired
        self.size = 0
        self.blocked = False  # waits for room
        self.closed = False

    @property
    def has_room(self) -> bool:
        return self.messages < self.max_messages and self.size < self.max_size


class HandOut(NamedTuple):
    """One message of a batch. `attempt` is what `delivery_attempt` says: 0 unless a dead-letter policy counts."""

    number: int
    message: Message
    attempt: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What a consumer was handed at once: the messages, and a number for each, by which it acknowledges."""

    numbers: range
    messages: Sequence[Message]
    attempts: Sequence[int] | None = None  # None where nobody counts

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[HandOut]:
        return map(HandOut, self.numbers, self.messages, self.attempts or [0] * len(self))


class Delivery:
    """A message's course through one subscription: how often it was handed out, to whom, until when.

    Made when something happens to the message alone; what only comes and goes with its batch has none (`leases`).
    """

    __slots__ = ("acked", "acks", "deadline", "deliveries", "failures", "holder", "message", "modacks", "number")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.number = 0  # of the latest hand-out: what its ack id says
        self.deadline = 0.0  # until when the latest ack id is good
        self.holder: Consumer | None = None
        self.deliveries = 0
        self.failures = 0  # nacks and passed deadlines
        self.acks = 0
        self.modacks = 0
        self.acked = False


def message_of(entry: Message | Delivery) -> Message:
    """The message of something that waits: never handed out, or handed out before."""
    return entry.message if isinstance(entry, Delivery) else entry

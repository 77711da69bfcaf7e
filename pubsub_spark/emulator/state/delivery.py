"""Consumers, the batches leased to them, and the record of a message that was leased."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, NamedTuple

from pubsub_spark import names
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.message import Message, Publication

UNLIMITED = 1 << 62
# Bytes of a batch of more than one message. With a thousand ack ids they stay below the 4 MiB that gRPC lets a client
# receive. Google's clients raise that limit, except when PUBSUB_EMULATOR_HOST is set.
LARGEST_BATCH_BYTES = 3_900_000


@dataclass(eq=False, slots=True, weakref_slot=True)
class Consumer:
    """A consumer of messages (a stream, a waiting Pull, a push worker) with its limits and outstanding messages.

    `condition` belongs to the runtime, which notifies it when there is something to take.
    """

    ack_deadline: float = 0  # seconds. 0: the subscription's own
    max_messages: int = 0  # 0: no limit
    max_size: int = 0
    condition: Any = None
    name: str = ""  # for people: `StreamingPull of 127.0.0.1:40704`
    messages: int = 0  # outstanding: sent and neither acked, nacked nor expired
    size: int = 0
    blocked: bool = False  # waits for room
    closed: bool = False

    def __post_init__(self) -> None:
        self.max_messages = self.max_messages if self.max_messages > 0 else UNLIMITED
        self.max_size = self.max_size if self.max_size > 0 else UNLIMITED

    @property
    def has_room(self) -> bool:
        return self.messages < self.max_messages and self.size < self.max_size


class Lease(NamedTuple):
    """One message of a batch. `attempt` is its `delivery_attempt`: 0 unless a dead-letter policy counts."""

    number: int
    message: Message
    attempt: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages that were leased to a consumer at once, in order."""

    numbers: range
    parts: Sequence[Publication | Delivery]
    attempts: Sequence[int] | None = None  # None unless a dead-letter policy counts

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Lease]:
        messages = (
            message
            for part in self.parts
            for message in ((part.message,) if isinstance(part, Delivery) else part.messages())
        )
        return map(Lease, self.numbers, messages, self.attempts or [0] * len(self))

    @property
    def frames(self) -> Sequence[bytes]:
        frames: list[bytes] = []
        for part in self.parts:
            if isinstance(part, Delivery):
                frames.append(part.message.frame)
            else:
                frames += part.frames
        return frames


class BatchBuilder:
    """The parts of a batch so far, and the room left in messages and bytes."""

    __slots__ = ("left", "messages", "parts", "size")

    def __init__(self, messages: int, size: int) -> None:
        self.messages = messages
        self.size = size
        self.left = LARGEST_BATCH_BYTES
        self.parts: list[Publication | Delivery] = []

    @property
    def has_room(self) -> bool:
        """The message that reaches the limit of bytes still fits."""
        return self.messages > 0 and self.size > 0

    def add(self, delivery: Delivery) -> bool:
        """Return False if the delivery would make the batch too large, and leave no more room."""
        size = len(delivery.message.frame)
        if self.parts and size > self.left:
            self.messages = 0
            return False
        self.parts.append(delivery)
        self._lessen(1, size)
        return True

    def fill(self, publication: Publication) -> Publication | None:
        """Return the messages that did not fit."""
        fits = min(len(publication), self.messages)
        size = sum(map(len, publication.frames[:fits]))
        if size > min(self.size, self.left):
            ends = list(accumulate(map(len, publication.frames[:fits])))
            fits = min(fits, bisect_left(ends, self.size) + 1)
            most = bisect_right(ends, self.left) or (0 if self.parts else 1)
            if most < fits:
                self.messages = fits = most
            if not fits:
                return publication
            size = ends[fits - 1]
        publication, remaining = publication.split(fits)
        self.parts.append(publication)
        self._lessen(fits, size)
        return remaining

    def deliveries(self) -> list[Delivery]:
        """A fresh message gets a new Delivery."""
        parts = ((part,) if isinstance(part, Delivery) else map(Delivery, part.messages()) for part in self.parts)
        return [delivery for part in parts for delivery in part]

    def attempts(self) -> list[int]:
        counts = ([part.failures + 1] if isinstance(part, Delivery) else [1] * len(part) for part in self.parts)
        return [attempt for part in counts for attempt in part]

    def _lessen(self, messages: int, size: int) -> None:
        self.messages -= messages
        self.size -= size
        self.left -= size


class Delivery:
    """The delivery state of one message on one subscription: how often it was leased, its holder, until when."""

    __slots__ = ("acked", "acks", "deadline", "deliveries", "failures", "holder", "message", "modacks", "number")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.number = 0  # of the latest lease, as in its ack id
        self.deadline = 0.0  # until when the latest ack id is good
        self.holder: Consumer | None = None
        self.deliveries = 0
        self.failures = 0  # nacks and passed deadlines
        self.acks = 0
        self.modacks = 0
        self.acked = False


def message_of(entry: Message | Delivery) -> Message:
    return entry.message if isinstance(entry, Delivery) else entry


def dead_letter(subscription: str, delivery: Delivery) -> bytes:
    """Return a copy of a dead message with its origin. The appended fields replace those of the original."""
    message = delivery.message
    name = names.parse(subscription, "subscriptions")
    published = datetime.fromtimestamp(message.published, UTC)
    origin = {
        "CloudPubSubDeadLetterSourceSubscription": name.id,
        "CloudPubSubDeadLetterSourceSubscriptionProject": name.project,
        "CloudPubSubDeadLetterSourceDeliveryCount": str(delivery.failures),
        "CloudPubSubDeadLetterSourceTopicPublishTime": published.isoformat(timespec="milliseconds"),
    }
    return message.body + wire_format.attribute_fields(origin)

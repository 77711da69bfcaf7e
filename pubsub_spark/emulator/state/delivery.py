"""Consumers, the batches leased to them, and the record of a message that was leased."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, starmap
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


class Part(NamedTuple):
    """Consecutive messages of a batch, published together."""

    first: int
    size: int
    published: float


@dataclass(frozen=True, slots=True)
class Batch:
    """The messages that were leased to a consumer at once, in order."""

    numbers: range
    deliveries: Sequence[Delivery]
    parts: Sequence[Part]
    attempts: Sequence[int] | None = None  # None unless a dead-letter policy counts

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Lease]:
        messages = (delivery.message for delivery in self.deliveries)
        return map(Lease, self.numbers, messages, self.attempts or [0] * len(self))

    @property
    def frames(self) -> Sequence[bytes]:
        return [delivery.frame for delivery in self.deliveries]


class BatchBuilder:
    """The deliveries of a batch so far, and the room left in messages and bytes."""

    __slots__ = ("deliveries", "left", "messages", "parts", "size")

    def __init__(self, messages: int, size: int) -> None:
        self.messages = messages
        self.size = size
        self.left = LARGEST_BATCH_BYTES
        self.deliveries: list[Delivery] = []
        self.parts: list[Part] = []

    @property
    def has_room(self) -> bool:
        """The message that reaches the limit of bytes still fits."""
        return self.messages > 0 and self.size > 0

    def add(self, delivery: Delivery) -> bool:
        """Return False if the delivery would make the batch too large, and leave no more room."""
        size = len(delivery.frame)
        if self.deliveries and size > self.left:
            self.messages = 0
            return False
        self.deliveries.append(delivery)
        self.parts.append(Part(delivery.message_number, 1, delivery.published))
        self._lessen(1, size)
        return True

    def fill(self, publication: Publication) -> Publication | None:
        """Return the messages that did not fit."""
        fits = min(len(publication), self.messages)
        size = sum(map(len, publication.frames[:fits]))
        if size > min(self.size, self.left):
            ends = list(accumulate(map(len, publication.frames[:fits])))
            fits = min(fits, bisect_left(ends, self.size) + 1)
            most = bisect_right(ends, self.left) or (0 if self.deliveries else 1)
            if most < fits:
                self.messages = fits = most
            if not fits:
                return publication
            size = ends[fits - 1]
        publication, remaining = publication.split(fits)
        self.deliveries += starmap(Delivery, publication.rows())
        self.parts.append(Part(publication.first, fits, publication.published))
        self._lessen(fits, size)
        return remaining

    def reorder(self, deliveries: list[Delivery]) -> None:
        self.deliveries = deliveries
        self.parts = [Part(delivery.message_number, 1, delivery.published) for delivery in deliveries]

    def _lessen(self, messages: int, size: int) -> None:
        self.messages -= messages
        self.size -= size
        self.left -= size


class Delivery:
    """The delivery state of one message on one subscription: how often it was leased, its holder, until when."""

    __slots__ = (
        "acked", "acks", "deadline", "deliveries", "failures", "frame", "holder", "key", "message_number", "modacks",
        "number", "published",
    )  # fmt: skip

    def __init__(self, message_number: int, published: float, key: str, frame: bytes) -> None:
        self.message_number = message_number
        self.published = published
        self.key = key
        self.frame = frame
        self.number = 0  # of the latest lease, as in its ack id
        self.deadline = 0.0  # until when the latest ack id is good
        self.holder: Consumer | None = None
        self.deliveries = 0
        self.failures = 0  # nacks and passed deadlines
        self.acks = 0
        self.modacks = 0
        self.acked = False

    @property
    def message(self) -> Message:
        return Message(self.message_number, self.published, self.key, self.frame)


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

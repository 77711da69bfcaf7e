"""The messages of a subscription, as a person inspects them. Nothing is changed.

A page of messages is found by skipping whole publications, so its cost does not grow with the backlog. The order is
that of delivery: leased messages, those to be redelivered, the per-key queues, the fresh ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import NamedTuple

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.delivery import Consumer, Delivery, message_of
from pubsub_spark.emulator.state.message import Message
from pubsub_spark.emulator.state.ordering import KeyQueue, QueueState
from pubsub_spark.emulator.state.subscription import Subscription


class DeliveryState(Enum):
    LEASED = "leased"
    RETURNED = "returned"  # its lease has ended, and it will be redelivered
    BACKING_OFF = "backing off"  # the same, after a backoff
    ACKED_BEHIND_GAP = "acked behind a gap"  # an earlier message of its ordering key is not acked
    KEY_READY = "key ready"  # in the queue of its ordering key
    KEY_BUSY = "key busy"  # the same, and an earlier message of the key is leased
    KEY_BACKING_OFF = "key backing off"  # the same, and the key waits for a backoff
    FRESH = "fresh"  # never delivered


_KEY_STATES = {
    QueueState.READY: DeliveryState.KEY_READY,
    QueueState.EMPTY: DeliveryState.KEY_READY,
    QueueState.BUSY: DeliveryState.KEY_BUSY,
    QueueState.BACKING_OFF: DeliveryState.KEY_BACKING_OFF,
}


class MessageState(NamedTuple):
    message: Message
    state: DeliveryState
    deliveries: int = 0
    failures: int = 0  # nacks and passed deadlines
    until: float | None = None  # end of its lease or its backoff
    lease: int | None = None  # the number in its ack id, while that is good
    holder: Consumer | None = None


class _Window:
    """The requested part of a long list: `left` entries, after `start` others."""

    def __init__(self, start: int, most: int) -> None:
        self.start = start
        self.left = most
        self.messages: list[MessageState] = []

    def passes_over(self, size: int) -> bool:
        if self.start < size:
            return False
        self.start -= size
        return True

    def part(self, entries: list[Delivery]) -> list[Delivery]:
        """Return the requested ones."""
        start, self.start = self.start, max(0, self.start - len(entries))
        return entries[start : start + self.left]

    def add(self, entries: Iterable[MessageState]) -> None:
        passed = 0
        for entry in entries:
            if passed >= self.start:
                self.messages.append(entry)
                self.left -= 1
                if not self.left:
                    break
            passed += 1
        self.start -= min(self.start, passed)


def total(subscription: Subscription) -> int:
    """Return the number of messages that `messages` lists: the backlog, and those acked behind a gap."""
    queues = subscription._key_queues._queues.values()
    return subscription.backlog + sum(delivery.acked for queue in queues for delivery in queue.outstanding)


def messages(subscription: Subscription, start: int, most: int) -> list[MessageState]:
    window = _Window(start, most)
    # A released one was not sent, and is among the returned.
    leased = [delivery for delivery in subscription._leases.values() if delivery.deadline != NEVER]
    window.add(map(_leased, window.part(leased)))
    for more in (_returned(subscription), _delayed(subscription), _keyed(subscription)):
        if window.left:
            window.add(more)
    for publication in subscription._fresh.publications:
        if not window.left:
            break
        if not window.passes_over(len(publication)):
            stop = window.start + window.left
            window.add(MessageState(message, DeliveryState.FRESH) for message in islice(publication.messages(), stop))
    return window.messages


def _leased(delivery: Delivery) -> MessageState:
    counts = delivery.deliveries, delivery.failures, delivery.deadline
    return MessageState(delivery.message, DeliveryState.LEASED, *counts, delivery.number, delivery.holder)


def _returned(subscription: Subscription) -> Iterator[MessageState]:
    expired_until = subscription._unacked.expired_until
    for delivery in subscription._redelivery.ready:
        if not delivery.acked and delivery.published > expired_until:
            yield MessageState(delivery.message, DeliveryState.RETURNED, delivery.deliveries, delivery.failures)


def _delayed(subscription: Subscription) -> Iterator[MessageState]:
    for opens, delivery in subscription._redelivery.backing_off():
        yield MessageState(delivery.message, DeliveryState.BACKING_OFF, delivery.deliveries, delivery.failures, opens)


def _keyed(subscription: Subscription) -> Iterator[MessageState]:
    queues = subscription._key_queues
    opens = {key: until for until, key in queues._backing_off}
    for key, queue in queues._queues.items():
        yield from _queued(queue, opens.get(key))


def _queued(queue: KeyQueue, opens: float | None) -> Iterator[MessageState]:
    for delivery in queue.outstanding:
        if delivery.acked:
            yield MessageState(delivery.message, DeliveryState.ACKED_BEHIND_GAP, delivery.deliveries, delivery.failures)
    state = _KEY_STATES[queue.state]
    until = opens if state is DeliveryState.KEY_BACKING_OFF else None
    for entry in queue.waiting:
        counts = (entry.deliveries, entry.failures) if isinstance(entry, Delivery) else (0, 0)
        yield MessageState(message_of(entry), state, *counts, until)

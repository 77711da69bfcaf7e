"""What happened lately to the messages of each subscription, and the latest messages of each topic, for the page.

A listener of the engine. A batch is one entry with the numbers of its leases, and no entry holds a message, so an event
costs about a microsecond and memory is bounded: `_STEPS` steps of messages a subscription and `_LATEST` messages of at
most `_LARGEST_BYTES` a topic. The life of a message is put together only when it is looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pubsub_spark.emulator.state.delivery import Batch, Delivery
from pubsub_spark.emulator.state.events import (
    Acked,
    Cleared,
    DeadLettered,
    Deleted,
    Delivered,
    Event,
    Expired,
    Modified,
    Published,
    Released,
    Sought,
)
from pubsub_spark.emulator.state.message import Message, Publication

_STEPS = 2000  # of messages, of one subscription; a batch counts once for each of its messages
_LATEST = 50
_LARGEST_BYTES = 16_384


class Step(NamedTuple):
    """One step of a message's life: `what` at a time, and `who` received it (a consumer, or a dead-letter topic)."""

    at: float  # seconds since the epoch
    what: str
    who: str = ""


class Entry(NamedTuple):
    """One step of several messages.

    `numbers` are those of leases, or of messages for dead letters. A delivery also has the `messages` of its leases, in
    the same order: (first number, how many, when published).
    """

    step: Step
    numbers: Sequence[int]
    messages: Sequence[tuple[int, int, float]] = ()


class _Log:
    """The latest entries of one subscription."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self._steps = 0

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._steps += len(entry.numbers) or 1
        # The newest entries stay, however many messages they have: a batch and its ack.
        while self._steps > _STEPS and len(self.entries) > 2:
            self._steps -= len(self.entries.popleft().numbers) or 1


class History:
    """The latest steps of messages by subscription, and the latest messages by topic."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._logs: dict[str, _Log] = {}
        self._latest: dict[str, deque[Message]] = {}

    def follow(self, events: Sequence[Event]) -> None:
        """Note what happened; called under the engine's lock."""
        for event in events:
            if isinstance(event, Published):
                self._published(event.topic, event.publication)
            elif isinstance(event, Delivered):
                step = Step(self._now(), "delivered", event.to)
                self._add(event.subscription, step, event.batch.numbers, event.batch)
            elif isinstance(event, Acked):
                self._add(event.subscription, Step(self._now(), "acked"), event.numbers)
            elif isinstance(event, Modified):
                if event.seconds <= 0:
                    self._add(event.subscription, Step(self._now(), "nacked"), event.numbers)
            elif isinstance(event, Expired):
                self._add(event.subscription, Step(event.at, "lease expired"), event.numbers)
            elif isinstance(event, Released):
                self._add(event.subscription, Step(self._now(), "not sent"), event.numbers)
            elif isinstance(event, DeadLettered):
                step = Step(event.at, "dead-lettered", event.topic)
                self._add(event.subscription, step, event.message_numbers)
            elif isinstance(event, Sought):
                self._add(event.subscription, Step(self._now(), "seek"), ())
            elif isinstance(event, Deleted):
                self._logs.pop(event.name, None)
                self._latest.pop(event.name, None)
            elif isinstance(event, Cleared):
                self._logs.clear()
                self._latest.clear()

    def _add(self, subscription: str, step: Step, numbers: Sequence[int], batch: Batch | None = None) -> None:
        log = self._logs.get(subscription)
        if log is None:
            log = self._logs[subscription] = _Log()
        log.add(Entry(step, numbers, [_messages(part) for part in batch.parts] if batch is not None else ()))

    def _published(self, topic: str, publication: Publication) -> None:
        latest = self._latest.get(topic)
        if latest is None:
            latest = self._latest[topic] = deque(maxlen=_LATEST)
        tail = publication.split(len(publication) - _LATEST)[1] if len(publication) > _LATEST else publication
        if tail is not None:
            latest.extend(message for message in tail.messages() if len(message.frame) <= _LARGEST_BYTES)

    def latest(self, topic: str) -> list[Message]:
        """The latest messages of a topic that are not large, the newest first."""
        return [*self._latest.get(topic, ())][::-1]

    def entries(self, subscription: str) -> list[Entry]:
        """The latest steps of a subscription's messages, as `lives` reads them."""
        log = self._logs.get(subscription)
        return list(log.entries) if log is not None else []


def lives(entries: Sequence[Entry], published: Mapping[int, float]) -> dict[int, list[Step]]:
    """The steps of each message, by its number, with when it was published."""
    found = {number: [Step(at, "published")] for number, at in published.items()}
    for number, at, step in _steps(entries):
        if number is None:
            for each, steps in found.items():
                if published[each] <= at:
                    steps.append(step)
        elif number in found:
            found[number].append(step)
    return found


def done(entries: Sequence[Entry], most: int) -> dict[int, float]:
    """The messages that were acked or dead-lettered last, the newest first, each with when it was published."""
    finished: dict[int, float] = {}
    known: dict[int, float] = {}
    for number, published, step in _steps(entries):
        if number is None:
            finished.clear()
            continue
        if step.what == "delivered":
            known[number] = published
        finished.pop(number, None)
        if step.what in ("acked", "dead-lettered") and number in known:
            finished[number] = known[number]
    return dict(list(finished.items())[: -most - 1 : -1])


def _steps(entries: Sequence[Entry]) -> Iterator[tuple[int | None, float, Step]]:
    """Each step of each message: its number, when it was published, the step. None: a seek, and its own time."""
    leased: dict[int, tuple[int, float]] = {}
    for step, numbers, messages in entries:
        if step.what == "delivered":
            found = [(number, at) for first, count, at in messages for number in range(first, first + count)]
            leased.update(zip(numbers, found, strict=True))
            yield from ((number, at, step) for number, at in found)
        elif step.what == "dead-lettered":
            yield from ((number, 0.0, step) for number in numbers)
        elif step.what == "seek":
            leased.clear()
            yield None, step.at, step
        else:
            yield from ((*leased[number], step) for number in numbers if number in leased)


def _messages(part: Publication | Delivery) -> tuple[int, int, float]:
    """A part of a batch as its first number, how many messages, and when they were published."""
    if isinstance(part, Delivery):
        return part.message.number, 1, part.message.published
    return part.first, len(part.frames), part.published

"""The latest events of each subscription's messages, and the latest messages of each topic. The page shows them.

A batch is one entry with the numbers of its leases. Memory is bounded: `MAX_STEPS` steps of messages per subscription,
and `_LATEST` messages of at most `_LARGEST_BYTES` per topic.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pubsub_spark.emulator.state.delivery import Part
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

MAX_STEPS = 2000  # of messages, of one subscription. A batch counts once for each of its messages
_LATEST = 50
_LARGEST_BYTES = 16_384


class Step(NamedTuple):
    """One step of a message's life: `event` at a time. The receiver is a consumer or a dead-letter topic."""

    at: float  # seconds since the epoch
    event: str
    receiver: str = ""


class Entry(NamedTuple):
    """One step of several messages.

    `numbers` are those of leases, or of messages for dead letters. A delivery also has the `messages` of its leases, in
    the same order.
    """

    at: float
    event: str
    receiver: str
    numbers: Sequence[int]
    messages: Sequence[Part] = ()


class _Log:
    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self._steps = 0

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._steps += len(entry.numbers) or 1
        # The newest entries stay, however many messages they have: a batch and its ack.
        while self._steps > MAX_STEPS and len(self.entries) > 2:
            self._steps -= len(self.entries.popleft().numbers) or 1


class _Latest:
    def __init__(self) -> None:
        self._publications: deque[Publication] = deque()
        self._count = 0

    def add(self, publication: Publication) -> None:
        if len(publication) > _LATEST:
            first = publication.first + len(publication) - _LATEST
            tail = publication.frames[-_LATEST:]
            publication = Publication(first, publication.published, publication.key, tail)
        if max(map(len, publication.frames)) > _LARGEST_BYTES:
            for message in publication.messages():
                if len(message.frame) <= _LARGEST_BYTES:
                    self.add(Publication(message.number, message.published, message.key, [message.frame]))
            return
        self._publications.append(publication)
        self._count += len(publication)
        while self._count - len(self._publications[0]) >= _LATEST:
            self._count -= len(self._publications.popleft())

    def messages(self) -> list[Message]:
        messages = [message for publication in self._publications for message in publication.messages()]
        return messages[: -_LATEST - 1 : -1]


class History:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._logs: defaultdict[str, _Log] = defaultdict(_Log)
        self._latest: defaultdict[str, _Latest] = defaultdict(_Latest)

    def follow(self, events: Sequence[Event]) -> None:
        """The engine calls it under its lock."""
        now = self._now()
        for event in events:
            if isinstance(event, Published):
                self._latest[event.topic].add(event.publication)
            elif isinstance(event, Delivered):
                batch = event.batch
                self._logs[event.subscription].add(Entry(now, "delivered", event.to, batch.numbers, batch.parts))
            elif isinstance(event, Acked):
                self._logs[event.subscription].add(Entry(now, "acked", "", event.numbers))
            elif isinstance(event, Modified):
                if event.seconds <= 0:
                    self._logs[event.subscription].add(Entry(now, "nacked", "", event.numbers))
            elif isinstance(event, Expired):
                self._logs[event.subscription].add(Entry(event.at, "lease expired", "", event.numbers))
            elif isinstance(event, Released):
                self._logs[event.subscription].add(Entry(now, "not sent", "", event.numbers))
            elif isinstance(event, DeadLettered):
                entry = Entry(event.at, "dead-lettered", event.topic, event.message_numbers)
                self._logs[event.subscription].add(entry)
            elif isinstance(event, Sought):
                self._logs[event.subscription].add(Entry(now, "seek", "", ()))
            elif isinstance(event, Deleted):
                self._logs.pop(event.name, None)
                self._latest.pop(event.name, None)
            elif isinstance(event, Cleared):
                self._logs.clear()
                self._latest.clear()

    def latest(self, topic: str) -> list[Message]:
        """Return the latest messages, newest first, except large ones."""
        return self._latest[topic].messages() if topic in self._latest else []

    def entries(self, subscription: str) -> list[Entry]:
        return list(self._logs[subscription].entries) if subscription in self._logs else []


def lives(entries: Sequence[Entry], published: Mapping[int, float]) -> dict[int, list[Step]]:
    """`published` has the messages' publish times."""
    steps_by_number = {number: [Step(at, "published")] for number, at in published.items()}
    for number, at, step in _steps(entries):
        if number is None:
            for message_number, steps in steps_by_number.items():
                if published[message_number] <= at:
                    steps.append(step)
        elif number in steps_by_number:
            steps_by_number[number].append(step)
    return steps_by_number


def done(entries: Sequence[Entry], most: int) -> dict[int, float]:
    """Return the messages that were acked or dead-lettered last, newest first, each with its publish time."""
    finished: dict[int, float] = {}
    known: dict[int, float] = {}
    for number, published, step in _steps(entries):
        if number is None:
            finished.clear()
            continue
        if step.event == "delivered":
            known[number] = published
        finished.pop(number, None)
        if step.event in ("acked", "dead-lettered") and number in known:
            finished[number] = known[number]
    return dict(list(finished.items())[: -most - 1 : -1])


def _steps(entries: Sequence[Entry]) -> Iterator[tuple[int | None, float, Step]]:
    """Yield each step of each message: its number, its publish time, the step. A seek has None and its own time."""
    leased: dict[int, tuple[int, float]] = {}
    for time, event, receiver, numbers, messages in entries:
        step = Step(time, event, receiver)
        if event == "delivered":
            delivered = [(number, at) for first, size, at in messages for number in range(first, first + size)]
            leased.update(zip(numbers, delivered, strict=True))
            yield from ((number, at, step) for number, at in delivered)
        elif event == "dead-lettered":
            yield from ((number, 0.0, step) for number in numbers)
        elif event == "seek":
            leased.clear()
            yield None, step.at, step
        else:
            yield from ((*leased[number], step) for number in numbers if number in leased)

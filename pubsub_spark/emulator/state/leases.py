"""Hand-outs that are good: number, message, holder, deadline.

Pure. Each hand-out has a number of its own, and that is what an ack id stands for; the numbers of a batch follow one
another, and those of the next batch begin at the next multiple of SPAN. Most batches are acknowledged or extended as
they were handed out, in long runs, so a batch is one record, of frames: a message in it gets a Delivery of its own only
when something happens to it alone.

One heap entry stands for a whole batch of leases, and nothing is done to it when they are acked or extended: when its
time comes, the leases that are still there and due are given back, the others are passed over.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import NamedTuple

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.delivery import Consumer, Delivery
from pubsub_spark.emulator.state.message import Message, Publication
from pubsub_spark.emulator.state.wire_format import SPAN

_SPARE_ENTRIES = 1000  # beyond two for each lease, before they are tidied


class _Origin(NamedTuple):
    """Where the frames of a batch come from, from one index on."""

    at: int
    first: int
    published: float
    key: str


@dataclass(slots=True)
class _Held:
    """What is left of a batch; an entry is None once its lease is over."""

    first: int
    entries: list[bytes | Delivery | None]
    origins: list[_Origin]
    deadline: float  # of the entries that are frames
    holder: Consumer
    left: int
    whole: bool  # whether no entry is a Delivery
    modacks: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Leases of one batch that ended together, numbered one after the other; nothing had happened to one alone."""

    numbers: range
    frames: Sequence[bytes]
    origins: list[_Origin]
    holder: Consumer
    modacks: int

    def messages(self) -> Iterator[Message]:
        for index, frame in enumerate(self.frames, self.numbers.start % SPAN):
            yield _message(self.origins, index, frame)

    def publish_times(self) -> Iterator[tuple[float, int]]:
        """The publish times, each with the number of messages."""
        start, stop = self.numbers.start % SPAN, self.numbers.start % SPAN + len(self.numbers)
        index = bisect_right(self.origins, (start, NEVER)) - 1
        while start < stop:
            index += 1
            end = min(self.origins[index].at, stop) if index < len(self.origins) else stop
            yield self.origins[index - 1].published, end - start
            start = end

    def deliveries(self) -> Iterator[Delivery]:
        """The same as they stand when all were acknowledged."""
        for number, message in zip(self.numbers, self.messages(), strict=True):
            delivery = _delivery(message, number, 0.0, None, self.modacks)
            delivery.acks, delivery.acked = 1, True
            yield delivery


class Leases:
    """The leases of one subscription."""

    def __init__(self, batches: Iterator[int]) -> None:
        self._batches = batches  # what to number them by
        self._held: dict[int, _Held] = {}
        self._count = 0
        self._entries: list[tuple[float, int, Sequence[int]]] = []  # heap of (deadline, tie, numbers)
        self._ties = count()

    def __iter__(self) -> Iterator[Delivery]:
        for held in self._held.values():
            for index, entry in enumerate(held.entries):
                if entry is not None:
                    yield _alone(held, index)

    def entries(self) -> Iterator[Message | Delivery]:
        """Everything that is leased, as it is."""
        for held in self._held.values():
            for index, entry in enumerate(held.entries):
                if entry is not None:
                    yield entry if isinstance(entry, Delivery) else _message(held.origins, index, entry)

    @property
    def due(self) -> float:
        """When leases may run out next; infinity when there are none."""
        return self._entries[0][0] if self._entries else NEVER

    def get(self, number: int) -> Delivery | None:
        """What is leased under a number; None when that lease is over or never was."""
        held = self._held.get(number // SPAN)
        index = number % SPAN
        if held is None or index >= len(held.entries) or held.entries[index] is None:
            return None
        return _alone(held, index)

    def end(self, number: int) -> Delivery | None:
        """The lease is over; what was leased, or None when it was over already."""
        delivery = self.get(number)
        if delivery is not None:
            held = self._held[number // SPAN]
            held.entries[number % SPAN] = None
            self._lessen(held, 1)
        return delivery

    def end_runs(self, numbers: Sequence[int]) -> tuple[list[Run], list[int]]:
        """End the leases whose numbers follow one another in a batch; those, and the numbers that are left to end."""
        runs: list[Run] = []
        rest: list[int] = []
        for run in _runs(numbers):
            held = self._all_leased(run)
            if held is None:
                rest += run
                continue
            places = slice(run.start - held.first, run.stop - held.first)
            frames: list[bytes] = held.entries[places]  # type: ignore[assignment]  # there is no Delivery
            held.entries[places] = [None] * len(run)
            self._lessen(held, len(run))
            runs.append(Run(run, frames, held.origins, held.holder, held.modacks))
        return runs, rest

    def extend_batches(self, numbers: Sequence[int], deadline: float) -> list[int]:
        """Set another deadline for batches that are named from end to end; the numbers that are left to extend."""
        rest: list[int] = []
        for run in _runs(numbers):
            held = self._all_leased(run)
            if held is None or len(run) < len(held.entries):
                rest += run
                continue
            held.deadline = deadline
            held.modacks += 1
            self._expect(deadline, run)
        return rest

    def _all_leased(self, run: range) -> _Held | None:
        """The batch in which every number of a run is leased, if none in it has a Delivery."""
        held = self._held.get(run.start // SPAN)
        if held is None or not held.whole:
            return None
        entries = held.entries[run.start - held.first : run.stop - held.first]
        complete = len(entries) == len(run) and (held.left == len(held.entries) or None not in entries)
        return held if complete else None

    def grant(self, parts: Iterable[Publication | Delivery], consumer: Consumer, deadline: float) -> range:
        """Hand a batch to a consumer; the numbers, one for each message."""
        first = next(self._batches) * SPAN
        entries: list[bytes | Delivery | None] = []
        origins: list[_Origin] = []
        whole = True
        for part in parts:
            if isinstance(part, Delivery):
                part.number, part.deadline, part.holder = first + len(entries), deadline, consumer
                part.deliveries += 1
                entries.append(part)
                whole = False
            else:
                origins.append(_Origin(len(entries), part.first, part.published, part.key))
                entries += part.frames
        self._held[first // SPAN] = _Held(first, entries, origins, deadline, consumer, len(entries), whole)
        self._count += len(entries)
        numbers = range(first, first + len(entries))
        self._expect(deadline, numbers)
        return numbers

    def extend(self, deliveries: Sequence[Delivery], deadline: float) -> None:
        """Set another deadline, later or earlier."""
        for delivery in deliveries:
            delivery.deadline = deadline
        self._expect(deadline, [delivery.number for delivery in deliveries])

    def expired(self, now: float) -> Iterator[Delivery]:
        """End the leases whose deadline has come, one by one."""
        while self._entries and self._entries[0][0] <= now:
            _, _, numbers = heapq.heappop(self._entries)
            for number in numbers:
                held = self._held.get(number // SPAN)
                if held is None:
                    continue
                entry = held.entries[number % SPAN]
                if entry is not None and (entry if isinstance(entry, Delivery) else held).deadline <= now:
                    yield self.end(number)  # type: ignore[misc]  # it is there

    def clear(self) -> None:
        self._held.clear()
        self._entries.clear()
        self._count = 0

    def _lessen(self, held: _Held, ended: int) -> None:
        self._count -= ended
        held.left -= ended
        if not held.left:
            del self._held[held.first // SPAN]

    def _expect(self, deadline: float, numbers: Sequence[int]) -> None:
        heapq.heappush(self._entries, (deadline, next(self._ties), numbers))
        if len(self._entries) > 2 * self._count + _SPARE_ENTRIES:
            self._entries = [
                (until, next(self._ties), numbers)
                for held in self._held.values()
                for until, numbers in _deadlines(held)
                if until < NEVER
            ]
            heapq.heapify(self._entries)


def _message(origins: list[_Origin], index: int, frame: bytes) -> Message:
    origin = origins[bisect_right(origins, (index, NEVER)) - 1]
    return Message(origin.first + index - origin.at, origin.published, origin.key, frame)


def _delivery(message: Message, number: int, deadline: float, holder: Consumer | None, modacks: int) -> Delivery:
    """The Delivery of a message that was handed out once."""
    delivery = Delivery(message)
    delivery.number, delivery.deadline, delivery.holder = number, deadline, holder
    delivery.deliveries, delivery.modacks = 1, modacks
    return delivery


def _alone(held: _Held, index: int) -> Delivery:
    """The Delivery of one entry, from now on apart from its batch."""
    entry = held.entries[index]
    assert entry is not None
    if not isinstance(entry, Delivery):
        message = _message(held.origins, index, entry)
        entry = held.entries[index] = _delivery(message, held.first + index, held.deadline, held.holder, held.modacks)
        held.whole = False
    return entry


def _deadlines(held: _Held) -> Iterator[tuple[float, Sequence[int]]]:
    if held.whole:
        yield held.deadline, range(held.first, held.first + len(held.entries))
        return
    for number, entry in enumerate(held.entries, held.first):
        if entry is not None:
            yield (entry if isinstance(entry, Delivery) else held).deadline, (number,)


def _runs(numbers: Sequence[int]) -> Iterator[range]:
    """The numbers as ranges, in their order."""
    if not numbers:
        return
    if isinstance(numbers, range):
        yield numbers
        return
    start = numbers[0]
    whole = range(start, start + len(numbers))
    if numbers[-1] == whole[-1] and list(numbers) == list(whole):
        yield whole
        return
    for one, next_one in pairwise(numbers):
        if next_one != one + 1:
            yield range(start, one + 1)
            start = next_one
    yield range(start, numbers[-1] + 1)


class Acked:
    """What was acknowledged last, for whoever looks inside: `most` messages."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: deque[Run | Delivery] = deque()
        self._count = 0

    def add(self, items: Iterable[Run | Delivery]) -> None:
        """Remember these, and forget the oldest."""
        if not self._most:
            return
        for item in items:
            self._items.append(item)
            self._count += _size(item)
        while self._items and self._count - _size(self._items[0]) >= self._most:
            self._count -= _size(self._items.popleft())

    def __iter__(self) -> Iterator[Delivery]:
        skipped = self._count - self._most
        for item in self._items:
            for delivery in (item,) if isinstance(item, Delivery) else item.deliveries():
                if skipped <= 0:
                    yield delivery
                skipped -= 1


def _size(item: Run | Delivery) -> int:
    return 1 if isinstance(item, Delivery) else len(item.numbers)

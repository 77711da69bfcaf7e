"""The leases of a subscription: number, message, holder, deadline.

Each lease has its own number, which its ack id stands for. The numbers of a batch are consecutive, and those of the
next batch begin at the next multiple of SPAN. A batch is one record, of frames: a message in it gets its own Delivery
only when something happens to it alone.

One heap entry stands for a whole batch. Acks and extensions do not touch it, and leases that are no longer due are
passed over when its time comes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, pairwise
from typing import NamedTuple

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.delivery import Consumer, Delivery
from pubsub_spark.emulator.state.message import Message, Publication
from pubsub_spark.emulator.state.wire_format import SPAN

MAX_ACKED_NUMBERS = 100_000
_SPARE_ENTRIES = 1000  # beyond two for each lease, before they are tidied


class Origin(NamedTuple):
    at: int
    first: int
    published: float
    key: str


@dataclass(slots=True)
class LeaseBatch:
    """An entry is None once its lease is over."""

    first: int
    entries: list[bytes | Delivery | None]
    origins: list[Origin]
    deadline: float  # of the entries that are frames
    holder: Consumer
    left: int
    is_whole: bool  # whether no entry is a Delivery
    modacks: int = 0


@dataclass(frozen=True, slots=True)
class ContiguousLeases:
    """Leases of one batch that ended together, with consecutive numbers. Nothing had happened to one alone."""

    numbers: range
    frames: Sequence[bytes]
    origins: list[Origin]
    holder: Consumer
    modacks: int

    def publications(self) -> Iterator[Publication]:
        return publications_of(self.origins, self.frames, self.numbers.start % SPAN)

    def messages(self) -> Iterator[Message]:
        return chain.from_iterable(publication.messages() for publication in self.publications())

    def deliveries(self) -> Iterator[Delivery]:
        """Yield the deliveries of these leases, all acknowledged."""
        for number, message in zip(self.numbers, self.messages(), strict=True):
            delivery = _delivery(message, number, 0.0, None, self.modacks)
            delivery.acks, delivery.acked = 1, True
            yield delivery


class BatchNumbers(Iterator[int]):
    def __init__(self) -> None:
        self.next_number = 1

    def __next__(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number


class Leases:
    def __init__(self, batches: Iterator[int]) -> None:
        self._batch_numbers = batches
        self._batches: dict[int, LeaseBatch] = {}
        self._count = 0
        self._deadlines: list[tuple[float, int, Sequence[int]]] = []  # heap of (deadline, tie, numbers)
        self._ties = count()

    def __iter__(self) -> Iterator[Delivery]:
        for batch in self._batches.values():
            for index, entry in enumerate(batch.entries):
                if entry is not None:
                    yield _split_out(batch, index)

    def parts(self) -> Iterator[tuple[Consumer, Publication | Delivery]]:
        """Yield publications, or deliveries of single messages, with the holder of their batch."""
        for batch in self._batches.values():
            if batch.is_whole and batch.left == len(batch.entries):
                for publication in publications_of(batch.origins, batch.entries):  # type: ignore[arg-type]  # all frames
                    yield batch.holder, publication
                continue
            for index, entry in enumerate(batch.entries):
                if isinstance(entry, Delivery):
                    yield batch.holder, entry
                elif entry is not None:
                    yield batch.holder, next(publications_of(batch.origins, (entry,), index))

    @property
    def due(self) -> float:
        """The time when leases may expire next, or infinity."""
        return self._deadlines[0][0] if self._deadlines else NEVER

    def get(self, number: int) -> Delivery | None:
        """Return None if the lease has ended or never existed."""
        batch = self._batches.get(number // SPAN)
        index = number % SPAN
        if batch is None or index >= len(batch.entries) or batch.entries[index] is None:
            return None
        return _split_out(batch, index)

    def end(self, number: int) -> Delivery | None:
        """Return None if the lease had already ended."""
        delivery = self.get(number)
        if delivery is not None:
            batch = self._batches[number // SPAN]
            batch.entries[number % SPAN] = None
            self._lessen(batch, 1)
        return delivery

    def end_runs(self, numbers: Sequence[int]) -> tuple[list[ContiguousLeases], list[int]]:
        """End leases with consecutive numbers in a batch. Return those, and the numbers that are left to end."""
        runs: list[ContiguousLeases] = []
        remaining: list[int] = []
        for run in _runs(numbers):
            batch = self._all_leased(run)
            if batch is None:
                remaining += run
                continue
            positions = slice(run.start - batch.first, run.stop - batch.first)
            frames: list[bytes] = batch.entries[positions]  # type: ignore[assignment]  # there is no Delivery
            batch.entries[positions] = [None] * len(run)
            self._lessen(batch, len(run))
            runs.append(ContiguousLeases(run, frames, batch.origins, batch.holder, batch.modacks))
        return runs, remaining

    def extend_batches(self, numbers: Sequence[int], deadline: float) -> list[int]:
        """Set another deadline for batches that `numbers` has completely. Return the numbers left to extend."""
        remaining: list[int] = []
        for run in _runs(numbers):
            batch = self._all_leased(run)
            if batch is None or len(run) < len(batch.entries):
                remaining += run
                continue
            batch.deadline = deadline
            batch.modacks += 1
            self._expect(deadline, run)
        return remaining

    def _all_leased(self, run: range) -> LeaseBatch | None:
        """Return the batch if it leases every number of the run and has no Delivery, or None."""
        batch = self._batches.get(run.start // SPAN)
        if batch is None or not batch.is_whole:
            return None
        entries = batch.entries[run.start - batch.first : run.stop - batch.first]
        complete = len(entries) == len(run) and (batch.left == len(batch.entries) or None not in entries)
        return batch if complete else None

    def grant(self, parts: Iterable[Publication | Delivery], consumer: Consumer, deadline: float) -> range:
        """Hand a batch to a consumer. Return one number for each message."""
        first = next(self._batch_numbers) * SPAN
        entries: list[bytes | Delivery | None] = []
        origins: list[Origin] = []
        whole = True
        for part in parts:
            if isinstance(part, Delivery):
                part.number, part.deadline, part.holder = first + len(entries), deadline, consumer
                part.deliveries += 1
                entries.append(part)
                whole = False
            else:
                origins.append(Origin(len(entries), part.first, part.published, part.key))
                entries += part.frames
        self.put(LeaseBatch(first, entries, origins, deadline, consumer, len(entries), whole))
        numbers = range(first, first + len(entries))
        self._expect(deadline, numbers)
        return numbers

    def put(self, batch: LeaseBatch) -> None:
        """Store a batch. The caller schedules its deadline."""
        self._batches[batch.first // SPAN] = batch
        self._count += batch.left

    def extend(self, deliveries: Sequence[Delivery], deadline: float) -> None:
        for delivery in deliveries:
            delivery.deadline = deadline
        self._expect(deadline, [delivery.number for delivery in deliveries])

    def expired(self, now: float) -> Iterator[Delivery]:
        """End the leases whose deadline has passed, and yield their deliveries."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, numbers = heapq.heappop(self._deadlines)
            for number in numbers:
                batch = self._batches.get(number // SPAN)
                if batch is None:
                    continue
                entry = batch.entries[number % SPAN]
                if entry is not None and (entry if isinstance(entry, Delivery) else batch).deadline <= now:
                    yield self.end(number)  # type: ignore[misc]  # it is there

    def clear(self) -> None:
        self._batches.clear()
        self._deadlines.clear()
        self._count = 0

    def _lessen(self, batch: LeaseBatch, ended: int) -> None:
        self._count -= ended
        batch.left -= ended
        if not batch.left:
            del self._batches[batch.first // SPAN]

    def _expect(self, deadline: float, numbers: Sequence[int]) -> None:
        heapq.heappush(self._deadlines, (deadline, next(self._ties), numbers))
        if len(self._deadlines) > 2 * self._count + _SPARE_ENTRIES:
            self._deadlines = [
                (until, next(self._ties), numbers)
                for batch in self._batches.values()
                for until, numbers in _deadlines(batch)
                if until < NEVER
            ]
            heapq.heapify(self._deadlines)


def publications_of(origins: list[Origin], frames: Sequence[bytes], start: int = 0) -> Iterator[Publication]:
    """Yield the frames of a batch from `start` on, as their original publications."""
    index = bisect_right(origins, (start, NEVER)) - 1
    at = start
    while at < start + len(frames):
        origin = origins[index]
        index += 1
        end = origins[index].at if index < len(origins) else start + len(frames)
        yield Publication(origin.first + at - origin.at, origin.published, origin.key, frames[at - start : end - start])
        at = end


def _message(origins: list[Origin], index: int, frame: bytes) -> Message:
    origin = origins[bisect_right(origins, (index, NEVER)) - 1]
    return Message(origin.first + index - origin.at, origin.published, origin.key, frame)


def _delivery(message: Message, number: int, deadline: float, holder: Consumer | None, modacks: int) -> Delivery:
    delivery = Delivery(message)
    delivery.number, delivery.deadline, delivery.holder = number, deadline, holder
    delivery.deliveries, delivery.modacks = 1, modacks
    return delivery


def _split_out(batch: LeaseBatch, index: int) -> Delivery:
    """Return the Delivery of one entry, separate from its batch from now on."""
    entry = batch.entries[index]
    assert entry is not None
    if not isinstance(entry, Delivery):
        message = _message(batch.origins, index, entry)
        entry = batch.entries[index] = _delivery(
            message, batch.first + index, batch.deadline, batch.holder, batch.modacks
        )
        batch.is_whole = False
    return entry


def _deadlines(batch: LeaseBatch) -> Iterator[tuple[float, Sequence[int]]]:
    if batch.is_whole:
        yield batch.deadline, range(batch.first, batch.first + len(batch.entries))
        return
    for number, entry in enumerate(batch.entries, batch.first):
        if entry is not None:
            yield (entry if isinstance(entry, Delivery) else batch).deadline, (number,)


def _runs(numbers: Sequence[int]) -> Iterator[range]:
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
    """The latest acknowledged messages, at most `most`, for `Emulator.messages`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: deque[ContiguousLeases | Delivery] = deque()
        self._count = 0

    def add(self, items: Iterable[ContiguousLeases | Delivery]) -> None:
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


def _size(item: ContiguousLeases | Delivery) -> int:
    return 1 if isinstance(item, Delivery) else len(item.numbers)


class AckedNumbers(OrderedDict[int, None]):
    """The numbers acknowledged last on an exactly-once subscription. Acknowledging one again is no error."""

    def add(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self[number] = None
            if len(self) > MAX_ACKED_NUMBERS:
                self.popitem(last=False)

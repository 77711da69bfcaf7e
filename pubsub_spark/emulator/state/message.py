"""Published messages, shared by every subscription of their topic.

The bytes of a message are made once, at Publish, and joined into each delivery. Messages that were published together
stay together as long as possible: a backlog consists of `Publication`s, and only single messages become a `Message`.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain, count, groupby, pairwise, repeat
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, overload

from pubsub_spark.emulator.state import wire_format


class Message(NamedTuple):
    """One message. `number` is its id and grows in the order of publishing. `published` is seconds since the epoch."""

    number: int
    published: float
    key: str
    frame: bytes

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def body(self) -> bytes:
        return wire_format.message_body(self.frame)

    @property
    def attributes(self) -> Mapping[str, str]:
        return (_remembered if len(self.frame) <= _LARGEST_REMEMBERED_BYTES else _attributes)(self.frame)

    @property
    def data(self) -> bytes:
        return wire_format.data(self.body)


class PackedFrames(Sequence[bytes]):
    """The frames of one Publish, made when they are read. Only the bodies are kept, as one object, and where each ends.

    A message takes 4 bytes in addition to its body. As a bytes object with id and time it takes 80.
    """

    __slots__ = ("_blob", "_ends", "_first", "_published")

    def __init__(self, bodies: Sequence[bytes], first: int, published: float) -> None:
        self._blob = b"".join(bodies)
        self._ends = array("I", accumulate(map(len, bodies), initial=0))
        self._first = first
        self._published = published

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._frames(start, stop) if step == 1 and start < stop else list(self)[index]
        position = range(len(self))[index]
        [frame] = self._frames(position, position + 1)
        return frame

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._frames(0, len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # like a list

    def _frames(self, start: int, stop: int) -> list[bytes]:
        blob = self._blob
        bodies = [blob[begin:end] for begin, end in pairwise(self._ends[start : stop + 1])]
        return wire_format.message_frames(bodies, self._first + start, wire_format.publish_time_field(self._published))


# The same as Message(...), without a Python frame for each message.
_make: Callable[[tuple[int, float, str, bytes]], Message] = partial(tuple.__new__, Message)


@dataclass(frozen=True, slots=True)
class Publication:
    """Messages of one time and one ordering key, numbered from `first` on."""

    first: int
    published: float
    key: str
    frames: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.frames)

    def messages(self) -> Iterator[Message]:
        return map(_make, self.rows())

    def rows(self) -> Iterator[tuple[int, float, str, bytes]]:
        """Yield the fields of each message."""
        return zip(count(self.first), repeat(self.published), repeat(self.key), self.frames)

    def unpacked(self) -> Publication:
        """Return the same publication with frames that can be taken one by one."""
        if isinstance(self.frames, list):
            return self
        return Publication(self.first, self.published, self.key, list(self.frames))

    def split(self, size: int) -> tuple[Publication, Publication | None]:
        """The second part is None if no messages remain."""
        if size >= len(self.frames):
            return self, None
        remaining = Publication(self.first + size, self.published, self.key, self.frames[size:])
        return Publication(self.first, self.published, self.key, self.frames[:size]), remaining


def publications(messages: Iterable[Message]) -> Iterator[Publication]:
    """Yield the messages, in the order of their numbers, as publications of one time and key each."""
    for _, group in groupby(
        enumerate(messages), lambda pair: (pair[1].number - pair[0], pair[1].published, pair[1].key)
    ):
        alike = [message for _, message in group]
        yield Publication(alike[0].number, alike[0].published, alike[0].key, [message.frame for message in alike])


def union(*sources: Iterable[Publication]) -> Iterator[Publication]:
    """Yield each message of the sources once, in the order of the numbers."""
    end = 0
    for publication in sorted(chain(*sources), key=attrgetter("first")):
        remaining = publication if publication.first >= end else publication.split(end - publication.first)[1]
        if remaining is not None:
            yield remaining
            end = remaining.first + len(remaining.frames)


# The parts of a publication, each with whether a Seek makes it unacked.
Split = Callable[[Publication], Iterable[tuple[Publication, bool]]]


def published_since(time: float) -> Split:
    """Return a Split: messages published before `time` are acked, later ones unacked."""
    return lambda publication: ((publication, publication.published >= time),)


def ranges(sorted_publications: Iterable[Publication]) -> list[range]:
    numbers: list[range] = []
    for publication in sorted_publications:
        first = numbers.pop().start if numbers and numbers[-1].stop == publication.first else publication.first
        numbers.append(range(first, publication.first + len(publication.frames)))
    return numbers


def among(publication: Publication, numbers: Sequence[range]) -> Iterator[tuple[Publication, bool]]:
    """Yield the parts of a publication, each with whether its numbers are in one of the sorted ranges."""
    index = bisect_right(numbers, publication.first, key=attrgetter("stop"))
    remaining: Publication | None = publication
    while remaining is not None:
        start, stop = (numbers[index].start, numbers[index].stop) if index < len(numbers) else (sys.maxsize,) * 2
        is_in = start <= remaining.first
        part, remaining = remaining.split((stop if is_in else start) - remaining.first)
        yield part, is_in
        index += is_in


def _attributes(frame: bytes) -> Mapping[str, str]:
    return MappingProxyType(wire_format.attributes(wire_format.message_body(frame)))


# Read once for all filters of a topic's subscriptions, which ask one after the other. A remembered entry keeps its
# frame long after the message is gone, so no frame may be large.
_remembered = lru_cache(maxsize=2048)(_attributes)
_LARGEST_REMEMBERED_BYTES = 4096  # bytes

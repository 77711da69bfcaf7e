"""The queue of fresh messages: published, without an ordering key, and never leased."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.delivery import BatchBuilder
from pubsub_spark.emulator.state.message import Message, Publication


class FreshQueue:
    """Publications in order of arrival. `count` is the number of their messages."""

    def __init__(self) -> None:
        self.publications: deque[Publication] = deque()
        self.count = 0

    @property
    def oldest(self) -> float:
        """The first publish time, or infinity."""
        return self.publications[0].published if self.publications else NEVER

    def add(self, publication: Publication) -> None:
        self.publications.append(publication)
        self.count += len(publication)

    def take(self, batch: BatchBuilder) -> Iterator[tuple[float, int]]:
        """Move messages into the batch while it has room. Yield their publish times and numbers of messages."""
        while self.publications and batch.has_room:
            publication = self.publications.popleft().unpacked()
            remaining = batch.fill(publication)
            if remaining is not None:
                self.publications.appendleft(remaining)
            taken = len(publication) - len(remaining or ())
            self.count -= taken
            if taken:
                yield publication.published, taken

    def expire(self, retention: float, now: float) -> None:
        """`retention` is in seconds."""
        while self.oldest + retention <= now:
            self.count -= len(self.publications.popleft())

    def messages(self) -> Iterator[Message]:
        return (message for publication in self.publications for message in publication.messages())

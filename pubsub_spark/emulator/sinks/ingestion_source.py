"""The interface between an ingestion worker and the source of its topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol


class IngestedMessage(NamedTuple):
    """A message that is to be published."""

    data: bytes
    attributes: dict[str, str]


class Portion(NamedTuple):
    """Messages that have come from one part of a source: an object, or a shard.

    where: the part, for the log. mark: how far the part is read when they are published; whoever publishes them keeps
    it, where the source that gave the portion finds it.
    """

    where: str
    messages: Iterable[IngestedMessage]
    part: str
    mark: str


class SourceError(Exception):
    """The reason why a source gives nothing now, and what the enum `State` of the topic's settings calls it."""

    def __init__(self, state: str, sentence: str) -> None:
        super().__init__(sentence)
        self.state = state


class IngestionSource(Protocol):
    """The source of one topic, made from its settings and the marks that are kept."""

    def new(self) -> Iterator[Portion]:
        """The new messages; a portion is read, and its mark kept, before the next is asked for.

        Raises SourceError; ValueError of messages that are of another format than the settings say.
        """


Marks = Mapping[str, str]  # by part of a source
Sources = Mapping[str, Callable[[Any, Marks], IngestionSource]]  # by the name of the settings in a Topic

"""The interface between an ingestion worker and the source of its topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol


class IngestedMessage(NamedTuple):
    data: bytes
    attributes: dict[str, str]


class Portion(NamedTuple):
    """Messages from one part of a source: an object, or a shard.

    where: the name of the part in the log. mark: the position in the part after these messages.
    """

    where: str
    messages: Iterable[IngestedMessage]
    part: str
    mark: str


class SourceError(Exception):
    """The reason for a source without messages, and its name in the enum `State` of the topic's settings."""

    def __init__(self, state: str, sentence: str) -> None:
        super().__init__(sentence)
        self.state = state


class IngestionSource(Protocol):
    """The source of one topic, made from its settings and the stored marks."""

    def new(self) -> Iterator[Portion]:
        """Yield the new messages. A portion is read, and its mark stored, before the next is requested.

        Raise SourceError, or ValueError if messages have another format than in the settings.
        """


Marks = Mapping[str, str]  # by part of a source
Sources = Mapping[str, Callable[[Any, Marks], IngestionSource]]  # by the name of the settings in a Topic

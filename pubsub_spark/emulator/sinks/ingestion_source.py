"""What an ingestion worker asks of the source of a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol


class IngestedMessage(NamedTuple):
    """A message that is to be published."""

    data: bytes
    attributes: dict[str, str]


class SourceError(Exception):
    """The reason why a source gives nothing now, with the state of the topic's settings that follows from it."""

    def __init__(self, state: str, sentence: str) -> None:
        super().__init__(sentence)
        self.state = state


class IngestionSource(Protocol):
    """The source of one topic. states: those of its settings that it can have, with their numbers."""

    states: ClassVar[Mapping[str, int]]

    def new(self) -> Iterator[tuple[str, Iterable[IngestedMessage]]]:
        """What has come: where from, and its messages, which count as read when the next is asked for.

        Raises SourceError; ValueError of messages that are of another format than the settings say.
        """


Sources = Mapping[str, Callable[[Any], IngestionSource]]  # by the name of the settings in a Topic

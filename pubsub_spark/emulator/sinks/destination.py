"""The interface of an export's destination."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from pubsub_spark.emulator.sinks.export_batch import Limits, OpenBatch
from pubsub_spark.schema.definition import Definition, Encoding

State = Literal["NOT_FOUND", "PERMISSION_DENIED", "SCHEMA_MISMATCH", "ACTIVE"]


class DestinationError(Exception):
    """The refusal of a destination, with the resulting state of the subscription or topic."""

    def __init__(self, state: State, sentence: str) -> None:
        super().__init__(sentence)
        self.state: State = state


class TopicSchema(NamedTuple):
    """The schema of a topic: its encoding, and its revisions by id. The latest revision is written."""

    revisions: dict[str, Definition]
    latest: Definition
    encoding: Encoding


class Destination(Protocol):
    limits: Limits

    def check(self) -> None:
        """Raise DestinationError if nothing can be written."""

    def write(self, batch: OpenBatch, subscription: str, schema: TopicSchema | None) -> Sequence[int]:
        """Return the indexes of the messages that cannot be written.

        Raise DestinationError if no message can be written, OSError if that may change by the next attempt.
        """


Destinations = Mapping[str, Callable[[Any], Destination]]  # by the name of the configuration in a Subscription

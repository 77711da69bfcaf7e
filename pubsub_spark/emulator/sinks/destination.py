"""The interface of an export's destination: written in batches, and refused by a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from pubsub_spark.emulator.sinks.export_batch import Limits, OpenBatch
from pubsub_spark.schema.definition import Definition, Encoding

State = Literal["NOT_FOUND", "PERMISSION_DENIED", "SCHEMA_MISMATCH", "ACTIVE"]


class DestinationError(Exception):
    """The refusal of a destination, with the state of the subscription or topic that follows from it."""

    def __init__(self, state: State, sentence: str) -> None:
        super().__init__(sentence)
        self.state: State = state


class TopicSchema(NamedTuple):
    """The schema of a topic: its revisions by id, of which the latest is what is written, and the encoding."""

    revisions: dict[str, Definition]
    latest: Definition
    encoding: Encoding


class Destination(Protocol):
    """Where the messages of a subscription are written."""

    limits: Limits

    def check(self) -> None:
        """Raise DestinationError where it is known already that nothing can be written."""

    def write(self, batch: OpenBatch, subscription: str, schema: TopicSchema | None) -> Sequence[int]:
        """Write a batch; the indexes of the messages that cannot be written.

        DestinationError when none can, OSError when that may be otherwise the next time.
        """


Destinations = Mapping[str, Callable[[Any], Destination]]  # by the name of the configuration in a Subscription

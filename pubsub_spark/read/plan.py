"""What a batch consists of: the parts that Spark hands to tasks, and the rule that chooses them.

Pure values. A trickle is served by the door alone, a flood by the cluster: executors are asked once the door has been
full, and from then on batch after batch until a batch comes back with every pull idle. One small answer from the
service is no proof of an empty backlog; a batch full of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from .staging import Footer, Staging


@dataclass
class DoorPart(InputPartition):
    """Part 0: what the driver's own stream brought, staged by the driver and carried along as the bytes of a part."""

    staging: Staging
    batch: int
    content: bytes


@dataclass
class PullPart(InputPartition):
    """A share of the trigger's budget for one task to pull; staged already if an earlier attempt pulled it."""

    staging: Staging
    batch: int
    part: int
    max_messages: int
    max_bytes: int
    known: bool


@dataclass
class StagedPart(InputPartition):
    """A part of a replayed batch: read from the staging area, never pulled."""

    staging: Staging
    batch: int
    part: int


Part = DoorPart | PullPart | StagedPart


@dataclass(frozen=True)
class Budget:
    """The most that a trigger may bring."""

    messages: int
    bytes: int

    def shares(
        self, staging: Staging, batch: int, partitions: int, door_messages: int, door_bytes: int, known: bool
    ) -> list[PullPart]:
        """The budget less what the door brought, in equal shares; none when nothing is left of it."""
        messages, volume = self.messages - door_messages, self.bytes - door_bytes
        if messages <= 0 or volume <= 0:
            return []
        count = min(partitions, messages)
        return [
            PullPart(
                staging, batch, part, messages // count + (part <= messages % count), max(1, volume // count), known
            )
            for part in range(1, count + 1)
        ]


def is_flood(footers: Sequence[Footer], drained_from: float | None = None) -> bool:
    """Whether a batch of pulls says that there is more: one of them brought messages and did not end idle.

    drained_from: with `availableNow`, the time in seconds from which messages are not waited for. A batch that met
    nothing older ends the flood.
    """
    more = any(footer.rows + footer.dropped and footer.ended != "idle" for footer in footers)
    oldest = min((footer.oldest for footer in footers if footer.oldest is not None), default=None)
    return more and (drained_from is None or oldest is None or oldest <= drained_from)

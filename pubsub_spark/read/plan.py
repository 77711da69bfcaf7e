"""What a batch consists of: the parts that Spark hands to tasks, and the rule that chooses them.

Pure values. A trickle is served by the door alone, a flood by the cluster: executors are asked once the door has been
full, and from then on batch after batch until a batch comes back with every pull idle. One small answer from the
service is no proof of an empty backlog; a batch full of them is.

What the door brought is part 0 in the staging area. In a flood the first task gives its rows before its own: a task for
a thousand rows would keep a core from pulling for as long as it takes to start one. A replay has the same partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from .staging import Footer, Staging


@dataclass
class DoorPart(InputPartition):
    """Part 0 alone: what the driver's own stream brought, staged by the driver and carried along as bytes of a part."""

    staging: Staging
    batch: int
    content: bytes
    part: int = 0


@dataclass
class PullPart(InputPartition):
    """A share of the trigger's budget for one task to pull; staged already if an earlier attempt pulled it.

    door: part 0, given before this one.
    """

    staging: Staging
    batch: int
    part: int
    max_messages: int
    max_bytes: int
    known: bool
    door: bytes | None = None


@dataclass
class StagedPart(InputPartition):
    """Parts of a replayed batch that are one partition: read from the staging area, never pulled."""

    staging: Staging
    batch: int
    parts: Sequence[int]

    @property
    def part(self) -> int:
        """The part that names the partition: the last, as in the batch's first plan."""
        return self.parts[-1]


Part = DoorPart | PullPart | StagedPart


def replayed(staging: Staging, batch: int, staged: Sequence[int]) -> list[StagedPart]:
    """The partitions of a replay, each where it was the first time; one whose task staged nothing has no rows."""
    groups = [[0, 1], *([part] for part in range(2, max(staged, default=-1) + 1))]
    return [StagedPart(staging, batch, [part for part in group if part in staged]) for group in groups]


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

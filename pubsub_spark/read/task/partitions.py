"""The input partitions of a batch: plain values, which Spark pickles to the tasks. A replay has the same partitions.

Each names the schema that the batch is decoded with, its `reader` (`staging.schemas`): the process that plans the tasks
may know a later revision than the driver.

The driver stream's messages are part 0 in the staging area. In a backlog the first task yields its rows before its own,
because a task of its own would keep a core from pulling for as long as it takes to start one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.datasource import InputPartition

from ..staging.area import Staging


@dataclass
class DriverPartition(InputPartition):
    """Part 0 alone: the messages of the driver stream, carried along as `content`."""

    staging: Staging
    batch: int
    content: bytes
    part: int = 0
    reader: str | None = None


@dataclass
class PullPartition(InputPartition):
    """A share of the trigger's budget for one task to pull, or to read if an earlier attempt has staged it.

    deadline: seconds since the epoch, until when no message can be a redelivery, unless its id is in doubt. excludes:
    files of ids in doubt, whose messages are acknowledged at once and are no rows. committed: batch, number, length and
    id of the parts that may also be delivered again after the deadline. driver_content: part 0, whose rows come first.
    streams: StreamingPulls of the task. first_wait: seconds after which a pull ends without a message, unless
    `idleTimeout` is shorter. period: seconds after which it ends, unless `maxFetchPeriod` is shorter.
    """

    staging: Staging
    batch: int
    part: int
    max_messages: int
    max_bytes: int
    deadline: float
    excludes: Sequence[str] = ()
    committed: Sequence[tuple[int, int, int, str]] = ()
    streams: int = 1
    driver_content: bytes | None = None
    first_wait: float = math.inf
    period: float = math.inf
    reader: str | None = None


@dataclass
class StagedPartition(InputPartition):
    """Parts of a replayed batch that are one partition: read from the staging area, never pulled. ids: by number."""

    staging: Staging
    batch: int
    parts: Sequence[int]
    reader: str | None = None
    ids: Mapping[int, str] = field(default_factory=dict)

    @property
    def part(self) -> int:
        """The number in the names of its files: its last part's, as when the batch was planned first."""
        return self.parts[-1]


Partition = DriverPartition | PullPartition | StagedPartition


def replay_partitions(staging: Staging, batch: int, staged: Sequence[int], reader: str | None) -> list[StagedPartition]:
    """Return the partitions of a replay, as at the first time. One whose task staged nothing has no rows."""
    groups = [[0, 1], *([part] for part in range(2, max(staged, default=-1) + 1))]
    return [StagedPartition(staging, batch, [part for part in group if part in staged], reader) for group in groups]

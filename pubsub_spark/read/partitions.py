"""The input partitions of a batch, and the rule that chooses them.

Pure values. At low volume a batch is the driver stream's messages alone. Executors pull once the driver stream has been
full, or has run at the service's limit of bytes per second, and from then on batch after batch until a batch comes back
with every pull idle: one small answer from the service is no proof of an empty backlog, a batch full of them is.

The driver stream's messages are part 0 in the staging area. In a backlog the first task gives its rows before its own:
a task for a thousand rows would keep a core from pulling for as long as it takes to start one. A replay has the same
partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from .staged_part import Footer
from .staging import Staging


@dataclass
class DriverPartition(InputPartition):
    """The messages of the driver stream alone: part 0, staged by the driver and carried along as `content`."""

    staging: Staging
    batch: int
    content: bytes
    part: int = 0


@dataclass
class PullPartition(InputPartition):
    """A share of the trigger's budget for one task to pull, or to read if an earlier attempt has staged it.

    excludes: paths of the files whose deduplication ids the task drops. streams: StreamingPulls of the task.
    driver_content: part 0, whose rows come before this part's. acks: the parts of committed batches whose acks the task
    sends (`task_acks`), each as batch, part and bytes.
    """

    staging: Staging
    batch: int
    part: int
    max_messages: int
    max_bytes: int
    excludes: Sequence[str] = ()
    streams: int = 1
    driver_content: bytes | None = None
    acks: Sequence[tuple[int, int, int]] = ()


@dataclass
class StagedPartition(InputPartition):
    """Parts of a replayed batch that are one partition: read from the staging area, never pulled.

    repeats: those of them that have repeated ids. reader: the reader schema to decode with (`staged_schemas`).
    """

    staging: Staging
    batch: int
    parts: Sequence[int]
    repeats: Sequence[int] = ()
    reader: str | None = None

    @property
    def part(self) -> int:
        """The number in the names of the partition's files: its last part's, as when the batch was planned first."""
        return self.parts[-1]


Partition = DriverPartition | PullPartition | StagedPartition


def replay_partitions(
    staging: Staging, batch: int, staged: Sequence[int], repeats: Sequence[int] = (), reader: str | None = None
) -> list[StagedPartition]:
    """The partitions of a replay, in the order of the first time; one whose task staged nothing has no rows.

    repeats: the parts that have repeated ids. reader: the reader schema that part 0 names.
    """
    groups = [[0, 1], *([part] for part in range(2, max(staged, default=-1) + 1))]
    listed = ([part for part in group if part in staged] for group in groups)
    return [
        StagedPartition(staging, batch, parts, [part for part in parts if part in repeats], reader) for parts in listed
    ]


@dataclass(frozen=True)
class Budget:
    """The most messages and bytes that a trigger may bring."""

    messages: int
    bytes: int

    def shares(
        self,
        staging: Staging,
        batch: int,
        partitions: int,
        driver_messages: int,
        driver_bytes: int,
        excludes: Sequence[str] = (),
        streams: int = 1,
    ) -> list[PullPartition]:
        """The budget less the driver stream's messages, in equal shares; none when nothing is left of it."""
        messages, volume = self.messages - driver_messages, self.bytes - driver_bytes
        if messages <= 0 or volume <= 0:
            return []
        count = min(partitions, messages)
        return [
            PullPartition(
                staging,
                batch,
                part,
                messages // count + (part <= messages % count),
                max(1, volume // count),
                excludes,
                streams,
            )
            for part in range(1, count + 1)
        ]


# https://cloud.google.com/pubsub/quotas#resource_limits: 10 MB/s for each open stream
STREAM_BYTES_PER_SECOND = 10e6
AT_LIMIT, _UNLIMITED, _SPARE = 0.6, 1.5, 0.25  # rates of a stream, in units of that; setting up takes some of the time
_MAX_STREAMS = 64  # a connection to Google's servers carries 100 calls at a time, and acks are among them


def next_streams(streams: int, pulls: Sequence[Footer]) -> int:
    """The StreamingPulls of each task of the next batch, after a batch with `streams` of them and these pulled parts.

    Twice as many while the streams of a backlog run at the service's limit; half as many when a pull was idle, or half
    of them would do. A stream that is faster than the limit has none (an emulator), and more of them gain nothing.
    """
    busy = [pull for pull in pulls if pull.ended != "idle" and pull.pull_seconds > 0]
    if not busy:
        return max(1, streams // 2)
    rate = sum(pull.pull_bytes / pull.pull_seconds for pull in busy) / len(busy) / streams / STREAM_BYTES_PER_SECOND
    if rate < _SPARE:
        return max(1, streams // 2)
    return min(_MAX_STREAMS, 2 * streams) if AT_LIMIT <= rate <= _UNLIMITED else streams


def is_backlogged(footers: Sequence[Footer], drained_from: float | None = None) -> bool:
    """Whether the pulls of a batch say that there are more messages: one brought some, neither idle nor caught up.

    drained_from: with `availableNow`, the publish time in seconds from which messages are not waited for. After a batch
    that has nothing older there is no backlog; after one that has, a pull that has caught up is no sign that all came.
    """
    without = ("idle", "caughtUp") if drained_from is None else ("idle",)
    more = any(footer.rows + footer.dropped and footer.ended not in without for footer in footers)
    oldest = min((footer.oldest for footer in footers if footer.oldest is not None), default=None)
    return more and (drained_from is None or oldest is None or oldest <= drained_from)

"""How a batch is read: by the driver stream alone, or also by tasks, and by how many. Pure.

Tasks pull once the driver stream has been full, or has run at the service's limit of bytes per second. They pull batch
after batch until every pull of a batch was idle: one small response does not prove an empty backlog. A full driver
stream is no proof of a backlog, so the first tasks wait for half a second only. If they waited in vain for a service
that is slow to begin, the next ones wait for `idleTimeout`.

The first pull of a backlog ends after a second. It shows whether the service limits its streams to so many bytes a
second. If it does, the next pull has all the streams that it may have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..pull.streaming_pull import AT_LIMIT, STREAM_BYTES_PER_SECOND
from ..staging.part import Footer
from ..task.partitions import Partition, PullPartition

MAX_DEFAULT_TASKS = 64  # `numFetchPartitions` may ask for more
_UNLIMITED, _SPARE = 1.5, 0.25  # rates of a stream, in units of the limit
_MAX_STREAMS = 64  # a connection to Google's servers carries 100 calls at a time, and acks are among them


@dataclass(frozen=True)
class Budget:
    """The most messages and bytes of a trigger."""

    messages: int
    bytes: int

    def shares(self, partition: PullPartition, tasks: int, driver_part: Footer) -> list[PullPartition]:
        """Return the budget less the driver's part in equal shares, or [] if nothing is left of it.

        partition: of the first share, whose limits and number are replaced.
        """
        messages, volume = self.messages - driver_part.rows, self.bytes - driver_part.bytes
        if messages <= 0 or volume <= 0:
            return []
        count = min(tasks, messages)
        return [
            replace(
                partition,
                part=part,
                max_messages=messages // count + (part <= messages % count),
                max_bytes=max(1, volume // count),
                driver_content=partition.driver_content if part == 1 else None,
            )
            for part in range(1, count + 1)
        ]


@dataclass
class Planner:
    """The observations of earlier batches. tasks: that pull at the same time. streams: StreamingPulls of each task.

    plans: the partitions of the batches that are planned and not committed, because Spark asks for them again in each
    action of `foreachBatch`.
    """

    tasks: int
    is_backlogged: bool = False
    streams: int = 1
    has_waited_in_vain: bool = False
    plans: dict[int, list[Partition]] = field(default_factory=dict)
    unproved_wait: float = 0.5  # of tasks for a message, before a backlog is known
    probe: float = 1.0  # of the first pull of a backlog: at the limit of a stream a longer one would bring little

    def record(self, batch: int, pulls: Sequence[Footer], drained_from: float | None) -> int | None:
        """Record a committed batch with the footers of its pulled parts. Return the tasks that Spark runs at once."""
        pulled = any(isinstance(partition, PullPartition) for partition in self.plans.pop(batch, []))
        self.has_waited_in_vain = pulled and all(footer.is_empty for footer in pulls)
        self.is_backlogged = pulled and is_backlogged(pulls, drained_from)
        self.streams = next_streams(self.streams, pulls)
        return max((footer.task_slots or 0 for footer in pulls), default=0) or None

    @property
    def first_wait(self) -> float:
        """The seconds that the tasks of the next batch wait for their first message."""
        return math.inf if self.is_backlogged or self.has_waited_in_vain else self.unproved_wait

    def period(self, is_only: bool) -> float:
        """Return the longest pull of the next batch in seconds. is_only: whether no other may follow."""
        return math.inf if self.is_backlogged or is_only else self.probe


def next_streams(streams: int, pulls: Sequence[Footer]) -> int:
    """Return the StreamingPulls of each task of the next batch, after a batch with `streams` of them.

    As many as are allowed once the streams of a backlog run at the service's limit. Half as many if a pull was idle, or
    half of them would do. A stream that is faster than the limit has none (an emulator), and more gain nothing.
    """
    busy = [pull for pull in pulls if pull.ended != "idle" and pull.pull_seconds > 0]
    if not busy:
        return max(1, streams // 2)
    rate = sum(pull.pull_bytes / pull.pull_seconds for pull in busy) / len(busy) / streams / STREAM_BYTES_PER_SECOND
    if rate < _SPARE:
        return max(1, streams // 2)
    return _MAX_STREAMS if AT_LIMIT <= rate <= _UNLIMITED else streams


def is_backlogged(footers: Sequence[Footer], drained_from: float | None = None) -> bool:
    """Return whether the pulls of a batch say that there are more messages.

    footers: in the order of the parts. If there are more than Spark's slots, the last task began after others ended: if
    it found nothing, there was nothing. drained_from: with `availableNow`, the time in seconds: messages published
    later are left. A batch with nothing older ends the backlog. After one that has, a pull that has caught up is
    no sign that all came.
    """
    if footers and footers[-1].is_empty and len(footers) > (footers[-1].task_slots or len(footers)):
        return False
    without = ("idle", "caughtUp") if drained_from is None else ("idle",)
    more = any(footer.acks and footer.ended not in without for footer in footers)
    oldest = min((footer.oldest for footer in footers if footer.oldest is not None), default=None)
    return more and (drained_from is None or oldest is None or oldest <= drained_from)

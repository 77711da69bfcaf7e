"""The pull of one part in a task: its rows, and the messages that are acknowledged at once.

    its id is in doubt                                  acknowledged at once, no row
    the pull ended after the plan's deadline or has     acknowledged at once, no row
      ordering keys, and the message is staged in an
      earlier batch
    the same, and it is staged in another part of       no row. Its receipt stays with this part if the other one was
      this batch                                          yielded
    such a message has an ordering key                  nothing of this pull is a row, and it is nacked
    any other                                           a row

Until its deadline a plan is complete: no lease of a message that it does not exclude can have ended. Later the driver
may know of more redeliveries, so the task reads the parts that were committed and not settled when it was planned.
(Others of earlier batches were staged after the commit: their messages were never rows.) A redelivery that could not be
acknowledged at once is acknowledged with its batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...backend import Connection
from ...codec.envelope import Received, has_text
from ...errors import DamagedFile, MissingFile
from ...options import ReadOptions
from ..pull import acks
from ..pull.lease import pull_lease_seconds
from ..pull.pull import Pull, PullResult
from ..pull.streaming_pull import DEFAULT_TIMES, PullTimes, StreamSettings
from ..runtime import Runtime
from ..staging.area import Staging
from ..staging.ids import IdSet, deserialized, digests, is_in, message_ids
from ..staging.part import Buffer
from .partitions import PullPartition
from .spark_context import told_by_spark

_LATEST_PARTS = 2  # that a surplus task looks at
excluded_ids: dict[tuple[Staging, str], IdSet] = {}  # by file, for the last part that this process has pulled


@dataclass(frozen=True)
class TaskTimes:
    """The limits of a task, in seconds."""

    acks: float = 10.0  # to acknowledge or nack redeliveries, retries included
    surplus_wait: float = 0.05  # for a first message. It also drains its stream
    extension: float = 30.0  # to retry an extension. The next one sends the unanswered ids again
    pull: PullTimes = DEFAULT_TIMES


TASK_TIMES = TaskTimes()


@dataclass
class PartitionPull:
    """A pull of a partition. leased: when on the lease clock its first message may have been delivered."""

    partition: PullPartition
    options: ReadOptions
    connection: Connection
    runtime: Runtime
    times: TaskTimes = TASK_TIMES
    leased: float = 0.0
    _kept: list[Received] = field(default_factory=list)  # rows, and the receipts to stage
    _redelivered: int = 0
    _siblings: list[tuple[int, str]] = field(default_factory=list)  # number and id
    _has_siblings: bool = False  # whether receipts of their rows are kept
    _splits_keys: bool = False  # whether another part of the batch has an earlier message of an ordering key

    def __post_init__(self) -> None:
        # The two wall clocks are compared once. From now on the lease clock counts, which no operator sets.
        now = self.runtime.boottime()
        left = self.partition.deadline - self.runtime.wall()
        if left > pull_lease_seconds(self.options.max_fetch_period):  # this clock is behind the driver's
            left = 0.0
        self._deadline = now + left
        self._committed = _excluded_ids(self.partition.staging, self.partition.excludes)
        self._builder = self.partition.staging.part_builder()

    def run(self) -> tuple[list[pa.RecordBatch], list[Buffer]]:
        """Pull until the limits of the partition. Return the rows and the bytes of the part to stage."""
        told = told_by_spark()
        result = self._pull(told.get("task_slots"))
        self.leased = self.runtime.boottime() if result.leased is None else result.leased
        # Pub/Sub may also deliver messages again by itself: a key would be in two parts.
        has_keys = any(has_text(messages.column("ordering_key")) for messages, _ in self._kept)
        if has_keys or (self._kept and self.runtime.boottime() > self._deadline):
            self._drop_staged()
        buffers = self._builder.buffers(
            result.ended,
            pull_bytes=result.bytes,
            pull_seconds=round(result.seconds, 3),
            arrived=round(result.arrived, 3),
            redelivered=self._redelivered,
            id=uuid.uuid4().hex,
            siblings=self._siblings,
            **told,
        )
        return [messages for messages, _ in self._kept], buffers

    def _pull(self, slots: int | None) -> PullResult:
        partition, options = self.partition, self.options
        settings = StreamSettings(
            options.subscription,
            client_id=f"{partition.staging.stream}-{partition.part}-{uuid.uuid4().hex[:8]}",  # its own for each attempt
            lease_seconds=pull_lease_seconds(options.max_fetch_period),
            max_messages=min(partition.max_messages, options.max_records_per_fetch or partition.max_messages),
            max_bytes=partition.max_bytes,
        )
        return Pull(
            self.connection,
            settings,
            min(options.max_fetch_period, partition.period),
            min(options.idle_timeout, first_wait(partition, slots, self.times.surplus_wait)),
            self._take,
            partition.streams,
            self.times.pull,
            runtime=self.runtime,
        ).run()

    def _take(self, received: Received) -> pa.RecordBatch:
        """Keep messages. Return the rows, which count for the limits."""
        kept = self._without(received, self._committed)
        self._kept.append(kept)
        self._builder.add(*kept)  # now, while the messages are in the processor's cache
        return kept.messages

    def _without(
        self,
        received: Received,
        committed: Sequence[IdSet],
        of_batch: Sequence[IdSet] = (),
        of_others: Sequence[IdSet] = (),
    ) -> Received:
        """Return the rows that are in none of the sets, and the receipts to stage. Acknowledge the committed ones."""
        staged = [*of_batch, *of_others]
        if not committed and not staged:
            return received
        messages, receipts = received
        row_ids, ids = digests(messages.column("message_id")), digests(receipts.column("message_id"))
        is_row = ~is_in(row_ids, [*committed, *staged])
        is_left = is_in(ids, of_others)
        is_committed = is_in(ids, committed)
        has_keys = has_text(messages.column("ordering_key"))
        if is_committed.any():
            is_committed &= self._acknowledge(receipts.filter(pa.array(is_committed)), receipts, has_keys)
        if is_row.all() and not is_committed.any() and not is_left.any():
            return received
        if staged and has_keys:
            self._splits_keys |= bool(is_in(row_ids, staged).any())
        self._has_siblings |= bool(is_in(ids, of_batch).any())
        self._redelivered += int(np.count_nonzero(is_committed))
        return Received(messages.filter(pa.array(is_row)), receipts.filter(pa.array(~(is_committed | is_left))))

    def _acknowledge(
        self, redelivered: pa.RecordBatch, receipts: pa.RecordBatch, in_order: bool
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Acknowledge redeliveries. Return which of the receipts are not among those that were not accepted."""
        ack_ids = redelivered.column("ack_id")
        failed = acks.acknowledge(
            self.connection,
            self.options.subscription,
            [ack_ids],
            self.times.acks,
            runtime=self.runtime,
            in_order=in_order,
        )
        return np.asarray(pc.invert(pc.is_in(receipts.column("ack_id"), failed.not_accepted(ack_ids))))

    def _drop_staged(self) -> None:
        staging = self.partition.staging
        batch, own = self.partition.batch, self.partition.part
        sizes, yielded, _ = staging.listing(batch)
        siblings: list[tuple[int, int, int, str]] = []
        unsure: list[tuple[int, int, int, str]] = []  # maybe no task yields them
        for part, length in sizes.items():
            with suppress(MissingFile, DamagedFile):
                if part != own:
                    part_id = staging.footer(batch, part, length).id
                    counts = part == 0 or part in yielded or not part_id
                    (siblings if counts else unsure).append((batch, part, length, part_id))
        of_batch, of_others = _ids_of_parts(staging, siblings), _ids_of_parts(staging, unsure)
        committed = _ids_of_parts(staging, self.partition.committed)
        in_doubt = staging.ids_in_doubt(
            self.partition.excludes
        )  # last: ids are written here before their parts are deleted
        for path in sorted(in_doubt):
            committed.append(IdSet(deserialized(in_doubt.pop(path), f"{staging.root}/{path}")[0]))
        kept = [self._without(received, committed, of_batch, of_others) for received in self._kept]
        if self._splits_keys:
            self._return_all()
            kept = []
        if self._has_siblings:
            self._siblings = [(part, part_id) for _, part, _, part_id in siblings]
        if kept != self._kept:
            self._kept, self._builder = kept, staging.part_builder()
            for messages, receipts in kept:
                self._builder.add(messages, receipts)

    def _return_all(self) -> None:
        """Nack the messages: rows of a key are in one part of a batch."""
        receipts = [receipts for _, receipts in self._kept]
        acks.nack(self.connection, self.options.subscription, receipts, self.times.acks, self.runtime)


def first_wait(partition: PullPartition, slots: int | None, surplus_wait: float = TASK_TIMES.surplus_wait) -> float:
    """Return the seconds after which the pull of a partition ends without a message.

    A task beyond the slots begins after others. It need not find out again that the subscription is empty.
    """
    staging, batch = partition.staging, partition.batch
    if slots is not None and partition.part > slots:
        latest = sorted(staging.parts(batch).items())[1:][-_LATEST_PARTS:]
        with suppress(MissingFile, DamagedFile):
            if any(staging.footer(batch, *part).has_found_the_end for part in latest):
                return surplus_wait
    return partition.first_wait


def _ids_of_parts(staging: Staging, parts: Iterable[tuple[int, int, int, str]]) -> list[IdSet]:
    """Return the message ids of each part (batch, number, length, id), without those that are gone or damaged."""
    sets: list[IdSet] = []
    for part in parts:
        with suppress(MissingFile, DamagedFile):
            sets.append(IdSet(message_ids(staging.receipts(*part))))
    return sets


def _excluded_ids(staging: Staging, paths: Sequence[str]) -> list[IdSet]:
    """Return the ids in these files. A reused worker reads only new files."""
    known = {(staging, path): excluded_ids.get((staging, path)) for path in paths}
    excluded_ids.clear()
    excluded_ids.update({key: ids or IdSet(staging.read_ids(key[1])[0]) for key, ids in known.items()})
    return list(excluded_ids.values())

"""The driver's side of a streaming query: which batch is planned, committed, acknowledged. Called by `stream_reader`.

    latest_offset(start)    acknowledge every batch up to start; nothing buffered in the driver stream -> start;
                            else batch n+1 is planned, and its end is the answer
    partitions(start, end)  planned here -> a driver partition and pull partitions;
                            staged by an earlier run (a replay) -> its staged parts only

`latest_offset(start)` is the commit signal: Spark calls it with the end of batch n once n is in the commit log, on
every trigger, idle or not, and first thing on restart. Spark 4.0 and 4.1 pass no start; there the end of the last batch
that Spark asked partitions for is what has been committed. Their restart begins with `partitions(end, end)` of the last
batch in the offset log, which may or may not be committed: it is if `latest_offset` is called next, and is not if
`partitions` is called with that batch.

The partitions of a batch are kept until it is committed, because Spark asks for them anew in each action in
`foreachBatch`. Everything here runs in one long-lived process on the driver; nothing is opened before the first call.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ..backend import Backend, Connection
from ..errors import StagingError
from ..memory import keep_freed_memory
from ..options import ReadOptions
from . import data_loss, lease_clock, owner, staged_part, stop_warnings, subscription
from .ack_worker import AckWorker
from .deduplication import Deduplication, drop_duplicates, exclude
from .driver_stream import MAX_BYTES, MAX_MESSAGES, DriverStream
from .lease_extender import LeaseExtender
from .leases import STREAM_LEASE_SECONDS, Leases
from .metrics import ReadCounts, health_metrics, unacked_count, unacked_metrics
from .offset import Offset
from .partitions import Budget, DriverPartition, Partition, PullPartition, is_backlogged, next_streams
from .pull import IDLE_AFTER_MESSAGES_SECONDS
from .recent_ids import digests, merged
from .replay import plan_replay
from .staged_part import Footer
from .staged_schemas import ReaderSchema, stage_reader
from .staging import SCHEMAS, Staging, excluded_path, part_path
from .streaming_pull import StreamSettings
from .task_acks import HeldAcks, SentAcks, assign

MAX_DEFAULT_PARTITIONS = 64  # tasks; `numFetchPartitions` may ask for more
LINGER_SECONDS = 0.03  # from the first buffered message until its batch is planned, so that others may join it,
_LINGER_PAUSE_SECONDS = 0.005  # unless none has come for so long
_STOP_POLL_SECONDS = 0.5  # between two looks at whether the query is stopping
_OUTAGE_POLL_SECONDS = 0.1  # between two looks at whether a stream that is not connected is
_TASK_ACKS_PAUSE_BATCHES = 10  # for which the driver sends all acks, after tasks could not
_FLUSH_TIMEOUT_SECONDS = 5.0  # in which an idle trigger waits for acks in flight
_STOP_TIMEOUT_SECONDS = 5.0
_TOKEN_SECONDS = 3600.0  # after which the driver token is written again: cleaners of temporary folders remove old files
_log = logging.getLogger(__name__)


@dataclass
class Session:
    """One running streaming query on the driver."""

    options: ReadOptions
    backend: Backend
    location: str
    fetch_partitions: int
    is_stopping: Callable[[], bool] = lambda: False  # asked in long waits
    may_be_asked_once: bool = False  # on Spark 4.0 and 4.1 by any query, for `availableNow` does not say so there
    clock: Callable[[], float] = lease_clock.now
    reader: ReaderSchema | None = None  # the schema that batches are decoded with
    counts: ReadCounts = field(default_factory=ReadCounts)
    _initial: Offset | None = None
    _planned: Offset | None = None  # the end of the batch that the driver stream's messages are for
    _last_end: Offset | None = None  # the end of the last batch that Spark asked partitions for
    _committed: int = 0  # the last batch of this run that is committed
    _budget: Budget | None = None
    _partitions: dict[int, list[Partition]] = field(default_factory=dict)
    _footers: dict[int, list[Footer]] = field(default_factory=dict)  # of the known parts of batches that are not acked
    _backlogged: bool = False
    _task_acks_after: int = 0  # the batch after which tasks send acks again, where they could not
    _streams: int = 1  # StreamingPulls of each task of the next batch
    _drained_from: float | None = None  # with `availableNow`: publish time from which messages are not waited for
    _failed: bool = False  # whether the last `latest_offset` raised an error
    _asked: int = 0  # how often `latest_offset` was called
    _held_back: bool = False  # whether too many batches wait for their acks
    _acks_are_answered: bool = True  # by the last flush before a batch
    _reader: str | None = None  # the name of `reader` in the staging area
    _token_written: float = 0.0  # time on the clock
    _leased_until: float = 0.0  # when an earlier run that was killed holds leases no more, in seconds since the epoch
    _opened: _Opened | None = None

    def initial_offset(self) -> Offset:
        """The offset of a new checkpoint; the same in each call."""
        self._initial = self._initial or Offset.start(self.options.subscription)
        return self._initial

    def prepare_for_available_now(self) -> None:
        """Have the query wait for no message that is published from now on (`Trigger.AvailableNow`)."""
        self._drained_from = time.time()

    def prepare_for_once(self) -> None:
        """Have the first batch bring what there is, for there is no other (`Trigger.Once`, and what runs so)."""
        self.prepare_for_available_now()
        self.may_be_asked_once = True

    def latest_offset(self, start: Offset | None, budget: Budget) -> Offset:
        """The end of the next batch, which is planned by this, or `start`; every batch up to `start` is committed."""
        self._failed = True  # unless it comes to its end
        end = self._latest_offset(start or self._last_end or self.initial_offset(), budget)
        self._failed = False
        return end

    def _latest_offset(self, start: Offset, budget: Budget) -> Offset:
        subscription.check_offset(self.options, start)
        opened = self._open(start)
        self._asked += 1
        if opened.worker.taken_over is not None:
            raise opened.worker.taken_over
        self._commit(start, opened)
        self._budget = budget
        opened.stream.check_outage(self.options.fail_after)
        if self._is_held_back(opened):
            return start
        stream = opened.staging.stream  # a new one is put into the offset log at once, by a batch that may be empty
        if self._backlogged or self._has_messages(opened.stream, opened.worker) or stream != start.stream:
            self._planned = Offset(stream, start.batch + 1, self.options.subscription)
            return self._planned
        if self._acks_are_answered:
            opened.worker.flush(_FLUSH_TIMEOUT_SECONDS)
        if self._drained_from is not None:
            stop_warnings.warn_of_leases(self.options.subscription, self._leased_until - time.time())
            left = opened.stream.oldest_publish_time or 0.0
            stop_warnings.warn_of_clock(self.options.subscription, left - time.time())
        return start

    def partitions(self, start: Offset, end: Offset) -> list[Partition]:
        """The partitions of the batch after `start` up to `end`."""
        if self._last_end is None or end.batch > self._last_end.batch:  # not when an old batch is evaluated again
            self._last_end = end
        if start.batch == end.batch:
            return []
        subscription.check_offset(self.options, end)
        # Before the first commit `start` has another stream.
        opened = self._open(Offset(end.stream, start.batch), is_replay=True)
        if end.batch <= self._committed:
            return self._plan(end, opened)
        if end.batch not in self._partitions:
            self._partitions[end.batch] = self._plan(end, opened)
        return self._partitions[end.batch]

    def close(self) -> None:
        """Flush acks and nack the buffered messages, in a few seconds at the most."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            with ExitStack() as ending:  # from the last line to the first, each whatever comes of those before it
                ending.callback(opened.connection.close)
                if self.options.delete_subscription_on_stream_stop:
                    ending.callback(self._delete_subscription, opened)
                ending.callback(self._log_acks_left, opened)
                ending.callback(self._end_run, opened)
                self._warn_of_one_batch(opened)

    def _delete_subscription(self, opened: _Opened) -> None:
        """Delete the subscription if nothing of it is in doubt: its messages would be lost."""
        with opened.leases.lock:
            in_doubt = [*opened.leases.uncommitted, *opened.leases.unacknowledged]
        if in_doubt or self._failed:
            why = "the query has failed" if self._failed else f"batch {in_doubt[0]} is not known to be committed"
            stop_warnings.warn_of_kept_subscription(self.options.subscription, why)
        else:
            opened.connection.admin.delete_subscription(self.options.subscription)

    def _warn_of_one_batch(self, opened: _Opened) -> None:
        """Say that a query which asked for one offset has read one batch of more."""
        pulled = any(isinstance(each, PullPartition) for parts in self._partitions.values() for each in parts)
        if self.may_be_asked_once and self._asked == 1 and (pulled or opened.stream.message_count):
            stop_warnings.warn_of_one_batch(self.options.subscription)

    def _end_run(self, opened: _Opened) -> None:
        # Where a flush was just waited for in vain, the end of the query does not wait as long again.
        nacked = opened.worker.stop(_STOP_TIMEOUT_SECONDS if self._acks_are_answered else 0.0)
        with opened.leases.lock:
            is_finished = nacked and not opened.leases.uncommitted  # else tasks may hold messages
        if is_finished and opened.worker.taken_over is None:
            opened.staging.end_run(self._leased_until, time.time())

    def _log_acks_left(self, opened: _Opened) -> None:
        with opened.leases.lock:
            left = opened.leases.unacknowledged
        acks = unacked_count(footer for batch in left for footer in self._footers.get(batch, []))
        stop_warnings.warn_of_acks(self.options.subscription, len(left), acks)

    def metrics(self) -> dict[str, Any] | None:
        """The metrics of this source in `lastProgress`."""
        if self._opened is None:
            return None
        opened, stream, now = self._opened, self._opened.stream, time.time()
        buffered, oldest_buffered = stream.message_count, stream.oldest_publish_time
        with opened.leases.lock:
            in_flight, unacked = opened.leases.uncommitted, opened.leases.unacknowledged
        footers = [footer for batch in (*in_flight, *unacked) for footer in self._footers.get(batch, [])]
        is_planned = self._planned is not None and self._planned.batch not in in_flight  # by this trigger
        return {
            "subscription": self.options.subscription,
            **health_metrics(stream.health, time.monotonic()),
            "backlogged": self._backlogged or (buffered > 0 and stream.is_saturated),
            "intakePaused": self._held_back,
            "bufferedMessages": buffered,
            "inFlightBatches": len(in_flight) + is_planned,
            "unackedBatches": len(unacked),
            **unacked_metrics(buffered, oldest_buffered, footers, now),
            "messages": self.counts.messages,
            "bytes": self.counts.bytes,
            "redeliveriesDropped": self.counts.dropped,
            "malformed": self.counts.malformed,
            "ackedMessages": opened.worker.acknowledged,
            "failedAcks": opened.worker.failed_acks,
            "leasesExtended": opened.extender.extended,
        }

    def _open(self, start: Offset, is_replay: bool = False) -> _Opened:
        """Connect on the first call, when the stream's name is known; acknowledge the batches of an earlier run."""
        if self._opened is not None:
            return self._opened
        keep_freed_memory()
        options = self.options
        staging = Staging(self.location, options.subscription, start.stream)
        staging.write_token()
        self._token_written = self.clock()
        is_new = start.batch == 0 and staging.is_new()
        last_acknowledged = data_loss.check_not_behind(options, start.batch, staging)
        # A new stream: this area may be another query's. Or it is empty, and another may have what was staged, which is
        # not given now; a later run there would acknowledge it if the stream were the same.
        if start.batch < last_acknowledged or (staging.is_new() and (is_replay or start.batch)):
            staging = replace(staging, stream=uuid.uuid4().hex)
            staging.begin_after(start.batch)
            last_acknowledged = start.batch
        connection = self.backend.connect()
        try:
            topic = subscription.prepare(connection.admin, options, is_new)
            staging = owner.claim(staging)  # when nothing else can fail: an earlier owner ends by this
            last_acknowledged = data_loss.check_not_behind(options, start.batch, staging)
            self._leased_until = staging.begin_run(time.time())
        except BaseException:
            connection.close()
            raise
        leases = Leases()
        deduplication = Deduplication(staging, leases, self.clock, options.id_attribute is not None, topic)
        settings = StreamSettings(
            options.subscription,
            client_id=f"{start.stream}-0-{uuid.uuid4().hex[:8]}",
            lease_seconds=int(STREAM_LEASE_SECONDS),
            max_messages=min(MAX_MESSAGES, options.max_messages_per_trigger),
            max_bytes=min(MAX_BYTES, options.max_bytes_per_trigger),
        )
        stream = DriverStream(connection, settings, self.clock)
        staged = staging.batches()
        if all(batch <= start.batch for batch in staged):  # none is evaluated again
            staging.delete(f"{SCHEMAS}/")
        self._stage_reader(staging)
        for batch in staged:
            if batch <= last_acknowledged:  # parts that a late task staged, which were never given to Spark
                staging.delete(f"{batch}/")
            elif batch <= start.batch:  # committed; whether its acks were accepted is not known
                leases.plan(batch, self.clock() - STREAM_LEASE_SECONDS)
        extender = LeaseExtender(connection, staging, leases, stream, self.clock)
        worker = AckWorker(connection, staging, leases, stream, deduplication, extender)
        self._opened = _Opened(connection, staging, leases, deduplication, stream, extender, worker, frozenset(staged))
        for batch in leases.uncommitted:
            lengths = staging.parts(batch)
            deduplication.add_all(batch, lengths)
            self._footers[batch] = staging.footers(batch, lengths)
        worker.commit(start.batch)
        _log.info(
            "reading `%s` from `%s` after batch %d of stream %s, staging in `%s`",
            options.subscription,
            self.backend.address,
            start.batch,
            start.stream,
            self.location,
        )
        return self._opened

    def _stage_reader(self, staging: Staging) -> None:
        if self.reader is not None:
            self._reader = stage_reader(staging, self.reader)

    def _commit(self, start: Offset, opened: _Opened) -> None:
        """Record that every batch up to `start` is committed; have the worker acknowledge them."""
        sent: list[SentAcks] = []
        held: list[HeldAcks] = []
        for batch in sorted(number for number in self._partitions if number <= start.batch):
            partitions = self._partitions.pop(batch)
            lengths = opened.staging.parts(batch)
            footers = opened.staging.footers(batch, lengths)
            pulls = [f for part, f in zip(lengths, footers, strict=True) if part > 0]
            pulled = any(isinstance(partition, PullPartition) for partition in partitions)
            self._backlogged = pulled and is_backlogged(pulls, self._drained_from)
            self._streams = next_streams(self._streams, pulls)
            self._set_tasks(max((footer.task_slots or 0 for footer in pulls), default=0))
            repeated = opened.deduplication.add_committed(batch, lengths)
            malformed = opened.staging.malformed(batch) if self.options.decode != "none" else 0
            counts = ReadCounts.of(footers, malformed, repeated)
            self.counts += counts
            self._footers[batch] = footers
            sent += (SentAcks(*each) for footer in pulls for each in footer.sent_acks)
            pulls_again = self._backlogged or opened.stream.is_saturated
            if pulled and pulls_again and batch > self._task_acks_after:
                held += (HeldAcks(batch, part, length) for part, length in lengths.items() if part > 0)
            known = max((f.spark_batch for f in pulls if f.spark_batch is not None), default=None)
            named = str(batch) if known is None else f"{batch} (Spark's batchId {known})"
            _log.info("batch %s of `%s` is committed: %s", named, self.options.subscription, counts)
        if self._planned is not None and self._planned.batch <= start.batch:
            self._planned = None  # evaluated again, the batch has its staged parts, and nothing new
        if start.batch > self._committed and not opened.worker.release(sent):
            self._task_acks_after = start.batch + _TASK_ACKS_PAUSE_BATCHES
        self._committed = max(self._committed, start.batch)
        opened.worker.commit(start.batch, held)
        with opened.leases.lock:
            left = {*opened.leases.uncommitted, *opened.leases.unacknowledged}
        self._footers = {batch: footers for batch, footers in self._footers.items() if batch in left}

    def _set_tasks(self, slots: int) -> None:
        """Have as many tasks pull as Spark runs at once, which is known once tasks have pulled (0: it is not)."""
        tasks = min(slots, MAX_DEFAULT_PARTITIONS)
        if self.options.num_fetch_partitions is None and slots and tasks != self.fetch_partitions:
            _log.info("%d tasks pull from `%s`: Spark runs %d at once", tasks, self.options.subscription, slots)
            self.fetch_partitions = tasks

    def _has_messages(self, stream: DriverStream, worker: AckWorker) -> bool:
        """Whether there is a batch to plan; waits LINGER_SECONDS for more messages, with AvailableNow for the last."""
        stream.poll()
        is_only = self.may_be_asked_once and self._asked == 1
        if stream.oldest_arrival is None and (is_only or self._drained_from is not None):
            # With ordering keys an unacknowledged message holds back others.
            before = worker.acknowledged
            self._acks_are_answered = worker.flush(_FLUSH_TIMEOUT_SECONDS) or worker.acknowledged > before
            self._wait_until_idle(stream)
        if stream.oldest_arrival is None:
            return False
        end = math.inf if is_only else stream.oldest_arrival + LINGER_SECONDS
        self._wait_for_more(stream, IDLE_AFTER_MESSAGES_SECONDS if is_only else _LINGER_PAUSE_SECONDS, end)
        oldest = stream.oldest_publish_time
        # Later messages stay buffered until the query ends: nacked at each trigger, they would use up their attempts.
        return oldest is None or oldest <= (self._drained_from or math.inf)

    def _is_held_back(self, opened: _Opened) -> bool:
        """Whether too many batches wait for their acks to plan another; `availableNow` waits until they are fewer."""
        bound = self.options.max_unacknowledged_batches
        while not opened.worker.flush(_FLUSH_TIMEOUT_SECONDS if self._held_back else 0.0, bound - 1):
            if not self._held_back:
                self._held_back = True
                _log.warning(
                    "%d committed batches of `%s` wait for their acks; no other is read until they are fewer "
                    "(maxUnacknowledgedBatches)",
                    bound,
                    self.options.subscription,
                )
            opened.stream.poll(_OUTAGE_POLL_SECONDS)
            if self._drained_from is None or self.is_stopping():
                return True
            opened.stream.check_outage(self.options.connect_timeout)
        if self._held_back:
            self._held_back = False
            _log.warning("the acks of `%s` have caught up; reading goes on", self.options.subscription)
        return False

    def _wait_until_idle(self, stream: DriverStream) -> None:
        """Wait for a message, until the connected stream is idle; ServiceError after `connectTimeout` of an outage."""
        began = time.monotonic()
        while stream.message_count == 0 and not self.is_stopping():
            rest = self.options.idle_timeout - (time.monotonic() - began)
            if rest <= 0 and stream.is_idle(self.options.idle_timeout):
                stream.poll()  # what came while the service was probed
                return
            stream.check_outage(self.options.connect_timeout)
            stream.poll(min(rest, _STOP_POLL_SECONDS) if rest > 0 else _OUTAGE_POLL_SECONDS)

    def _wait_for_more(self, stream: DriverStream, pause: float, end: float = math.inf) -> None:
        """Wait until the stream is full, brings no more for `pause` seconds, or it is `end` on the clock."""
        count = 0
        while stream.message_count > count and not stream.is_flow_controlled and not self.is_stopping():
            if self.clock() >= end:
                return
            count = stream.message_count
            stream.poll(min(pause, end - self.clock()))

    def _plan(self, end: Offset, opened: _Opened) -> list[Partition]:
        # A staged batch that the offset log has lost is a replay, too; buffered messages stay buffered, in their order.
        is_replay = self._planned != end or end.batch in opened.staged
        if is_replay and data_loss.is_deleted(self.options, end.batch, opened.staging):
            return []
        with opened.leases.lock:  # the leases of a replay began in an earlier run, and may have expired
            opened.leases.plan(end.batch, self.clock() - (STREAM_LEASE_SECONDS if is_replay else 0))
        if not is_replay:
            return self._plan_pull(end.batch, opened)
        partitions = plan_replay(opened.staging, opened.deduplication, end.batch)
        # It may just have been acknowledged.
        return [] if data_loss.is_deleted(self.options, end.batch, opened.staging) else [*partitions]

    def _plan_pull(self, batch: int, opened: _Opened) -> list[Partition]:
        """The partitions of a new batch; the buffered messages are staged as its part 0."""
        budget = self._budget
        assert budget is not None, "a batch is planned by latest_offset(), which knows the budget"
        stream, staging = opened.stream, opened.staging
        opened.worker.taken_over = owner.taken_over(staging)
        if opened.worker.taken_over is not None:
            raise opened.worker.taken_over
        if self.clock() - self._token_written >= _TOKEN_SECONDS:
            self._token_written = self.clock()
            staging.write_token()
            self._stage_reader(staging)
        stream.poll()
        is_saturated, oldest_arrival = stream.is_saturated, stream.oldest_arrival
        lease, taken = stream.take(budget.messages, budget.bytes)
        opened.deduplication.add_expired()
        excluded_ids = opened.deduplication.ids_to_exclude(self.clock() if oldest_arrival is None else oldest_arrival)
        with opened.leases.lock:
            opened.leases.track(batch, 0, lease)
        taken = [received.with_deduplication_id(self.options.id_attribute) for received in taken]
        builder = staging.part_builder()
        for received, first in zip(taken, drop_duplicates(taken), strict=True):  # an expired lease brings duplicates
            builder.add(exclude(first, excluded_ids).messages, received.receipts)
        content = b"".join(builder.buffers("driver", reader=self._reader))
        if not staging.create(part_path(batch, 0), [content]):
            raise StagingError(
                f"Batch {batch} of `{self.options.subscription}` was staged in `{self.location}` by another query "
                "meanwhile. Let one query at a time use the checkpoint."
            )
        opened.extender.keep(batch, 0, [received.receipts.column("ack_id") for received in taken])
        driver_part = staged_part.footer(content)
        self._footers[batch] = [driver_part]
        if self._backlogged or is_saturated:
            excludes = opened.deduplication.write()
            may_repeat = self.options.id_attribute is not None or (lease is not None and lease.is_expired(self.clock()))
            if taken and may_repeat:  # tasks may pull the same again
                ids = [digests(received.receipts.column("deduplication_id")) for received in taken]
                excludes.append(excluded_path(batch))
                staging.write_ids(excludes[-1], merged(ids))
            partitions, streams = self.fetch_partitions, self.options.streams_per_partition or self._streams
            shares = budget.shares(staging, batch, partitions, driver_part.rows, driver_part.bytes, excludes, streams)
            if shares:
                return [*assign([replace(shares[0], driver_content=content), *shares[1:]], opened.worker.held)]
        opened.worker.release()
        return [DriverPartition(staging, batch, content)]


@dataclass(frozen=True)
class _Opened:
    connection: Connection
    staging: Staging
    leases: Leases
    deduplication: Deduplication
    stream: DriverStream
    extender: LeaseExtender
    worker: AckWorker
    staged: frozenset[int]  # batches that earlier runs have staged

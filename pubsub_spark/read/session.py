"""The driver's side of a stream: which batch is announced, planned, committed. Spark's calls come in through `stream`.

    latest(start)        acknowledge every batch up to start; nothing at the door -> start; else batch n+1 is announced
    plan(start, end)     announced here -> door and pull parts; staged by an earlier run (a replay) -> those parts only

`latest(start)` is the commit signal: Spark calls it with the end of batch n once n is in the commit log, on every
trigger, idle or not, and first thing on restart. Spark 4.0 and 4.1 pass no start; there the end of the last planned
batch is what has been committed. Their restart begins with `plan(end, end)` of the last batch in the offset log, which
may or may not be committed: it is if `latest` is called next, and is not if `plan` is called with that batch.

A plan is remembered until its batch is committed, because Spark plans a batch anew for each action in `foreachBatch`.
Everything here runs in one long-lived process on the driver; nothing is opened before the first call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from ..backend import Backend, Connection
from ..errors import StagingError
from ..memory import keep_freed_memory
from ..options import ReadOptions
from . import subscription
from .door import MOST_BYTES, MOST_MESSAGES, Door
from .keeper import Keeper
from .leases import STREAM_LEASE, Leases
from .offset import Offset
from .plan import Budget, DoorPart, Part, PullPart, is_flood, replayed
from .pull import Flow
from .redelivery import firsts, without
from .staging import MISSING, Footer, Staging, footer

MOMENT = 0.03  # seconds that a first message waits for company
_GLANCE = 0.5  # seconds between two looks at whether the query is stopped
_FLUSH_TIMEOUT = 5.0  # seconds that an idle trigger waits for acks under way
_STOP_TIMEOUT = 5.0
# Leases run out while a machine sleeps. Linux's monotonic clock stands still then; those of other systems do not.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pulled:
    """What batches brought: messages, bytes, redeliveries dropped, payloads that could not be decoded."""

    messages: int = 0
    bytes: int = 0
    dropped: int = 0
    malformed: int = 0

    @classmethod
    def of(cls, footers: Sequence[Footer], malformed: int) -> Pulled:
        """The sum of a batch's parts."""
        rows, volume, dropped = (sum(getattr(f, name) for f in footers) for name in ("rows", "bytes", "dropped"))
        return cls(rows, volume, dropped, malformed)

    def __add__(self, other: Pulled) -> Pulled:
        return Pulled(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.messages} messages, {self.bytes} bytes, {self.dropped} redeliveries dropped, "
            f"{self.malformed} malformed"
        )


@dataclass
class Session:
    """One running stream on the driver."""

    options: ReadOptions
    backend: Backend
    location: str
    partitions: int
    told_to_stop: Callable[[], bool] = lambda: False  # asked in long waits
    clock: Callable[[], float] = partial(time.clock_gettime, CLOCK)
    pulled: Pulled = field(default_factory=Pulled)
    _initial: Offset | None = None
    _announced: Offset | None = None
    _planned: Offset | None = None
    _settled: int = 0  # the last batch of this run that is committed
    _budget: Budget | None = None
    _plans: dict[int, list[Part]] = field(default_factory=dict)
    _footers: dict[int, list[Footer]] = field(default_factory=dict)  # of batches whose acks are under way
    _overdue: set[tuple[int, int]] = field(default_factory=set)  # parts remembered because their acks take so long
    _flood: bool = False
    _cutoff: float | None = None
    _opened: _Opened | None = None

    def initial(self) -> Offset:
        """The offset of a new checkpoint; the same however often it is asked."""
        self._initial = self._initial or Offset.start()
        return self._initial

    def finish_with_what_is_there(self) -> None:
        """`Trigger.AvailableNow`: what is published from now on is not waited for."""
        self._cutoff = time.time()

    def latest(self, start: Offset | None, budget: Budget) -> Offset:
        """Take note that everything up to `start` is committed; announce the next batch, or return `start`."""
        start = start or self._planned or self.initial()
        opened = self._open(start)
        self._settle(start, opened)
        self._budget = budget
        if self._flood or self._something_at(opened.door, opened.keeper):
            self._announced = start.next
            return self._announced
        opened.keeper.flush(_FLUSH_TIMEOUT)
        return start

    def plan(self, start: Offset, end: Offset) -> list[Part]:
        """The parts of the batch after `start` up to `end`."""
        if self._planned is None or end.batch > self._planned.batch:  # not when an old batch is evaluated again
            self._planned = end
        if start.batch == end.batch:
            return []
        opened = self._open(Offset(end.stream, start.batch))  # before the first commit `start` is drawn anew
        if end.batch <= self._settled:
            return self._plan(end, opened)
        if end.batch not in self._plans:
            self._plans[end.batch] = self._plan(end, opened)
        return self._plans[end.batch]

    def _plan(self, end: Offset, opened: _Opened) -> list[Part]:
        # A staged batch that the offset log has lost is a replay, too: what waits at the door stays, and in its order.
        announced = self._announced == end and end.batch not in opened.staged
        if not announced and self._is_gone(end, opened):
            return []
        with opened.keeper.lock:  # the leases of a replay began before our time, and may be over
            opened.leases.announce(end.batch, self.clock() - (0 if announced else STREAM_LEASE))
        if announced:
            return self._pull_plan(end.batch, opened)
        parts = self._replay_plan(end.batch, opened)
        return [] if self._is_gone(end, opened) else parts  # its acks may have gone through in this moment

    def _is_gone(self, end: Offset, opened: _Opened) -> bool:
        gone = end.batch <= opened.staging.released()
        if gone:
            self._lost(
                f"Spark asks again for batch {end.batch} of `{self.options.subscription}`, which was acknowledged and "
                "released"
            )
        return gone

    def close(self) -> None:
        """Flush acks, give back what waits at the door; a few seconds at the most."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            with ExitStack() as ending:  # from the last line to the first, each whatever comes of those before it
                ending.callback(opened.connection.close)
                if self.options.delete_subscription_on_stream_stop:
                    ending.callback(opened.connection.admin.delete_subscription, self.options.subscription)
                ending.callback(opened.keeper.stop, _STOP_TIMEOUT)

    def metrics(self) -> dict[str, Any] | None:
        """What `lastProgress` shows of this source."""
        if self._opened is None:
            return None
        opened = self._opened
        times = [opened.door.oldest_publish_time]
        with opened.keeper.lock:
            under_way = opened.leases.unacknowledged
            footers = [footer for batch in under_way for footer in self._footers.get(batch, [])]
            times += [footer.oldest for footer in footers]
            oldest = min((moment for moment in times if moment is not None), default=None)
            return {
                "atTheDoor": opened.door.count,
                "heldBatches": len(opened.leases.held),
                "unacknowledgedBatches": len(under_way),
                "unacknowledged": sum(footer.rows for footer in footers),
                "messages": self.pulled.messages,
                "bytes": self.pulled.bytes,
                "redeliveriesDropped": self.pulled.dropped,
                "malformed": self.pulled.malformed,
                "acknowledged": opened.keeper.counts.acknowledged,
                "failedAcks": opened.keeper.counts.failed_acks,
                "leasesExtended": opened.keeper.counts.extended,
                "oldestUnacknowledgedSeconds": round(time.time() - oldest, 3) if oldest is not None else 0,
            }

    def _open(self, start: Offset) -> _Opened:
        """Connect on the first call, when the stream's name is known; what an earlier run left is acknowledged."""
        if self._opened is not None:
            return self._opened
        keep_freed_memory()
        options = self.options
        staging = Staging(self.location, options.subscription, start.stream)
        staging.leave_token()
        released = staging.released()
        if start.batch < released:
            self._lost(
                f"The checkpoint of `{options.subscription}` is at batch {start.batch}, but batches up to {released} "
                "were acknowledged and released"
            )
            staging.restart_after(start.batch)
            released = start.batch
        connection = self.backend.connect()
        try:
            subscription.prepare(connection.admin, options, is_new=start.batch == 0 and staging.is_new())
        except BaseException:
            connection.close()
            raise
        leases = Leases()
        leases.remember(staging.seen(), self.clock())
        flow = Flow(
            options.subscription,
            client_id=f"{start.stream}-0",
            deadline=int(STREAM_LEASE),
            max_messages=min(MOST_MESSAGES, options.max_messages_per_trigger),
            max_bytes=min(MOST_BYTES, options.max_bytes_per_trigger),
        )
        door = Door(connection, flow, self.clock)
        staged = staging.batches()
        for batch in staged:
            if batch <= released:  # acknowledged; whatever a late task put there since was never given to Spark
                staging.delete(f"{batch}/")
            elif batch <= start.batch:  # committed, but whether its acks went through is not known: late in any case
                leases.announce(batch, self.clock() - STREAM_LEASE)
        keeper = Keeper(connection, staging, leases, door, self.clock)
        self._opened = _Opened(connection, staging, leases, door, keeper, frozenset(staged))
        for batch in leases.held:
            lengths = staging.parts(batch)
            self._remember(batch, lengths, self._opened)
            self._footers[batch] = staging.footers(batch, lengths)
        keeper.commit(start.batch)
        _log.info(
            "reading `%s` from `%s` after batch %d of stream %s, staging in `%s`",
            options.subscription,
            self.backend.address,
            start.batch,
            start.stream,
            self.location,
        )
        return self._opened

    def _settle(self, start: Offset, opened: _Opened) -> None:
        """Everything up to `start` is committed: learn from its pulls, let its acks go."""
        for batch in sorted(number for number in self._plans if number <= start.batch):
            parts = self._plans.pop(batch)
            lengths = opened.staging.parts(batch)
            footers = opened.staging.footers(batch, lengths)
            pulls = [f for part, f in zip(lengths, footers, strict=True) if part > 0]
            self._flood = is_flood(pulls, self._cutoff) if any(isinstance(p, PullPart) for p in parts) else False
            with opened.keeper.lock:
                late = [part for part in lengths if opened.leases.is_late(batch, part, self.clock())]
            named = self.options.id_attribute is not None
            self._remember(batch, lengths if named else {part: lengths[part] for part in late}, opened)
            brought = Pulled.of(footers, opened.staging.malformed(batch) if self.options.decode == "topic" else 0)
            self.pulled += brought
            self._footers[batch] = footers
            _log.info("batch %d of `%s` is committed: %s", batch, self.options.subscription, brought)
        if self._announced is not None and self._announced.batch <= start.batch:
            self._announced = None  # who evaluates it again gets what is staged, and nothing new
        self._settled = max(self._settled, start.batch)
        opened.keeper.commit(start.batch)
        with opened.keeper.lock:
            self._footers = {b: f for b, f in self._footers.items() if b in opened.leases.unacknowledged}

    def _remember(self, batch: int, lengths: Mapping[int, int], opened: _Opened) -> None:
        """Parts whose messages may come again: they are dropped from now on.

        Before the next batch is planned, because they may be waiting at the door already.
        """
        for part, length in lengths.items():
            opened.keeper.remember(batch, part, length)

    def _remember_overdue(self, opened: _Opened) -> None:
        """Acks that take longer than the leases: what they are for may be at the door already."""
        now = self.clock()
        with opened.keeper.lock:
            overdue = opened.leases.overdue(now)
        for batch in overdue:
            lengths = opened.staging.parts(batch)
            with opened.keeper.lock:
                late = {part for part in lengths if opened.leases.is_late(batch, part, now)}
            late -= {part for number, part in self._overdue if number == batch}
            with suppress(*MISSING):  # its acks went through in this moment
                self._remember(batch, {part: lengths[part] for part in late}, opened)
            self._overdue |= {(batch, part) for part in late}
        self._overdue = {(batch, part) for batch, part in self._overdue if batch in overdue}

    def _something_at(self, door: Door, keeper: Keeper) -> bool:
        """Whether there is a batch to announce; waits a moment for more, with AvailableNow until all is drained."""
        door.poll()
        if door.since is None and self._cutoff is not None:
            keeper.flush(_FLUSH_TIMEOUT)  # what is not acknowledged may hold others back
            end = time.monotonic() + self.options.idle_timeout
            while door.count == 0 and not self.told_to_stop() and (rest := end - time.monotonic()) > 0:
                door.poll(min(rest, _GLANCE))
        if door.since is None:
            return False
        while not door.crowded and (rest := door.since + MOMENT - self.clock()) > 0:
            door.poll(rest)
        oldest = door.oldest_publish_time
        # What was published later waits for the end: given back at each trigger, it would use up its delivery attempts.
        return oldest is None or oldest <= (self._cutoff or float("inf"))

    def _pull_plan(self, batch: int, opened: _Opened) -> list[Part]:
        budget = self._budget
        assert budget is not None, "a batch is announced by latest(), which knows the budget"
        door, staging = opened.door, opened.staging
        door.poll()
        crowded, since = door.crowded, door.since
        lease, taken = door.take(budget.messages, budget.bytes)
        self._remember_overdue(opened)
        with opened.keeper.lock:
            opened.leases.forget(self.clock() if since is None else since)
            known = opened.leases.remembered
            opened.leases.found(batch, 0, lease)
        by_name = self.options.id_attribute is not None
        taken = [got.named_by(self.options.id_attribute) for got in taken]
        packer = staging.packer()
        for got, first in zip(taken, firsts(taken), strict=True):  # a lease that ran out here brings twins
            packer.add(without(first, known).messages, got.receipts)
        content = b"".join(packer.content("door"))
        if not staging.create(f"{batch}/part-0", [content]):
            raise StagingError(
                f"Batch {batch} of `{self.options.subscription}` was staged in `{self.location}` by another query "
                "meanwhile. Let one query at a time use the checkpoint."
            )
        held = footer(content)
        if self._flood or crowded:
            # Twins must meet: what the door brought is known to those who pull (one task, with `idAttribute`).
            if by_name or (lease is not None and lease.over(self.clock())):
                known = pa.concat_arrays([known, *(got.receipts.column("identity") for got in taken)])
            if len(known):
                staging.write_known(batch, known)
            partitions = 1 if by_name else self.partitions
            shares = budget.shares(staging, batch, partitions, held.rows, held.bytes, bool(len(known)))
            if shares:
                return [replace(shares[0], door=content), *shares[1:]]
        return [DoorPart(staging, batch, content)]

    def _replay_plan(self, batch: int, opened: _Opened) -> list[Part]:
        staged = opened.staging.seal(batch)
        with suppress(*MISSING):  # acknowledged and released in this moment
            self._remember(batch, opened.staging.parts(batch), opened)
        _log.warning("batch %d of `%s` is replayed from %d staged parts", batch, self.options.subscription, len(staged))
        return [*replayed(opened.staging, batch, staged)]

    def _lost(self, what: str) -> None:
        if self.options.fail_on_data_loss:
            raise StagingError(
                f"{what}, so its rows cannot be given again. Start a new checkpoint location, or set "
                "failOnDataLoss=false to go on without them."
            )
        _log.warning("%s; going on without them (failOnDataLoss=false)", what)


@dataclass(frozen=True)
class _Opened:
    connection: Connection
    staging: Staging
    leases: Leases
    door: Door
    keeper: Keeper
    staged: frozenset[int]  # batches that earlier runs have staged

"""The driver's side of a streaming query, called by `stream_reader`. It connects the parts and decides nothing itself.

    latest_offset(start)    everything up to start is committed: the ledger records it, and acks begin
                            `triggers` says whether a batch n+1 is planned, whose end is the answer, or not: start
    partitions(start, end)  planned here -> `batches.new_batch`, staged by an earlier run -> `batches.replayed_batch`

Spark calls `latest_offset` with the end of batch n once n is in the commit log, on every trigger, and first at a
restart. Spark 4.0 and 4.1 pass no start. There the committed offset is the end of the last batch that Spark asked
partitions for. Their restart begins with `partitions(end, end)` of the last batch in the offset log. That batch is
committed if `latest_offset` is called next, and is not if `partitions` is called with it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ...errors import OptionsError
from ..offset import Offset
from ..task.partitions import Partition
from . import subscription
from .active_run import ActiveRun
from .planner import Budget, Planner
from .start import Start
from .triggers import Triggers


class QueryDriver:
    """One streaming query on the driver.

    start: of its run. tasks: that pull at the same time, until a task has reported the slots. may_be_asked_once: see
    `Triggers`.
    """

    def __init__(
        self,
        start: Start,
        tasks: int,
        is_stopping: Callable[[], bool] = lambda: False,
        may_be_asked_once: bool = False,
    ) -> None:
        self._start = start
        self._is_stopping = is_stopping
        self._initial: Offset | None = None  # of a new checkpoint
        self._planned: tuple[Offset, Budget] | None = None  # the batch that the buffered messages are for
        self._last_end: Offset | None = None  # of the last batch that Spark asked partitions for
        self._triggers = Triggers(start.options.idle_timeout, may_be_asked_once)
        self._planner = Planner(tasks)
        self.active: ActiveRun | None = None

    def initial_offset(self) -> Offset:
        """Return the offset of a new checkpoint, the same in each call."""
        self._initial = self._initial or Offset.start(self._start.options.subscription, self._start.area)
        return self._initial

    def prepare_for_available_now(self) -> None:
        """Have the query read the messages published until now and end (`Trigger.AvailableNow`)."""
        self._triggers.drained_from = self._start.runtime.wall()

    def prepare_for_once(self) -> None:
        """Have the first batch read the whole backlog, because it is the only one (`Trigger.Once`)."""
        self.prepare_for_available_now()
        self._triggers.may_be_asked_once = True

    def latest_offset(self, start: Offset | None, budget: Budget) -> Offset:
        """Plan the next batch and return its end, or return `start`, the end of the last committed batch."""
        start = start or self._last_end or self.initial_offset()
        subscription.check_offset(self._start.options, start)
        active = self._open(start, is_replay=False)
        active.has_failed = True  # until the end of this call
        active.commit(start.batch)
        if self._planned is not None and self._planned[0].batch <= start.batch:
            self._planned = None  # evaluated again, the batch has its staged parts, and nothing new
        end = start
        if active.next_batch(start.stream):
            staging = active.run.staging
            end = Offset(staging.stream, start.batch + 1, staging.subscription, staging.area)
            self._planned = end, budget
        active.has_failed = False
        return end

    def partitions(self, start: Offset, end: Offset) -> list[Partition]:
        """Return the partitions of the batch after `start` up to `end`, the same in each call."""
        last = self._last_end
        if last is None or end.batch > last.batch:  # not if an old batch is evaluated again
            self._last_end = end
        if start.batch >= max(1, end.batch) and start.stream != end.stream:
            raise OptionsError(
                [
                    "Spark has asked for a batch without the last committed offset. Set "
                    "`spark.sql.streaming.triggerAvailableNowWrapper.enabled` to false, which `availableNow` needs on "
                    "Spark 4.0 and 4.1"
                ]
            )
        if start.batch == end.batch:
            return []
        subscription.check_offset(self._start.options, end)
        # Before the first commit `start` has another stream.
        active = self._open(Offset(end.stream, start.batch, area=end.area), is_replay=True)
        planned, budget = self._planned or (None, None)
        active.has_failed = True  # until the end of this call
        partitions = active.partitions(end.batch, budget if planned == end else None)
        active.has_failed = False
        return partitions

    def metrics(self) -> dict[str, Any] | None:
        """Return the metrics of this source in `lastProgress`, or None before the first call."""
        if self.active is None:
            return None
        return self.active.metrics(self._announced)

    def close(self, is_asked: bool = True) -> None:
        """See `ActiveRun.end`. is_asked: whether Spark has asked for it."""
        if self.active is not None:
            active, self.active = self.active, None
            active.has_failed |= not is_asked
            with ExitStack() as ending:  # from the last line to the first, each whatever becomes of those before it
                ending.callback(active.run.connection.close)
                ending.callback(active.delete_subscription, self._announced)
                ending.callback(active.end)

    @property
    def _announced(self) -> int | None:
        """The batch whose end was the last answer, until it is committed."""
        return None if self._planned is None else self._planned[0].batch

    def _open(self, start: Offset, is_replay: bool) -> ActiveRun:
        if self.active is None:
            options, times = self._start.options, self._start.times
            run = self._start.run(start, is_replay, self._is_stopping, is_first=start == self._initial)
            self.active = ActiveRun(options, run, self._triggers, self._planner, self._is_stopping, times)
        return self.active

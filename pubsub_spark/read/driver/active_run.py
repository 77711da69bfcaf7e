"""A run of a query from its first call to its end, on the thread of Spark's calls.

It connects the ledger, the driver stream, the rules of `triggers` and `planner`, and the two background threads.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...errors import PubSubError, ServiceError
from ...options import ReadOptions
from ..pull import acks
from ..pull.lease import pull_lease_seconds
from ..staging import fencing
from ..staging.part import Footer
from ..staging.schemas import stage_reader
from ..task.partitions import Partition, PullPartition, StagedPartition
from .ack_worker import AckWorker
from .batches import doubt_ids, drop_redelivered, new_batch, readable_parts, replayed_batch
from .in_doubt import DOUBT_SECONDS, MAX_BACKOFF_SECONDS
from .in_doubt_files import write_in_doubt
from .lease_extender import LeaseExtender
from .metrics import batch_counts, health_metrics, unacked_metrics
from .planner import MAX_DEFAULT_TASKS, Budget, Planner
from .run import Run
from .start import report_loss
from .times import DRIVER_TIMES, DriverTimes
from .triggers import Action, StreamView, Triggers

_log = logging.getLogger(__name__)


class ActiveRun:
    """The running query. run: its open objects."""

    def __init__(
        self,
        options: ReadOptions,
        run: Run,
        triggers: Triggers,
        planner: Planner,
        is_stopping: Callable[[], bool],
        times: DriverTimes = DRIVER_TIMES,
    ) -> None:
        self.run = run
        self.counts = batch_counts([], 0, 0)  # of all batches of the run
        self.has_failed = False  # whether the last call of Spark raised an error, or Spark died
        self._options = options
        self._triggers = triggers
        self._planner = planner
        self._is_stopping = is_stopping
        self._times = times
        self.worker = AckWorker(run, times.acks)
        self.extender = LeaseExtender(run, times.extensions)
        self._token_written = run.now()
        self._report_at = 0.0
        self._tasks_lease_until = 0.0  # when messages are delivered that a task pulled and did not stage
        self._pulled_at: float | None = None  # when the last message came to a task of the last batch
        self._is_held_back = False  # because too many batches wait for their acks
        self._are_acks_answered = True  # by the last flush

    def commit(self, batch: int) -> None:
        """Record that every batch up to `batch` is committed. Their acks are sent in the background."""
        self.worker.check()
        run, ledger = self.run, self.run.ledger
        with run.changed:
            numbers = [number for number in ledger.uncommitted if number <= batch]
        for number in numbers:
            parts = readable_parts(run.staging, number)
            replayed = [each for each in self._planner.plans.get(number, ()) if isinstance(each, StagedPartition)]
            if replayed:  # if its manifest is gone, later parts have no rows
                parts = {part: parts[part] for each in replayed for part in each.parts if part in parts}
            footers = [footer for _, footer in parts.values()]
            pulls = [footer for part, (_, footer) in parts.items() if part > 0]
            if any(isinstance(partition, PullPartition) for partition in self._planner.plans.get(number, ())):
                lease_seconds = pull_lease_seconds(self._options.max_fetch_period)
                self._tasks_lease_until = run.now() + lease_seconds + MAX_BACKOFF_SECONDS
            wall = run.runtime.wall()  # once: an operator may set it
            ages = [max(0.0, wall - pull.arrived) for pull in pulls]
            self._pulled_at = run.runtime.monotonic() - min(ages) if ages else None
            self._set_tasks(self._planner.record(number, pulls, self._triggers.drained_from))
            counts = self._count(number, footers)
            with run.changed:
                lost = sum(part.outstanding for part in ledger.parts_of(number) if part.number not in parts)
                gone = ledger.commit(number, parts)
                run.changed.notify_all()
            if gone:
                run.stream.record_acks(lost)
                _log.warning(
                    "staged parts %s of batch %d of `%s` are gone from `%s`, or no task has yielded them to Spark. "
                    "Their messages will be delivered again",
                    gone,
                    number,
                    run.subscription,
                    run.staging.location,
                )
            known = max((footer.spark_batch for footer in pulls if footer.spark_batch is not None), default=None)
            named = str(number) if known is None else f"{number} (Spark's batchId {known})"
            _log.info("batch %s of `%s` is committed: %s", named, run.subscription, json.dumps(counts))
        with run.changed:
            ledger.last_commit = max(ledger.last_commit, batch)

    def _count(self, batch: int, footers: Sequence[Footer]) -> dict[str, int]:
        malformed = self.run.staging.malformed(batch) if self._options.decode != "none" else 0
        counts = batch_counts(footers, malformed, malformed if self._options.dead_letter else 0)
        self.counts = {name: self.counts[name] + count for name, count in counts.items()}
        return counts

    def next_batch(self, stream: str) -> bool:
        """Return whether the next batch is planned now. stream: of the checkpoint's last offset."""
        run, triggers, planner = self.run, self._triggers, self._planner
        triggers.begin(run.now(), self._pulled_at is not None, run.ledger.last_commit > 0)
        run.stream.check_outage(self._options.fail_after)
        self._poll()
        if run.now() >= self._report_at:
            self._report_at = run.now() + self._times.report
            run.report.write(self.metrics(None), run.runtime.wall())
        if self._wait_for_acks():
            return False
        # The name of a new stream is put into the offset log by a batch that may be empty, and may be the only one.
        is_new = run.staging.stream != stream
        if planner.is_backlogged or (is_new and not triggers.waits) or self._wait_for_messages() or is_new:
            return True
        if not run.stream.message_count:
            pulled = self._pulled_at is not None
            self._record_drained(triggers.silence if pulled else self._options.idle_timeout)
        if self._are_acks_answered:
            self.worker.flush(self._times.flush)
        self.worker.check()
        if triggers.drained_from is not None:
            self._warn_of_left_messages()
        return False

    def partitions(self, batch: int, budget: Budget | None) -> list[Partition]:
        """Return the partitions of a batch. budget: of a batch that `next_batch` announced, or None for a replay."""
        run, plans = self.run, self._planner.plans
        if batch in plans:
            return plans[batch]
        if budget is None or batch in run.staged or batch <= run.ledger.last_commit:
            partitions = self._replayed(batch)
        else:
            self.worker.check_owner()
            if run.now() - self._token_written >= self._times.token:
                self._token_written = run.now()
                run.staging.write_token()
                if run.reader_schema is not None:
                    stage_reader(run.staging, run.reader_schema)
            self._poll()
            partitions = new_batch(
                run, self._options, self._planner, batch, budget, self._triggers.is_only, self._times.clock_margin
            )
        if batch > run.ledger.last_commit:
            plans[batch] = partitions
        return partitions

    def _replayed(self, batch: int) -> list[Partition]:
        partitions: Sequence[Partition] = ()
        for _ in range(2):  # it may just have been acknowledged and deleted
            if batch <= self.run.staging.last_acknowledged():
                report_loss(
                    self._options,
                    f"Spark asks again for batch {batch} of `{self.run.subscription}`, which was acknowledged and "
                    "deleted",
                )
                return []
            partitions = partitions or replayed_batch(self.run, batch)
        return list(partitions)

    def _poll(self, seconds: float = 0.0) -> None:
        self.run.stream.poll(seconds)
        doubt_ids(self.run)
        drop_redelivered(self.run)

    def _wait_for_messages(self) -> bool:
        run, triggers = self.run, self._triggers
        if triggers.waits and run.stream.oldest_arrival is None:
            # With ordering keys an unacknowledged message holds back others.
            before = self.worker.acknowledged
            self._are_acks_answered = self.worker.flush(self._times.flush) or self.worker.acknowledged > before
        if triggers.drained_from is not None:
            self._wait_for_room(triggers.drained_from)
        while not self._is_stopping():
            stream, now = run.stream, run.now()
            count, arrival, published = stream.message_count, stream.oldest_arrival, stream.oldest_publish_time
            idle, room = self._idle_seconds(), stream.room_seconds
            view = StreamView(count, arrival, published, stream.is_flow_controlled, idle, room)
            action, seconds = triggers.next(view, now)
            if action is Action.PLAN or action is Action.END:
                if triggers.is_only and count and stream.is_nearly_empty:
                    self._record_drained(triggers.silence)
                return action is Action.PLAN
            if action is Action.PROBE and stream.answers():
                self._poll(self._times.arrival)
                if not stream.message_count:
                    return False
            if not count and triggers.waits:
                stream.check_outage(self._options.connect_timeout)
            self._poll(seconds)
        return False

    def _idle_seconds(self) -> float:
        pulled_at = -math.inf if self._pulled_at is None else self._pulled_at
        return min(self.run.stream.idle_seconds, self.run.runtime.monotonic() - pulled_at)

    def _record_drained(self, idle_seconds: float) -> None:
        """Record that nothing is left to deliver if no message came for some time, though it could have.

        It could not if the stream is not served yet, or if messages of this query, of dead tasks or of a dead run will
        be redelivered. The time is asked last: an ack in between would let messages come. The service may take seconds
        to answer: messages may have come meanwhile, or have been returned.
        """
        run, now, last = self.run, self.run.now(), self.run.stream.health.last_response
        with run.changed:
            is_settled = run.ledger.is_settled(now) and run.ledger.in_doubt.is_overdue(now)
        is_alone = now >= self._tasks_lease_until and now >= run.leased_until
        if is_settled and is_alone and run.stream.health.has_responded and run.stream.is_idle(idle_seconds):
            self._poll(self._times.arrival)
            with run.changed:
                if run.ledger.is_settled(now) and run.stream.health.last_response == last:
                    run.ledger.in_doubt.drained(now)

    def _wait_for_acks(self) -> bool:
        """Return whether too many batches wait for their acks to plan another. `availableNow` waits for progress."""
        bound, run = self._options.max_unacknowledged_batches, self.run
        answers, since = self.worker.answers, run.runtime.monotonic()
        while not self.worker.flush(self._times.flush if self._is_held_back else 0.0, bound - 1):
            if not self._is_held_back:
                self._is_held_back = True
                _log.warning(
                    "%d committed batches of `%s` wait for their acks. No other batch is read until they are fewer "
                    "(maxUnacknowledgedBatches)",
                    bound,
                    run.subscription,
                )
            self._poll(self._times.held_poll)
            if not self._triggers.waits or self._is_stopping():
                return True
            answers, since = self._progress(answers, since)
        if self._is_held_back:
            self._is_held_back = False
            _log.warning("the acks of `%s` have caught up. Reading continues", run.subscription)
        return False

    def _wait_for_room(self, drained_from: float) -> None:
        """Wait while acks hold back messages of the backlog: those of a full stream, or of ordering keys."""
        run, answers, since = self.run, self.worker.answers, self.run.runtime.monotonic()
        while not self._is_stopping() and (run.stream.oldest_publish_time or math.inf) > drained_from:
            with run.changed:
                is_held_back = run.stream.is_full or run.ledger.has_unsettled_keys
                if not is_held_back or run.ledger.is_finished(0, math.inf):
                    return
            self._poll(self._times.held_poll)
            answers, since = self._progress(answers, since)

    def _progress(self, answers: int, since: float) -> tuple[int, float]:
        """Return the number of answered acks and since when there are so many. Both are those of the last call.

        Raises ServiceError if that has been so for `connectTimeout`, or if there was no connection.
        """
        run, timeout = self.run, self._options.connect_timeout
        self.worker.check()
        run.stream.check_outage(timeout)
        now = run.runtime.monotonic()
        if self.worker.answers > answers:
            return self.worker.answers, now
        if now - since >= timeout:
            raise ServiceError(
                f"`{run.connection.address}` has accepted no ack of `{run.subscription}` for {now - since:.0f} s, and "
                "messages wait for acks (flow control, ordering keys or maxUnacknowledgedBatches). Check its quotas "
                "and start the query again."
            )
        return answers, since

    def _set_tasks(self, slots: int | None) -> None:
        if self._options.num_fetch_partitions is None and slots is not None:
            tasks = min(slots, MAX_DEFAULT_TASKS)
            if tasks != self._planner.tasks:
                _log.info("%d tasks pull from `%s`: Spark runs %d at once", tasks, self.run.subscription, slots)
                self._planner.tasks = tasks

    def metrics(self, planned: int | None) -> dict[str, Any]:
        """Return the metrics of `lastProgress`. planned: the batch that `next_batch` has announced."""
        run, stream, ledger = self.run, self.run.stream, self.run.ledger
        buffered, oldest_buffered = stream.message_count, stream.oldest_publish_time
        counts = dict(self.counts)
        counts["redeliveriesDropped"] += ledger.redeliveries
        with run.changed:
            in_flight, unacked = ledger.uncommitted, ledger.undeleted
            footers = ledger.footers([*in_flight, *unacked])
        return {
            "subscription": run.subscription,
            **health_metrics(stream.health, run.runtime.monotonic()),
            "backlogged": self._planner.is_backlogged or (buffered > 0 and stream.is_saturated),
            "intakePaused": self._is_held_back,
            "bufferedMessages": buffered,
            "inFlightBatches": len(in_flight) + (planned is not None and planned not in in_flight),
            "unackedBatches": len(unacked),
            **unacked_metrics(buffered, oldest_buffered, footers, run.runtime.wall()),
            **counts,
            "ackedMessages": self.worker.acknowledged,
            "failedAcks": self.worker.failed_acks,
            "leasesExtended": self.extender.extended,
        }

    def end(self) -> None:
        """Flush acks, end the threads, nack the buffered messages, in a few seconds at most."""
        run, ledger = self.run, self.run.ledger
        self._warn_of_one_batch()
        # If a flush was just waited for in vain, the end of the query does not wait as long again.
        timeout = self._times.stop if self._are_acks_answered else 0.0
        end = run.runtime.monotonic() + timeout
        with suppress(PubSubError):  # redeliveries are acknowledged, not returned
            self._poll()
        answers = self.worker.flush(timeout)
        for thread in (self.worker, self.extender):
            thread.end(max(0.0, end - run.runtime.monotonic()))
        buffered = run.stream.close()
        is_returned = False
        with suppress(PubSubError):  # the process may have no thread for it
            failed = acks.nack(run.connection, run.subscription, buffered, timeout if answers else 0.0, run.runtime)
            is_returned = failed.complete and not len(failed.unanswered)
        now, wall = run.now(), run.runtime.wall()
        with run.changed:
            if buffered:
                ledger.returned(now)
            left = ledger.footers(ledger.undeleted)
            # Messages may be leased: of tasks, redeliveries, or of a batch that could not be staged.
            is_leased = not is_returned or ledger.uncommitted or ledger.has_redelivered or self.has_failed
            until = max(ledger.leased_until, self._tasks_lease_until if ledger.in_doubt.runs else 0.0)
            seconds = DOUBT_SECONDS if is_leased else until - now
        # A failure reaches Spark after this. If it is the store, it is not waited for as long again.
        run = replace(run, staging=replace(run.staging, store=run.staging.store.within(self._times.stop)))
        if fencing.taken_over(run.staging) is None:
            write_in_doubt(run)
            run.staging.end_run(wall + max(run.leased_until - now, seconds), wall)
        if left:
            _log.warning(
                "stopped with up to %d acks of committed batches of `%s` not accepted. They are sent when the query "
                "starts again",
                sum(footer.acks for footer in left),
                run.subscription,
            )
        self._report_end()

    def _report_end(self) -> None:
        """Log and write the last metrics. After all else: it asks the store, which may refuse."""
        run = self.run
        if self._triggers.is_only:  # no call will say that its batch is committed
            with run.changed:
                uncommitted = run.ledger.uncommitted
            for number in uncommitted:
                self._count(
                    number, [footer for _, footer in readable_parts(run.staging, number, is_over=False).values()]
                )
        metrics = self.metrics(None)
        _log.info("a run of `%s` has ended: %s", run.subscription, json.dumps(metrics))
        run.report.write(metrics, run.runtime.wall())

    def delete_subscription(self, announced: int | None) -> None:
        """Delete the subscription if the options ask for it and no message of it is in doubt.

        announced: a batch that Spark may have in its offset log, and has not asked partitions for.
        """
        if not self._options.delete_subscription_on_stream_stop:
            return
        with self.run.changed:
            in_doubt = [*self.run.ledger.uncommitted, *self.run.ledger.unsettled]
        if announced is not None:
            in_doubt.append(announced)
        if self.has_failed:
            why = "the query has failed, or Spark's process has ended without stopping it"
        elif in_doubt:
            why = f"batch {in_doubt[0]} is not known to be committed"
        elif taken_over := fencing.taken_over(self.run.staging):
            why = str(taken_over)
        else:
            self.run.connection.admin.delete("subscriptions", self._options.subscription)
            return
        _log.warning(
            "`%s` is not deleted (deleteSubscriptionOnStreamStop): %s. Delete it yourself if you do not need its "
            "messages",
            self.run.subscription,
            why,
        )

    def _warn_of_one_batch(self) -> None:
        triggers, plans = self._triggers, self._planner.plans.values()
        pulled = any(isinstance(partition, PullPartition) for partitions in plans for partition in partitions)
        if triggers.is_only and (pulled or self.run.stream.message_count):
            _log.warning(
                "the query has read one batch of `%s`, and there may be more messages. With `once` Spark runs one "
                "batch of up to maxMessagesPerTrigger, as with `availableNow` on 4.0 and 4.1 and if another source "
                "does not support it. Start the query again",
                self.run.subscription,
            )

    def _warn_of_left_messages(self) -> None:
        run = self.run
        leased = run.leased_until - run.now()
        if leased > 0:
            _log.warning(
                "messages of `%s` that an earlier run of the query received and did not stage, if any, are delivered "
                "again in up to %.0f s (it was killed, failed, ended within a batch, lost a task or returned them). "
                "This run does not wait for them. Start the query again then",
                run.subscription,
                leased,
            )
        behind = (run.stream.oldest_publish_time or 0.0) - run.runtime.wall()
        if behind > self._times.clock_lag:
            _log.warning(
                "this machine's clock is %.0f s or more behind Pub/Sub's, and messages of `%s` were not read for that: "
                "`availableNow` and `once` read the messages published before their start by this clock. Set the clock",
                behind,
                run.subscription,
            )

"""The driver's background threads: one acknowledges committed batches, the other extends leases.

They decide nothing: `Leases` says what is committed, `LeaseExtender` what is due. They move bytes, so that
Spark's calls return at once, and neither waits for the other. What happens to the acks of a batch:

    accepted by the service   the batch's staged files are deleted
    refused                   the same, and `Deduplication` drops the messages when they are delivered again
    unanswered                the batch stays staged, and those acks are sent again, now or after a restart
    not readable              the batch is set aside for SET_ASIDE_SECONDS, and the others go on
    held                      nothing yet: tasks of the next batch send the acks of these parts (`task_acks`)

One request is the unit of progress: within a run, what was answered is not sent again. The number of the last
acknowledged batch is written once a second at most, and before the batches' files are deleted, so that they are deleted
together. A failure here never fails the query: a lost ack costs a redelivery, and a lost lease as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ..backend import Connection
from ..errors import StagingError
from . import owner
from .deduplication import Deduplication
from .lease_extender import LeaseExtender
from .leases import Leases
from .pull import acks
from .pull.driver_stream import DriverStream
from .staging import Staging
from .task_acks import HeldAcks, SentAcks

_TICK_SECONDS = 1.0  # between two looks at what is due
_ACK_TIMEOUT_SECONDS = 30.0  # after which no more acks of a part are sent; twice as long those that failed are retried
_SET_ASIDE_SECONDS = 60.0
_DELETE_PAUSE_SECONDS = 1.0  # between two writes of the number of the last acknowledged batch
_log = logging.getLogger(__name__)


def _no_ids() -> pa.Array:
    return pa.array([], pa.string())


@dataclass
class _PartProgress:
    """The acks of a part so far: how many ids were taken from its receipts, and those that are not accepted yet."""

    taken: int = 0
    unanswered: pa.Array = field(default_factory=_no_ids)
    refused: pa.Array = field(default_factory=_no_ids)


class AckWorker:
    """The background threads of one session.

    acknowledged, failed_acks: the number of acks that the service has accepted and refused so far.
    taken_over: the error that says that another run owns the staging area.
    """

    def __init__(
        self,
        connection: Connection,
        staging: Staging,
        leases: Leases,
        stream: DriverStream,
        deduplication: Deduplication,
        extender: LeaseExtender,
    ) -> None:
        self.acknowledged = 0
        self.failed_acks = 0
        self.taken_over: StagingError | None = None
        self._connection = connection
        self._staging = staging
        self._leases = leases
        self._stream = stream
        self._deduplication = deduplication
        self._extender = extender
        self._changed = threading.Condition(leases.lock)
        self._stopping = False
        self._held: dict[tuple[int, int], HeldAcks] = {}  # by (batch, part), those that tasks send
        self._waiting: set[int] = set()  # batches of which the held parts alone are left
        self._sent: dict[tuple[int, int], int] = {}  # (batch, part) whose acks a task has sent, and how many
        self._progress: dict[tuple[int, int], _PartProgress] = {}  # by (batch, part)
        self._done: set[tuple[int, int]] = set()  # (batch, part) whose acks are answered
        self._answered: list[int] = []  # batches whose acks are answered and whose files are not deleted
        self._last_answered = 0  # the number of the last batch whose acks are answered
        self._set_aside: dict[int, float] = {}  # batches, and until when (time.monotonic())
        self._deleted_at = 0.0  # time.monotonic()
        self._thread = threading.Thread(target=self._run, name="ack worker", daemon=True)
        self._extender_thread = threading.Thread(target=self._run_extender, name="lease extender", daemon=True)
        self._thread.start()
        self._extender_thread.start()

    def commit(self, batch: int, held: Iterable[HeldAcks] = ()) -> None:
        """Have the acks of all batches up to `batch` sent in the background, for Spark has committed them.

        held: the parts whose acks tasks are to send; until `release` they are not sent here.
        """
        with self._changed:
            self._held |= {(each.batch, each.part): each for each in held}
            if self._leases.commit(batch):
                self._changed.notify_all()

    @property
    def held(self) -> list[HeldAcks]:
        """The parts whose acks tasks are to send."""
        with self._changed:
            return list(self._held.values())

    def release(self, sent: Iterable[SentAcks] = ()) -> bool:
        """Hold no part any more; whether `sent`, which tasks have sent the acks of, were all that were held."""
        with self._changed:
            self._sent |= {(each.batch, each.part): each.acks for each in sent}
            are_sent = self._held.keys() <= self._sent.keys()
            self._release()
            return are_sent

    def _release(self) -> None:
        """Hold no part any more. With the lock held."""
        self._held.clear()
        self._waiting.clear()
        self._changed.notify_all()

    def flush(self, timeout: float, most: int = 0) -> bool:
        """Wait until no more than `most` committed batches are not acknowledged; whether `timeout` seconds were enough.

        False at once where all that is left is set aside.
        """

        def is_over() -> bool:
            return len(self._leases.unacknowledged) <= most or not (self._pending() or self._answered)

        with self._changed:
            if len(self._leases.unacknowledged) > most:
                self._release()
            self._changed.wait_for(is_over, timeout)
            return len(self._leases.unacknowledged) <= most

    def stop(self, timeout: float) -> bool:
        """Flush, end the threads, nack the buffered messages; whether no buffered message is leased any more.

        `timeout` seconds at the most for all of it where the service does not answer, twice that where it does.
        """
        end = time.monotonic() + timeout
        answers = self.flush(timeout)
        self.end_threads(max(0.0, end - time.monotonic()))
        buffered = [receipts.column("ack_id") for receipts in self._stream.close()]
        deadline = time.monotonic() + (timeout if answers else 0)
        failed = acks.nack(self._connection, self._staging.subscription, buffered, deadline)
        return not len(failed.unanswered)

    def end_threads(self, timeout: float | None = None) -> None:
        """End the threads where they are; wait `timeout` seconds at the most for it."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in (self._thread, self._extender_thread, *self._extender.end()):
            thread.join(None if end is None else max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._pending(), _TICK_SECONDS)
                if self._stopping:
                    return
                pending = self._pending()
            if not self._acknowledge_first(pending):
                self._pause()

    def _run_extender(self) -> None:
        while True:
            try:
                self._extender.extend_due()
            except Exception:
                _log.exception("lease extensions failed; trying again in %g s", _TICK_SECONDS)
            self._pause()
            if self._stopping:
                return

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, _TICK_SECONDS)

    def _pending(self) -> list[int]:
        """The batches whose acks are to be sent now, in their order. With the lock held."""
        now = time.monotonic()
        return [
            batch
            for batch in self._leases.unacknowledged
            if batch not in self._answered and batch not in self._waiting and self._set_aside.get(batch, 0.0) <= now
        ]

    def _acknowledge_first(self, pending: list[int]) -> bool:
        """Acknowledge the first batch, delete the files of answered batches; whether the service has answered."""
        answers = True
        try:
            answers = not pending or self._acknowledge(pending[0])
        except Exception as error:
            if self._stopping:  # the connection is closed, and the next start sends the acks
                return False
            self._set_aside[pending[0]] = time.monotonic() + _SET_ASIDE_SECONDS
            _log.error(
                "the acks of batch %d of `%s` cannot be read; trying again in %g s, others go on: %s",
                pending[0],
                self._staging.subscription,
                _SET_ASIDE_SECONDS,
                error,
                exc_info=not isinstance(error, StagingError | OSError),
            )
            with self._changed:
                self._changed.notify_all()
        with self._changed:
            last = not self._pending()
        if self._answered and (last or time.monotonic() - self._deleted_at >= _DELETE_PAUSE_SECONDS):
            self._delete_answered()
        return answers

    def _acknowledge(self, batch: int) -> bool:
        """Send the acks of a batch; whether the service has answered all of them."""
        lengths = self._staging.parts(batch)
        left = {(batch, part) for part in lengths}
        for part, length in lengths.items():
            place = batch, part
            if place in self._sent:
                self._deduplication.add_after_acks(batch, part, length, _no_ids())
                self.acknowledged += self._sent.pop(place)
                self._done.add(place)
            if place in self._done or place in self._held:
                continue
            if not self._acknowledge_part(batch, part, length):
                return False
            self._done.add(place)
        with self._changed:
            if any(held == batch for held, _ in self._held):
                self._waiting.add(batch)
            elif left <= self._done:  # else parts were released meanwhile
                self._answered.append(batch)
        return True

    def _delete_answered(self) -> None:
        """Delete the files of the batches whose acks are answered."""
        answered, self._deleted_at = self._answered, time.monotonic()
        self._last_answered = max(self._last_answered, *answered)
        with self._leases.lock:
            left = [batch for batch in self._leases.unacknowledged if batch not in answered]
        try:
            self.taken_over = owner.taken_over(self._staging)
            if self.taken_over is not None:  # the other run may be giving these batches again
                raise self.taken_over
            self._deduplication.save()
            # One that was set aside has receipts that a restart needs, though later ones are acknowledged.
            self._staging.delete_acknowledged(answered, min([self._last_answered, *(batch - 1 for batch in left)]))
        except StagingError as error:  # files that may not be deleted do not hold up the acks of later batches
            _log.warning(
                "%d batches up to %d of `%s` are acknowledged, but their staged files are left: %s",
                len(answered),
                max(answered),
                self._staging.subscription,
                error,
            )
        self._done = {done for done in self._done if done[0] not in answered}
        self._set_aside = {batch: until for batch, until in self._set_aside.items() if batch not in answered}
        with self._changed:
            self._answered = []
            for batch in answered:
                self._leases.record_acknowledged(batch)
            self._changed.notify_all()

    def _acknowledge_part(self, batch: int, part: int, length: int) -> bool:
        progress = self._progress.setdefault((batch, part), _PartProgress())
        while not self._stopping:
            complete = self._send_acks(batch, part, length, progress)
            if len(progress.unanswered):
                _log.warning(
                    "`%s` does not answer %d acks of batch %d of `%s`; trying again",
                    self._connection.address,
                    len(progress.unanswered),
                    batch,
                    self._staging.subscription,
                )
                return False
            if complete:
                self._deduplication.add_after_acks(batch, part, length, progress.refused)
                if part == 0:
                    self._stream.record_acks(progress.taken)
                del self._progress[batch, part]
                return True
        return False

    def _send_acks(self, batch: int, part: int, length: int, progress: _PartProgress) -> bool:
        """Send the acks of a part for _ACK_TIMEOUT_SECONDS; whether all of its ids were sent."""
        unreadable: list[Exception] = []

        def ack_ids() -> Iterator[pa.Array]:
            yield unanswered
            skip = taken
            try:
                for receipts in self._staging.receipts(batch, part, length):
                    yield receipts.column("ack_id").slice(skip)
                    skip = max(0, skip - receipts.num_rows)
            except Exception as error:  # to be raised after the answers to the requests that are in flight
                unreadable.append(error)

        unanswered, taken = progress.unanswered, progress.taken
        until = time.monotonic() + _ACK_TIMEOUT_SECONDS
        subscription, deadline = self._staging.subscription, until + _ACK_TIMEOUT_SECONDS
        failed = acks.acknowledge(self._connection, subscription, ack_ids(), deadline, until)
        again = min(failed.taken, len(unanswered))  # ids that were taken from the receipts before
        progress.taken += failed.taken - again
        progress.unanswered = pa.concat_arrays([unanswered.slice(again), failed.unanswered])
        progress.refused = pa.concat_arrays([progress.refused, failed.refused])
        self.acknowledged += failed.taken - len(failed.unanswered) - len(failed.refused)
        self.failed_acks += len(failed.refused)
        if unreadable:
            raise unreadable[0]
        return failed.complete

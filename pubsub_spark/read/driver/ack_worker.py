"""The thread that acknowledges: it sends the acks that are due by the ledger, and records the answers.

    accepted while the lease lasts   settled
    accepted later, or refused       settled, and the ids are in doubt: redeliveries are acknowledged at once
    not answered                     paused for a second. The ids that were answered are not sent again
    the store refuses the receipts   paused for a minute, and the parts of other batches continue
    the file is gone or damaged      settled with a WARNING: the messages will be delivered, and be rows, again

Before a settled batch is deleted, ids in doubt are written to the staging area, so that a restart has them. A failure
here never fails the query: a lost ack costs a redelivery. An unexpected error ends the thread, and the query with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import DamagedFile, MissingFile, StagingError
from ..pull import acks
from ..pull.acks import Window
from ..pull.lease import Redelivered
from ..staging import fencing
from ..staging.ids import IdSet, is_in, message_ids
from .in_doubt_files import write_in_doubt
from .ledger import Part
from .run import Run
from .times import ACK_TIMES, AckTimes

_log = logging.getLogger(__name__)


class AckWorker:
    """The acknowledging thread of a run.

    failure: the error that ends the run: another run owns the staging area, or the thread has ended.
    acknowledged, failed_acks: the acks that the service has accepted and refused.
    """

    def __init__(self, run: Run, times: AckTimes = ACK_TIMES) -> None:
        self.acknowledged = 0
        self.failed_acks = 0
        self.failure: Exception | None = None
        self._run = run
        self._times = times
        self._window = Window()
        self._stopping = False
        self._thread = run.runtime.start(self._work, "ack worker")

    @property
    def answers(self) -> int:
        """The number of requests whose ids were accepted, all or some, while they are being sent."""
        return self._window.answers

    def flush(self, timeout: float, most: int = 0) -> bool:
        """Wait until at most `most` committed batches are left. Return whether `timeout` seconds were enough.

        Returns at once if no ack is due within the time, or the thread has ended.
        """
        run = self._run
        until = run.now() + timeout
        with run.changed:
            run.changed.notify_all()
            run.changed.wait_for(lambda: self.failure is not None or run.ledger.is_finished(most, until), timeout)
            return len(run.ledger.undeleted) <= most

    def check(self) -> None:
        """Raise `failure` if there is one."""
        if self.failure is not None:
            raise self.failure

    def end(self, timeout: float) -> None:
        """End the thread, within `timeout` seconds."""
        with self._run.changed:
            self._stopping = True
            self._run.changed.notify_all()
        self._thread.join(timeout)

    def _work(self) -> None:
        try:
            self._acknowledge_due()
        except Exception as error:
            _log.exception("no acks of `%s` are sent any more", self._run.subscription)
            with self._run.changed:
                self.failure = error
                self._run.changed.notify_all()

    def _acknowledge_due(self) -> None:
        run, ledger = self._run, self._run.ledger
        while True:
            with run.changed:
                tick = self._times.tick if ledger.is_paused or ledger.has_files else None
                run.changed.wait_for(lambda: self._stopping or ledger.is_due(run.now()) or ledger.is_deletable, tick)
                if self._stopping:
                    return
                redelivered, part = ledger.take_redelivered(), ledger.take_acks(run.now())
            if redelivered:
                self._acknowledge_redelivered(redelivered)
            if part is not None:
                self._acknowledge(part)
            self._delete_settled()

    def _acknowledge_redelivered(self, redelivered: list[Redelivered]) -> None:
        run = self._run
        not_accepted = ack_ids = pa.concat_arrays([redelivery.receipts.column("ack_id") for redelivery in redelivered])
        has_keys = any(redelivery.has_keys for redelivery in redelivered)
        try:
            failed = acks.acknowledge(
                run.connection,
                run.subscription,
                [ack_ids],
                self._times.send,
                runtime=run.runtime,
                window=self._window,
                in_order=has_keys,
            )
        except Exception:
            if not self._stopping:  # else the connection is closing
                _log.exception("redeliveries of `%s` were not acknowledged", run.subscription)
        else:
            self.acknowledged += failed.taken - len(failed.refused) - len(failed.unanswered)
            self.failed_acks += len(failed.refused)
            run.stream.record_acks(failed.taken, has_keys)
            not_accepted = failed.not_accepted(ack_ids)
        now = run.now()
        # One with an ordering key may be delivered again as long as an earlier one of its key is.
        ids = message_ids(redelivery.receipts for redelivery in redelivered if not redelivery.has_keys)
        lost = [
            receipts if lease.is_expired(now) else receipts.filter(pc.is_in(receipts.column("ack_id"), not_accepted))
            for lease, receipts, _ in redelivered
        ]
        lost_ids = message_ids(lost)
        with run.changed:
            run.ledger.redelivered_answered(ids[:, ~is_in(ids, [IdSet(lost_ids)])], lost_ids, now)
            run.changed.notify_all()

    def _acknowledge(self, part: Part) -> None:
        run, times = self._run, self._times
        pause = None
        try:
            pause = None if self._send(part) else times.retry
        except (MissingFile, DamagedFile) as error:
            _log.warning(
                "the ack ids of part %d of batch %d of `%s` are lost, so its messages will be delivered again: %s",
                part.number,
                part.batch,
                run.subscription,
                error,
            )
        except Exception as error:
            pause = times.set_aside
            if not self._stopping:
                _log.error(
                    "the acks of batch %d of `%s` cannot be read. Trying again in %g s, other batches continue: %s",
                    part.batch,
                    run.subscription,
                    pause,
                    error,
                    exc_info=not isinstance(error, StagingError | OSError),
                )
        if pause is None:  # before the ledger is settled, so that the silence of a full stream counts for nothing
            run.stream.record_acks(part.outstanding, part.has_keys)
        with run.changed:
            if pause is None:
                run.ledger.settle(part)
            else:
                run.ledger.pause(part, run.now() + pause)
            run.changed.notify_all()

    def _send(self, part: Part) -> bool:
        """Send the acks of a part for some time. Return whether all were answered."""
        run = self._run
        unreadable: list[Exception] = []
        unanswered = part.unanswered

        def ack_ids() -> Iterator[pa.Array]:
            try:
                receipts = run.staging.receipts(part.batch, part.number, part.length, part.id)
                yield from part.left(batch.column("ack_id") for batch in receipts)
            except Exception as error:  # raised after the answers to the requests in flight
                unreadable.append(error)

        failed = acks.acknowledge(
            run.connection,
            run.subscription,
            ack_ids(),
            2 * self._times.send,
            self._times.send,
            runtime=run.runtime,
            window=self._window,
            in_order=part.has_keys,
        )
        again = sum(map(len, unanswered))
        sent_again = min(failed.taken, again)
        left = [pa.concat_arrays(unanswered).slice(sent_again)] if again else []
        self.acknowledged += failed.taken - len(failed.unanswered) - len(failed.refused)
        self.failed_acks += len(failed.refused)
        with run.changed:
            not_answered = pa.concat_arrays([failed.unanswered, *left])  # in the order of the receipts
            run.ledger.record_acks(part, failed.taken - sent_again, not_answered, failed.refused)
            is_late = run.ledger.is_doubtful(part, run.now()) or run.ledger.doubts_others(part)
        if unreadable:
            raise unreadable[0]
        if part.unanswered or not failed.complete:
            _log.warning(
                "`%s` did not answer all acks of batch %d of `%s`. Trying again",
                run.connection.address,
                part.batch,
                run.subscription,
            )
            return False
        if is_late or part.refused:
            self._doubt(part, None if is_late or part.has_keys else pa.concat_arrays(part.refused))
        return True

    def _doubt(self, part: Part, refused: pa.Array | None) -> None:
        """Record that messages of a part may be delivered again: those with refused ack ids, or all."""
        run = self._run
        receipts = list(run.staging.receipts(part.batch, part.number, part.length, part.id))
        if refused is not None:
            receipts = [batch.filter(pc.is_in(batch.column("ack_id"), refused)) for batch in receipts]
        ids = message_ids(receipts)
        with run.changed:
            run.ledger.doubt(part, ids, run.now())

    def _delete_settled(self) -> None:
        run, ledger, now = self._run, self._run.ledger, self._run.now()
        with run.changed:
            if ledger.is_due(now) and now < ledger.deleted_at + self._times.delete:
                return
            batches = ledger.deletable()
            with_files = ledger.take_files(batches, now)
        is_deleted = not with_files or self._delete(with_files)
        with run.changed:  # files that cannot be deleted hold up no acks, and no batch
            ledger.deleted(batches)
            if not is_deleted:
                ledger.files_left(with_files, now + self._times.set_aside)
            run.changed.notify_all()

    def _delete(self, batches: list[int]) -> bool:
        """Delete the files of batches. Return whether the store has done so."""
        run, last = self._run, max(batches)
        try:
            self.check_owner()  # the other run may be replaying these batches
            write_in_doubt(run)
            self.check_owner()  # its start may have listed ids in doubt before these
            run.staging.delete_acknowledged(batches, last)
        except Exception as error:
            _log.warning(
                "batches up to %d of `%s` are acknowledged, but their staged files remain: %s",
                last,
                run.subscription,
                error,
            )
            return False
        return True

    def check_owner(self) -> None:
        """Raise StagingError if another run has taken over, and remember it for `check`."""
        if taken_over := fencing.taken_over(self._run.staging):
            self.failure = taken_over
            raise taken_over

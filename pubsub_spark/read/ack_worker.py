"""The driver's one background thread: it acknowledges committed batches, and extends leases between two of them.

It decides nothing: `Leases` says what is committed, `LeaseExtender` what is due. The thread moves bytes, so that
Spark's calls return at once. What happens to the acks of a batch:

    accepted by the service   the batch's staged files are deleted
    refused                   the same, and `Deduplication` drops the messages when they are delivered again
    unanswered                the batch stays staged, and its acks are sent again, now or after a restart

A failure here never fails the query: a lost ack costs a redelivery, and a lost lease as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

import pyarrow as pa

from ..backend import Connection
from ..errors import StagingError
from . import acks
from .deduplication import Deduplication
from .driver_stream import DriverStream
from .lease_extender import LeaseExtender
from .leases import Leases
from .staging import Staging

_TICK_SECONDS = 1.0  # between two looks at what is due
_ACK_TIMEOUT_SECONDS = 30.0  # for the acks of a batch, before leases have their turn
_log = logging.getLogger(__name__)


class AckWorker:
    """The background thread of one session.

    acknowledged, failed_acks: the number of acks that the service has accepted and refused so far.
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
        self._connection = connection
        self._staging = staging
        self._leases = leases
        self._stream = stream
        self._deduplication = deduplication
        self._extender = extender
        self._changed = threading.Condition(leases.lock)
        self._stopping = False
        self._done: set[tuple[int, int]] = set()  # (batch, part) of the current batch whose acks are answered
        self._thread = threading.Thread(target=self._run, name="ack worker", daemon=True)
        self._thread.start()

    def commit(self, batch: int) -> None:
        """Have the acks of all batches up to `batch` sent in the background, for Spark has committed them."""
        with self._changed:
            if self._leases.commit(batch):
                self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until every committed batch is acknowledged; whether that took no more than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._leases.unacknowledged, timeout)

    def stop(self, timeout: float) -> None:
        """Flush, end the thread, nack the buffered messages.

        `timeout` seconds at the most for all of it where the service does not answer, twice that where it does.
        """
        end = time.monotonic() + timeout
        answers = self.flush(timeout)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(max(0.0, end - time.monotonic()))
        buffered = [receipts.column("ack_id") for receipts in self._stream.close()]
        deadline = time.monotonic() + (timeout if answers else 0)
        acks.nack(self._connection, self._staging.subscription, buffered, deadline)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._leases.unacknowledged, _TICK_SECONDS)
                if self._stopping:
                    return
                first = self._leases.unacknowledged[:1]  # one, for acks may take long, and leases do not wait
            try:
                answered = all(map(self._acknowledge, first))
                self._extender.extend_due()
                if not answered:
                    self._pause()
            except Exception:
                _log.exception("acks or lease extensions failed; trying again in %g s", _TICK_SECONDS)
                self._pause()

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, _TICK_SECONDS)

    def _acknowledge(self, batch: int) -> bool:
        """Send the acks of a batch and delete its files; whether the service has answered all of them."""
        deadline = time.monotonic() + _ACK_TIMEOUT_SECONDS
        for part, length in self._staging.parts(batch).items():
            if (batch, part) not in self._done and not self._acknowledge_part(batch, part, length, deadline):
                return False
            self._done.add((batch, part))
        try:
            self._deduplication.save()
            self._staging.delete_acknowledged(batch)
        except StagingError as error:  # files that may not be deleted do not hold up the acks of later batches
            _log.warning(
                "batch %d of `%s` is acknowledged, but its staged files are left: %s",
                batch,
                self._staging.subscription,
                error,
            )
        self._done.clear()
        with self._changed:
            self._leases.record_acknowledged(batch)
            self._changed.notify_all()
        return True

    def _acknowledge_part(self, batch: int, part: int, length: int, deadline: float) -> bool:
        count = 0

        def ack_ids() -> Iterator[pa.Array]:
            nonlocal count
            for receipts in self._staging.receipts(batch, part, length):
                count += receipts.num_rows
                yield receipts.column("ack_id")

        failed = acks.acknowledge(self._connection, self._staging.subscription, ack_ids(), deadline)
        if len(failed.unanswered):
            _log.warning(
                "`%s` does not answer %d acks of batch %d of `%s`; trying again",
                self._connection.address,
                len(failed.unanswered),
                batch,
                self._staging.subscription,
            )
            return False
        self._deduplication.add_after_acks(batch, part, length, failed.refused)
        self.acknowledged += count - len(failed.refused)
        self.failed_acks += len(failed.refused)
        if part == 0:
            self._stream.record_acks(count)
        return True

"""The driver's one background thread: it keeps leases alive and carries acks to the service.

It decides nothing. `Leases` and `Door` say what is due and what was committed; the thread moves bytes, so that Spark's
calls return at once. After the acks of a batch are through (or were refused, which is remembered), its staged files are
deleted.

A failure here never fails the query: an ack that is lost costs a redelivery, and a lost lease as well.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..backend import Connection
from ..errors import PubSubError, StagingError
from . import acks
from .door import Door
from .leases import LEASE, Leases
from .staging import Staging

_TICK = 1.0  # seconds between looks at what is due
_ACK_TIMEOUT = 30.0  # seconds for which the acks of a batch are tried before other things have their turn
_log = logging.getLogger(__name__)


@dataclass
class Counts:
    """What this process has done so far, in messages."""

    acknowledged: int = 0
    failed_acks: int = 0
    extended: int = 0


class Keeper:
    """Owns the thread; `leases` is shared with Spark's calls under `lock`. clock: seconds, monotonic."""

    def __init__(
        self,
        connection: Connection,
        staging: Staging,
        leases: Leases,
        door: Door,
        clock: Callable[[], float],
    ) -> None:
        self.lock = threading.Lock()
        self.counts = Counts()
        self._connection = connection
        self._staging = staging
        self._leases = leases
        self._door = door
        self._clock = clock
        self._wake = threading.Condition(self.lock)
        self._stopping = False
        self._done: set[tuple[int, int]] = set()  # parts of the batch whose acks are under way that are through
        self._written = leases.memories
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._thread.start()

    def commit(self, batch: int) -> None:
        """Spark has committed everything up to and with `batch`; its acks go out in the background."""
        with self._wake:
            if self._leases.commit(batch):
                self._wake.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until every committed batch is acknowledged; False when `timeout` seconds did not do."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._leases.unacknowledged, timeout)

    def stop(self, timeout: float) -> None:
        """Flush, end the thread, give back what waits at the door.

        `timeout` seconds at the most for all of it where the service does not answer, twice that where it does.
        """
        end = time.monotonic() + timeout
        answers = self.flush(timeout)
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        self._thread.join(max(0.0, end - time.monotonic()))
        waiting = [receipts.column("ack_id") for receipts in self._door.close()]
        deadline = time.monotonic() + (timeout if answers else 0)
        acks.send(self._connection, self._staging.subscription, waiting, 0, deadline)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._leases.unacknowledged, _TICK)
                if self._stopping:
                    return
                first = self._leases.unacknowledged[:1]  # one, for acks may take long, and leases do not wait
            try:
                answered = all(map(self._acknowledge, first))
                self._extend()
                if not answered:
                    with self._wake:
                        self._wake.wait_for(lambda: self._stopping, _TICK)
            except Exception:
                _log.exception("keeping leases failed; trying again in %g s", _TICK)
                with self._wake:
                    self._wake.wait_for(lambda: self._stopping, _TICK)

    def _acknowledge(self, batch: int) -> bool:
        """False when the service does not answer: the batch stays staged, for the next tick or the next start."""
        deadline = time.monotonic() + _ACK_TIMEOUT
        for part, length in self._staging.parts(batch).items():
            if (batch, part) not in self._done and not self._acknowledge_part(batch, part, length, deadline):
                return False
            self._done.add((batch, part))
        try:
            self._write_seen()
            self._staging.release(batch)
        except StagingError as error:  # where files may not be deleted, what is acknowledged is acknowledged
            _log.warning(
                "batch %d of `%s` is acknowledged, and left behind: %s", batch, self._staging.subscription, error
            )
        self._done.clear()
        with self._wake:
            self._leases.acknowledged(batch)
            self._wake.notify_all()
        return True

    def _acknowledge_part(self, batch: int, part: int, length: int, deadline: float) -> bool:
        count = 0

        def ack_ids() -> Iterator[pa.Array]:
            nonlocal count
            for receipts in self._staging.receipts(batch, part, length):
                count += receipts.num_rows
                yield receipts.column("ack_id")

        failed = acks.send(self._connection, self._staging.subscription, ack_ids(), None, deadline)
        if len(failed.unanswered):
            _log.warning(
                "`%s` does not answer %d acks of batch %d of `%s`; trying again",
                self._connection.address,
                len(failed.unanswered),
                batch,
                self._staging.subscription,
            )
            return False
        with self.lock:
            late = self._leases.is_late(batch, part, self._clock())
        if late or len(failed.refused):
            self.remember(batch, part, length, None if late else failed.refused)
        self.counts.acknowledged += count - len(failed.refused)
        self.counts.failed_acks += len(failed.refused)
        if part == 0:
            self._door.settled(count)
        return True

    def remember(self, batch: int, part: int, length: int, ack_ids: pa.Array | None = None) -> None:
        """Messages of a part may come again, those of these ack ids or all: they are to be dropped then."""
        for receipts in self._staging.receipts(batch, part, length):
            unsure = receipts if ack_ids is None else receipts.filter(pc.is_in(receipts.column("ack_id"), ack_ids))
            with self.lock:
                self._leases.remember(unsure.column("identity"), self._clock())

    def _write_seen(self) -> None:
        """Put down what is remembered, for a restart that will not find the parts it was remembered of."""
        with self.lock:
            memories = self._leases.memories
            if memories == self._written:
                return
            identities = self._leases.remembered
        self._staging.write_seen(identities)
        self._written = memories

    def _extend(self) -> None:
        """Look after what has been held for long: at the door, and in batches that are not acknowledged."""
        with suppress(PubSubError):  # the door keeps it for Spark's next call, which fails the query with the sentence
            self._door.poll()
        now = self._clock()
        waiting = self._door.due(now)
        if waiting and (refused := self._set_lease(waiting)) is not None:
            self._door.extended(now, self._clock(), refused)
        with self.lock:
            watched = self._leases.watched(now)
        lengths = {batch: self._staging.parts(batch) for batch in watched}
        with self.lock:
            for batch, parts in lengths.items():
                for part in parts:
                    self._leases.found(batch, part)
            due = self._leases.due(now)
        for batch, part in due:
            length = lengths.get(batch, {}).get(part) or self._staging.parts(batch).get(part)
            if length is None:  # the door's part, in the moment before it is staged
                continue
            refused = self._set_lease(self._staging.receipts(batch, part, length))
            if refused is not None:
                with self.lock:
                    self._leases.extended(batch, part, now, self._clock(), refused)

    def _set_lease(self, receipts: Iterable[pa.RecordBatch]) -> bool | None:
        """Extend to LEASE; whether the service refused some of it, or None: it did not answer, and it is still due."""
        count = 0

        def ack_ids() -> Iterator[pa.Array]:
            nonlocal count
            for some in receipts:
                count += some.num_rows
                yield some.column("ack_id")

        deadline = time.monotonic() + _ACK_TIMEOUT
        failed = acks.send(self._connection, self._staging.subscription, ack_ids(), int(LEASE), deadline)
        if len(failed.unanswered):
            return None
        self.counts.extended += count - len(failed.refused)
        return len(failed.refused) > 0

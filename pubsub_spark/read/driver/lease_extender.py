"""The thread that extends leases: of buffered messages, and of staged parts that are not settled.

Once a second it takes the leases that are due by the ledger. It never asks the store. Short-lived reader threads do, so
that a store that does not answer delays only the leases that have to be read:

    lease due, ack ids in memory      -> this thread extends
    lease due, not in memory          -> a reader reads the receipts, extends, and keeps the ack ids if there is room
    batch planned for some time       -> a reader lists the parts, because tasks report nothing

An extension without an answer is due again a second later. If the service refuses one, the lease has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain

import pyarrow as pa

from ...errors import MissingFile, PubSubError, StagingError
from ..pull import acks
from ..pull.acks import Window
from ..pull.lease import LEASE_SECONDS
from .ledger import Part
from .run import Run
from .times import EXTENSION_TIMES, ExtensionTimes

_MAX_READERS = 8
_log = logging.getLogger(__name__)


class LeaseExtender:
    """The extending threads of a run. extended: the number of leases of messages extended so far."""

    def __init__(self, run: Run, times: ExtensionTimes = EXTENSION_TIMES) -> None:
        self.extended = 0
        self._run = run
        self._times = times
        self._window = Window()
        self._readers: list[object] = []
        self._unread: Callable[[], None] | None = None
        self._stopping = False
        self._threads = [
            run.runtime.start(self._work, "lease extender"),
            run.runtime.start(self._poll, "stream poller"),
        ]

    def end(self, timeout: float) -> None:
        """End the threads, within `timeout` seconds."""
        with self._run.changed:
            self._stopping = True
            self._run.changed.notify_all()
        end = self._run.runtime.monotonic() + timeout
        for thread in (*self._threads, *self._readers):
            thread.join(max(0.0, end - self._run.runtime.monotonic()))  # type: ignore[attr-defined]

    def _work(self) -> None:
        run = self._run
        while not self._stopping:
            try:
                self._extend_due()
            except Exception:
                _log.exception("lease extensions of `%s` failed. Trying again", run.subscription)
            with run.changed:
                run.changed.wait_for(lambda: self._stopping, self._times.tick)

    def _poll(self) -> None:
        """Buffer messages as they arrive, also while the service answers no extension: else their leases would count
        from the poll before."""
        run = self._run
        while not self._stopping:
            try:
                with suppress(PubSubError):  # Spark's next call raises it
                    run.stream.poll()
                run.stream.log_outage()
            except Exception:
                _log.exception("messages of `%s` were not taken. Trying again", run.subscription)
            with run.changed:
                run.changed.wait_for(lambda: self._stopping, self._times.tick)

    def _extend_due(self) -> None:
        run, now = self._run, self._run.now()
        buffered = run.stream.due(now)
        if buffered and (refused := self._extend(receipts.column("ack_id") for receipts in buffered)) is not None:
            run.stream.record_extension(now, run.now(), refused)
        if run.stream.has_expired:
            with run.changed:  # before they are taken, which may make the stream idle
                run.ledger.returned(now)
            expired = run.stream.take_expired()
            try:
                acks.nack(run.connection, run.subscription, expired, self._times.timeout, run.runtime)
                with run.changed:  # their back-off has begun by now
                    run.ledger.returned(run.now())
            finally:
                run.stream.record_nacks()
        while (taken := self._take(in_memory=True)) is not None:
            self._extend_part(*taken)
        self._readers = [reader for reader in self._readers if reader.is_alive()]  # type: ignore[attr-defined]
        while len(self._readers) < _MAX_READERS and (reading := self._unread or self._take_reading()) is not None:
            self._unread = reading  # until it has a thread: the process may have too many
            self._readers.append(run.runtime.start(partial(self._read, reading), "receipts reader"))
            self._unread = None

    def _take(self, in_memory: bool) -> tuple[Part, list[pa.Array]] | None:
        """Return a part to extend, with its ack ids in memory: a commit may drop them at any moment."""
        with self._run.changed:
            part = self._run.ledger.take_extension(self._run.now(), in_memory)
            return None if part is None else (part, part.ack_ids or [])

    def _take_reading(self) -> Callable[[], None] | None:
        if self._stopping:
            return None
        with self._run.changed:
            batch = self._run.ledger.take_listing(self._run.now())
        if batch is not None:
            return partial(self._list, batch)
        taken = self._take(in_memory=False)
        return None if taken is None else partial(self._read_and_extend, taken[0])

    def _read(self, reading: Callable[[], None] | None) -> None:
        while reading is not None:
            try:
                reading()
            except Exception:
                if not self._stopping:
                    _log.exception("lease extensions of `%s` failed. Trying again", self._run.subscription)
            reading = self._take_reading()

    def _list(self, batch: int) -> None:
        run = self._run
        parts: dict[int, int] = {}
        with suppress(StagingError):  # the next call that needs the store reports it
            parts = run.staging.parts(batch)
        with run.changed:
            for number, length in parts.items():
                run.ledger.stage(batch, number, length)
            run.ledger.listed(batch, run.now())

    def _read_and_extend(self, part: Part) -> None:
        read: list[pa.Array] = []
        with suppress(StagingError, MissingFile):  # the ack worker reports it
            self._extend_part(part, self._ids_read(part, read))
        if read:
            with self._run.changed:
                self._run.ledger.keep(part, [pa.concat_arrays([ids]) for ids in read])

    def _ids_read(self, part: Part, read: list[pa.Array]) -> Iterator[pa.Array]:
        """Yield the ack ids of a part. Collect them in `read` unless they are too many."""
        size = 0
        for receipts in self._run.staging.receipts(part.batch, part.number, part.length, part.id):
            ids = receipts.column("ack_id")
            size += ids.nbytes
            if size <= self._run.ledger.max_kept_bytes:
                read.append(ids)
            else:
                read.clear()
            yield ids

    def _extend_part(self, part: Part, ack_ids: Iterable[pa.Array]) -> None:
        sent, refused = self._run.now(), None
        try:
            refused = self._extend(chain(part.refused, part.left(ack_ids)))  # not in doubt before the part is settled
        finally:  # whatever has failed, the part is due again
            with self._run.changed:
                self._run.ledger.extended(part, sent, self._run.now(), refused)

    def _extend(self, ack_ids: Iterable[pa.Array]) -> bool | None:
        """Extend leases. Return whether the service refused any, or None if it did not answer all."""
        run = self._run
        failed = acks.extend(
            run.connection,
            run.subscription,
            ack_ids,
            int(LEASE_SECONDS),
            self._times.timeout,
            runtime=run.runtime,
            window=self._window,
        )
        if len(failed.unanswered) or not failed.complete:
            return None
        self.extended += failed.taken - len(failed.refused)
        return len(failed.refused) > 0

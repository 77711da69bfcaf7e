"""Lease extension for messages that wait for long: buffered in the driver stream, or in batches not acknowledged.

Runs on the driver, once a second. It decides nothing: `Leases` and `DriverStream` say whose lease is due. An extension
that the service does not answer is due again in the next second; one that it refuses makes the lease expired, and the
messages are dropped when they are delivered again (`deduplication`).

The extender's own thread never asks the store, which may not answer for minutes. It extends what is in memory: buffered
messages, the driver's parts, and parts whose receipts were read once and kept. Everything else is read and extended by
short-lived threads, a batch by one, so that a read that stalls holds up its own batch alone:

    due, ack ids kept       -> the extender's thread extends
    due, not kept           -> a reader thread reads the receipts, extends, and keeps the ack ids if there is room
    not listed as committed -> a reader thread lists the parts: tasks stage them and report nothing
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import pyarrow as pa

from ..backend import Connection
from ..errors import PubSubError, StagingError
from .leases import Leases
from .pull import acks
from .pull.driver_stream import DriverStream
from .pull.lease import LEASE_SECONDS
from .staging import Staging

_TIMEOUT_SECONDS = 30.0  # in which one extension is tried again
_MAX_READERS = 8  # threads that read receipts, each perhaps stalled
_MAX_KEPT_BYTES = 64 * 2**20  # of ack ids, 300,000 of them; parts beyond are read for each extension
_log = logging.getLogger(__name__)


class LeaseExtender:
    """The extension of the leases that are due.

    extended: the number of messages whose lease was extended so far. clock: seconds, monotonic.
    """

    def __init__(
        self,
        connection: Connection,
        staging: Staging,
        leases: Leases,
        stream: DriverStream,
        clock: Callable[[], float],
    ) -> None:
        self.extended = 0
        self._connection = connection
        self._staging = staging
        self._leases = leases
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()  # of everything below; never held while the store or the service is asked
        self._kept: dict[tuple[int, int], list[pa.Array]] = {}  # ack ids by (batch, part)
        self._committed: dict[int, dict[int, int]] = {}  # the parts of committed batches, which have no more to come
        self._to_read: list[int] = []  # batches that no thread reads yet
        self._reading: set[int] = set()
        self._readers: list[threading.Thread] = []
        self._ended = False

    def keep(self, batch: int, part: int, ack_ids: list[pa.Array]) -> None:
        """Keep the ack ids of a part, if there is room, so that its lease is extended without the store."""
        with self._lock:
            kept = sum(_bytes(ids) for ids in self._kept.values())
            if kept + _bytes(ack_ids) <= _MAX_KEPT_BYTES:
                self._kept[batch, part] = [_copied(ids) for ids in ack_ids]

    def extend_due(self) -> None:
        """Set the leases that are due to LEASE_SECONDS, or have a reader thread do so."""
        with suppress(PubSubError):  # Spark's next call meets it, too, and fails the query with its message
            self._stream.poll()
        self._stream.log_outage()
        now = self._clock()
        buffered = self._stream.due(now)
        if buffered and (refused := self._extend(each.column("ack_id") for each in buffered)) is not None:
            self._stream.record_extension(now, self._clock(), refused)
        with self._leases.lock:
            batches = {*self._leases.uncommitted, *self._leases.unacknowledged}
            to_track, due = self._leases.to_track(now), self._leases.due(now)
        with self._lock:
            self._kept = {place: ids for place, ids in self._kept.items() if place[0] in batches}
            self._committed = {batch: parts for batch, parts in self._committed.items() if batch in batches}
            kept = {place: self._kept[place] for place in due if place in self._kept}
            unlisted = [batch for batch in to_track if batch not in self._committed]
            self._to_read = sorted({*unlisted, *(batch for batch, part in due if (batch, part) not in kept)})
        self._start_readers()
        for (batch, part), ids in kept.items():
            self._extend_part(batch, part, ids)

    def end(self) -> list[threading.Thread]:
        """Have the reader threads end after what they wait for now; those that run."""
        with self._lock:
            self._ended = True
            return list(self._readers)

    def _start_readers(self) -> None:
        with self._lock:
            self._readers = [reader for reader in self._readers if reader.is_alive()]
            waiting = len([batch for batch in self._to_read if batch not in self._reading])
            for _ in range(min(waiting, _MAX_READERS - len(self._readers))):
                reader = threading.Thread(target=self._run_reader, name="receipts reader", daemon=True)
                reader.start()
                self._readers.append(reader)

    def _run_reader(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                self._read_and_extend(batch)
            except StagingError:  # the ack worker says so
                pass
            except Exception:
                if not self._ended:  # else the connection is closed
                    _log.exception("the leases of batch %d are not extended; trying again", batch)
            finally:
                with self._lock:
                    self._reading.discard(batch)

    def _next_batch(self) -> int | None:
        with self._lock:
            batch = next((batch for batch in self._to_read if batch not in self._reading), None)
            if batch is None or self._ended:
                return None
            self._to_read.remove(batch)
            self._reading.add(batch)
            return batch

    def _read_and_extend(self, batch: int) -> None:
        """List the parts of a batch, and extend those that are due and not kept."""
        with self._leases.lock:
            is_committed = batch in self._leases.unacknowledged  # before the listing, which is the last one then
        lengths = self._committed.get(batch) or self._staging.parts(batch)
        with self._leases.lock:
            for part in lengths:
                self._leases.track(batch, part)
            due = [part for number, part in self._leases.due(self._clock()) if number == batch]
        if is_committed:
            with self._lock:
                self._committed[batch] = lengths
        for part in due:
            if part not in lengths or (batch, part) in self._kept:  # the driver's own part may be staged in a moment
                continue
            ids: list[pa.Array] = []
            if self._extend_part(batch, part, self._ids_read(batch, part, lengths[part], ids)) and ids:
                self.keep(batch, part, ids)

    def _ids_read(self, batch: int, part: int, length: int, read: list[pa.Array]) -> Iterator[pa.Array]:
        """The ack ids of a part, section by section; `read` has all of them in the end, or none when they are many."""
        size = 0
        for receipts in self._staging.receipts(batch, part, length):
            ids = receipts.column("ack_id")
            size += ids.nbytes
            if size <= _MAX_KEPT_BYTES:
                read.append(ids)
            else:
                read.clear()
            yield ids

    def _extend_part(self, batch: int, part: int, ack_ids: Iterable[pa.Array]) -> bool:
        """Extend the lease of a part; whether the service has answered."""
        sent = self._clock()
        refused = self._extend(ack_ids)
        if refused is not None:
            with self._leases.lock:
                self._leases.record_extension(batch, part, sent, self._clock(), refused)
        return refused is not None

    def _extend(self, ack_ids: Iterable[pa.Array]) -> bool | None:
        """Extend leases; whether the service refused any, None when it did not answer, so that they are still due."""
        count = 0

        def counted() -> Iterator[pa.Array]:
            nonlocal count
            for ids in ack_ids:
                count += len(ids)
                yield ids

        deadline = time.monotonic() + _TIMEOUT_SECONDS
        failed = acks.extend(self._connection, self._staging.subscription, counted(), int(LEASE_SECONDS), deadline)
        if len(failed.unanswered):
            return None
        with self._lock:
            self.extended += count - len(failed.refused)
        return len(failed.refused) > 0


def _bytes(arrays: Iterable[pa.Array]) -> int:
    return sum(ids.nbytes for ids in arrays)


def _copied(ids: pa.Array) -> pa.Array:
    """The ids without the memory of the columns that they were read with."""
    return pa.concat_arrays([ids])

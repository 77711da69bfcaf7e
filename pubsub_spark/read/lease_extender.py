"""Lease extension for messages that wait for long: buffered in the driver stream, or in batches not acknowledged.

Runs on the driver, in the ack worker's thread, once a second. It decides nothing: `Leases` and `DriverStream` say whose
lease is due. An extension that the service does not answer is due again in the next second; one that it refuses makes
the lease expired, and the messages are dropped when they are delivered again (`deduplication`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import pyarrow as pa

from ..backend import Connection
from ..errors import PubSubError, StagingError
from . import acks
from .driver_stream import DriverStream
from .leases import LEASE_SECONDS, Leases
from .staging import Staging

_TIMEOUT_SECONDS = 30.0  # in which one extension is tried again


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
        self._committed: dict[int, dict[int, int]] = {}  # the parts of committed batches, which have no more to come

    def extend_due(self) -> None:
        """Set the leases that are due to LEASE_SECONDS."""
        with suppress(PubSubError):  # Spark's next call meets it, too, and fails the query with its message
            self._stream.poll()
        self._stream.log_outage()
        now = self._clock()
        buffered = self._stream.due(now)
        if buffered and (refused := self._extend(buffered)) is not None:
            self._stream.record_extension(now, self._clock(), refused)
        for batch, part, length in self._due_parts(now):
            try:
                refused = self._extend(self._staging.receipts(batch, part, length))
            except StagingError:  # the ack worker says so
                continue
            if refused is not None:
                with self._leases.lock:
                    self._leases.record_extension(batch, part, now, self._clock(), refused)

    def _due_parts(self, now: float) -> Iterator[tuple[int, int, int]]:
        """The staged parts whose lease is due: batch, part, and its length in bytes."""
        with self._leases.lock:
            batches = self._leases.to_track(now)
            committed = self._leases.unacknowledged
        lengths = {batch: self._committed.get(batch) or self._parts(batch) for batch in batches}
        self._committed = {batch: lengths[batch] for batch in batches if batch in committed}
        with self._leases.lock:
            for batch, parts in lengths.items():
                for part in parts:
                    self._leases.track(batch, part)
            due = self._leases.due(now)
        for batch, part in due:
            length = lengths.get(batch, {}).get(part) or self._parts(batch).get(part)
            if length is not None:  # else the driver has tracked its own part and not staged it yet
                yield batch, part, length

    def _parts(self, batch: int) -> dict[int, int]:
        try:
            return self._staging.parts(batch)
        except StagingError:
            return {}

    def _extend(self, receipts: Iterable[pa.RecordBatch]) -> bool | None:
        """Extend leases; whether the service refused any, None when it did not answer, so that they are still due."""
        count = 0

        def ack_ids() -> Iterator[pa.Array]:
            nonlocal count
            for some in receipts:
                count += some.num_rows
                yield some.column("ack_id")

        deadline = time.monotonic() + _TIMEOUT_SECONDS
        failed = acks.extend(self._connection, self._staging.subscription, ack_ids(), int(LEASE_SECONDS), deadline)
        if len(failed.unanswered):
            return None
        self.extended += count - len(failed.refused)
        return len(failed.refused) > 0

"""The time limits of the driver's threads and of its stream, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from ..pull.streaming_pull import DEFAULT_TIMES, PullTimes


@dataclass(frozen=True)
class AckTimes:
    """The limits of the thread that acknowledges."""

    tick: float = 1.0  # between two checks of the ledger
    send: float = 30.0  # until no more acks of a part are sent. Failed ones are retried for twice as long
    retry: float = 1.0  # after acks that were not answered
    set_aside: float = 60.0  # after receipts that the store did not deliver
    delete: float = 1.0  # between two deletions, so that batches are deleted together


@dataclass(frozen=True)
class ExtensionTimes:
    """The limits of the threads that extend leases."""

    tick: float = 1.0  # between two checks of the ledger
    timeout: float = 30.0  # for one extension, retries included


ACK_TIMES, EXTENSION_TIMES = AckTimes(), ExtensionTimes()


@dataclass(frozen=True)
class DriverTimes:
    """The limits of one query on the driver."""

    acks: AckTimes = ACK_TIMES
    extensions: ExtensionTimes = EXTENSION_TIMES
    pull: PullTimes = DEFAULT_TIMES


DRIVER_TIMES = DriverTimes()

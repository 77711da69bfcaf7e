"""The time limits of the driver's threads and of its stream, as arguments with defaults."""

from __future__ import annotations

from dataclasses import dataclass

from ..pull.streaming_pull import DEFAULT_TIMES, PullTimes


@dataclass(frozen=True)
class AckTimes:
    """Time limits of the thread that acknowledges, in seconds."""

    tick: float = 1.0  # between two looks at what is due
    send: float = 30.0  # after which no more acks of a part are sent; twice as long those that failed are retried
    retry: float = 1.0  # after acks that were not answered
    set_aside: float = 60.0  # after receipts that the store did not deliver
    delete: float = 1.0  # between two deletions, so that batches are deleted together


@dataclass(frozen=True)
class ExtensionTimes:
    """Time limits of the threads that extend leases, in seconds."""

    tick: float = 1.0  # between two looks at what is due
    timeout: float = 30.0  # for one extension, retries included


ACK_TIMES, EXTENSION_TIMES = AckTimes(), ExtensionTimes()


@dataclass(frozen=True)
class DriverTimes:
    """The time limits of one query on the driver."""

    acks: AckTimes = ACK_TIMES
    extensions: ExtensionTimes = EXTENSION_TIMES
    pull: PullTimes = DEFAULT_TIMES


DRIVER_TIMES = DriverTimes()

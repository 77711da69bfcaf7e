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

    flush: float = 5.0  # the wait of an idle trigger for acks
    stop: float = 5.0  # for the last acks
    arrival: float = 0.05  # until the stream's thread has queued a message that came before a probe's answer
    held_poll: float = 0.1  # between two looks at acks that hold back the next batch
    token: float = 3600.0  # until the driver token is written again: cleaners of temporary folders remove old files
    report: float = 10.0  # between two writes of the metrics
    clock_lag: float = 1.0  # of this machine's clock behind Pub/Sub's, without a WARNING
    clock_margin: float = 10.0  # the difference allowed between the wall clocks of driver and executors
    acks: AckTimes = ACK_TIMES
    extensions: ExtensionTimes = EXTENSION_TIMES
    pull: PullTimes = DEFAULT_TIMES


DRIVER_TIMES = DriverTimes()

"""Acks that the tasks of a batch send for committed batches before it, so that the driver carries nothing per message.

In a backlog the driver holds back the acks of a batch that was committed just now, and names its parts in the pull
partitions of the next batch. A task sends them while it pulls, and records in the footer of its own part those parts
whose acks were all accepted. The driver reads that footer anyway. It sends the acks of all other parts itself: of tasks
that failed, of a service that refused or did not answer, of the last batch of a backlog. An ack that is sent twice
changes nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from ..backend import Connection
from .partitions import PullPartition
from .pull import acks
from .staging import Staging

_log = logging.getLogger(__name__)
_TIMEOUT_SECONDS = 10.0  # after which a task sends no more acks
_AFTER_PULL_SECONDS = 2.0  # for which a task whose pull has ended waits for the answers


class HeldAcks(NamedTuple):
    """A part of a committed batch whose acks a task is to send, and its bytes."""

    batch: int
    part: int
    length: int


class SentAcks(NamedTuple):
    """A part of a committed batch whose acks a task has sent, all of them accepted, and how many."""

    batch: int
    part: int
    acks: int


def assign(shares: Sequence[PullPartition], held: Sequence[HeldAcks]) -> list[PullPartition]:
    """The partitions, each with its share of the held parts."""
    return [replace(share, acks=held[index :: len(shares)]) for index, share in enumerate(shares)]


@dataclass
class TaskAcks:
    """The acks that one task sends in the background while it pulls; `finish` ends that."""

    connection: Connection
    staging: Staging
    parts: Sequence[tuple[int, int, int]]  # as `HeldAcks`

    def __post_init__(self) -> None:
        self._sent: list[SentAcks] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="task acks", daemon=True)
        if self.parts:
            self._thread.start()

    def finish(self) -> list[SentAcks]:
        """The parts whose acks were all accepted; what is under way then is left to the driver."""
        if self.parts:
            self._thread.join(_AFTER_PULL_SECONDS)
        self._is_over = True
        return list(self._sent)

    def _run(self) -> None:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        for batch, part, length in self.parts:
            try:
                failed = acks.acknowledge(
                    self.connection, self.staging.subscription, self._ack_ids(batch, part, length), deadline, deadline
                )
            except Exception as error:
                if not self._is_over:  # else the connection is closed
                    _log.warning("the acks of batch %d, part %d are left to the driver: %r", batch, part, error)
                return
            if self._is_over or not failed.complete:
                return
            if not len(failed.refused) and not len(failed.unanswered):
                self._sent.append(SentAcks(batch, part, failed.taken))

    def _ack_ids(self, batch: int, part: int, length: int) -> Iterator[pa.Array]:
        for receipts in self.staging.receipts(batch, part, length):
            yield receipts.column("ack_id")

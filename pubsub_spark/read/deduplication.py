"""Deduplication: a message that has been a row already is dropped when it is delivered again.

A message may be delivered again when its ack failed, when its ack came after its lease had expired, or when nobody
knows whether its ack was sent (a restart). The rule:

    1. The ids of such messages are recent ids for LEASE_SECONDS, the longest time that a lease lasts.
       Which messages they are is decided here: `add_after_acks`, `add_committed`, `add_all`, `add_expired`.
    2. The recent ids at the time when a batch is planned are the excluded ids of the batch (`ids_to_exclude`).
    3. The rows with an excluded id are dropped (`exclude`). Their receipts stay, so that they are acknowledged with
       the batch that dropped them.
    4. Recent ids are saved before the staged files that they came from are deleted, for a restart (`save`).

`Deduplication` runs on the driver and is used by two threads, Spark's calls and the ack worker. The functions are pure
and run in tasks, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.envelope import Received
from ..errors import StagingError
from .leases import Leases
from .recent_ids import RecentIds
from .staging.area import Staging, in_doubt_path
from .staging.ids import Digests, IdSet, digests, is_in, merged


class Deduplication:
    """The recent ids of one stream, and the rules by which they are added.

    topic: of the subscription, which may have been deleted and made anew on another; None if it is not known.
    """

    def __init__(
        self,
        staging: Staging,
        leases: Leases,
        clock: Callable[[], float],
        topic: str | None = None,
    ) -> None:
        self._topic = topic
        self._staging = staging
        self._leases = leases
        self._clock = clock
        self._lock = threading.Lock()
        self._recent = RecentIds()
        self._files_lock = threading.Lock()
        saved: dict[str, Digests] = {}
        for path in staging.in_doubt_paths():
            ids, metadata = staging.read_ids(path)
            is_of_topic = topic is None or metadata.get("topic", topic) == topic
            saved[path] = ids if is_of_topic else ids[:, :0]
        self._recent.add(merged(list(saved.values())), clock())
        self._files: dict[str, frozenset[int]] = dict.fromkeys(saved, frozenset())  # the batches that may read each
        self._lengths: dict[int, dict[int, int]] = {}  # of the parts of committed batches
        self._expired: set[tuple[int, int]] = set()  # (batch, part) added by `add_expired`

    def add_after_acks(self, batch: int, part: int, length: int, refused: pa.Array) -> None:
        """Add the messages of a part whose acks were refused, or all of them if its lease had expired before."""
        with self._leases.lock:
            expired = self._leases.is_expired(batch, part, self._clock())
        if expired or len(refused):
            self._add(batch, part, length, None if expired else refused)

    def add_committed(self, batch: int, lengths: Mapping[int, int]) -> None:
        """Add the parts of a committed batch whose leases have expired.

        Before the next batch is planned, because redeliveries may be in the driver stream's buffer already.
        """
        now = self._clock()
        with self._leases.lock:
            parts = [part for part in lengths if self._leases.is_expired(batch, part, now)]
        self._add_parts(batch, lengths, parts)

    def add_all(self, batch: int, lengths: Mapping[int, int]) -> None:
        """Add all parts of a batch that an earlier run staged: what has become of its acks and leases is not known."""
        self._add_parts(batch, lengths, lengths)

    def add_expired(self) -> None:
        """Add the parts whose leases have expired while their acks were in flight, each once."""
        now = self._clock()
        with self._leases.lock:
            batches = self._leases.expired(now)
        for batch in batches:
            lengths = self._parts(batch)
            with self._leases.lock:
                parts = {part for part in lengths if self._leases.is_expired(batch, part, now)}
            parts -= {part for number, part in self._expired if number == batch}
            try:
                self._add_parts(batch, lengths, parts)
            except StagingError:  # just deleted, or set aside by the ack worker, which says so
                continue
            self._expired |= {(batch, part) for part in parts}
        self._expired = {(batch, part) for batch, part in self._expired if batch in batches}
        self._lengths = {batch: lengths for batch, lengths in self._lengths.items() if batch in batches}

    def _parts(self, batch: int) -> dict[int, int]:
        """The parts of a committed batch, which is listed once."""
        if batch not in self._lengths:
            try:
                self._lengths[batch] = self._staging.parts(batch)
            except StagingError:
                return {}
        return self._lengths[batch]

    def ids_to_exclude(self, oldest_arrival: float) -> list[IdSet]:
        """The recent ids for a batch whose oldest message was delivered at `oldest_arrival`, for `exclude`."""
        with self._lock:
            self._recent.forget(oldest_arrival)
            return [run.ids for run in self._recent.runs]

    def write(self) -> list[str]:
        """Write the recent ids that are in no file of the staging area; the files that have all of them.

        The batches that are planned and not committed may read a file, and so keep it.
        """
        with self._files_lock:
            with self._lock:
                runs = {in_doubt_path(self._staging.epoch, run.number): run for run in self._recent.runs}
            for path, run in runs.items():
                if path not in self._files:
                    self._staging.write_ids(path, run.ids.digests, topic=self._topic)
            with self._leases.lock:
                planned = frozenset(self._leases.uncommitted)
            self._files |= dict.fromkeys(runs, planned)
            return list(runs)

    def save(self) -> None:
        """Write the recent ids to the staging area, where a restart finds them, and delete what they replace."""
        kept = self.write()
        with self._files_lock:
            with self._leases.lock:
                planned = {*self._leases.uncommitted}
            for path in [path for path, readers in self._files.items() if path not in kept and not readers & planned]:
                self._staging.delete_ids(path)
                del self._files[path]

    def _add_parts(self, batch: int, lengths: Mapping[int, int], parts: Iterable[int]) -> None:
        for part in parts:
            self._add(batch, part, lengths[part])

    def _add(self, batch: int, part: int, length: int, ack_ids: pa.Array | None = None) -> None:
        """Add the messages of a part that have these ack ids, or all."""
        for receipts in self._staging.receipts(batch, part, length):
            added = receipts if ack_ids is None else receipts.filter(pc.is_in(receipts.column("ack_id"), ack_ids))
            self._add_digests(digests(added.column("message_id")))

    def _add_digests(self, added: Digests) -> None:
        with self._lock:
            self._recent.add(added, self._clock())


def exclude(received: Received, ids: Sequence[IdSet]) -> Received:
    """The received messages and their receipts without those that have one of these ids."""
    if not ids:
        return received
    return _only(received, ~is_in(digests(received.receipts.column("message_id")), ids))


def drop_duplicates(received: Sequence[Received]) -> list[Received]:
    """The received messages and their receipts with only the first of each id."""
    ids = pa.chunked_array([each.receipts.column("message_id") for each in received], pa.string())
    rows = pa.table({"id": ids, "row": np.arange(len(ids))})
    first = rows.group_by("id").aggregate([("row", "min")]).column("row_min")
    mask = np.zeros(len(ids), dtype=bool)
    mask[first.to_numpy()] = True
    ends = np.cumsum([0, *(each.messages.num_rows for each in received)])
    return [_only(each, mask[ends[i] : ends[i + 1]]) for i, each in enumerate(received)]


def _only(received: Received, wanted: np.ndarray[Any, Any]) -> Received:
    mask = pa.array(wanted)
    return Received(received.messages.filter(mask), received.receipts.filter(mask))

"""Deduplication: a message that has been a row already is dropped when it is delivered again.

A message may be delivered again when its ack failed, when its ack came after its lease had expired, when nobody knows
whether its ack was sent (a restart), or, with `idAttribute`, when its publisher sent it twice. The rule:

    1. The deduplication ids of such messages are recent ids for LEASE_SECONDS, the longest time that a lease lasts.
       Which messages they are is decided here: `add_after_acks`, `add_committed`, `add_all`, `add_expired`.
    2. The recent ids at the time when a batch is planned are the excluded ids of the batch (`ids_to_exclude`).
    3. The rows with an excluded id are dropped (`exclude`). Their receipts stay, so that they are acknowledged with
       the batch that dropped them.
    4. Recent ids are saved before the staged files that they came from are deleted, for a restart (`save`).
    5. With `idAttribute` the messages that a publisher sent twice may be in two parts of a batch: the part that has
       claimed the id first has the row (`claims`).
    6. A replay drops from each part what an earlier part of the batch has (`repeated_ids`): a task of the dead run may
       have pulled redeliveries of it. Earlier is the one that claimed first; without claims, the smaller number.

The deduplication id (`envelope.RECEIPTS`) is the message id, under which Pub/Sub delivers it again, or with
`idAttribute` the value of that attribute.

`Deduplication` runs on the driver and is used by two threads, Spark's calls and the ack worker. The functions are pure
and run in tasks, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.envelope import Received
from ..errors import StagingError
from . import claims
from .leases import Leases
from .recent_ids import Digests, IdSet, RecentIds, digests, is_in, merged
from .staging import MISSING, Staging, recent_path


class Deduplication:
    """The recent ids of one stream, and the rules by which they are added.

    every_batch: whether all messages may come again and not only those whose ack is in doubt, as with `idAttribute`.
    topic: of the subscription, which may have been deleted and made anew on another; None if it is not known.
    """

    def __init__(
        self,
        staging: Staging,
        leases: Leases,
        clock: Callable[[], float],
        every_batch: bool = False,
        topic: str | None = None,
    ) -> None:
        self._topic = topic
        self._staging = staging
        self._leases = leases
        self._clock = clock
        self._every_batch = every_batch
        self._lock = threading.Lock()
        self._recent = RecentIds()
        self._files_lock = threading.Lock()
        saved = staging.recent_ids(topic)
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

    def add_committed(self, batch: int, lengths: Mapping[int, int]) -> int:
        """Add the parts of a committed batch whose leases have expired, all with `every_batch`; the repeated rows.

        Before the next batch is planned, because redeliveries may be in the driver stream's buffer already. Repeated
        rows are those that parts have dropped because another one has claimed their ids.
        """
        now = self._clock()
        with self._leases.lock:
            parts = {part for part in lengths if self._every_batch or self._leases.is_expired(batch, part, now)}
        claimed = claims.of_batch(self._staging, batch, lengths) if self._every_batch and lengths.keys() - {0} else {}
        ids = merged(list(claimed.values()))
        self._add_digests(ids)
        self._add_parts(batch, lengths, parts - claimed.keys())
        return int(np.count_nonzero((ids[:, 1:] == ids[:, :-1]).all(axis=0)))

    def add_all(self, batch: int, lengths: Mapping[int, int]) -> None:
        """Add all parts of a batch that an earlier run staged: what has become of its acks and leases is not known."""
        self._add_parts(batch, lengths, lengths)

    def add_replayed(self, batch: int, lengths: Mapping[int, int]) -> dict[int, Digests]:
        """Add all parts of a batch that is replayed; the ids that each repeats of an earlier part (`repeated_ids`)."""
        ids: dict[int, Digests] = {}
        claimed = claims.of_batch(self._staging, batch, lengths)
        order = dict.fromkeys([0, *claimed, *sorted(lengths)])
        for part in (part for part in order if part in lengths):
            receipts = self._staging.receipts(batch, part, lengths[part])
            ids[part] = merged([digests(each.column("deduplication_id")) for each in receipts])
            self._add_digests(ids[part])
        return repeated_ids(ids)

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
            with suppress(*MISSING):  # the batch has just been acknowledged and deleted
                try:
                    self._add_parts(batch, lengths, parts)
                except StagingError:  # set aside by the ack worker, which says so
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
                runs = {recent_path(self._staging.epoch, run.number): run for run in self._recent.runs}
            for path, run in runs.items():
                if path not in self._files:
                    self._staging.write_ids(path, run.ids.digests, self._topic)
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
                self._staging.delete_recent_ids(path)
                del self._files[path]

    def _add_parts(self, batch: int, lengths: Mapping[int, int], parts: Iterable[int]) -> None:
        for part in parts:
            self._add(batch, part, lengths[part])

    def _add(self, batch: int, part: int, length: int, ack_ids: pa.Array | None = None) -> None:
        """Add the messages of a part that have these ack ids, or all."""
        for receipts in self._staging.receipts(batch, part, length):
            added = receipts if ack_ids is None else receipts.filter(pc.is_in(receipts.column("ack_id"), ack_ids))
            self._add_digests(digests(added.column("deduplication_id")))

    def _add_digests(self, added: Digests) -> None:
        with self._lock:
            self._recent.add(added, self._clock())


def exclude(received: Received, ids: Sequence[IdSet]) -> Received:
    """The received messages and their receipts without those that have one of these deduplication ids."""
    if not ids:
        return received
    return _only(received, ~is_in(digests(received.receipts.column("deduplication_id")), ids))


def drop_duplicates(received: Sequence[Received]) -> list[Received]:
    """The received messages and their receipts with only the first of each deduplication id."""
    ids = pa.chunked_array([each.receipts.column("deduplication_id") for each in received], pa.string())
    rows = pa.table({"id": ids, "row": np.arange(len(ids))})
    first = rows.group_by("id").aggregate([("row", "min")]).column("row_min")
    mask = np.zeros(len(ids), dtype=bool)
    mask[first.to_numpy()] = True
    ends = np.cumsum([0, *(each.messages.num_rows for each in received)])
    return [_only(each, mask[ends[i] : ends[i + 1]]) for i, each in enumerate(received)]


def repeated_ids(ids: Mapping[int, Digests]) -> dict[int, Digests]:
    """The ids of each part that a part before it has, too, in the order of `ids`; without the parts that have none."""
    before, found = RecentIds(), {}
    for part, each in ids.items():
        repeated = each[:, is_in(each, [run.ids for run in before.runs])]
        if repeated.shape[1]:
            found[part] = merged([repeated])
        before.add(each, 0.0)
    return found


def _only(received: Received, wanted: np.ndarray[Any, Any]) -> Received:
    mask = pa.array(wanted)
    return Received(received.messages.filter(mask), received.receipts.filter(mask))

"""Deduplication: a message that has been a row already is dropped when it is delivered again.

A message may be delivered again when its ack failed, when its ack came after its lease had expired, when nobody knows
whether its ack was sent (a restart), or, with `idAttribute`, when its publisher sent it twice. The rule:

    1. The deduplication ids of such messages are recent ids for LEASE_SECONDS, the longest time that a lease lasts.
       Which messages they are is decided here: `add_after_acks`, `add_committed`, `add_all`, `add_expired`.
    2. The recent ids at the time when a batch is planned are the excluded ids of the batch (`ids_to_exclude`).
    3. The rows with an excluded id are dropped (`exclude`). Their receipts stay, so that they are acknowledged with
       the batch that dropped them.
    4. Recent ids are saved before the staged files that they came from are deleted, for a restart (`save`).
    5. A replay drops from each part what an earlier part of the batch has (`repeated_ids`): a task of the dead run may
       have pulled redeliveries of it.

The deduplication id (`envelope.RECEIPTS`) is the message id, under which Pub/Sub delivers it again, or with
`idAttribute` the value of that attribute.

`Deduplication` runs on the driver and is used by two threads, Spark's calls and the ack worker. The functions are pure
and run in tasks, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..codec.envelope import Received
from ..errors import StagingError
from .leases import LEASE_SECONDS, Leases
from .staging import MISSING, Staging


def no_ids() -> pa.Array:
    """An empty array of ids."""
    return pa.array([], pa.string())


@dataclass
class RecentIds:
    """The deduplication ids of messages that may be delivered again, each until a time. Pure."""

    version: int = 0  # grows with each addition
    _added: list[tuple[float, pa.Array]] = field(default_factory=list)  # until when, and the ids

    def add(self, ids: pa.Array, now: float) -> None:
        """Add ids for the longest lease from `now` on."""
        if len(ids):
            self._added.append((now + LEASE_SECONDS, ids))
            self.version += 1

    def forget(self, now: float) -> None:
        """Remove the ids that no message delivered at `now` or later can have as a redelivery."""
        self._added = [(until, ids) for until, ids in self._added if until > now]

    @property
    def ids(self) -> pa.Array:
        """The ids, as an Arrow string array."""
        return pa.concat_arrays([ids for _, ids in self._added]) if self._added else pa.array([], pa.string())


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
        self._recent.add(staging.recent_ids(topic), clock())
        self._saved_version = self._recent.version
        self._lengths: dict[int, dict[int, int]] = {}  # of the parts of committed batches
        self._expired: set[tuple[int, int]] = set()  # (batch, part) added by `add_expired`

    def add_after_acks(self, batch: int, part: int, length: int, refused: pa.Array) -> None:
        """Add the messages of a part whose acks were refused, or all of them if its lease had expired before."""
        with self._leases.lock:
            expired = self._leases.is_expired(batch, part, self._clock())
        if expired or len(refused):
            self._add(batch, part, length, None if expired else refused)

    def add_committed(self, batch: int, lengths: Mapping[int, int]) -> None:
        """Add the parts of a committed batch whose leases have expired; all with `every_batch`.

        Before the next batch is planned, because redeliveries may be in the driver stream's buffer already.
        """
        now = self._clock()
        with self._leases.lock:
            parts = [part for part in lengths if self._every_batch or self._leases.is_expired(batch, part, now)]
        self._add_parts(batch, lengths, parts)

    def add_all(self, batch: int, lengths: Mapping[int, int]) -> None:
        """Add all parts of a batch that an earlier run staged: what has become of its acks and leases is not known."""
        self._add_parts(batch, lengths, lengths)

    def add_replayed(self, batch: int, lengths: Mapping[int, int]) -> dict[int, pa.Array]:
        """Add all parts of a batch that is replayed; the ids that each repeats of an earlier part (`repeated_ids`)."""
        ids: dict[int, pa.Array] = {}
        for part, length in lengths.items():
            receipts = self._staging.receipts(batch, part, length)
            ids[part] = pa.concat_arrays([no_ids(), *(each.column("deduplication_id") for each in receipts)])
            with self._lock:
                self._recent.add(ids[part], self._clock())
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

    def ids_to_exclude(self, oldest_arrival: float) -> pa.Array:
        """The recent ids for a batch whose oldest message was delivered at `oldest_arrival`."""
        with self._lock:
            self._recent.forget(oldest_arrival)
            return self._recent.ids

    def save(self) -> None:
        """Write the recent ids to the staging area, where a restart finds them, if they have changed."""
        with self._lock:
            version, ids = self._recent.version, self._recent.ids
        if version != self._saved_version:
            self._staging.write_recent_ids(ids, self._topic)
            self._saved_version = version

    def _add_parts(self, batch: int, lengths: Mapping[int, int], parts: Iterable[int]) -> None:
        for part in parts:
            self._add(batch, part, lengths[part])

    def _add(self, batch: int, part: int, length: int, ack_ids: pa.Array | None = None) -> None:
        """Add the messages of a part that have these ack ids, or all."""
        for receipts in self._staging.receipts(batch, part, length):
            added = receipts if ack_ids is None else receipts.filter(pc.is_in(receipts.column("ack_id"), ack_ids))
            ids = pa.concat_arrays([added.column("deduplication_id")])  # a copy, without the memory of the ack ids
            with self._lock:
                self._recent.add(ids, self._clock())


def exclude(received: Received, ids: pa.Array) -> Received:
    """The received messages and their receipts without those that have one of these deduplication ids."""
    if not len(ids):
        return received
    return _only(received, pc.invert(pc.is_in(received.receipts.column("deduplication_id"), ids)))


def drop_duplicates(received: Sequence[Received]) -> list[Received]:
    """The received messages and their receipts with only the first of each deduplication id."""
    ids = pa.chunked_array([each.receipts.column("deduplication_id") for each in received], pa.string())
    rows = pa.table({"id": ids, "row": np.arange(len(ids))})
    first = rows.group_by("id").aggregate([("row", "min")]).column("row_min")
    mask = np.zeros(len(ids), dtype=bool)
    mask[first.to_numpy()] = True
    ends = np.cumsum([0, *(each.messages.num_rows for each in received)])
    return [_only(each, pa.array(mask[ends[i] : ends[i + 1]])) for i, each in enumerate(received)]


def repeated_ids(ids: Mapping[int, pa.Array]) -> dict[int, pa.Array]:
    """The ids of each part that a part of a smaller number has, too; without the parts that have none."""
    parts = np.concatenate([np.full(len(ids[part]), part) for part in sorted(ids)] or [np.zeros(0, np.int64)])
    encoded = pa.concat_arrays([ids[part] for part in sorted(ids)] or [no_ids()]).dictionary_encode()
    codes = encoded.indices.to_numpy()
    first = np.full(len(encoded.dictionary), np.iinfo(np.int64).max)
    np.minimum.at(first, codes, parts)
    found = {int(part): codes[(parts == part) & (first[codes] < part)] for part in np.unique(parts)}
    return {part: encoded.dictionary.take(pa.array(np.unique(each))) for part, each in found.items() if len(each)}


def _only(received: Received, wanted: pa.BooleanArray) -> Received:
    return Received(received.messages.filter(wanted), received.receipts.filter(wanted))

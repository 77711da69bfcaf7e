"""The ack ledger: every unsettled part, its state, and the moves allowed from it. Start here.

The promise: a message is acknowledged only after Spark has committed the batch that carried it, and every message of a
committed batch is acknowledged in the end. The ledger keeps it, because each part is in one state, states change by the
table TRANSITIONS alone, and only a part in SENDING has its ack ids sent:

    STAGED      in the staging area, its batch planned and not committed    lease extended, rows may be replayed
    COMMITTED   its batch is in Spark's commit log                          lease extended, acks due
    SENDING     a thread sends its acks                                     lease extended
    PAUSED      acks unanswered, or receipts unreadable                     lease extended, acks due at a time
    SETTLED     every ack was accepted, or its id is in doubt               deletable with all batches before it
    DELETING    a thread deletes its file
    FORGOTTEN   deleted, or gone when its batch was committed               its messages are delivered again if gone

`commit` is the only way to COMMITTED. It is called for the batches up to the `start` of `latestOffset`, or of a
restart. It fixes the parts of its batch: a file that a late task stages afterwards, because `foreachBatch` has not read
all partitions, was never a row. It has no state, and is not acknowledged by this run.

A message never becomes a row twice, because its lease lasts until its ack. If a lease may have ended before the ack was
accepted, the id is in doubt (`in_doubt`), and a redelivery is no row but is acknowledged at once. Ids of uncommitted
batches are never in doubt: their redeliveries wait until the batch is committed, or are rows if its files are gone.
Until `deadline` a task can meet no redelivery that its plan does not exclude. A task that pulls longer looks into the
staging area itself.

Batches are settled in any order and deleted in theirs, so that the last deleted batch tells a restart which batches to
acknowledge.

Pure: no file, socket, thread, lock or clock. `now` is seconds on the driver's lease clock. A crash forgets the ledger.
`start` makes a new one from the staging area, with every lease ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from ..pull.lease import EXTEND_AFTER, STREAM_LEASE_SECONDS, Lease, Redelivered
from ..staging.ids import Digests
from ..staging.part import Footer
from .in_doubt import DOUBT_SECONDS, MAX_BACKOFF_SECONDS, InDoubt

MAX_KEPT_BYTES = 64 * 2**20  # 300,000 ack ids


class State(Enum):
    """The state of a part."""

    STAGED = "staged"
    COMMITTED = "committed"
    SENDING = "sending"
    PAUSED = "paused"
    SETTLED = "settled"
    DELETING = "deleting"
    FORGOTTEN = "forgotten"


class Event(Enum):
    """An event that changes the state of a part."""

    COMMIT = "commit"
    LOSE = "lose"
    SEND = "send"
    PAUSE = "pause"
    SETTLE = "settle"
    DELETE = "delete"
    FORGET = "forget"


TRANSITIONS = {
    (State.STAGED, Event.COMMIT): State.COMMITTED,
    (State.STAGED, Event.LOSE): State.FORGOTTEN,
    (State.COMMITTED, Event.SEND): State.SENDING,
    (State.PAUSED, Event.SEND): State.SENDING,
    (State.SENDING, Event.PAUSE): State.PAUSED,
    (State.SENDING, Event.SETTLE): State.SETTLED,
    (State.SETTLED, Event.DELETE): State.DELETING,
    (State.DELETING, Event.FORGET): State.FORGOTTEN,
}
UNSETTLED = frozenset({State.COMMITTED, State.SENDING, State.PAUSED})
_LEASED = UNSETTLED | {State.STAGED}


class LedgerError(AssertionError):
    """An event that TRANSITIONS does not have: a fault of the connector."""


@dataclass
class Part:
    """One staged part of a batch. length: bytes of its file."""

    batch: int
    number: int
    length: int
    lease: Lease
    footer: Footer | None = None  # None until it was read
    state: State = State.STAGED
    ack_ids: list[pa.Array] | None = None  # kept in memory, so that an extension needs no store
    is_extending: bool = False
    extend_at: float = 0.0  # not before
    send_at: float = 0.0  # not before
    outstanding: int = 0  # messages that the driver stream counts as such until they are acknowledged
    taken: int = 0  # ids that were sent, in the order of the receipts
    unanswered: list[pa.Array] = field(default_factory=list)
    refused: list[pa.Array] = field(default_factory=list)
    is_in_doubt: bool = False

    def apply(self, event: Event) -> None:
        """Change the state. Raises LedgerError if TRANSITIONS does not have the event."""
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise LedgerError(f"part {self.number} of batch {self.batch} is {self.state.value}: no {event.value}")
        self.state = state

    @property
    def has_keys(self) -> bool:
        return self.footer is not None and self.footer.has_keys

    @property
    def id(self) -> str:
        """The id in its footer, or "" if that is not known."""
        return "" if self.footer is None else self.footer.id

    def left(self, ack_ids: Iterable[pa.Array]) -> Iterator[pa.Array]:
        """Yield the ids without an answer. ack_ids: those of the part, taken as they are needed."""
        skip, unanswered = self.taken, self.unanswered
        yield from unanswered
        for ids in ack_ids:
            yield ids.slice(skip)
            skip = max(0, skip - len(ids))


@dataclass
class Batch:
    """A planned batch. lease: the earliest of messages that its tasks pull. reads: files that its tasks read."""

    lease: Lease
    planned: float
    parts: dict[int, Part] = field(default_factory=dict)
    reads: frozenset[str] = frozenset()
    is_committed: bool = False
    is_listing: bool = False
    list_at: float = 0.0  # not before

    @property
    def is_settled(self) -> bool:
        return self.is_committed and all(part.state not in UNSETTLED for part in self.parts.values())


class AckLedger:
    """The batches that are planned and not deleted.

    pull_lease: seconds of the leases that tasks pull with. max_kept_bytes: of ack ids in memory. Others are read for
    each extension. retry: seconds after an answered extension, before the next one.
    """

    def __init__(
        self, pull_lease: float, in_doubt: InDoubt, max_kept_bytes: int = MAX_KEPT_BYTES, retry: float = 1.0
    ) -> None:
        self.in_doubt = in_doubt
        self.max_kept_bytes = max_kept_bytes
        self.last_commit = 0
        self.redeliveries = 0  # that were acknowledged at once, or are to be
        self._pull_lease = pull_lease
        self._retry = retry
        self._batches: dict[int, Batch] = {}
        self._redelivered: list[Redelivered] = []
        self._is_redelivery_sent = False
        self._spreads_until = max((run.until for run in in_doubt.runs), default=0.0)  # doubt, to others of its key
        self.leased_until = 0.0  # when messages may be delivered that were not accepted, or were returned
        self.deleted_at = 0.0  # when files were last deleted, or could not be
        self._files: list[int] = []  # deleted batches whose files could not be, or wait for `_delete_at`
        self._delete_at = 0.0  # files are not deleted before, because it was refused

    # What happened

    def plan(self, batch: int, now: float, reads: frozenset[str] = frozenset(), is_replay: bool = False) -> None:
        """Record that Spark has the partitions of a batch. The leases of a replay have ended in an earlier run."""
        lease = Lease(now - self._pull_lease if is_replay else now, self._pull_lease)
        planned = self._batches.setdefault(batch, Batch(lease, now))
        planned.reads |= reads
        planned.list_at = now + self._pull_lease / 4

    def stage(
        self,
        batch: int,
        number: int,
        length: int,
        footer: Footer | None = None,
        lease: Lease | None = None,
        outstanding: int = 0,
    ) -> bool:
        """Record a staged part. Return False if its batch is not planned any more, so that it has no state."""
        planned = self._batches.get(batch)
        if planned is None or planned.is_committed:
            return False
        if number not in planned.parts:
            planned.parts[number] = Part(batch, number, length, lease or planned.lease, footer, outstanding=outstanding)
        return True

    def commit(self, batch: int, parts: Mapping[int, tuple[int, Footer]]) -> list[int]:
        """Record that Spark has committed a planned batch with these parts (length and footer of each).

        Returns the parts that were staged and are gone: their messages will be delivered, and be rows, again.
        """
        committed = self._batches[batch]
        if committed.is_committed:
            raise LedgerError(f"batch {batch} is committed already")
        for number, (length, footer) in parts.items():
            self.stage(batch, number, length)
            part = committed.parts[number]
            if part.footer is None:
                part.ack_ids = None  # maybe of another part that was in its place
            part.footer, part.length = footer, length
        gone = sorted(committed.parts.keys() - parts.keys())
        for number in gone:
            committed.parts.pop(number).apply(Event.LOSE)
        for part in committed.parts.values():
            part.apply(Event.COMMIT)
        committed.is_committed = True
        self.last_commit = max(self.last_commit, batch)
        return gone

    def record_acks(self, part: Part, taken: int, unanswered: pa.Array, refused: pa.Array) -> None:
        """Record the answers to acks of a part: ids taken from its receipts, and those not accepted."""
        part.unanswered = [unanswered] if len(unanswered) else []
        part.taken += taken  # last: `Part.left` takes no lock, and an id twice does no harm
        if len(refused):
            part.refused.append(refused)

    def pause(self, part: Part, until: float) -> None:
        """Record when the rest of the acks is due."""
        part.send_at = until
        part.apply(Event.PAUSE)

    def doubt(self, part: Part, ids: Digests, now: float) -> None:
        """Record that the messages with these ids may be delivered again."""
        self.in_doubt.add(ids, part.batch, now)
        part.is_in_doubt = True
        if part.refused or part.lease.is_expired(self._soon(now)):  # else in doubt because of others alone
            self._spreads_until = now + DOUBT_SECONDS
        self.leased_until = max(self.leased_until, part.lease.end)

    def settle(self, part: Part) -> None:
        """Record that all acks of a part were answered. Ids whose ack may be lost are in doubt before."""
        part.ack_ids = None
        part.apply(Event.SETTLE)

    def redelivered(self, redelivered: Redelivered) -> None:
        """Record redeliveries in doubt, to be acknowledged at once."""
        self._redelivered.append(redelivered)
        self.redeliveries += redelivered.receipts.num_rows

    def redelivered_answered(self, accepted: Digests, lost: Digests, now: float) -> None:
        """Record the answers to the acks of `take_redelivered`: the ids accepted, and the others.

        The others may hold back more messages until they are delivered again.
        """
        self._is_redelivery_sent = False
        if lost.shape[1]:
            self.leased_until = max(self.leased_until, now + DOUBT_SECONDS)
            self._spreads_until = now + DOUBT_SECONDS
        self.in_doubt.accept(accepted)
        self.in_doubt.add(lost, self.last_commit, now)

    def returned(self, now: float) -> None:
        """Record that buffered messages are nacked. Those in doubt must be met again before their ids are forgotten."""
        if self.in_doubt.runs:
            self.leased_until = max(self.leased_until, now + MAX_BACKOFF_SECONDS)

    def extended(self, part: Part, sent: float, answered: float, refused: bool | None) -> None:
        """Record an answered extension of a lease. refused: whether of any message, or None without an answer."""
        part.is_extending = False
        part.extend_at = answered + self._retry
        if refused and part.state not in (State.STAGED, State.COMMITTED):  # maybe because it is acknowledged
            refused = None
            part.extend_at = answered + part.lease.seconds * EXTEND_AFTER
        if refused is not None:
            part.lease = part.lease.extended(sent, answered, refused)

    def keep(self, part: Part, ack_ids: list[pa.Array]) -> None:
        """Keep the ack ids of a part in memory if there is room. Their arrays must own their memory."""
        kept = sum(ids.nbytes for part in self._all() for ids in part.ack_ids or ())
        if kept + sum(ids.nbytes for ids in ack_ids) <= self.max_kept_bytes:
            part.ack_ids = ack_ids

    def listed(self, batch: int, now: float) -> None:
        """Record that a batch was listed. It is due again after a quarter of a lease."""
        planned = self._batches.get(batch)
        if planned is not None:
            planned.is_listing, planned.list_at = False, now + self._pull_lease / 4

    def deleted(self, batches: list[int]) -> None:
        """Record that a thread has deleted the files of batches, or has them in `files_left`."""
        for batch in batches:
            for part in self._batches.pop(batch).parts.values():
                part.apply(Event.FORGET)

    def files_left(self, batches: list[int], until: float) -> None:
        """Record that the files of batches could not be deleted. They are not due again before `until`."""
        self._files, self._delete_at = batches + self._files, until

    # What is due

    def take_acks(self, now: float) -> Part | None:
        """Return a part whose acks are to be sent now, in the state SENDING, or None.

        With ordering keys batches are acknowledged in their order: see `doubts_others`.
        """
        part = self._due(now)
        if part is not None:
            part.apply(Event.SEND)
        return part

    def doubts_others(self, part: Part) -> bool:
        """Return whether messages of a part may be delivered again because others are.

        Pub/Sub redelivers a message of an ordering key with all later ones of the key, also acknowledged ones:
        https://cloud.google.com/pubsub/docs/ordering#redelivery. Ids that are in doubt for that alone bring no others.
        A batch may take long, so the time counts until it was planned.
        """
        return part.has_keys and bool(self.in_doubt.runs) and self._batches[part.batch].planned < self._spreads_until

    def take_redelivered(self) -> list[Redelivered]:
        """Return the redeliveries to acknowledge. `redelivered_answered` follows."""
        taken, self._redelivered = self._redelivered, []
        self._is_redelivery_sent = bool(taken)
        return taken

    def take_extension(self, now: float, in_memory: bool) -> Part | None:
        """Return a part whose lease is due. in_memory: one whose ack ids are, or are not, in memory."""
        for part in self._all():
            is_due = part.state in _LEASED and part.lease.is_due(now) and part.extend_at <= now
            if is_due and not part.is_extending and (part.ack_ids is not None) is in_memory:
                part.is_extending = True
                return part
        return None

    def take_listing(self, now: float) -> int | None:
        """Return a batch whose parts are to be listed, because tasks report nothing."""
        for number, batch in sorted(self._batches.items()):
            if not batch.is_committed and not batch.is_listing and batch.list_at <= now:
                batch.is_listing = True
                return number
        return None

    def take_doubtful(self, now: float) -> list[Part]:
        """Return the committed parts whose ids must be in doubt before a batch is planned.

        Their leases may end, or an earlier message of their keys is redelivered together with them.
        """
        soon = self._soon(now)
        if any(part.is_in_doubt and part.has_keys and part.lease.is_expired(now) for part in self._unsettled()):
            self._spreads_until = now + DOUBT_SECONDS
        return [part for part in self.undoubted if part.lease.is_expired(soon) or self.doubts_others(part)]

    def _soon(self, now: float) -> float:
        """Return until when the next batch may be planned and pulled."""
        return now + min(self._pull_lease, STREAM_LEASE_SECONDS) / 2

    def is_doubtful(self, part: Part, now: float) -> bool:
        """Return whether Pub/Sub may have delivered messages of a part again."""
        return part.lease.is_expired(now)

    def deletable(self) -> list[int]:
        """Return the batches whose files may be deleted, the first ones, in the state DELETING."""
        numbers: list[int] = []
        for number, batch in sorted(self._batches.items()):
            if not batch.is_settled:
                break
            numbers.append(number)
            for part in batch.parts.values():
                part.apply(Event.DELETE)
        return numbers

    def take_files(self, batches: list[int], now: float) -> list[int]:
        """Return the batches whose files are to be deleted now: `batches`, and those of `files_left`."""
        self._files += batches
        if not self._files or now < self._delete_at:
            return []
        self.deleted_at = now
        taken, self._files = self._files, []
        return taken

    def deadline(self, batch: int, now: float) -> float:
        """Return until when a batch planned now can get no message twice, unless its id is in doubt."""
        ends = (now if part.lease.expired else part.lease.end for part in (*self.undoubted, *self.parts_of(batch)))
        return min([now + self._pull_lease, *ends])

    # What there is

    def parts_of(self, batch: int) -> list[Part]:
        """Return the known parts of a batch."""
        return list(self._batches[batch].parts.values()) if batch in self._batches else []

    def footers(self, batches: Iterable[int]) -> list[Footer]:
        """Return the footers of the parts of batches, as far as they are known."""
        return [part.footer for batch in batches for part in self.parts_of(batch) if part.footer is not None]

    @property
    def undoubted(self) -> list[Part]:
        """The committed parts that are not settled, and whose ids are not in doubt."""
        return [part for part in self._unsettled() if not part.is_in_doubt]

    @property
    def uncommitted(self) -> list[int]:
        """The batches that are planned and not committed."""
        return sorted(number for number, batch in self._batches.items() if not batch.is_committed)

    @property
    def unsettled(self) -> list[int]:
        """The committed batches with acks that are not settled."""
        return sorted(n for n, batch in self._batches.items() if batch.is_committed and not batch.is_settled)

    @property
    def undeleted(self) -> list[int]:
        """The committed batches that have files in the staging area."""
        return sorted(number for number, batch in self._batches.items() if batch.is_committed)

    @property
    def has_files(self) -> bool:
        """Whether files of deleted batches are left."""
        return bool(self._files)

    @property
    def has_redelivered(self) -> bool:
        """Whether acks of redeliveries are not answered."""
        return self._is_redelivery_sent or bool(self._redelivered)

    def is_settled(self, now: float) -> bool:
        """Return whether no message is leased for this query, as far as the driver knows."""
        return not (self.has_redelivered or self.uncommitted or self.unsettled) and self.leased_until <= now

    @property
    def has_unsettled_keys(self) -> bool:
        """Whether acks of messages with ordering keys are left, which may hold back later messages."""
        return any(part.has_keys for part in self._unsettled())

    @property
    def is_paused(self) -> bool:
        """Whether acks are due later."""
        return any(part.state is State.PAUSED for part in self._unsettled())

    def is_finished(self, most: int, until: float) -> bool:
        """Return whether at most `most` committed batches are left, or no ack is due before `until`."""
        if len(self.undeleted) <= most and not self.has_redelivered:
            return True
        is_due = any(part.state is not State.PAUSED or part.send_at <= until for part in self._unsettled())
        return not (self.has_redelivered or is_due or self.is_deletable)

    @property
    def is_deletable(self) -> bool:
        return bool(self._batches) and self._batches[min(self._batches)].is_settled

    @property
    def reads(self) -> set[str]:
        """The files that planned batches read."""
        return {path for batch in self._batches.values() if not batch.is_committed for path in batch.reads}

    def is_due(self, now: float) -> bool:
        """Return whether acks are due."""
        return bool(self._redelivered) or self._due(now) is not None

    def _due(self, now: float) -> Part | None:
        first = next((part.batch for part in self._unsettled()), None)
        for part in self._unsettled():
            if part.state is not State.SENDING and part.send_at <= now and (part.batch == first or not part.has_keys):
                return part
        return None

    def _unsettled(self) -> Iterator[Part]:
        return (part for part in self._all() if part.state in UNSETTLED)

    def _all(self) -> Iterator[Part]:
        for _, batch in sorted(self._batches.items()):
            yield from batch.parts.values()

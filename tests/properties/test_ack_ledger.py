"""The promise of the ack ledger, tested with hypothesis: it holds whatever happens in any order.

The machine acts as the threads of a run and the tasks. The model is the service's side: when the lease of each
part really ends, and the acks that it has accepted in time. The ledger learns of it only through its own events.

    - nothing is sent or deleted before its commit, and no part that was staged after it
    - batches are deleted in their order, each once
    - ids in doubt are only those of committed batches
    - a deleted message that may be delivered again is in doubt
    - until its deadline a plan excludes every message that may be delivered again, and its deadline is not too soon
    - a redelivery of a row is in doubt when it arrives, so it is no row again
    - a lease that the ledger counts on has not ended
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pubsub_spark.read.driver.in_doubt import InDoubt
from pubsub_spark.read.driver.ledger import UNSETTLED, AckLedger, Part, State
from pubsub_spark.read.pull.lease import LEASE_SECONDS, STREAM_LEASE_SECONDS, Lease, Redelivered
from pubsub_spark.read.staging.ids import Digests, IdSet, digests, is_in, merged
from pubsub_spark.read.staging.part import Footer

NO_IDS = pa.array([], pa.string())
FOOTER = Footer(rows=1, bytes=1, dropped=0, ended="full", oldest=None, messages_length=0, receipts_lengths=())

Key = tuple[int, int]


@dataclass
class Served:
    """The messages of a part on the service's side: when their lease ends, whether they were acknowledged in time."""

    ends: float
    acked: bool = False


def ids_of(key: Key) -> Digests:
    return merged([digests(pa.array([f"{key[0]}-{key[1]}"]))])


class LedgerMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 1000.0
        self.batch = 0
        self.ledger = AckLedger(STREAM_LEASE_SECONDS, InDoubt("in-doubt/1-"))
        self.served: dict[Key, Served] = {}
        self.staged: dict[int, set[int]] = {}  # in the staging area
        self.committed: set[int] = set()
        self.rows: set[Key] = set()  # of committed batches
        self.deleted: list[int] = []
        self.sending: list[Part] = []
        self.extending: list[tuple[Part, float, bool]] = []
        self.listing: list[int] = []

    def key(self, part: Part) -> Key:
        return part.batch, part.number

    # Spark's calls

    @precondition(lambda self: len(self.committed) == self.batch)
    @rule(waited=st.sampled_from([0, 10, 50]), is_replay=st.booleans())
    def plan(self, waited: int, is_replay: bool) -> None:
        """Put ids in doubt and plan a batch, whose driver part was buffered for so long."""
        self.doubt()
        self.batch += 1
        self.ledger.plan(self.batch, self.now, is_replay=is_replay)
        lease = None if is_replay else Lease(self.now - waited, STREAM_LEASE_SECONDS)
        self.served[self.batch, 0] = Served(self.now if lease is None else lease.end)
        self.staged[self.batch] = {0}
        assert self.ledger.stage(self.batch, 0, 10, FOOTER, lease)
        deadline = self.ledger.deadline(self.batch, self.now)
        ends = self.served[self.batch, 0].ends
        assert min(self.now + STREAM_LEASE_SECONDS / 2, ends) <= deadline
        assert deadline <= ends or is_replay
        for key in self.rows:
            served = self.served[key]
            assert served.acked or served.ends >= deadline or self.is_in_doubt(key)

    @precondition(lambda self: self.batch > 0)
    @rule(number=st.integers(1, 3), age=st.integers(0, 1))
    def stage(self, number: int, age: int) -> None:
        """A task stages a part of the current batch, or a dead one of the batch before."""
        batch = max(1, self.batch - age)
        if batch in self.staged and (batch, number) not in self.served:
            self.staged[batch].add(number)
            self.served[batch, number] = Served(self.now + STREAM_LEASE_SECONDS)
            assert batch not in self.committed or not self.ledger.stage(batch, number, 10)

    @precondition(lambda self: len(self.committed) < self.batch)
    @rule(lost=st.sampled_from([None, None, 0, 1, 2]))
    def commit(self, lost: int | None) -> None:
        """Spark commits the current batch. A part of it may be gone."""
        known = {part.number for part in self.ledger.parts_of(self.batch)}
        self.staged[self.batch] -= {lost}
        gone = self.ledger.commit(self.batch, dict.fromkeys(self.staged[self.batch], (10, FOOTER)))
        assert sorted(known - self.staged[self.batch]) == gone
        self.committed.add(self.batch)
        self.rows |= {(self.batch, number) for number in self.staged[self.batch]}

    def doubt(self) -> None:
        """Put ids in doubt, as each look at the driver stream does."""
        for part in self.ledger.take_doubtful(self.now):
            self.ledger.doubt(part, ids_of(self.key(part)), self.now)

    @precondition(lambda self: self.rows)
    @rule(index=st.integers(0, 99), answer=st.sampled_from(["accepted", "late", "lost"]))
    def redeliver(self, index: int, answer: str) -> None:
        """A message of a committed batch is delivered again, and acknowledged at once."""
        keys = sorted(key for key in self.rows if not self.served[key].acked and self.now >= self.served[key].ends)
        if not keys:
            return
        key = keys[index % len(keys)]
        self.doubt()
        assert self.is_in_doubt(key), "it would be a row again"
        lease = Lease(self.now, STREAM_LEASE_SECONDS)
        self.served[key].ends = lease.end
        receipts = pa.record_batch({"ack_id": ["x"], "message_id": [f"{key[0]}-{key[1]}"]})
        redelivered = Redelivered(lease, receipts, has_keys=False)
        self.ledger.redelivered(redelivered)
        assert [redelivered] == self.ledger.take_redelivered()
        accepted = answer == "accepted"
        self.served[key].acked = accepted
        ids, none = ids_of(key), merged([])
        self.ledger.redelivered_answered(*((ids, none) if accepted else (none, ids)), self.now)
        self.ledger.in_doubt.compact(self.now)
        assert accepted or self.is_in_doubt(key)

    @precondition(lambda self: self.ledger.is_settled and all(self.served[key].acked for key in self.rows))
    @rule()
    def drain(self) -> None:
        self.ledger.in_doubt.drained(self.now)

    # The ack worker

    @precondition(lambda self: self.committed)
    @rule()
    def take_acks(self) -> None:
        while (part := self.ledger.take_acks(self.now)) is not None:
            assert self.key(part) in self.rows, "only rows of committed batches are acknowledged"
            assert part.state is State.SENDING
            assert part not in self.sending, "one thread at a time sends the acks of a part"
            self.sending.append(part)

    @precondition(lambda self: self.sending)
    @rule(answer=st.sampled_from(["accepted", "refused", "unanswered", "gone"]), index=st.integers(0, 9))
    def answer_acks(self, answer: str, index: int) -> None:
        part = self.sending.pop(index % len(self.sending))
        key = self.key(part)
        if answer == "unanswered":
            self.ledger.pause(part, self.now + 1)
            return
        if answer == "gone":  # its receipts cannot be read, so its ids are unknown
            self.rows.discard(key)
            self.ledger.settle(part)
            return
        if answer == "accepted" and self.now < self.served[key].ends:
            self.served[key].acked = True
        refused = pa.array(["x"]) if answer == "refused" else NO_IDS
        self.ledger.record_acks(part, 1, NO_IDS, refused)
        if answer == "refused" or self.ledger.is_doubtful(part, self.now):
            self.ledger.doubt(part, ids_of(key), self.now)
        self.ledger.settle(part)

    @precondition(lambda self: self.committed)
    @rule()
    def delete(self) -> None:
        batches = self.ledger.deletable()
        for batch in batches:
            assert batch in self.committed
            assert batch == len(self.deleted) + 1, "batches are deleted in their order, each once"
            self.deleted.append(batch)
            del self.staged[batch]
        self.ledger.deleted(batches)
        assert not set(batches) & set(self.ledger.undeleted)

    # The lease extender

    @precondition(lambda self: self.ledger.uncommitted)
    @rule()
    def list_parts(self) -> None:
        batch = self.ledger.take_listing(self.now)
        if batch is not None:
            assert batch not in self.committed
            self.listing.append(batch)

    @precondition(lambda self: self.listing)
    @rule()
    def listed(self) -> None:
        batch = self.listing.pop()
        for number in self.staged.get(batch, ()):
            is_known = self.ledger.stage(batch, number, 10)
            assert is_known == (batch not in self.committed)
        self.ledger.listed(batch, self.now)

    @precondition(lambda self: self.batch > 0)
    @rule(granted=st.booleans(), took=st.sampled_from([0, 5, 50, None]), is_lost=st.booleans())
    def extend(self, granted: bool, took: int | None, is_lost: bool) -> None:
        """Send extensions, which the service may grant though its answer is lost or late."""
        while (part := self.ledger.take_extension(self.now, in_memory=False)) is not None:
            assert part not in [each for each, _, _ in self.extending], "one thread at a time extends a lease"
            served = self.served[self.key(part)]
            if granted and self.now < served.ends:
                served.ends = max(served.ends, self.now + LEASE_SECONDS)
            self.extending.append((part, self.now, granted))
        self.now += took or 0
        while took is not None and self.extending:
            self.extended(0, is_lost)

    @precondition(lambda self: self.extending)
    @rule(index=st.integers(0, 9), is_lost=st.booleans())
    def extended(self, index: int, is_lost: bool) -> None:
        part, sent, granted = self.extending.pop(index % len(self.extending))
        refused = None if is_lost else not granted or self.served[self.key(part)].ends < sent + LEASE_SECONDS
        self.ledger.extended(part, sent, self.now, refused)

    # Time

    @rule(seconds=st.sampled_from([1, 14, 16, 31, 61, 150, 601]))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    # The promise

    def is_in_doubt(self, key: Key) -> bool:
        return bool(is_in(ids_of(key), self.doubted())[0])

    def doubted(self) -> list[IdSet]:
        return [run.ids for run in self.ledger.in_doubt.runs]

    @invariant()
    def lease_that_the_ledger_counts_on_has_not_ended(self) -> None:
        for batch in (*self.ledger.uncommitted, *self.ledger.undeleted):
            for part in self.ledger.parts_of(batch):
                if not part.lease.is_expired(self.now):
                    assert self.now < self.served[self.key(part)].ends

    @invariant()
    def ids_in_doubt_are_of_committed_batches(self) -> None:
        for key in self.served.keys() - self.rows:
            assert key[0] in self.committed or not self.is_in_doubt(key)
        assert all(run.batch in self.committed for run in self.ledger.in_doubt.runs)

    @invariant()
    def settled_message_is_acknowledged_or_in_doubt(self) -> None:
        for key in self.rows:
            parts = {part.number: part for part in self.ledger.parts_of(key[0])}
            if key[0] in self.deleted or parts[key[1]].state not in UNSETTLED:
                assert self.served[key].acked or self.is_in_doubt(key)

    @invariant()
    def every_ack_is_due_until_it_is_settled(self) -> None:
        waiting = [part for n in self.ledger.undeleted for part in self.ledger.parts_of(n) if part.state in UNSETTLED]
        idle = [part for part in waiting if part not in self.sending]
        assert bool(idle) == self.ledger.is_due(self.now + 2)
        assert sorted({part.batch for part in waiting}) == self.ledger.unsettled


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)

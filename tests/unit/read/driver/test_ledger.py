"""The ack ledger: states, leases, ids in doubt, and due requests. Pure."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from pubsub_spark.read.driver.in_doubt import DOUBT_SECONDS, InDoubt
from pubsub_spark.read.driver.ledger import TRANSITIONS, AckLedger, Event, LedgerError, Part, State
from pubsub_spark.read.pull.lease import (
    LEASE_SECONDS,
    STREAM_LEASE_SECONDS,
    Lease,
    Redelivered,
    pull_lease_seconds,
)
from pubsub_spark.read.staging.ids import digests, merged
from pubsub_spark.read.staging.part import Footer

FOOTER = Footer(rows=2, bytes=20, dropped=0, ended="full", oldest=None, messages_length=0, receipts_lengths=())
NO_IDS = pa.array([], pa.string())
PULL_LEASE = 60.0


def ledger() -> AckLedger:
    return AckLedger(PULL_LEASE, InDoubt("in-doubt/1-"))


def committed(*batches: int, now: float = 0.0) -> AckLedger:
    """Return a ledger of committed batches with a part 1 each, planned at `now`."""
    made = ledger()
    for batch in batches:
        made.plan(batch, now)
        made.commit(batch, {1: (10, FOOTER)})
    return made


def settle(made: AckLedger, now: float = 0.0) -> Part:
    """Take the next part that is due and settle it."""
    part = made.take_acks(now)
    assert part is not None
    made.record_acks(part, 2, NO_IDS, NO_IDS)
    made.settle(part)
    return part


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_an_event_that_the_table_does_not_have_is_an_error(state: State, event: Event) -> None:
    """Every pair of state and event is a transition of the table, or an error that changes nothing."""
    part = Part(1, 1, 10, Lease(0, PULL_LEASE), state=state)
    if (state, event) in TRANSITIONS:
        part.apply(event)
        assert TRANSITIONS[state, event] is part.state
    else:
        with pytest.raises(LedgerError):
            part.apply(event)
        assert state is part.state


@pytest.mark.parametrize("parts", [{}, {1: (10, FOOTER)}])
def test_second_commit_of_a_batch_is_an_error(parts: dict[int, tuple[int, Footer]]) -> None:
    """Also of one without parts."""
    made = ledger()
    made.plan(1, 0)
    made.commit(1, parts)

    with pytest.raises(LedgerError):
        made.commit(1, parts)


def test_deletion_of_a_batch_with_acks_is_an_error() -> None:
    """Only parts in DELETING are forgotten."""
    made = ledger()
    made.plan(1, 0)
    made.commit(1, {1: (10, FOOTER)})

    with pytest.raises(LedgerError):
        made.deleted([1])


def test_nothing_is_acknowledged_before_the_commit() -> None:
    """A staged part has no acks that are due, however late it is."""
    made = ledger()
    made.plan(1, 0)
    made.stage(1, 1, 10)

    assert made.take_acks(10_000) is None
    assert not made.is_due(10_000)

    made.commit(1, {1: (10, FOOTER)})

    assert made.is_due(0)
    part = made.take_acks(0)
    assert part is not None
    assert (1, 1) == (part.batch, part.number)


def test_the_commit_fixes_the_parts_of_its_batch() -> None:
    """A part that is staged after the commit has no state and is never acknowledged."""
    made = committed(1)

    assert not made.stage(1, 2, 10)
    assert [1] == [part.number for part in made.parts_of(1)]


def test_a_part_that_is_gone_at_the_commit_is_reported() -> None:
    """A staged part that the listing at the commit does not have is not acknowledged."""
    made = ledger()
    made.plan(1, 0)
    made.stage(1, 1, 10)
    made.stage(1, 2, 10)

    assert [2] == made.commit(1, {1: (10, FOOTER)})
    assert [1] == [part.number for part in made.parts_of(1)]


def test_a_part_is_sent_by_one_thread() -> None:
    """A part that is being sent is not due. Paused, it is due at its time."""
    made = committed(1)
    part = made.take_acks(0)
    assert part is not None
    assert made.take_acks(0) is None

    made.pause(part, 5)

    assert made.take_acks(4) is None
    assert part is made.take_acks(5)


def test_batches_are_deleted_in_their_order() -> None:
    """A settled batch is kept as long as one before it is not settled."""
    made = committed(1, 2)
    first, second = made.take_acks(0), made.take_acks(0)
    assert first is not None
    assert second is not None
    made.settle(second)

    assert [] == made.deletable()

    made.settle(first)

    assert [1, 2] == made.deletable()
    made.deleted([1, 2])
    assert [] == made.undeleted


def test_a_batch_is_deleted_by_one_thread() -> None:
    """A batch that is being deleted cannot be taken again: its parts have no such transition."""
    made = committed(1)
    settle(made)
    assert [1] == made.deletable()
    assert [State.DELETING] == [part.state for part in made.parts_of(1)]
    with pytest.raises(LedgerError):
        made.deletable()
    made.deleted([1])
    assert [] == made.deletable()


def test_files_that_could_not_be_deleted_are_due_later_with_those_of_others():
    made = ledger()
    assert [1, 2] == made.take_files([1, 2], 10.0)
    made.files_left([1, 2], until=70.0)
    assert ([], True) == (made.take_files([3], 69.0), made.has_files)
    assert ([1, 2, 3], False) == (made.take_files([], 70.0), made.has_files)


def test_a_lease_is_extended_after_a_quarter() -> None:
    """An extension is due after a quarter of the lease, again a second after it was not answered, and is taken once."""
    made = ledger()
    made.plan(1, 0)
    made.stage(1, 0, 10, FOOTER, Lease(0, PULL_LEASE))
    assert made.take_extension(14, in_memory=False) is None

    part = made.take_extension(15, in_memory=False)

    assert part is not None
    assert made.take_extension(15, in_memory=False) is None
    made.extended(part, 15, 16, None)
    assert made.take_extension(16, in_memory=False) is None
    assert part is made.take_extension(17, in_memory=False)
    made.extended(part, 17, 18, False)
    assert Lease(17, LEASE_SECONDS) == part.lease
    assert made.take_extension(160, in_memory=False) is None


def test_planned_batches_are_listed() -> None:
    """A batch is listed a quarter of a lease after it was planned, because tasks report nothing."""
    made = ledger()
    made.plan(1, 0)
    assert made.take_listing(14) is None
    assert 1 == made.take_listing(15)
    assert made.take_listing(15) is None
    made.listed(1, 15)
    assert 1 == made.take_listing(30)


def test_ids_of_a_committed_part_are_in_doubt_before_its_lease_ends() -> None:
    """The next batch excludes messages that may be redelivered while it is pulled. No uncommitted part is in doubt."""
    made = committed(1)
    made.plan(2, 0)
    made.stage(2, 0, 10)
    assert [] == made.take_doubtful(29)

    [part] = made.take_doubtful(30)

    assert 1 == part.batch
    made.doubt(part, merged([digests(pa.array(["a", "b"]))]), 30)
    assert [] == made.take_doubtful(31)
    assert [2] == [run.count for run in made.in_doubt.runs]


def test_acks_in_time_are_not_in_doubt_however_long_tasks_pull() -> None:
    """Tasks that pull past the deadline of their plan look for themselves."""
    made = AckLedger(pull_lease_seconds(240.0), InDoubt("in-doubt/1-"))
    made.plan(1, 0)
    made.stage(1, 0, 10, FOOTER, Lease(0, STREAM_LEASE_SECONDS), outstanding=1)
    made.commit(1, {0: (10, FOOTER)})

    assert [] == made.take_doubtful(1)


def test_the_deadline_is_the_first_end_of_a_lease_that_is_not_in_doubt() -> None:
    """A plan is complete until a lease of a message ends that it does not exclude."""
    made = committed(1, now=0)
    assert 60 == made.deadline(2, 20)
    [part] = made.take_doubtful(40)
    made.doubt(part, np.empty((2, 0), np.uint64), 40)
    assert 100 == made.deadline(2, 40)


def test_the_deadline_knows_the_lease_of_the_driver_part() -> None:
    """Its messages may be delivered to a task of the same batch then."""
    made = ledger()
    made.plan(1, 50)
    made.stage(1, 0, 10, lease=Lease(20, 60))
    assert 80 == made.deadline(1, 50)
    made = ledger()
    made.plan(1, 50)
    made.stage(1, 0, 10, lease=Lease(20, 60, expired=True))
    assert 50 == made.deadline(1, 50)


def test_messages_whose_acks_were_refused_are_leased() -> None:
    """Until their lease ends they count for flow control: silence proves no empty subscription."""
    made = committed(1, now=0)
    part = made.take_acks(10)
    assert part is not None
    made.doubt(part, merged([digests(pa.array(["a"]))]), 10)
    made.settle(part)
    assert [False, True] == [made.is_settled(now) for now in (59.0, 60.0)]


def test_a_query_is_settled_when_it_holds_no_lease() -> None:
    """Neither of a redelivery whose ack is not answered, nor of a batch that is not committed or not acknowledged."""
    made, nothing = ledger(), np.empty((2, 0), np.uint64)
    assert made.is_settled(0)
    receipts = pa.record_batch({"ack_id": ["x"], "message_id": ["a"]})
    made.redelivered(Redelivered(Lease(0, PULL_LEASE), receipts, has_keys=False))
    assert not made.is_settled(0)
    made.take_redelivered()
    assert made.has_redelivered and not made.is_settled(0)
    made.redelivered_answered(nothing, nothing, 0)
    assert made.is_settled(0) and not made.has_redelivered
    made.plan(1, 50)
    assert not made.is_settled(50)
    made.commit(1, {1: (10, FOOTER)})
    assert not made.is_settled(50)
    settle(made, 50)
    assert made.is_settled(50)


def test_a_redelivery_whose_ack_failed_holds_back_others_until_it_comes_again() -> None:
    """Until then a quiet subscription of ordering keys is not drained: the longest lease and back-off."""
    made, nothing = ledger(), np.empty((2, 0), np.uint64)
    receipts = pa.record_batch({"ack_id": ["x"], "message_id": ["a"]})
    made.redelivered(Redelivered(Lease(0, 50), receipts, has_keys=False))
    made.take_redelivered()
    made.redelivered_answered(nothing, merged([digests(pa.array(["a"]))]), 10)
    made.redelivered_answered(nothing, nothing, 20)
    assert [False, True] == [made.is_settled(now) for now in (1209.0, 1210.0)]


def test_the_leases_of_a_replay_have_ended() -> None:
    """The leases of a batch that an earlier run staged are unknown, so its ids are in doubt once it is committed."""
    made = ledger()
    made.plan(1, 0, is_replay=True)
    made.commit(1, {1: (10, FOOTER)})
    [part] = made.take_doubtful(0)
    assert made.is_doubtful(part, 0)


def test_a_flush_waits_for_acks_and_redeliveries() -> None:
    """A flush is over when nothing is left, or nothing left is due within its time."""
    made = committed(1)
    assert not made.is_finished(0, 5)
    assert made.is_finished(1, 5)
    part = made.take_acks(0)
    assert part is not None
    made.pause(part, 60)
    assert made.is_finished(0, 5)
    receipts = pa.record_batch({"ack_id": ["x"], "message_id": ["a"]})
    redelivered = Redelivered(Lease(0, PULL_LEASE), receipts, has_keys=False)
    made.redelivered(redelivered)
    assert not made.is_finished(1, 5)
    assert [redelivered] == made.take_redelivered()
    assert not made.is_finished(1, 5)
    made.redelivered_answered(np.empty((2, 0), np.uint64), np.empty((2, 0), np.uint64), 0)
    assert made.is_finished(1, 5)
    assert 1 == made.redeliveries


def test_doubt_spreads_to_later_messages_of_a_key() -> None:
    """Pub/Sub delivers a message again with all later ones of its key, so these wait and are in doubt as well."""
    made, late = ledger(), PULL_LEASE
    for batch in (1, 2, 3):
        made.plan(batch, 0)
        made.commit(batch, {1: (10, FOOTER if batch == 3 else replace(FOOTER, has_keys=True))})
    first, third = made.take_acks(0), made.take_acks(0)
    assert first is not None
    assert third is not None
    assert (1, 3) == (first.batch, third.batch)
    assert made.take_acks(0) is None
    made.doubt(first, merged([digests(pa.array(["a"]))]), late)
    made.settle(first)

    second = made.take_acks(late)

    assert second is not None
    assert made.doubts_others(second)
    assert not made.doubts_others(third)


@pytest.mark.parametrize(("is_sending", "expired"), [(False, True), (True, False)])
def test_extension_that_is_refused_while_acks_are_sent_says_nothing(is_sending: bool, expired: bool) -> None:
    """With exactly-once delivery the ids may have been acknowledged meanwhile."""
    made = ledger()
    made.plan(1, 0)
    made.commit(1, {1: (10, FOOTER)})
    part = made.take_extension(20, in_memory=False)
    assert part is not None
    if is_sending:
        made.take_acks(20)
    made.extended(part, 20, 21, refused=True)

    assert expired == part.lease.is_expired(21)
    assert (22 if expired else 21 + PULL_LEASE / 4) == part.extend_at


def test_doubt_that_has_spread_spreads_no_further() -> None:
    """Else all later messages with keys would be in doubt, for as long as there are some."""
    made = ledger()
    parts = [with_keys(made, 1, 0)]
    made.doubt(parts[0], merged([digests(pa.array(["a"]))]), PULL_LEASE)  # it is late
    made.settle(parts[0])
    for batch, now in enumerate((100.0, 1000.0), 2):
        parts.append(with_keys(made, batch, PULL_LEASE + now))
        assert made.doubts_others(parts[-1])
        made.doubt(parts[-1], merged([digests(pa.array(["b"]))]), PULL_LEASE + now)
        made.settle(parts[-1])

    assert not made.doubts_others(with_keys(made, 4, PULL_LEASE + DOUBT_SECONDS))
    assert made.doubts_others(parts[1]), "a batch may take longer than that"


def test_doubt_that_spreads_from_a_part_that_was_in_doubt_because_of_others() -> None:
    """Its own lease ends before its acks are answered, so it is sent again with the later messages of its keys."""
    made, until = ledger(), PULL_LEASE + DOUBT_SECONDS
    first = with_keys(made, 1, 0)
    made.doubt(first, merged([digests(pa.array(["a"]))]), PULL_LEASE)
    made.settle(first)
    second = with_keys(made, 2, until - 1)
    made.doubt(second, merged([digests(pa.array(["b"]))]), until - 1)
    later = with_keys(made, 3, until)
    later.lease = Lease(until, LEASE_SECONDS)

    assert later not in made.take_doubtful(until)
    assert later in made.take_doubtful(until + PULL_LEASE)


def with_keys(made: AckLedger, batch: int, now: float) -> Part:
    """Plan and commit a batch of messages with ordering keys. Returns its part, in the state SENDING if it is first."""
    made.plan(batch, now)
    made.commit(batch, {1: (10, replace(FOOTER, has_keys=True))})
    made.take_acks(now)
    return made.parts_of(batch)[0]

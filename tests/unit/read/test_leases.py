"""Leases: what may be acknowledged, what must be extended, what is dropped when it comes again. Time in hand."""

import pyarrow as pa

from pubsub_spark.read.leases import LEASE, STREAM_LEASE, WATCH, Lease, Leases


def test_nothing_is_acknowledged_before_its_commit():
    """A batch leaves towards an ack when it is committed, and not when its neighbour is."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.announce(2, now=0)

    assert [] == leases.commit(0)
    assert [1] == leases.commit(1)
    assert [2] == leases.held
    assert [1] == leases.unacknowledged


def test_commit_names_each_batch_once():
    """A commit that is heard of twice acknowledges once."""
    leases = Leases()
    leases.announce(1, now=0)

    assert [1] == leases.commit(3)
    assert [] == leases.commit(3)


def test_commit_of_many_comes_in_order():
    """Batches that were left by an earlier run are acknowledged oldest first."""
    leases = Leases()
    for batch in (3, 1, 2):
        leases.announce(batch, now=0)

    assert [1, 2] == leases.commit(2)


def test_committed_batch_is_not_held_again():
    """A batch whose acks are under way does not go back to those that wait for a commit."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.commit(1)
    leases.announce(1, now=5)

    assert [] == leases.held


def test_acknowledged_batch_is_forgotten():
    """When the service has taken the acks, nothing is left to do for the batch."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.commit(1)
    leases.acknowledged(1)

    assert [] == leases.unacknowledged


def test_short_batch_is_not_watched():
    """Most batches are committed long before their leases run out, and cost nothing."""
    leases = Leases()
    leases.announce(1, now=100)

    assert [] == leases.watched(100 + WATCH - 1)
    assert [1] == leases.watched(100 + WATCH)


def test_lease_is_due_at_a_quarter_of_its_time():
    """There is time for an extension that fails and one more."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.found(1, 2, Lease(0, STREAM_LEASE))

    assert [] == leases.due(WATCH - 1)
    assert [(1, 2)] == leases.due(WATCH)


def test_extended_lease_lasts():
    """After an extension the longest lease runs, from then on."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.found(1, 0, Lease(0, STREAM_LEASE))
    leases.extended(1, 0, since=40, now=41)

    assert [] == leases.due(40 + LEASE / 4 - 1)
    assert [(1, 0)] == leases.due(40 + LEASE / 4)


def test_part_is_found_once():
    """A second look at the staging area does not make a lease look younger or older."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.found(1, 0, Lease(0, STREAM_LEASE))
    leases.extended(1, 0, since=40, now=41)
    leases.found(1, 0, Lease(0, STREAM_LEASE))

    assert [] == leases.due(60)


def test_committed_batch_is_extended_until_it_is_acknowledged():
    """Acks may go unanswered for longer than the lease has left."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.found(1, 0, Lease(0, STREAM_LEASE))
    leases.commit(1)

    assert [1] == leases.watched(WATCH)
    assert [(1, 0)] == leases.due(WATCH)
    leases.extended(1, 0, since=WATCH, now=WATCH)
    assert not leases.is_late(1, 0, now=STREAM_LEASE)
    leases.acknowledged(1)
    assert ([], []) == (leases.watched(1000), leases.due(1000))


def test_acks_that_take_longer_than_the_lease_are_overdue():
    """Who plans the next batch must look at what they are for."""
    leases = Leases()
    leases.announce(1, now=100)
    assert [] == leases.overdue(100 + STREAM_LEASE)
    leases.commit(1)

    assert [] == leases.overdue(100 + STREAM_LEASE - 1)
    assert [1] == leases.overdue(100 + STREAM_LEASE)


def test_door_says_when_its_part_was_leased():
    """Its messages had come before the batch was announced: their lease is older than those of the other parts."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.found(1, 0, Lease(-20, STREAM_LEASE))

    assert [(1, 0)] == leases.due(WATCH - 20)
    assert leases.is_late(1, 0, now=STREAM_LEASE - 20)


def test_batch_that_was_acknowledged_in_this_moment():
    """Who looked at it just before tells of its parts in vain, and may take them for late, but not for held."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.commit(1)
    leases.acknowledged(1)
    leases.found(1, 0)
    leases.extended(1, 0, since=WATCH, now=WATCH)

    assert [] == leases.due(now=1000)
    assert leases.is_late(1, 0, now=WATCH)


def test_refused_extension_is_late():
    """What the service does not extend comes again, whatever the clock says."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.extended(1, 0, since=WATCH, now=WATCH, refused=True)

    assert leases.is_late(1, 0, now=WATCH)


def test_ack_within_the_lease_is_in_time():
    """An ack that the service cannot have refused for its age leaves nothing to remember."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.found(1, 0, Lease(0, STREAM_LEASE))
    leases.commit(1)

    assert not leases.is_late(1, 0, now=STREAM_LEASE - 1)
    assert leases.is_late(1, 0, now=STREAM_LEASE)


def test_ack_of_an_unknown_part_is_late_by_its_announcement():
    """Tasks do not report when they pulled; the batch's announcement is the earliest that it can have been."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.commit(1)

    assert not leases.is_late(1, 5, now=STREAM_LEASE - 1)
    assert leases.is_late(1, 5, now=STREAM_LEASE)


def test_long_batch_that_is_committed_while_it_is_looked_after_is_in_time():
    """A part that was looked up and not extended yet is as old as its announcement, not older."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.found(1, 3)

    assert [(1, 3)] == leases.due(WATCH)
    leases.commit(1)
    assert not leases.is_late(1, 3, now=WATCH + 2)
    leases.extended(1, 3, since=WATCH, now=WATCH + 1)
    assert not leases.is_late(1, 3, now=STREAM_LEASE)


def test_lease_that_was_extended_too_late_stays_late():
    """The machine slept, or the service did not answer: what came again in between is a redelivery."""
    leases = Leases()
    leases.announce(1, now=0)
    leases.found(1, 3)
    leases.extended(1, 3, since=WATCH, now=STREAM_LEASE)
    leases.extended(1, 3, since=LEASE / 2, now=LEASE / 2)

    assert leases.is_late(1, 3, now=LEASE / 2)


def test_remembered_for_the_longest_lease():
    """An id is dropped for as long as its old lease may bring it again, and no longer."""
    leases = Leases()
    leases.remember(pa.array(["a"]), now=0)
    leases.remember(pa.array(["b", "c"]), now=100)
    leases.remember(pa.array([], pa.string()), now=100)

    for now, left in [(LEASE - 1, ["a", "b", "c"]), (LEASE, ["b", "c"]), (LEASE + 100, [])]:
        leases.forget(now)
        assert left == leases.remembered.to_pylist()

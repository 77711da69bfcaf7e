"""Leases: which batches may be acknowledged, which parts must be extended. The test sets the time."""

from pubsub_spark.read.leases import TRACK_AFTER_SECONDS, Leases
from pubsub_spark.read.pull.lease import LEASE_SECONDS, STREAM_LEASE_SECONDS, Lease


def test_nothing_is_acknowledged_before_its_commit():
    """A batch is to be acknowledged when it is committed itself, not when another one is."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.plan(2, now=0)

    assert [] == leases.commit(0)
    assert [1] == leases.commit(1)
    assert [2] == leases.uncommitted
    assert [1] == leases.unacknowledged


def test_commit_names_each_batch_once():
    """A batch that is committed twice is acknowledged once."""
    leases = Leases()
    leases.plan(1, now=0)

    assert [1] == leases.commit(3)
    assert [] == leases.commit(3)


def test_commit_of_many_comes_in_order():
    """Batches of an earlier run are acknowledged oldest first."""
    leases = Leases()
    for batch in (3, 1, 2):
        leases.plan(batch, now=0)

    assert [1, 2] == leases.commit(2)


def test_committed_batch_is_not_uncommitted_again():
    """A batch whose acks are in flight does not wait for a commit again."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.commit(1)
    leases.plan(1, now=5)

    assert [] == leases.uncommitted


def test_acknowledged_batch_is_removed():
    """When the service has taken the acks, nothing is left to do for the batch."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.commit(1)
    leases.record_acknowledged(1)

    assert [] == leases.unacknowledged


def test_short_batch_is_not_tracked():
    """Most batches are committed long before their leases expire, and need no tracking."""
    leases = Leases()
    leases.plan(1, now=100)

    assert [] == leases.to_track(100 + TRACK_AFTER_SECONDS - 1)
    assert [1] == leases.to_track(100 + TRACK_AFTER_SECONDS)


def test_lease_is_due_at_a_quarter_of_its_time():
    """A lease is due at a quarter of its time, so that an extension may fail and be tried again."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.track(1, 2, Lease(0, STREAM_LEASE_SECONDS))

    assert [] == leases.due(TRACK_AFTER_SECONDS - 1)
    assert [(1, 2)] == leases.due(TRACK_AFTER_SECONDS)


def test_extended_lease_lasts():
    """After an extension the longest lease runs, from then on."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.track(1, 0, Lease(0, STREAM_LEASE_SECONDS))
    leases.record_extension(1, 0, sent=40, answered=41)

    assert [] == leases.due(40 + LEASE_SECONDS / 4 - 1)
    assert [(1, 0)] == leases.due(40 + LEASE_SECONDS / 4)


def test_part_is_tracked_once():
    """Listing the staging area again makes no lease look younger or older."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.track(1, 0, Lease(0, STREAM_LEASE_SECONDS))
    leases.record_extension(1, 0, sent=40, answered=41)
    leases.track(1, 0, Lease(0, STREAM_LEASE_SECONDS))

    assert [] == leases.due(60)


def test_committed_batch_is_extended_until_it_is_acknowledged():
    """Acks may go unanswered for longer than the lease has left."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.track(1, 0, Lease(0, STREAM_LEASE_SECONDS))
    leases.commit(1)

    assert [1] == leases.to_track(TRACK_AFTER_SECONDS)
    assert [(1, 0)] == leases.due(TRACK_AFTER_SECONDS)
    leases.record_extension(1, 0, sent=TRACK_AFTER_SECONDS, answered=TRACK_AFTER_SECONDS)
    assert not leases.is_expired(1, 0, now=STREAM_LEASE_SECONDS)
    leases.record_acknowledged(1)
    assert ([], []) == (leases.to_track(1000), leases.due(1000))


def test_lease_expires_while_acks_are_in_flight():
    """Committed batches whose acks take longer than the lease are expired; batches that are not committed are not."""
    leases = Leases()
    leases.plan(1, now=100)
    assert [] == leases.expired(100 + STREAM_LEASE_SECONDS)
    leases.commit(1)

    assert [] == leases.expired(100 + STREAM_LEASE_SECONDS - 1)
    assert [1] == leases.expired(100 + STREAM_LEASE_SECONDS)


def test_driver_stream_passes_the_lease_of_its_part():
    """The driver stream's messages arrived before the batch was planned: their lease is the oldest."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.track(1, 0, Lease(-20, STREAM_LEASE_SECONDS))

    assert [(1, 0)] == leases.due(TRACK_AFTER_SECONDS - 20)
    assert leases.is_expired(1, 0, now=STREAM_LEASE_SECONDS - 20)


def test_batch_that_has_just_been_acknowledged():
    """The extender, which listed its parts just before, cannot add it again; its parts count as expired."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.commit(1)
    leases.record_acknowledged(1)
    leases.track(1, 0)
    leases.record_extension(1, 0, sent=TRACK_AFTER_SECONDS, answered=TRACK_AFTER_SECONDS)

    assert [] == leases.due(now=1000)
    assert leases.is_expired(1, 0, now=TRACK_AFTER_SECONDS)


def test_refused_extension_expires_the_lease():
    """Messages whose lease the service does not extend are delivered again, whatever the clock says."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.record_extension(1, 0, sent=TRACK_AFTER_SECONDS, answered=TRACK_AFTER_SECONDS, refused=True)

    assert leases.is_expired(1, 0, now=TRACK_AFTER_SECONDS)


def test_ack_within_the_lease_is_in_time():
    """An ack that the service cannot have refused for its age leaves no message to deduplicate."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.track(1, 0, Lease(0, STREAM_LEASE_SECONDS))
    leases.commit(1)

    assert not leases.is_expired(1, 0, now=STREAM_LEASE_SECONDS - 1)
    assert leases.is_expired(1, 0, now=STREAM_LEASE_SECONDS)


def test_untracked_part_expires_by_the_time_of_its_plan():
    """Tasks do not report when they pulled; the time when the batch was planned is the earliest possible."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.commit(1)

    assert not leases.is_expired(1, 5, now=STREAM_LEASE_SECONDS - 1)
    assert leases.is_expired(1, 5, now=STREAM_LEASE_SECONDS)


def test_long_batch_that_is_committed_before_its_extension_is_in_time():
    """The lease of a part that is tracked and not extended yet began when its batch was planned, not before."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.track(1, 3)

    assert [(1, 3)] == leases.due(TRACK_AFTER_SECONDS)
    leases.commit(1)
    assert not leases.is_expired(1, 3, now=TRACK_AFTER_SECONDS + 2)
    leases.record_extension(1, 3, sent=TRACK_AFTER_SECONDS, answered=TRACK_AFTER_SECONDS + 1)
    assert not leases.is_expired(1, 3, now=STREAM_LEASE_SECONDS)


def test_lease_that_was_extended_too_late_stays_expired():
    """The machine slept, or the service did not answer: its messages may have been delivered again in between."""
    leases = Leases()
    leases.plan(1, now=0)
    leases.track(1, 3)
    leases.record_extension(1, 3, sent=TRACK_AFTER_SECONDS, answered=STREAM_LEASE_SECONDS)
    leases.record_extension(1, 3, sent=LEASE_SECONDS / 2, answered=LEASE_SECONDS / 2)

    assert leases.is_expired(1, 3, now=LEASE_SECONDS / 2)

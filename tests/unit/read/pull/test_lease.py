"""The lease of messages, with the time in hand."""

from pubsub_spark.read.pull.lease import LEASE_SECONDS, STREAM_LEASE_SECONDS, Lease


def test_lease_is_due_after_a_quarter_of_its_time():
    """A failed extension can be sent again before the lease ends."""
    lease = Lease(100.0, STREAM_LEASE_SECONDS)

    assert (False, True) == (lease.is_due(114.9), lease.is_due(115.0))
    assert (False, True) == (lease.is_expired(159.9), lease.is_expired(160.0))


def test_extended_lease_begins_when_the_request_was_sent():
    """The service may have applied it at once, however late the answer was."""
    assert Lease(115.0, LEASE_SECONDS) == Lease(100.0, STREAM_LEASE_SECONDS).extended(115.0, 130.0, refused=False)


def test_expired_lease_stays_expired():
    """Messages that may have been delivered again are not ours alone, whatever the service says to an extension."""
    lease = Lease(100.0, STREAM_LEASE_SECONDS)
    for expired in (lease.extended(115.0, 160.0, refused=False), lease.extended(115.0, 116.0, refused=True)):
        assert expired.is_expired(116.0)
        assert expired.extended(117.0, 118.0, refused=False).is_expired(118.0)

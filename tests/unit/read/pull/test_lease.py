"""The lease of messages, with the time in hand."""

import pytest

from pubsub_spark.read.pull.lease import (
    LEASE_SECONDS,
    STANDSTILL_SECONDS,
    STREAM_LEASE_SECONDS,
    TRANSIT_SECONDS,
    Arrivals,
    Lease,
    pull_lease_seconds,
)


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


@pytest.mark.parametrize(("period", "seconds"), [(2.0, 60), (15.0, 60), (60.0, 150)])
def test_lease_of_a_task_outlasts_its_pull(period: float, seconds: int):
    """It is twice as long as a pull may take, and half a minute longer."""
    assert seconds == pull_lease_seconds(period)


def test_messages_may_have_been_leased_since_the_look_before():
    """A wait for messages on purpose is no standstill."""
    arrivals = Arrivals(100.0)
    assert 100.0 - TRANSIT_SECONDS == arrivals.look(101.0)
    assert 101.0 - TRANSIT_SECONDS == arrivals.look(160.0, waited=59.0)
    assert 160.0 - TRANSIT_SECONDS == arrivals.look(161.0)


def test_messages_may_have_been_leased_before_a_standstill():
    """The first look after it may be before gRPC has read its sockets' content."""
    arrivals = Arrivals(100.0)
    awake, before = 100.0 + 3600, 100.0 - TRANSIT_SECONDS
    assert before == arrivals.look(awake)
    assert before == arrivals.look(awake + 1)
    assert before == arrivals.look(awake + 1 + 3600), "another standstill, before the first was over"
    awake += 1 + 3600
    assert before == arrivals.look(awake + 1)
    assert awake + 1 - TRANSIT_SECONDS == arrivals.look(awake + STANDSTILL_SECONDS)

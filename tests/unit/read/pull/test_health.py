"""The health of a StreamingPull, with the time in hand."""

from pubsub_spark.read.pull.health import MAX_CREDENTIAL_FAILURES, StreamHealth


def connected(now: float = 1.0) -> StreamHealth:
    health = StreamHealth()
    health.opening(now)
    health.answered(now)
    return health


def test_idle_time_begins_with_the_connection():
    """A stream that is being opened is not idle, however long that takes."""
    health = StreamHealth()
    health.opening(1.0)
    assert (0.0, 59.0) == (health.idle_seconds(60.0), health.failing_seconds(60.0))

    health.answered(60.0)
    assert 2.0 == health.idle_seconds(62.0)


def test_response_ends_idle_time():
    """Idle time is counted from the last response."""
    health = connected()
    health.responded(10.0)
    assert 2.0 == health.idle_seconds(12.0)


def test_outage_is_not_idle_time():
    """A stream that has ended is failing, from then on, and idle again only after another has connected."""
    health = connected()
    health.failed(5.0, "UNAVAILABLE")
    health.opening(6.0)
    assert (0.0, 15.0) == (health.idle_seconds(20.0), health.failing_seconds(20.0))

    health.answered(20.0)
    assert 3.0 == health.idle_seconds(23.0)


def test_reopening_of_a_silent_stream_does_not_restart_idle_time():
    """Otherwise an idle time longer than a stream may be silent would never be over."""
    health = connected(1.0)
    for now in (121.0, 241.0, 361.0):
        health.opening(now)
        assert 0.0 == health.idle_seconds(now)
        health.answered(now)
        assert 0.5 == health.idle_seconds(now + 0.5), "messages may be on their way"
        assert now - 1.0 + health.steady == health.idle_seconds(now + health.steady)


def test_outage_and_rest_restart_idle_time():
    """A stream that was lost, or was not wanted, is idle from its next connection on."""
    for interrupt in (lambda health: health.failed(100.0, "UNAVAILABLE"), StreamHealth.rested):
        health = connected(1.0)
        interrupt(health)
        health.opening(100.5)
        health.answered(100.5)
        assert 5.0 == health.idle_seconds(105.5)


def test_stream_that_is_ended_at_once_does_not_end_an_outage():
    """Headers, then UNAVAILABLE, again and again: the outage began with the first."""
    health = connected()
    for now in (5.0, 5.5, 6.0):
        health.failed(now, "UNAVAILABLE")
        health.opening(now)
        health.answered(now + 0.25)
    assert 1.75 == health.failing_seconds(6.75)

    assert 0.0 == health.failing_seconds(6.25 + health.steady)
    health.failed(20.0, "UNAVAILABLE")
    assert 1.0 == health.failing_seconds(21.0)


def test_outage_is_told_once_and_its_end_once():
    """Not before `warn_after` seconds. The end reports how long it lasted."""
    health = connected()
    health.failed(5.0, "UNAVAILABLE")
    assert health.changed(5.0 + health.warn_after - 0.1) is None
    assert ("lost", health.warn_after) == health.changed(5.0 + health.warn_after)
    assert health.changed(100.0) is None
    health.opening(100.0)
    health.responded(105.0)
    assert ("recovered", 100.0) == health.changed(105.0)
    assert health.changed(106.0) is None


def test_short_outage_is_not_told():
    """The service ends each stream now and then, which is not reported."""
    health = connected()
    health.failed(5.0, "UNAVAILABLE")
    health.opening(5.1)
    health.responded(5.2)
    assert health.changed(60.0) is None


def test_headers_of_a_refused_connection_are_no_connection():
    """gRPC also delivers them. A connection that lasts, or has brought a response, was one for ever."""
    refused, lasting, responding = connected(1.0), connected(1.0), connected(1.0)
    assert [False, True] == [lasting.was_connected(now) for now in (1.05, 1.2)]
    refused.failed(1.05, "refused")
    lasting.failed(1.2, "lost")
    responding.responded(1.01)
    responding.failed(1.05, "lost")

    assert [False, True, True] == [health.was_connected(9.0) for health in (refused, lasting, responding)]


def test_rest_is_no_connection():
    """A stream that is not wanted is neither connected nor idle, and that is no outage."""
    health = connected(1.0)
    health.rested()

    assert (False, 0.0, 0.0) == (health.connected, health.idle_seconds(60.0), health.failing_seconds(60.0))


def test_token_that_expires_every_hour_is_no_failure_of_credentials():
    """A stream that was connected for some time has had a good token, even without a message."""
    health = connected()
    for hour in range(20):
        health.opening(3600.0 * hour)
        health.answered(3600.0 * hour)
        health.failed(3600.0 * (hour + 1), "UNAUTHENTICATED", is_credential_failure=True)
    assert not health.has_failed_credentials()


def test_credentials_that_fail_are_tried_a_bounded_number_of_times():
    """Another error or a response in between restarts the count."""
    health = connected()
    for _ in range(MAX_CREDENTIAL_FAILURES - 1):
        health.failed(5.0, "invalid_grant", is_credential_failure=True)
    assert not health.has_failed_credentials()
    health.failed(5.0, "UNAVAILABLE")
    for _ in range(MAX_CREDENTIAL_FAILURES):
        assert not health.has_failed_credentials()
        health.failed(5.0, "invalid_grant", is_credential_failure=True)
    assert health.has_failed_credentials()


def test_idle_time_is_read_while_the_stream_ends():
    """Spark's thread reads it, and the thread of the stream writes it."""
    health = connected()

    class Now(float):
        def __sub__(self, other: float) -> float:
            health.rested()
            return float(self) - other

    assert 9.0 == health.idle_seconds(Now(10.0))

"""The metrics of a source: the driver stream's health, and the age and number of unacked messages."""

import pyarrow as pa

from pubsub_spark.read.driver.metrics import batch_counts, health_metrics, unacked_metrics
from pubsub_spark.read.pull.health import StreamHealth
from pubsub_spark.read.staging import part as part_format
from tests.unit.read.service import part

FOOTER = part_format.footer(pa.py_buffer(b"".join(part(["a", "b"], dropped=["c"]))))  # published at 1000 s


def test_stream_that_was_never_connected():
    """No response has no age. The first two seconds are no outage."""
    health = StreamHealth()
    health.opening(5.0)
    assert health_metrics(health, 6.0)["connected"]

    assert {
        "connected": False,
        "lastResponseSeconds": None,
        "reopenedStreams": 0,
        "lastError": "",
        "outageSeconds": 0.0,
    } == health_metrics(health, 8.0)


def test_stream_in_an_outage():
    """The error is the reason of the silence, and the age of the last response dates it."""
    health = StreamHealth()
    health.opening(5.0)
    health.responded(6.0)
    health.failed(7.0, "UNAVAILABLE: gone")
    health.reopened += 1
    health.opening(8.0)

    assert {
        "connected": False,
        "lastResponseSeconds": 3.5,
        "reopenedStreams": 1,
        "lastError": "UNAVAILABLE: gone",
        "outageSeconds": 0.0,
    } == health_metrics(health, 9.5)


def test_outages_that_were_told_are_counted():
    """Those of ten seconds and more, also while they last."""
    health = StreamHealth()
    health.opening(0.0)
    health.responded(1.0)
    health.failed(10.0, "UNAVAILABLE")
    health.opening(12.0)
    assert ("lost", 20.0) == health.changed(30.0)
    assert 25.0 == health_metrics(health, 35.0)["outageSeconds"]
    health.responded(40.0)
    assert ("recovered", 30.0) == health.changed(40.0)
    assert 30.0 == health_metrics(health, 100.0)["outageSeconds"]


def test_stream_that_has_no_room_is_no_outage():
    """While Spark works on a long batch no stream is wanted. An alert on `connected` stays silent."""
    health = StreamHealth()
    health.opening(5.0)
    health.responded(6.0)
    health.rested()
    assert health_metrics(health, 100.0)["connected"]

    health.opening(101.0)
    assert not health_metrics(health, 104.0)["connected"]


def test_refused_stream_is_not_connected():
    """In an outage each attempt may look connected for a moment. A second of it, or a message, ends the outage."""
    health = StreamHealth()
    health.opening(5.0)
    health.responded(5.1)
    health.failed(7.0, "UNAVAILABLE")
    health.opening(10.0)
    health.answered(10.1)
    assert not health_metrics(health, 10.2)["connected"]
    assert health_metrics(health, 11.2)["connected"]

    health.failed(20.0, "UNAVAILABLE")
    health.opening(30.0)
    assert not health_metrics(health, 30.2)["connected"]
    health.responded(30.3)
    assert health_metrics(health, 30.3)["connected"]


def test_unacked_are_buffered_staged_and_dropped_ones():
    """A redelivery that was dropped is also acked with the batch. The oldest of all determines the age."""
    assert {"unackedMessages": 10, "oldestUnackedSeconds": 50.0} == unacked_metrics(4, 1010.0, [FOOTER, FOOTER], 1050.0)
    assert {"unackedMessages": 4, "oldestUnackedSeconds": 40.0} == unacked_metrics(4, 1010.0, [], 1050.0)


def test_nothing_unacked():
    """Without messages the age is 0, and with a clock that is behind the service's it is not negative."""
    assert {"unackedMessages": 0, "oldestUnackedSeconds": 0} == unacked_metrics(0, None, [], 1050.0)
    assert {"unackedMessages": 1, "oldestUnackedSeconds": 0.0} == unacked_metrics(1, 1060.0, [], 1050.0)


def test_counts_of_a_batch():
    """The counts are sums over parts."""
    expected = {"messages": 4, "bytes": FOOTER.bytes * 2, "redeliveriesDropped": 2, "malformed": 1, "deadLetters": 1}
    assert expected == batch_counts([FOOTER, FOOTER], malformed=1, dead_letters=1)

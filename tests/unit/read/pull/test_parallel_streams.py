"""Several streams of one task: equal shares, one end, and every response that arrived."""

import threading

import grpc
import pytest

from pubsub_spark.errors import MissingError
from pubsub_spark.read.pull.streaming_pull import StreamingPull, StreamSettings
from tests.engine import until
from tests.unit.read.service import AT_ONCE, SUBSCRIPTION, Service, response

pytestmark = pytest.mark.usefixtures("leaves_no_thread")

LONG = 30.0  # seconds that a test never waits in full


def _streams(service: Service, count: int, taken: tuple[int, int] = (0, 0)) -> StreamingPull:
    settings = StreamSettings(SUBSCRIPTION, "stream-1", 60, 10, 1001)
    return StreamingPull(service, settings, count, lambda: taken, times=AT_ONCE)  # type: ignore[arg-type]


def _opened(service: Service, count: int) -> list[tuple[str, int, int]]:
    until(lambda: len(service.openings) >= count, "the openings")
    return sorted((r.client_id, r.max_outstanding_messages, r.max_outstanding_bytes) for r in service.openings)


def test_streams_share_the_limits():
    """Each stream has an equal share of the messages and bytes, and a client id of its own."""
    service = Service()
    streams = _streams(service, 3)

    assert [("stream-1-0", 4, 333), ("stream-1-1", 3, 333), ("stream-1-2", 3, 333)] == _opened(service, 3)
    assert [] == streams.close()


def test_one_stream_is_opened_as_before():
    """One stream has all of the limits and the client id as it was given."""
    service = Service()
    streams = _streams(service, 1)

    assert [("stream-1", 10, 1001)] == _opened(service, 1)
    streams.close()


def test_no_stream_without_a_message():
    """Ten messages open ten streams at the most: a limit of 0 would be none."""
    service = Service()
    streams = _streams(service, 64)

    assert 10 == len(_opened(service, 10))
    streams.close()
    assert 10 == len(service.openings)


def test_responses_of_all_streams_are_taken():
    """Responses of each stream arrive, in its own order."""
    service = Service(scripts=[[response("a"), response("b")], [response("c"), response("d")]])
    streams = _streams(service, 2)
    arrived: list[bytes] = []
    while len(arrived) < 4:
        arrived += streams.take(LONG)

    assert {response(text) for text in "abcd"} == set(arrived)
    assert arrived.index(response("a")) < arrived.index(response("b"))
    assert arrived.index(response("c")) < arrived.index(response("d"))
    streams.close()


def test_final_error_of_one_stream_is_raised_after_the_responses():
    """Responses that have arrived on the other streams are handed over before the error is raised."""
    service = Service(scripts=[[response("a")], [grpc.StatusCode.NOT_FOUND]])
    streams = _streams(service, 2)
    until(lambda: 1 == sum(t.name.startswith("pull stream-1") for t in threading.enumerate()), "the end of a stream")

    assert [response("a")] == streams.take(LONG)
    with pytest.raises(MissingError):
        streams.take(0.001)
    streams.close()


def test_stream_that_is_opened_again_has_the_rest_of_its_share():
    """Of 6 messages taken, the stream that brought all of the bytes is opened again for the rest of its 5."""
    service = Service(scripts=[[response("a"), grpc.StatusCode.UNAVAILABLE]])
    streams = _streams(service, 1, taken=(6, len(response("a"))))
    assert [response("a")] == streams.take(LONG)

    assert (4, 1001 - len(response("a"))) == _opened(service, 2)[0][1:]
    assert streams.has_full_stream() is False
    streams.close()


def test_full_stream_is_known():
    """A stream that has used up its share says that there may be more, whatever the others brought."""
    service = Service(scripts=[[response("abcde")]])
    streams = _streams(service, 2, taken=(5, len(response("abcde"))))
    assert [response("abcde")] == streams.take(LONG)

    assert streams.has_full_stream()
    streams.close()


def test_close_returns_responses_that_were_not_taken():
    """Responses that had arrived on any stream are returned at the end, and all streams are cancelled."""
    service = Service(scripts=[[response("a")], [response("b")]])
    streams = _streams(service, 2)
    until(lambda: 2 == len(service.calls), "the calls")

    assert {response("a"), response("b")} == set(streams.close())
    assert [True, True] == [call.cancelled for call in service.calls]


def test_health_is_that_of_a_connected_stream():
    """A pull is connected when one of its streams is."""
    service = Service(scripts=[[grpc.StatusCode.UNAVAILABLE] for _ in range(3)])
    streams = _streams(service, 2)
    until(lambda: streams.health.connected, "a connection")

    assert len(service.openings) > 2
    streams.close()

"""A StreamingPull that is kept open: chunks of responses, reopening, heartbeats, shares of streams, and its end."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import grpc
import pytest
from google.pubsub_v1 import types

from pubsub_spark.errors import MissingError, PubSubError
from pubsub_spark.read.pull.streaming_pull import StreamingPull, StreamSettings
from tests.engine import until
from tests.unit.read.service import AT_ONCE, SUBSCRIPTION, Service, StatusError, response

pytestmark = pytest.mark.usefixtures("leaves_no_thread")

LONG = 30.0  # seconds that a test never waits in full
Code = grpc.StatusCode


def settings(max_messages: int = 1000, max_bytes: int = 10**6) -> StreamSettings:
    return StreamSettings(SUBSCRIPTION, "stream-1", 60, max_messages, max_bytes)


@pytest.mark.timeout(60)
def test_wait_of_any_length_ends():
    """A timeout that passes while the queue is being looked at is over, instead of endless."""
    stream = _stream(Service())
    for _ in range(20_000):
        assert [] == stream.take(3e-6)
    stream.close()


def test_stream_whose_probe_failed_is_probed_again():
    """The driver's probe may fail while the stream stays open. The thread of its requests probes until one succeeds."""
    service = Service()
    stream = _stream(service, probe_pause=0.01, heartbeat=1000.0)
    until(lambda: stream.health.connected, "the stream")
    requests = threading.Thread(target=list, args=(service.calls[0].requests,))  # as in gRPC
    requests.start()
    service.answers.append(StatusError(Code.UNAVAILABLE))
    assert not stream.streams[0].probe()
    until(lambda: stream.health.connected, "another probe")
    stream.close()
    requests.join()


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.UNKNOWN, Code.ABORTED])
def test_failing_service_has_not_answered_a_probe(code: Any):
    """An outage is no empty subscription."""
    service = Service()
    stream = _stream(service)
    until(lambda: stream.health.connected, "the stream")
    service.answers.append(StatusError(code))
    assert not stream.streams[0].probe()
    stream.close()


def test_refused_credentials_of_a_probe_are_no_answer():
    """Else a service that takes seconds to refuse each stream would count as there. Refusals of streams are counted."""
    began = time.monotonic()
    service = Service()
    stream = _stream(service)
    until(lambda: stream.health.connected, "the stream")
    service.answers.append(StatusError(Code.UNAUTHENTICATED))
    assert not stream.streams[0].probe()
    assert (False, 0) == (stream.health.connected, stream.health.credential_failures)
    assert stream.health.failing_since is not None and stream.health.failing_since >= began
    stream.close()


def test_chunk_is_waited_for_while_one_response_follows_the_other():
    """Each decoding has a fixed cost, so a task waits for more than the first response."""
    service = Service(scripts=[[response("a")]])
    stream = _stream(service, chunk_gap=LONG)
    first = stream.take(LONG)
    service.calls[0].say(response("b"))
    later = threading.Timer(0.05, lambda: service.calls[0].say(response("c")))
    later.start()
    chunk = stream.take(LONG, chunk_bytes=2 * len(response("b")))
    later.join()
    stream.close()

    assert ([response("a")], [response("b"), response("c")]) == (first, chunk)


@pytest.mark.parametrize(("gap", "timeout"), [(LONG, 0.05), (0.001, LONG)], ids=["timeout", "pause"])
def test_chunk_that_does_not_fill_ends(gap: float, timeout: float):
    """A chunk ends at its timeout, even while responses arrive, or at the first pause."""
    stream = _stream(Service(scripts=[[response("a")]]), chunk_gap=gap)
    before = time.monotonic()
    taken = stream.take(timeout, chunk_bytes=10**6)
    took = time.monotonic() - before
    stream.close()

    assert [response("a")] == taken
    assert took < LONG


def test_so_much_is_taken_at_a_time():
    """A task that falls behind cannot decode gigabytes in one Arrow array."""
    megabyte = bytes(2**20)
    stream = _stream(Service(scripts=[[megabyte] * 300 + [grpc.StatusCode.PERMISSION_DENIED]]))
    stream.streams[0].thread.join(LONG)
    counts = len(stream.take(LONG)), len(stream.take(LONG))
    stream.close()

    assert (256, 44) == counts


def test_reopened_stream_asks_for_what_is_missing():
    """The limits of a stream that replaces another are less by the messages of that one, and never 0."""
    first, second, last = (settings(3, 100).request(*taken) for taken in [(0, 0), (2, 40), (5, 500)])
    limits = [types.StreamingPullRequest.pb().FromString(request) for request in (first, second, last)]

    assert [(3, 100), (1, 60), (1, 1)] == [(r.max_outstanding_messages, r.max_outstanding_bytes) for r in limits]


@pytest.mark.parametrize(("asked", "sent"), [(1, 10), (10_000, 600)])
def test_lease_is_within_the_bounds_of_the_service(asked: int, sent: int):
    """StreamingPull refuses leases below 10 s and above 600 s."""
    request = types.StreamingPullRequest.pb().FromString(StreamSettings(SUBSCRIPTION, "c", asked, 1, 1).request())

    assert sent == request.stream_ack_deadline_seconds


def test_error_is_raised_in_each_call():
    """The lease extender may meet the status first. Spark's call meets it all the same."""
    stream = _stream(Service(scripts=[[Code.NOT_FOUND]]))
    for _ in range(2):
        with pytest.raises(MissingError):
            stream.take(LONG)
    stream.close()


def test_stream_that_outlives_its_token_is_opened_again():
    """UNAUTHENTICATED is final only if it is repeated again and again."""
    refused = Code.UNAUTHENTICATED
    stream = _stream(Service(scripts=[[response("a"), refused], [response("b"), refused], *[[refused]] * 7]))
    assert [[response("a")], [response("b")]] == [stream.take(LONG), stream.take(LONG)]
    with pytest.raises(PubSubError):
        stream.take(LONG)
    stream.close()


def test_stream_that_the_service_cancels_is_opened_again():
    """It does so now and then, although the query is well."""
    stream = _stream(Service(scripts=[[response("a"), Code.CANCELLED], [response("b")]]))
    assert [[response("a")], [response("b")]] == [stream.take(LONG), stream.take(LONG)]
    stream.close()


@pytest.mark.parametrize("script", [[Code.OK], [response(""), Code.OK], [response(""), Code.UNAVAILABLE]])
def test_stream_that_brings_nothing_and_ends_is_an_outage(script: list[Any]):
    """A service that ends each stream at once is not an empty subscription, whatever the status."""
    service = Service(scripts=[script] * 5)
    stream = _stream(service)
    until(lambda: not any(stream.take(0)) and len(service.openings) > 5, "the streams")

    assert stream.health.failing_since is not None
    assert script[-1].name in stream.health.last_error
    assert stream.health.last_response is None
    stream.close()


def test_stream_that_ends_with_messages_is_opened_again():
    """OK is no outage then."""
    service = Service(scripts=[[response("a"), Code.OK], [response("b")]])
    stream = _stream(service)
    assert [[response("a")], [response("b")]] == [stream.take(LONG), stream.take(LONG)]
    assert stream.health.failing_since is None
    stream.close()


def test_response_without_messages_does_not_end_idle_time():
    """It shows that the service is there."""
    service = Service(scripts=[[response("")]])
    stream = _stream(service)
    until(lambda: stream.health.has_responded, "the response")

    assert stream.health.connected
    assert stream.health.last_response is None
    stream.close()


def test_close_returns_responses_that_were_not_taken():
    """Responses that had arrived are returned at the end, to be staged or nacked."""
    service = Service(scripts=[[response("a")]])
    stream = _stream(service)
    until(lambda: bool(service.calls), "a call")
    assert [response("a")] == stream.close()
    assert service.calls[0].cancelled


def test_close_of_a_silent_stream_is_at_once():
    """A stream without responses is cancelled, not waited for."""
    service = Service()
    stream = _stream(service)
    assert [] == stream.close()


def test_half_close_while_the_stream_reopens_ends_it():
    """A half-closed stream that waits for its next try does not open again."""
    waiting, over = threading.Event(), threading.Event()

    def pauses() -> Iterator[float]:
        waiting.set()
        over.wait(LONG)
        yield 0.0

    service = Service(scripts=[[grpc.StatusCode.UNAVAILABLE]])
    stream = _stream(service, reopen_pauses=pauses)
    assert waiting.wait(LONG)
    stream.half_close()
    over.set()

    assert [] == stream.take(LONG)
    assert 1 == len(service.openings)
    stream.close()


def test_idle_stream_sends_heartbeats():
    """Empty requests, as Google's clients send them, show the service that the client lives."""
    service = Service()
    stream = _stream(service, heartbeat=0.001)
    until(lambda: bool(service.calls), "a call")
    assert [b"", b""] == [next(service.calls[0].requests) for _ in range(2)]
    stream.close()


def test_stream_is_opened_again_when_there_is_room():
    """A stream is not opened again before all responses were taken and there is room for more."""
    service = Service(scripts=[[response("a"), grpc.StatusCode.UNAVAILABLE], [response("b")]])
    looks, answers = [], iter([False, False, True])

    def has_room() -> bool:
        looks.append(len(service.openings))
        return next(answers)

    stream = StreamingPull(service, settings(), has_room=has_room, times=AT_ONCE)  # type: ignore[arg-type]
    assert [[response("a")], [response("b")]] == [stream.take(LONG), stream.take(LONG)]
    assert [1, 1, 1] == looks
    stream.close()


def test_silent_stream_is_opened_again():
    """Whether it is idle or dead is unknown. After `max_silence` a new stream decides."""
    service = Service(scripts=[[], [response("a")]])
    stream = _stream(service, heartbeat=0.001, max_silence=0.0)
    until(lambda: bool(service.calls), "a call")
    next(service.calls[0].requests)
    assert [response("a")] == stream.take(LONG)
    stream.close()


def test_silence_is_no_reason_for_a_longer_pause():
    """After hours without messages a silent stream is opened again as soon as after minutes."""
    asked = []

    def pauses() -> Iterator[float]:
        asked.append(len(service.openings))
        return repeat(0.001)

    service = Service()
    stream = _stream(service, heartbeat=0.001, max_silence=0.0, reopen_pauses=pauses)
    for count in (1, 2, 3):
        until(lambda count=count: len(service.calls) >= count, "a call")  # type: ignore[misc]
        next(service.calls[count - 1].requests)
    until(lambda: len(service.calls) >= 4, "another call")
    stream.close()

    assert [0, 1, 2, 3] == asked[:4]


def _stream(service: Any, **times: Any) -> StreamingPull:
    return StreamingPull(service, settings(), times=replace(AT_ONCE, **times))


def _streams(service: Service, count: int, taken: tuple[int, int] = (0, 0)) -> StreamingPull:
    return StreamingPull(service, settings(10, 1001), count, lambda: taken, times=AT_ONCE)  # type: ignore[arg-type]


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
    """One stream has all of the limits and the client id as it was passed."""
    service = Service()
    streams = _streams(service, 1)

    assert [("stream-1", 10, 1001)] == _opened(service, 1)
    streams.close()


def test_no_stream_without_a_message():
    """Ten messages open at most ten streams: a limit of 0 would be unlimited."""
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
    """A stream that has used up its share proves that there may be more, whatever the others brought."""
    service = Service(scripts=[[response("abcde")]])
    streams = _streams(service, 2, taken=(5, len(response("abcde"))))
    assert [response("abcde")] == streams.take(LONG)

    assert streams.has_full_stream()
    streams.close()


def test_close_returns_responses_of_all_streams():
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

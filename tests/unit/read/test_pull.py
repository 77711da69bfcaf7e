"""Pulling: a stream that reopens as itself, and a pull that ends without dropping what arrived."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.pubsub_v1 import types

from pubsub_spark.codec.envelope import Received
from pubsub_spark.errors import ForbiddenError, MissingError, ResourceError
from pubsub_spark.read import pull as pulling
from pubsub_spark.read.pull import Flow, Pulled, Stream, pull
from tests.unit.read.service import SUBSCRIPTION, Call, Service, response

LONG = 30.0  # seconds that a test never waits in full
Code = grpc.StatusCode


def flow(max_messages: int = 1000, max_bytes: int = 10**6) -> Flow:
    return Flow(SUBSCRIPTION, "stream-1", 60, max_messages, max_bytes)


@dataclass
class Outcome:
    """What a pull gave, and its summary."""

    received: list[Received]
    pulled: Pulled

    @property
    def texts(self) -> list[str]:
        return [data.decode() for got in self.received for data in got.messages.column("data").to_pylist()]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream reopens without a pause."""
    monkeypatch.setattr(pulling, "delays", lambda: iter(lambda: 0.001, None))


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    """Whatever happens, a reused worker keeps no thread of ours."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


def do_pull(service: Service, asked: Flow, period: float = LONG, idle: float = LONG) -> Outcome:
    received: list[Received] = []
    outcome = Outcome(received, pull(service, asked, period, idle, received.append))  # type: ignore[arg-type]
    assert len(outcome.texts) == outcome.pulled.messages
    return outcome


def test_full_share_ends_the_pull():
    """The pull ends with the message that fills its share."""
    got = do_pull(Service(scripts=[[response("ab"), response("c")]]), flow(max_messages=3))

    assert "full" == got.pulled.ended
    assert ["a", "b", "c"] == got.texts


def test_full_bytes_end_the_pull():
    """The share is full when its bytes are, however few messages that took."""
    got = do_pull(Service(scripts=[[response(["x" * 500])]]), flow(max_bytes=500))

    assert "full" == got.pulled.ended


def test_idle_service_ends_the_pull():
    """Nothing more for `idleTimeout`: that is what there was."""
    got = do_pull(Service(scripts=[[response("a")]]), flow(), idle=0.05)

    assert "idle" == got.pulled.ended
    assert ["a"] == got.texts


def test_period_ends_the_pull():
    """After `maxFetchPeriod` the stream is half-closed, and what was under way is taken."""
    service = Service(scripts=[[response("a")]])
    got = do_pull(service, flow(), period=0.05, idle=LONG)

    assert "period" == got.pulled.ended
    assert ["a"] == got.texts


def test_overshoot_is_kept():
    """What arrived beyond the share is part of the batch: dropping it would leave it leased for nothing."""
    got = do_pull(Service(scripts=[[response("ab"), response("cdef")]]), flow(max_messages=3))

    assert ["a", "b", "c", "d", "e", "f"] == got.texts


def test_a_lull_is_the_end_of_what_has_come(monkeypatch: pytest.MonkeyPatch):
    """`idleTimeout` is for the first message; what has come does not wait so long for more."""
    monkeypatch.setattr(pulling, "LULL", 0.01)
    got = do_pull(Service(scripts=[[response("a")]]), flow(), period=5, idle=LONG)

    assert "idle" == got.pulled.ended


def test_bite_is_waited_for_while_one_response_follows_the_other(monkeypatch: pytest.MonkeyPatch):
    """To decode costs something each time, so a task takes more than the first response that is there."""
    monkeypatch.setattr(pulling, "_BREATH", LONG)
    service = Service(scripts=[[response("a")]])
    stream = _stream(service)
    first = stream.take(LONG)
    service.calls[0].say(response("b"))
    later = threading.Timer(0.05, lambda: service.calls[0].say(response("c")))
    later.start()
    bite = stream.take(LONG, bite=2 * len(response("b")))
    later.join()
    stream.close()

    assert ([response("a")], [response("b"), response("c")]) == (first, bite)


@pytest.mark.parametrize(("breath", "timeout"), [(LONG, 0.05), (0.001, LONG)], ids=["timeout", "pause"])
def test_bite_that_does_not_fill_ends(monkeypatch: pytest.MonkeyPatch, breath: float, timeout: float):
    """At its timeout, though a trickle goes on, or at the first pause."""
    monkeypatch.setattr(pulling, "_BREATH", breath)
    stream = _stream(Service(scripts=[[response("a")]]))
    before = time.monotonic()
    taken = stream.take(timeout, bite=10**6)
    took = time.monotonic() - before
    stream.close()

    assert [response("a")] == taken
    assert took < LONG


class HalfClosing(Service):
    """It sends what is under way when the client asks for no more, and ends the stream then."""

    def streaming_pull(self, subscription: str, requests: Iterator[bytes]) -> Call:
        call = super().streaming_pull(subscription, requests)

        def until_half_closed() -> None:
            for _ in requests:
                pass
            call.say(response("b"))
            call.say(Code.OK)

        self.listening = threading.Thread(target=until_half_closed)
        self.listening.start()
        return call


def test_what_is_under_way_at_the_end_is_taken(monkeypatch: pytest.MonkeyPatch):
    """A pull that is not full half-closes its stream, and what the service had sent is part of the batch."""
    monkeypatch.setattr(pulling, "QUIET", LONG)
    service = HalfClosing(scripts=[[response("a")]])
    got = do_pull(service, flow(), idle=0.05)
    service.listening.join()

    assert ["a", "b"] == got.texts


class EndlessCall(Call):
    """The service does not hear that the client asks for no more."""

    def __next__(self) -> bytes:
        with suppress(queue.Empty):
            self._items.put(self._items.get(timeout=0.001))
            return super().__next__()
        return response("a")


def test_service_that_goes_on_after_the_end_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    """The period is over twice then, and a task that never ends would hold up its batch for ever."""
    monkeypatch.setattr(Service, "streaming_pull", lambda _, subscription, requests: EndlessCall([], requests))
    got = do_pull(Service(), flow(max_messages=10**9, max_bytes=10**9), period=0.05)

    assert "period" == got.pulled.ended


def test_what_comes_while_the_stream_is_closed_is_kept(monkeypatch: pytest.MonkeyPatch):
    """The service has leased it to us; the share is full, and it is part of the batch all the same."""
    cancel = Call.cancel

    def late(call: Call) -> None:
        call.say(response("z"))
        cancel(call)

    monkeypatch.setattr(Call, "cancel", late)
    got = do_pull(Service(scripts=[[response("a")]]), flow(max_messages=1))

    assert ["a", "z"] == got.texts


def test_opening_says_who_and_how_much():
    """The first request carries flow control, lease and the constant client id."""
    service = Service(scripts=[[response("a")]])
    do_pull(service, flow(max_messages=1, max_bytes=77))

    [opening] = service.openings
    assert (SUBSCRIPTION, "stream-1", 60, 1, 77) == (
        opening.subscription,
        opening.client_id,
        opening.stream_ack_deadline_seconds,
        opening.max_outstanding_messages,
        opening.max_outstanding_bytes,
    )


def test_reopened_stream_asks_for_what_is_missing():
    """Flow control of a stream that replaces another is less by what that one brought, and never nothing."""
    first, second, last = (flow(3, 100).request(*taken) for taken in [(0, 0), (2, 40), (5, 500)])
    limits = [types.StreamingPullRequest.pb().FromString(request) for request in (first, second, last)]

    assert [(3, 100), (1, 60), (1, 1)] == [(r.max_outstanding_messages, r.max_outstanding_bytes) for r in limits]


def test_pull_asks_its_next_stream_for_what_is_missing():
    """It knows what has come; a second share would be more than the trigger's budget."""
    service = Service(scripts=[[response("ab")], [response("c")]])
    taken: list[Received] = []

    def take(got: Received) -> None:
        taken.append(got)
        service.calls[-1].say(Code.UNAVAILABLE)

    pull(service, flow(max_messages=3), LONG, LONG, take)  # type: ignore[arg-type]

    assert [3, 1] == [opening.max_outstanding_messages for opening in service.openings]


@pytest.mark.parametrize(("asked", "sent"), [(1, 10), (10_000, 600)])
def test_lease_stays_in_what_the_service_takes(asked: int, sent: int):
    """StreamingPull refuses leases below 10 s and above 600 s."""
    request = types.StreamingPullRequest.pb().FromString(Flow(SUBSCRIPTION, "c", asked, 1, 1).request())

    assert sent == request.stream_ack_deadline_seconds


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.INTERNAL, Code.DEADLINE_EXCEEDED, Code.ABORTED, Code.OK])
def test_closed_stream_reopens_as_itself(code: grpc.StatusCode):
    """A stream that the service ends comes back under the same client id, and nothing is taken twice."""
    service = Service(scripts=[[response("ab"), code], [response("c")]])
    got = do_pull(service, flow(max_messages=3))

    assert ["a", "b", "c"] == got.texts
    assert ["stream-1", "stream-1"] == [opening.client_id for opening in service.openings]
    assert 1 == got.pulled.reopened


@pytest.mark.parametrize(
    ("code", "error"),
    [(Code.NOT_FOUND, MissingError), (Code.PERMISSION_DENIED, ForbiddenError), (Code.INVALID_ARGUMENT, ResourceError)],
)
def test_final_status_ends_the_pull_with_a_sentence(code: grpc.StatusCode, error: type[Exception]):
    """What no retry mends is raised, and names subscription and address."""
    with pytest.raises(error) as raised:
        do_pull(Service(scripts=[[code]]), flow())

    if code is not Code.INVALID_ARGUMENT:
        assert SUBSCRIPTION in str(raised.value)


def test_final_status_after_messages_keeps_them():
    """What arrived before the stream broke for good is handed over, and the status told beside it."""
    got = do_pull(Service(scripts=[[response("a"), Code.NOT_FOUND]]), flow())

    assert ["a"] == got.texts
    assert isinstance(got.pulled.failure, MissingError)


def test_error_is_raised_to_all_who_ask():
    """The keeper may meet the status first; Spark's call meets it all the same."""
    stream = _stream(Service(scripts=[[Code.NOT_FOUND]]))
    for _ in range(2):
        with pytest.raises(MissingError):
            stream.take(LONG)
    stream.close()


def test_close_gives_back_what_nobody_asked_for():
    """Responses that had arrived are handed over at the end, to be staged or given back."""
    service = Service(scripts=[[response("a")]])
    stream = _stream(service)
    while stream._responses.empty():
        assert not stream.ended
    assert [response("a")] == stream.close()
    assert service.calls[0].cancelled


def test_close_of_a_silent_stream_is_at_once():
    """A stream that never said anything is cancelled, not waited for."""
    service = Service()
    stream = _stream(service)
    assert [] == stream.close()
    assert stream.ended


def test_half_close_while_the_stream_reopens_ends_it(monkeypatch: pytest.MonkeyPatch):
    """Nothing is asked for any more: a stream that waits for its next try does not open again."""
    waiting, over = threading.Event(), threading.Event()

    def pauses() -> Iterator[float]:
        waiting.set()
        over.wait(LONG)
        yield 0.0

    monkeypatch.setattr(pulling, "delays", pauses)
    service = Service(scripts=[[grpc.StatusCode.UNAVAILABLE]])
    stream = _stream(service)
    assert waiting.wait(LONG)
    stream.half_close()
    over.set()

    assert [] == stream.take(LONG)
    assert stream.ended
    assert 1 == len(service.openings)
    stream.close()


def test_heartbeats_go_out_while_nothing_is_said(monkeypatch: pytest.MonkeyPatch):
    """The service hears of a client that has nothing to say: empty requests, as Google's clients send them."""
    monkeypatch.setattr(pulling, "HEARTBEAT", 0.001)
    service = Service()
    stream = _stream(service)
    while not service.calls:
        assert not stream.ended
    assert [b"", b""] == [next(service.calls[0].requests) for _ in range(2)]
    stream.close()


def test_stream_is_opened_again_when_there_is_room():
    """Not before what has come was taken in, nor before whoever takes it has room for more."""
    service = Service(scripts=[[response("a"), grpc.StatusCode.UNAVAILABLE], [response("b")]])
    looks, answers = [], iter([False, False, True])

    def has_room() -> bool:
        looks.append(len(service.openings))
        return next(answers)

    stream = Stream(service, flow(), has_room=has_room)  # type: ignore[arg-type]
    assert [[response("a")], [response("b")]] == [stream.take(LONG), stream.take(LONG)]
    assert [1, 1, 1] == looks
    stream.close()


def test_silent_stream_is_opened_again(monkeypatch: pytest.MonkeyPatch):
    """Quiet or dead cannot be told; after STALL seconds a new stream can."""
    monkeypatch.setattr(pulling, "HEARTBEAT", 0.001)
    monkeypatch.setattr(pulling, "STALL", 0.0)
    service = Service(scripts=[[], [response("a")]])
    stream = _stream(service)
    while not service.calls:
        assert not stream.ended
    next(service.calls[0].requests)
    assert [response("a")] == stream.take(LONG)
    stream.close()


def _stream(service: Any) -> Stream:
    return Stream(service, flow())

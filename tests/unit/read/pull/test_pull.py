"""A bounded pull: when it ends, and that no message that arrived is dropped."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat

import grpc
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pubsub_spark.codec.envelope import Received
from pubsub_spark.errors import ForbiddenError, MissingError, ResourceError, ServiceError
from pubsub_spark.read.pull.lease import TRANSIT_SECONDS
from pubsub_spark.read.pull.pull import Pull, PullResult
from pubsub_spark.read.pull.streaming_pull import PullTimes, StreamSettings
from pubsub_spark.read.runtime import SYSTEM, Runtime
from tests.engine import MovedClock
from tests.unit.read.service import AT_ONCE, SUBSCRIPTION, Call, Service, StatusError, response

pytestmark = pytest.mark.usefixtures("leaves_no_thread")

LONG = 30.0  # seconds that a test never waits in full
FUTURE = 10.0**10  # a publish time after the beginning of any pull, in seconds since the epoch
Code = grpc.StatusCode
_SLOWER = replace(AT_ONCE, reopen_pauses=lambda: repeat(0.01))


def settings(max_messages: int = 1000, max_bytes: int = 10**6) -> StreamSettings:
    return StreamSettings(SUBSCRIPTION, "stream-1", 60, max_messages, max_bytes)


@dataclass
class Outcome:
    """The messages of a pull, and its result."""

    received: list[Received]
    result: PullResult

    @property
    def texts(self) -> list[str]:
        return [data.decode() for got in self.received for data in got.messages.column("data").to_pylist()]


def do_pull(
    service: Service,
    limits: StreamSettings,
    period: float = LONG,
    idle: float = LONG,
    streams: int = 1,
    times: PullTimes = AT_ONCE,
    counts: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda messages: messages,
    runtime: Runtime = SYSTEM,
) -> Outcome:
    arrived: list[Received] = []

    def take(received: Received) -> pa.RecordBatch:
        arrived.append(received)
        return counts(received.messages)

    pull = Pull(service, limits, period, idle, take, streams, times, runtime)  # type: ignore[arg-type]
    return Outcome(arrived, pull.run())


def test_full_share_ends_the_pull():
    """The pull ends with the message that fills its share."""
    got = do_pull(Service(scripts=[[response("ab"), response("c")]]), settings(max_messages=3))

    assert "full" == got.result.ended
    assert ["a", "b", "c"] == got.texts


def test_rest_of_a_share_that_does_not_come_ends_the_pull():
    """A service need not cut a response to make it fit, so the pull does not wait for the last few messages."""
    times = replace(AT_ONCE, idle_after_messages=LONG, rest=0.01)
    got = do_pull(Service(scripts=[[response("x" * 96)]]), settings(max_messages=100), times=times)
    assert ("full", 96) == (got.result.ended, len(got.texts))


def test_full_bytes_end_the_pull():
    """The share is full when its bytes are, however few messages that took."""
    got = do_pull(Service(scripts=[[response(["x" * 500])]]), settings(max_bytes=500))

    assert "full" == got.result.ended


def test_idle_service_ends_the_pull():
    """A pull ends when no message has arrived for `idleTimeout`."""
    got = do_pull(Service(scripts=[[response("a")]]), settings(), idle=0.05)

    assert "idle" == got.result.ended
    assert ["a"] == got.texts


class LateAnswer(Call):
    """A stream whose service takes 80 ms to answer and as long again to send a message."""

    def initial_metadata(self) -> tuple[()]:
        time.sleep(0.08)
        threading.Timer(0.08, self.say, [response("a")]).start()
        return ()


def test_wait_for_the_first_message_begins_with_the_connection():
    """A service that is slow to connect has as long for its first message as any other."""
    got = do_pull(Service(call=LateAnswer), settings(max_messages=1), idle=0.13)

    assert ("full", ["a"]) == (got.result.ended, got.texts)


def test_period_ends_the_pull():
    """After `maxFetchPeriod` the stream is half-closed, and messages that still arrive are taken."""
    service = Service(scripts=[[response("a")]])
    got = do_pull(service, settings(), period=0.05, idle=LONG)

    assert "period" == got.result.ended
    assert ["a"] == got.texts


def test_overshoot_is_kept():
    """Messages beyond the share are part of the batch: dropped, they would be leased for nothing."""
    got = do_pull(Service(scripts=[[response("ab"), response("cdef")]]), settings(max_messages=3))

    assert ["a", "b", "c", "d", "e", "f"] == got.texts


def _without_redeliveries(messages: pa.RecordBatch) -> pa.RecordBatch:
    return messages.filter(pc.less(messages.column("data"), b"x"))


def test_redelivery_does_not_fill_the_share():
    """Messages that the caller drops are passed on with their receipts, and others are pulled in their place."""
    service = Service(scripts=[[response("xy"), response("a"), response("zb"), response("c")]])
    got = do_pull(service, settings(max_messages=3), counts=_without_redeliveries)

    assert "full" == got.result.ended
    assert ["x", "y", "a", "z", "b", "c"] == got.texts


def test_redelivery_does_not_fill_the_bytes():
    """A dropped message does not count in bytes either. Those of a response with some are its other messages' bytes."""
    service = Service(scripts=[[response(["x" * 500]), response(["y" * 500, "a" * 99]), response("b")]])
    got = do_pull(service, settings(max_bytes=100), counts=_without_redeliveries)

    assert "full" == got.result.ended
    assert ["x" * 500, "y" * 500, "a" * 99, "b"] == got.texts


def test_redelivery_is_no_backlog():
    """A pull of new messages and old ones that are dropped has caught up."""
    service = Service(scripts=[[response("x"), response("a", FUTURE), response("x")]])

    assert "caughtUp" == do_pull(service, settings(), counts=_without_redeliveries).result.ended


def test_pause_after_messages_ends_the_pull():
    """`idleTimeout` is for the first message. Messages that have come do not wait so long for more."""
    times = replace(AT_ONCE, idle_after_messages=0.01)
    got = do_pull(Service(scripts=[[response("a")]]), settings(), period=5, idle=LONG, times=times)

    assert "idle" == got.result.ended


def test_pull_that_has_caught_up_ends():
    """When all messages were published after the pull began, there is no backlog, and the period is not waited for."""
    got = do_pull(Service(scripts=[[response("ab", FUTURE)]]), settings())

    assert "caughtUp" == got.result.ended
    assert ["a", "b"] == got.texts


def test_new_message_in_a_backlog_does_not_end_the_pull():
    """The service orders nothing: a message published just now may arrive before those of a backlog."""
    script = [response("a", FUTURE), response("b", 1000.0)]
    got = do_pull(Service(scripts=[script]), settings(), period=3 * AT_ONCE.caught_up, idle=LONG)

    assert "period" == got.result.ended


def test_streams_fill_one_share():
    """A pull of several streams is full when they have brought its share together."""
    service = Service(scripts=[[response("ab")], [response("cd")]])
    got = do_pull(service, settings(max_messages=4), streams=2)

    assert "full" == got.result.ended
    assert ["a", "b", "c", "d"] == sorted(got.texts)
    assert len(response("ab")) + len(response("cd")) == got.result.bytes


def test_full_stream_beside_idle_ones_is_no_idle_pull():
    """One stream that has used up its share may have more to come, in the next batch."""
    times = replace(AT_ONCE, idle_after_messages=0.01)
    got = do_pull(Service(scripts=[[response("ab")], []]), settings(max_messages=4), streams=2, times=times)

    assert "full" == got.result.ended


class HalfClosing(Service):
    """A service that sends one more response when the client half-closes the stream, and ends it then."""

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


def test_messages_that_arrive_after_the_half_close_are_taken():
    """A pull half-closes its stream. The messages that the service had sent are part of the batch."""
    service = HalfClosing(scripts=[[response("a")]])
    got = do_pull(service, settings(), idle=0.05, times=replace(AT_ONCE, drain=LONG))
    service.listening.join()

    assert ["a", "b"] == got.texts


def test_full_pull_takes_the_messages_that_are_still_arriving():
    """The service counts fewer bytes than the pull, so that it has sent more when the share of the pull is full."""
    service = HalfClosing(scripts=[[response("a")]])
    got = do_pull(service, settings(max_bytes=1), times=replace(AT_ONCE, drain=LONG))
    service.listening.join()

    assert ("full", ["a", "b"]) == (got.result.ended, got.texts)


@pytest.mark.parametrize(("woke_up", "leased"), [(2.0, 2.0), (70.0, 1.0)])
def test_lease_may_have_begun_while_the_process_stood_still(woke_up: float, leased: float):
    """A process that was stopped finds no message at first, though it was delivered long ago."""
    clock = chain([1.0], repeat(woke_up))
    service = HalfClosing(scripts=[[]])
    times = replace(AT_ONCE, drain=LONG)
    got = do_pull(service, settings(), idle=0.05, times=times, runtime=MovedClock(lambda: next(clock)))
    service.listening.join()

    assert ["b"] == got.texts
    assert leased - TRANSIT_SECONDS == got.result.leased


class EndlessCall(Call):
    """A stream of a service that ignores the half-close."""

    def __next__(self) -> bytes:
        with suppress(queue.Empty):
            self.items.put(self.items.get(timeout=0.001))
            return super().__next__()
        return response("a")


def test_service_that_goes_on_after_the_end_is_cut_off():
    """A pull ends after twice its period even if the service keeps sending."""
    got = do_pull(Service(call=EndlessCall), settings(max_messages=10**9, max_bytes=10**9), period=0.05)

    assert "period" == got.result.ended


class LateCall(Call):
    """A stream that has a message on its way when it is cancelled."""

    def cancel(self) -> None:
        self.say(response("z"))
        super().cancel()


def test_messages_that_arrive_while_the_stream_is_closed_are_kept():
    """The service has leased them to us. The share is full, and they are part of the batch all the same."""
    got = do_pull(Service(scripts=[[response("a")]], call=LateCall), settings(max_messages=1))

    assert ["a", "z"] == got.texts


def test_first_request_has_the_settings():
    """The first request carries flow control, lease and the constant client id."""
    service = Service(scripts=[[response("a")]])
    do_pull(service, settings(max_messages=1, max_bytes=77))

    [opening] = service.openings
    assert (SUBSCRIPTION, "stream-1", 60, 1, 77) == (
        opening.subscription,
        opening.client_id,
        opening.stream_ack_deadline_seconds,
        opening.max_outstanding_messages,
        opening.max_outstanding_bytes,
    )


def test_pull_asks_its_next_stream_for_what_is_missing():
    """A second whole share would be more than the trigger's budget."""
    service = Service(scripts=[[response("ab")], [response("c")]])

    def take(messages: pa.RecordBatch) -> pa.RecordBatch:
        if len(service.calls) == 1:
            service.calls[0].say(Code.UNAVAILABLE)
        return messages

    do_pull(service, settings(max_messages=3), counts=take)

    assert [3, 1] == [opening.max_outstanding_messages for opening in service.openings]


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.INTERNAL, Code.DEADLINE_EXCEEDED, Code.ABORTED, Code.OK])
def test_closed_stream_reopens_as_itself(code: grpc.StatusCode):
    """A stream that the service ends is reopened under the same client id, and no message is read twice."""
    service = Service(scripts=[[response("ab"), code], [response("c")]])
    got = do_pull(service, settings(max_messages=3))

    assert ["a", "b", "c"] == got.texts
    assert ["stream-1", "stream-1"] == [opening.client_id for opening in service.openings]


@pytest.mark.parametrize(
    ("code", "error"),
    [(Code.NOT_FOUND, MissingError), (Code.PERMISSION_DENIED, ForbiddenError), (Code.INVALID_ARGUMENT, ResourceError)],
)
def test_final_status_ends_the_pull_with_a_sentence(code: grpc.StatusCode, error: type[Exception]):
    """A final error is raised, and names subscription and address."""
    with pytest.raises(error) as raised:
        do_pull(Service(scripts=[[code]]), settings())

    if code is not Code.INVALID_ARGUMENT:
        assert SUBSCRIPTION in str(raised.value)


def test_final_status_after_messages_keeps_them():
    """Messages that arrived before the final error are handed over, and the error is in the result."""
    got = do_pull(Service(scripts=[[response("a"), Code.NOT_FOUND]]), settings())

    assert ["a"] == got.texts
    assert isinstance(got.result.failure, MissingError)


def test_streams_that_end_at_once_are_no_lost_network():
    """A service that answers calls and ends each stream as it is opened can be reached. The pull has its period."""
    service = Service(scripts=[[Code.UNAVAILABLE] for _ in range(10_000)], connect_timeout=0.1)

    assert "period" == do_pull(service, settings(), period=0.2, idle=0.05, times=_SLOWER).result.ended


def test_service_that_answers_no_call_is_a_lost_network():
    """If not even a call is answered the task fails, and the error names the executors' network."""
    refused: list[Exception | None] = [StatusError(Code.UNAVAILABLE) for _ in range(100)]
    service = Service(scripts=[[Code.UNAVAILABLE] for _ in range(10_000)], answers=refused, connect_timeout=0.1)

    with pytest.raises(ServiceError, match="executors have no network access"):
        do_pull(service, settings(), period=0.2, idle=0.05, times=_SLOWER)

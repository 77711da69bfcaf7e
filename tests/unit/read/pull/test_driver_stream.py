"""The driver stream: its buffered messages, their leases, and flow control."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

from pubsub_spark.errors import MissingError
from pubsub_spark.read.pull.driver_stream import DriverStream
from pubsub_spark.read.pull.lease import STANDSTILL_SECONDS, TRANSIT_SECONDS, Lease
from pubsub_spark.read.pull.streaming_pull import PullTimes, StreamSettings
from pubsub_spark.read.runtime import Runtime
from tests.engine import MovedClock, until
from tests.unit.read.service import AT_ONCE, SUBSCRIPTION, Answer, Service, response

LONG = 30.0


@contextmanager
def opened(
    service: Service,
    max_messages: int = 1000,
    clock: Callable[[], float] = lambda: 0.0,
    times: PullTimes = AT_ONCE,
    runtime: Runtime | None = None,
) -> Iterator[DriverStream]:
    settings = StreamSettings(SUBSCRIPTION, "stream-0", 60, max_messages, 10**6)
    stream = DriverStream(service, settings, times, runtime or MovedClock(clock))  # type: ignore[arg-type]
    try:
        yield stream
    finally:
        stream.close()


def wait(stream: DriverStream, count: int) -> None:
    """Poll until `count` messages are buffered."""
    while stream.message_count < count:
        stream.poll(LONG)


def taken(stream: DriverStream, max_messages: int = 1000, max_bytes: int = 10**6) -> list[str]:
    _, received = stream.take(max_messages, max_bytes)
    return [data.decode() for got in received for data in got.messages.column("data").to_pylist()]


def flow_controlled_by(stream: DriverStream, service: Service, *texts: str) -> list[bool]:
    """Return whether the stream is flow-controlled after each of these messages, which arrive and leave one by one."""
    found = []
    for text in texts:
        service.calls[0].say(response([text]))
        wait(stream, 1)
        found.append(stream.is_flow_controlled)
        taken(stream)
    return found


def test_buffer_is_empty_at_first():
    """An empty buffer has no oldest message, and nothing to take."""
    with opened(Service()) as stream:
        assert (0, None, None) == (stream.message_count, stream.oldest_arrival, stream.oldest_publish_time)
        assert [] == taken(stream)


def test_messages_are_taken_in_order():
    """The message that arrived first is taken first, and once."""
    service = Service(scripts=[[response("abc")]])
    with opened(service) as stream:
        wait(stream, 3)
        service.calls[0].say(response("d"))
        wait(stream, 4)
        assert ["a", "b"] == taken(stream, 2)
        assert ["c", "d"] == taken(stream, 2)
        assert [] == taken(stream)
        assert stream.oldest_arrival is None


def test_full_buffer_opens_no_other_stream():
    """A full buffer opens no other stream: each has its own flow control, and a long batch would pile messages up."""
    service = Service(scripts=[[response("ab"), grpc.StatusCode.UNAVAILABLE], [response("c")]])
    with opened(service, max_messages=2) as stream:
        wait(stream, 2)
        stream.poll(0.2)
        assert 2 == stream.message_count
        assert ["a", "b"] == taken(stream)
        wait(stream, 1)
        assert ["c"] == taken(stream)


def test_bytes_limit_what_is_taken_but_never_to_nothing():
    """A message larger than the budget is taken alone."""
    # An id and an ack id are as long as the payload here.
    service = Service(scripts=[[response(["x" * 1000])]])
    with opened(service) as stream:
        wait(stream, 1)
        service.calls[0].say(response("b"))
        wait(stream, 2)
        assert ["x" * 1000] == taken(stream, max_bytes=10)
        assert ["b"] == taken(stream, max_bytes=10)


def test_oldest_publish_time_is_that_of_buffered_messages():
    """The oldest publish time, which AvailableNow compares with its start, is that of the buffered messages."""
    service = Service(scripts=[[response("b", published=20.0), response("a", published=10.0)]])
    with opened(service) as stream:
        wait(stream, 2)
        assert 10.0 == stream.oldest_publish_time
        service.calls[0].say(response("c", published=30.0))
        wait(stream, 3)
        assert 10.0 == stream.oldest_publish_time


def test_stream_at_its_limit_is_flow_controlled():
    """At its limit of outstanding messages the stream is flow-controlled, until messages are taken."""
    with opened(Service(scripts=[[response("ab")]]), max_messages=2) as stream:
        wait(stream, 2)
        assert stream.is_flow_controlled
        taken(stream)
        assert not stream.is_flow_controlled


def test_stream_with_a_quarter_of_its_limit_left_is_flow_controlled():
    """A service that never cuts a response waits until a whole one fits, so the limit itself may never be reached."""
    with opened(Service(scripts=[[response("abc")]]), max_messages=4) as stream:
        wait(stream, 3)
        assert stream.is_flow_controlled


def test_stream_at_the_rate_limit_is_saturated():
    """Batches that are quick enough keep a stream from its limits. It is saturated at 6 MB/s for two seconds."""
    clock = [0.0]  # seconds
    service = Service(scripts=[[]])
    with opened(service, clock=lambda: clock[0]) as stream:
        found = []
        for clock[0] in (0.5, 1.0, 1.5, 1.9, 3.6):
            service.calls[0].say(response(["x" * 1_100_000]))  # an id and an ack id are as long as the payload here
            wait(stream, 1)
            taken(stream)
            stream.record_acks(1)
            found.append((stream.is_flow_controlled, stream.is_saturated))
        assert [(False, saturated) for saturated in (False, False, False, True, False)] == found


def test_flow_controlled_stream_is_saturated():
    """A stream whose limits are reached is saturated, however slow it is."""
    with opened(Service(scripts=[[response("ab")]]), max_messages=2) as stream:
        wait(stream, 2)
        assert stream.is_saturated


def test_unacknowledged_messages_count_for_flow_control():
    """Taken messages are still outstanding. Only an acknowledgement makes room."""
    service = Service(scripts=[[response("a")]])
    with opened(service, max_messages=2) as stream:
        wait(stream, 1)
        taken(stream)
        service.calls[0].say(response("b"))
        wait(stream, 1)
        assert stream.is_flow_controlled
        taken(stream)
        stream.record_acks(2)
        service.calls[0].say(response("c"))
        wait(stream, 1)
        assert not stream.is_flow_controlled


def test_part_of_a_response_is_acknowledged():
    """After acks of a part of a response the rest is still outstanding, in messages and in bytes."""
    service = Service(scripts=[[response("ab")]])
    with opened(service, max_messages=3) as stream:
        wait(stream, 2)
        taken(stream)
        stream.record_acks(1)
        assert [False, True] == flow_controlled_by(stream, service, "c", "d")
    # An id and an ack id are as long as the payload here.
    service = Service(scripts=[[response(["x" * 100_000, "y" * 100_000])]])
    with opened(service) as stream:
        wait(stream, 2)
        taken(stream)
        stream.record_acks(1)
        assert [False, True] == flow_controlled_by(stream, service, "c" * 140_000, "d" * 100_000)


def test_flow_control_admits_as_many_as_were_acknowledged():
    """Two acks admit two more messages, and no more."""
    service = Service(scripts=[[response("a")]])
    with opened(service, max_messages=3) as stream:
        for text in "bc":
            wait(stream, 1)
            taken(stream)
            service.calls[0].say(response(text))
        wait(stream, 1)
        taken(stream)
        stream.record_acks(2)
        assert [False, True] == flow_controlled_by(stream, service, "d", "e")


@contextmanager
def reopened() -> Iterator[tuple[DriverStream, Service]]:
    """A stream of two messages at most that was opened again: one was taken before, and one is buffered since."""
    service = Service(scripts=[[response("a")], [response("b")]])
    with opened(service, max_messages=2) as stream:
        wait(stream, 1)
        taken(stream)
        service.calls[0].say(grpc.StatusCode.UNAVAILABLE)
        wait(stream, 1)
        yield stream, service


def test_reopened_stream_counts_anew():
    """The service counts outstanding messages for each stream: those of the last one do not count for the next."""
    with reopened() as (stream, service):
        assert not stream.is_flow_controlled
        taken(stream)
        service.calls[1].say(response("c"))
        wait(stream, 1)
        assert stream.is_flow_controlled


def test_acks_of_the_last_stream_make_no_room_in_the_next():
    """Its messages were outstanding on the last one. So this one may be full, and hold back messages."""
    with reopened() as (stream, service):
        stream.record_acks(1)
        service.calls[1].say(response("c"))
        wait(stream, 2)
        assert stream.is_flow_controlled
        taken(stream)
        stream.record_acks(2)
        service.calls[1].say(response("d"))
        wait(stream, 1)
        assert not stream.is_flow_controlled


def test_poll_does_not_wait_for_a_waiting_poll():
    """The lease extender polls while Spark's call waits for the first message."""
    service = Service()
    is_waiting = threading.Event()

    class Watched(queue.Queue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            if timeout is not None and timeout > LONG / 2:
                is_waiting.set()
            return super().get(block, timeout)

    class WatchedRuntime(Runtime):
        def queue(self) -> queue.Queue[Any]:
            return Watched()

    with opened(service, runtime=WatchedRuntime()) as stream:
        waiting = threading.Thread(target=stream.poll, args=[LONG])
        waiting.start()
        assert is_waiting.wait(LONG)
        stream.poll()
        assert waiting.is_alive()
        until(lambda: bool(service.calls), "a call")
        service.calls[0].say(response("a"))
        waiting.join()
        assert 1 == stream.message_count


def test_leases_are_due_at_a_quarter_of_their_time():
    """A message that is buffered for long is extended before its lease expires, and then has the longer lease."""
    now = 0.0
    with opened(Service(scripts=[[response("a")]]), clock=lambda: now) as stream:
        wait(stream, 1)
        assert [] == ack_ids(stream.due(14 - TRANSIT_SECONDS))
        assert ["ack-a"] == ack_ids(stream.due(15 - TRANSIT_SECONDS))
        stream.record_extension(sent=15, answered=16)
        assert [] == ack_ids(stream.due(164))
        assert ["ack-a"] == ack_ids(stream.due(165))


def test_messages_that_were_not_due_are_not_extended():
    """A message that arrives while another is extended keeps its own lease."""
    now = 0.0
    service = Service(scripts=[[response("a")]])
    with opened(service, clock=lambda: now) as stream:
        wait(stream, 1)
        for now in (4.0, 8.0, 12.0, 14.0):  # noqa: B007 (the clock returns it)
            stream.poll()
        service.calls[0].say(response("b"))
        wait(stream, 2)
        stream.record_extension(sent=15, answered=16)
        assert ["ack-b"] == ack_ids(stream.due(29))


def test_messages_that_arrive_after_an_extension_was_sent_are_not_extended():
    """After a standstill they may have been leased long ago, and they are not in the request."""
    now = 0.0
    service = Service(scripts=[[]])
    with opened(service, clock=lambda: now) as stream:
        now = 40.0
        stream.poll()
        service.calls[0].say(response("a"))
        wait(stream, 1)
        stream.record_extension(sent=39, answered=40)
        assert ["ack-a"] == ack_ids(stream.due(39))


def test_lease_of_taken_messages_begins_with_the_oldest():
    """The batch's lease is that of its oldest message, not that of the time when the batch was planned."""
    now = 5.0
    with opened(Service(scripts=[[response("a")]]), clock=lambda: now) as stream:
        wait(stream, 1)
        now = 50.0
        assert Lease(5 - TRANSIT_SECONDS, 60) == stream.take(1000, 10**6)[0]


def test_lease_of_taken_messages_is_the_one_that_ends_first():
    """The newest message has a shorter lease than one that was buffered for so long that it was extended."""
    now = 0.0
    service = Service(scripts=[[response("a")]])
    with opened(service, clock=lambda: now) as stream:
        wait(stream, 1)
        stream.record_extension(sent=15, answered=15)
        for now in (4.0, 8.0, 12.0, 16.0, 20.0):  # noqa: B007 (the clock returns it)
            stream.poll()
        service.calls[0].say(response("b"))
        wait(stream, 2)
        assert 0 == stream.oldest_arrival
        assert Lease(20 - TRANSIT_SECONDS, 60) == stream.take(1000, 10**6)[0]


@pytest.mark.parametrize(("moment", "refused"), [(61, False), (15, True)])
def test_messages_whose_lease_has_ended_are_no_rows(moment: float, refused: bool):
    """Once a lease was extended too late, or Pub/Sub refused, another may have been sent the messages."""
    with opened(Service(scripts=[[response("ab")]])) as stream:
        wait(stream, 2)
        stream.record_extension(sent=moment, answered=moment, refused=refused)

        assert (None, []) == stream.take(1000, 10**6)
        assert ["ack-a", "ack-b"] == ack_ids(stream.take_expired())
        assert [] == stream.take_expired()


def test_messages_whose_lease_goes_on_stay():
    """The others of the buffer are rows."""
    now = 0.0
    service = Service(scripts=[[response("a")]])
    with opened(service, clock=lambda: now) as stream:
        wait(stream, 1)
        stream.record_extension(sent=15, answered=15, refused=True)
        for now in (4.0, 8.0, 12.0, 16.0, 20.0):  # noqa: B007 (the clock returns it)
            stream.poll()
        assert ["ack-a"] == ack_ids(stream.take_expired())
        service.calls[0].say(response("b"))
        wait(stream, 1)

        assert ["b"] == taken(stream)


@pytest.mark.parametrize("size", [4200, 8000, 32_000])
def test_large_messages_reach_the_limit_in_bytes(size: int):
    """Flow control counts a message as it is sent. Its payload alone would never reach the limit."""
    # An id and an ack id are as long as the payload here.
    service = Service(scripts=[[response(["x" * size])] * (10**6 // size)])
    with opened(service) as stream:
        wait(stream, 10**6 // size)
        assert stream.is_flow_controlled


def test_messages_before_a_final_status_are_kept():
    """Messages from before the subscription was deleted stay buffered. Each later poll raises the error."""
    with opened(Service(scripts=[[response("a"), grpc.StatusCode.NOT_FOUND]])) as stream:
        wait(stream, 1)
        for _ in range(2):
            with pytest.raises(MissingError):
                stream.poll(LONG)
        assert ["a"] == taken(stream)


def test_lease_runs_while_the_machine_sleeps():
    """The time of a message's arrival is not known, but it was after the last poll."""
    now = 0.0
    with opened(Service(scripts=[[response("a")]]), clock=lambda: now) as stream:
        until(lambda: stream.health.last_response is not None, "a response")
        now = 70.0
        stream.poll(LONG)

        assert 0 == stream.message_count
        assert ["ack-a"] == ack_ids(stream.close())


def test_close_returns_all_buffered_receipts():
    """Buffered messages and responses that were not polled yet are all to be nacked."""
    service = Service(scripts=[[response("ab")]])
    with opened(service) as stream:
        wait(stream, 2)
        service.calls[0].say(response("c"))
        assert ["ack-a", "ack-b", "ack-c"] == ack_ids(stream.close())


def test_close_returns_receipts_of_arriving_messages():
    """Messages that the service sent before the stream was half-closed would be leased without a reader."""
    service = Service(scripts=[[response("a")]])
    with opened(service, times=replace(AT_ONCE, drain=LONG)) as stream:
        wait(stream, 1)
        [call] = service.calls

        def arrive() -> None:
            assert [] == list(call.requests)  # until it is half-closed
            call.say(response("b"))
            call.say(grpc.StatusCode.OK)

        arriving = threading.Thread(target=arrive)
        arriving.start()
        receipts = ack_ids(stream.close())
        arriving.join()

    assert ["ack-a", "ack-b"] == receipts


def dropped(stream: DriverStream, *texts: str) -> list[str]:
    unwanted = [f"id-{text}" for text in texts]
    drops = stream.drop(lambda ids: np.array([each in unwanted for each in ids.to_pylist()], bool))
    return ack_ids([each.receipts for each in drops])


def test_redeliveries_are_dropped_from_the_buffer():
    """They are removed wherever they are. The others keep their order and their leases."""
    now = 0.0
    service = Service(scripts=[[response("abc")]])
    with opened(service, clock=lambda: now) as stream:
        wait(stream, 3)
        for now in (4.0, 8.0, 12.0, 16.0, 20.0):  # noqa: B007 (the clock returns it)
            stream.poll()
        service.calls[0].say(response("de"))
        wait(stream, 5)
        assert [] == dropped(stream, "z")
        assert ["ack-b", "ack-d"] == dropped(stream, "b", "d")
        assert ["ack-a", "ack-c"] == ack_ids(stream.due(20.0))
        assert ["a", "c", "e"] == taken(stream)


def test_buffer_of_redeliveries_is_empty():
    """When all messages were dropped, no batch is to be planned."""
    with opened(Service(scripts=[[response("ab")]])) as stream:
        wait(stream, 2)
        assert ["ack-a", "ack-b"] == dropped(stream, "a", "b")
        assert (0, None) == (stream.message_count, stream.oldest_arrival)


def test_dropped_messages_are_outstanding_until_they_are_acknowledged():
    """The service counts them as it counts taken ones."""
    service = Service(scripts=[[response("ab")]])
    with opened(service, max_messages=3) as stream:
        wait(stream, 2)
        dropped(stream, "a", "b")
        assert [True] == flow_controlled_by(stream, service, "c")
        stream.record_acks(3)
        assert [False] == flow_controlled_by(stream, service, "d")


@pytest.mark.parametrize(("taken_of_four", "has_keys", "idle"), [(2, False, True), (3, False, False), (2, True, False)])
def test_acks_that_may_let_messages_come_begin_the_idle_time_anew(taken_of_four: int, has_keys: bool, idle: bool):
    """With room for a response and without ordering keys nothing was held back before."""
    with opened(Service(scripts=[[response("abcd"[:taken_of_four])]]), max_messages=4) as stream:
        wait(stream, taken_of_four)
        taken(stream)
        until(lambda: stream.is_idle(0.05), "idle time")
        stream.record_acks(1, has_keys)
        assert idle is stream.is_idle(0.05)


def test_stream_is_not_idle_if_a_message_comes_while_the_service_is_asked():
    """The answer may take seconds."""

    class Sending(Service):
        def modify_ack_deadline(self, subscription: str, request: bytes, timeout: float) -> Answer:
            self.calls[0].say(response("b"))
            wait(stream, 2)
            return super().modify_ack_deadline(subscription, request, timeout)

    with opened(Sending(scripts=[[response("a")]])) as stream:
        wait(stream, 1)
        until(lambda: stream.idle_seconds >= 0.5, "idle time")
        assert not stream.is_idle(0.5)


def test_stream_is_not_idle_while_messages_are_to_be_nacked():
    """They are delivered again, and a committed batch may have them already."""
    with opened(Service(scripts=[[response("a")]])) as stream:
        wait(stream, 1)
        until(lambda: stream.is_idle(0.05), "idle time")
        stream.record_extension(sent=15, answered=15, refused=True)
        assert not stream.is_idle(0.05)
        stream.take_expired()
        assert not stream.is_idle(0.05)
        stream.record_nacks()
        assert not stream.is_idle(0.05)
        until(lambda: stream.is_idle(0.05), "idle time")


def test_later_messages_of_a_key_are_nacked_with_an_expired_one():
    """They are delivered again after it. Pub/Sub does not wait for the ack of the earlier ones before that."""
    now = [0.0]
    service = Service(scripts=[[response("a", key="k")]])
    with opened(service, clock=lambda: now[0]) as stream:
        wait(stream, 1)
        for now[0] in range(1, 31):  # a jump would be a standstill
            stream.poll()
        service.calls[0].say(response("b", key="k"))
        wait(stream, 2)
        service.calls[0].say(response("c"))
        wait(stream, 3)
        for now[0] in range(31, 59):
            stream.poll()
        assert ["c"] == taken(stream)
        stream.record_extension(sent=58.0, answered=58.0, refused=True)
        assert ["ack-a", "ack-b"] == ack_ids(stream.take_expired())

        service.calls[0].say(response("d", key="k"))
        while not stream.has_expired:  # the others are being nacked
            stream.poll(LONG)
        assert [] == taken(stream)
        assert ["ack-d"] == ack_ids(stream.take_expired())
        stream.record_nacks()
        service.calls[0].say(response("a", key="k"))
        wait(stream, 1)
        assert ["a"] == taken(stream)


def ack_ids(receipts: list[pa.RecordBatch]) -> list[str]:
    return [ack_id for batch in receipts for ack_id in batch.column("ack_id").to_pylist()]


def test_messages_that_have_expired_in_a_standstill_are_nacked_once():
    """Pub/Sub delivers them again at once, and for some seconds they cannot be told from old ones."""
    now = [0.0]
    with opened(Service(scripts=[[response("a")]]), clock=lambda: now[0]) as stream:
        now[0] = 100.0
        while not stream.has_expired:
            stream.poll(LONG)
        assert (0, []) == (stream.message_count, stream.take_expired())
        assert 0.0 == stream.idle_seconds
        now[0] += STANDSTILL_SECONDS
        assert ["ack-a"] == ack_ids(stream.take_expired())

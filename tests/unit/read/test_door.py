"""The door: what waits, what is given away, which leases are due."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat

import grpc
import pyarrow as pa
import pytest

from pubsub_spark.errors import MissingError
from pubsub_spark.read import pull as pulling
from pubsub_spark.read.door import Door
from pubsub_spark.read.leases import Lease
from pubsub_spark.read.pull import Flow
from tests.unit.read.service import SUBSCRIPTION, Service, response

LONG = 30.0


@contextmanager
def opened(service: Service, max_messages: int = 1000, clock: Callable[[], float] = lambda: 0.0) -> Iterator[Door]:
    door = Door(service, Flow(SUBSCRIPTION, "stream-0", 60, max_messages, 10**6), clock)  # type: ignore[arg-type]
    try:
        yield door
    finally:
        door.close()


def wait(door: Door, count: int) -> None:
    """Take in responses until `count` messages wait."""
    while door.count < count:
        door.poll(LONG)


def taken(door: Door, max_messages: int = 1000, max_bytes: int = 10**6) -> list[str]:
    _, received = door.take(max_messages, max_bytes)
    return [data.decode() for got in received for data in got.messages.column("data").to_pylist()]


def crowded_by(door: Door, service: Service, *texts: str) -> list[bool]:
    """Whether the door is crowded after each of these messages, which come one by one and are given away."""
    found = []
    for text in texts:
        service.calls[0].say(response([text]))
        wait(door, 1)
        found.append(door.crowded)
        taken(door)
    return found


def test_nothing_waits_at_first():
    """An empty door has no oldest message, and gives nothing away."""
    with opened(Service()) as door:
        assert (0, None, None) == (door.count, door.since, door.oldest_publish_time)
        assert [] == taken(door)


def test_messages_wait_in_order():
    """What arrived first is given away first, and once."""
    service = Service(scripts=[[response("abc")]])
    with opened(service) as door:
        wait(door, 3)
        service.calls[0].say(response("d"))
        wait(door, 4)
        assert ["a", "b"] == taken(door, 2)
        assert ["c", "d"] == taken(door, 2)
        assert [] == taken(door)
        assert door.since is None


def test_full_door_opens_no_other_stream(monkeypatch: pytest.MonkeyPatch):
    """Each stream has the service's whole flow control: a long batch and streams that end would pile messages up."""
    monkeypatch.setattr(pulling, "delays", lambda: repeat(0.0))
    service = Service(scripts=[[response("ab"), grpc.StatusCode.UNAVAILABLE], [response("c")]])
    with opened(service, max_messages=2) as door:
        wait(door, 2)
        door.poll(0.2)
        assert 2 == door.count
        assert ["a", "b"] == taken(door)
        wait(door, 1)
        assert ["c"] == taken(door)


def test_bytes_limit_what_is_taken_but_never_to_nothing():
    """A message larger than the budget is taken alone."""
    # An id and an ack id are as long as the payload here.
    service = Service(scripts=[[response(["x" * 1000])]])
    with opened(service) as door:
        wait(door, 1)
        service.calls[0].say(response("b"))
        wait(door, 2)
        assert ["x" * 1000] == taken(door, max_bytes=10)
        assert ["b"] == taken(door, max_bytes=10)


def test_oldest_publish_time_is_that_of_what_waits():
    """AvailableNow compares it with its own start."""
    service = Service(scripts=[[response("b", published=20.0), response("a", published=10.0)]])
    with opened(service) as door:
        wait(door, 2)
        assert 10.0 == door.oldest_publish_time
        service.calls[0].say(response("c", published=30.0))
        wait(door, 3)
        assert 10.0 == door.oldest_publish_time


def test_door_is_crowded_when_flow_control_holds_messages_back():
    """As many messages out as the stream allows: there may be more than the door can serve."""
    with opened(Service(scripts=[[response("ab")]]), max_messages=2) as door:
        wait(door, 2)
        assert door.crowded
        taken(door)
        assert not door.crowded


def test_unacknowledged_messages_crowd_the_door():
    """Given away is still outstanding; only an acknowledgement makes room."""
    service = Service(scripts=[[response("a")]])
    with opened(service, max_messages=2) as door:
        wait(door, 1)
        taken(door)
        service.calls[0].say(response("b"))
        wait(door, 1)
        assert door.crowded
        taken(door)
        door.settled(2)
        service.calls[0].say(response("c"))
        wait(door, 1)
        assert not door.crowded


def test_part_of_what_came_at_once_is_settled():
    """The rest of it is outstanding still, in messages and in bytes."""
    service = Service(scripts=[[response("ab")]])
    with opened(service, max_messages=3) as door:
        wait(door, 2)
        taken(door)
        door.settled(1)
        assert [False, True] == crowded_by(door, service, "c", "d")
    # An id and an ack id are as long as the payload here.
    service = Service(scripts=[[response(["x" * 100_000, "y" * 100_000])]])
    with opened(service) as door:
        wait(door, 2)
        taken(door)
        door.settled(1)
        assert [False, True] == crowded_by(door, service, "c" * 150_000, "d" * 100_000)


def test_as_many_are_settled_as_were_acknowledged():
    """Of three that came one by one, and no more."""
    service = Service(scripts=[[response("a")]])
    with opened(service, max_messages=3) as door:
        for text in "bc":
            wait(door, 1)
            taken(door)
            service.calls[0].say(response(text))
        wait(door, 1)
        taken(door)
        door.settled(2)
        assert [False, True] == crowded_by(door, service, "d", "e")


def test_reopened_stream_counts_anew(monkeypatch):
    """The service counts what is outstanding for each stream: given away on the last one does not crowd this one."""
    monkeypatch.setattr(pulling, "delays", lambda: iter(lambda: 0.001, None))
    service = Service(scripts=[[response("a")], [response("b")]])
    with opened(service, max_messages=2) as door:
        wait(door, 1)
        taken(door)
        service.calls[0].say(grpc.StatusCode.UNAVAILABLE)
        wait(door, 1)
        assert not door.crowded
        taken(door)
        service.calls[1].say(response("c"))
        wait(door, 1)
        assert door.crowded


def test_a_look_does_not_wait_for_who_waits():
    """The keeper has leases to look after while Spark's call waits for the first message."""
    service = Service()
    with opened(service) as door:
        waiting = threading.Thread(target=door.poll, args=[LONG])
        waiting.start()
        while not (door._turn.locked() and service.calls):
            assert waiting.is_alive()
        door.poll()
        assert waiting.is_alive()
        service.calls[0].say(response("a"))
        waiting.join()
        assert 1 == door.count


def test_leases_are_due_at_a_quarter_of_their_time():
    """What waits long is extended before its lease runs out, and then has the longer lease."""
    now = 0.0
    with opened(Service(scripts=[[response("a")]]), clock=lambda: now) as door:
        wait(door, 1)
        assert [] == ack_ids(door.due(14))
        assert ["ack-a"] == ack_ids(door.due(15))
        door.extended(since=15, now=16)
        assert [] == ack_ids(door.due(164))
        assert ["ack-a"] == ack_ids(door.due(165))


def test_what_was_not_due_is_not_taken_for_extended():
    """It came after the look that found the other, and keeps its own lease."""
    now = 0.0
    service = Service(scripts=[[response("a")]])
    with opened(service, clock=lambda: now) as door:
        wait(door, 1)
        now = 14.0
        door.poll()
        service.calls[0].say(response("b"))
        wait(door, 2)
        door.extended(since=15, now=16)
        assert ["ack-b"] == ack_ids(door.due(29))


def test_lease_of_what_is_taken_began_with_the_oldest():
    """The batch's lease is that of its oldest message, not that of the moment it was planned."""
    now = 5.0
    with opened(Service(scripts=[[response("a")]]), clock=lambda: now) as door:
        wait(door, 1)
        now = 50.0
        assert Lease(5, 60) == door.take(1000, 10**6)[0]


def test_lease_of_what_is_taken_is_the_one_that_ends_first():
    """What came last has a shorter lease than what has waited for so long that it was extended."""
    now = 0.0
    service = Service(scripts=[[response("a")]])
    with opened(service, clock=lambda: now) as door:
        wait(door, 1)
        door.extended(since=15, now=15)
        now = 20.0
        door.poll()
        service.calls[0].say(response("b"))
        wait(door, 2)
        assert 0 == door.since
        assert Lease(20, 60) == door.take(1000, 10**6)[0]


def test_lease_that_ran_out_at_the_door_stays_over():
    """Extended too late, or refused by the service: what is taken may come again."""
    for moment, refused in ((61, False), (15, True)):
        with opened(Service(scripts=[[response("a")]])) as door:
            wait(door, 1)
            door.extended(since=moment, now=moment, refused=refused)
            lease, _ = door.take(1000, 10**6)
            assert lease is not None and lease.over(moment)


def test_lease_that_ran_out_counts_before_one_that_ends_sooner():
    """Whatever else is taken with it: some of it may come again."""
    now = 0.0
    service = Service(scripts=[[response("a")]])
    with opened(service, clock=lambda: now) as door:
        wait(door, 1)
        door.extended(since=15, now=15, refused=True)
        now = 20.0
        door.poll()
        service.calls[0].say(response("b"))
        wait(door, 2)
        lease, _ = door.take(1000, 10**6)
        assert lease is not None and lease.over(20)


@pytest.mark.parametrize("size", [4200, 8000, 32_000])
def test_large_messages_crowd_the_door(size: int):
    """Flow control counts a message as it is sent; its payload alone would never reach the limit."""
    # An id and an ack id are as long as the payload here.
    service = Service(scripts=[[response(["x" * size])] * (10**6 // size)])
    with opened(service) as door:
        wait(door, 10**6 // size)
        assert door.crowded


def test_messages_before_a_final_status_are_kept():
    """What came before the subscription went away waits; the next to look meets the status, and so does everybody."""
    with opened(Service(scripts=[[response("a"), grpc.StatusCode.NOT_FOUND]])) as door:
        wait(door, 1)
        for _ in range(2):
            with pytest.raises(MissingError):
                door.poll(LONG)
        assert ["a"] == taken(door)


def test_lease_runs_while_the_machine_sleeps():
    """When a message arrived is not known, but it was after the last look."""
    now = 0.0
    with opened(Service(scripts=[[response("a")]]), clock=lambda: now) as door:
        while door._stream._responses.empty():
            threading.Event().wait(0.001)
        now = 70.0
        door.poll()
        lease, _ = door.take(1000, 10**6)
    assert lease is not None
    assert (0.0, True) == (lease.since, lease.over(now))


def test_close_gives_back_all_that_waits():
    """What was taken in and what nobody had asked for yet are both to be given back to the service."""
    service = Service(scripts=[[response("ab")]])
    door = Door(service, Flow(SUBSCRIPTION, "stream-0", 60, 1000, 10**6), lambda: 0.0)  # type: ignore[arg-type]
    wait(door, 2)
    service.calls[0].say(response("c"))
    while door._stream._responses.empty():
        assert not door._stream.ended
    assert ["ack-a", "ack-b", "ack-c"] == ack_ids(door.close())


def test_close_gives_back_what_is_under_way():
    """What the service had sent when the stream was half-closed; else it would be leased to nobody."""
    service = Service(scripts=[[response("a")]])
    door = Door(service, Flow(SUBSCRIPTION, "stream-0", 60, 1000, 10**6), lambda: 0.0)  # type: ignore[arg-type]
    wait(door, 1)
    [call] = service.calls

    def arrive() -> None:
        assert [] == list(call.requests)  # until it is half-closed
        threading.Event().wait(pulling.QUIET / 4)
        call.say(response("b"))
        call.say(grpc.StatusCode.OK)

    arriving = threading.Thread(target=arrive)
    arriving.start()
    given_back = ack_ids(door.close())
    arriving.join()

    assert ["ack-a", "ack-b"] == given_back


def ack_ids(receipts: list[pa.RecordBatch]) -> list[str]:
    return [ack_id for batch in receipts for ack_id in batch.column("ack_id").to_pylist()]

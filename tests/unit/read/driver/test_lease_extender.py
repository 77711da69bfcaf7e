"""The lease extender: leases of buffered and staged messages continue, also while acks or the store stall."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import grpc
import pyarrow as pa
import pytest

from pubsub_spark.errors import StagingError
from pubsub_spark.read.driver.times import ExtensionTimes
from pubsub_spark.read.pull import acks
from pubsub_spark.read.pull.lease import LEASE_SECONDS, STREAM_LEASE_SECONDS
from tests.unit.read.driver.running import DUE, DUE_AGAIN, LONG, Running
from tests.unit.read.service import Answer, Service, StatusError, ids, response

AWAY = StatusError(grpc.StatusCode.UNAVAILABLE)
REFUSED = StatusError(grpc.StatusCode.FAILED_PRECONDITION)
LONGEST = int(LEASE_SECONDS)
RunOf = Callable[..., Running]


@dataclass
class StallingStore:
    """A hook of a store whose reads of some batches do not return before `over`."""

    batches: set[int] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)

    def __call__(self, call: str, path: str) -> None:
        if call in ("list", "read_range") and any(f"/{batch}/" in path for batch in self.batches):
            assert self.over.wait(LONG)


@pytest.fixture
def stalling(running: Running) -> Iterator[StallingStore]:
    stalling = StallingStore()
    running.before = stalling
    yield stalling
    stalling.over.set()


def extended(running: Running) -> list[list[str]]:
    """Return the ack ids of each request that has extended leases to the longest."""
    return sorted(ack_ids for seconds, ack_ids in running.service.modified if seconds == LONGEST)


def until_extended(running: Running, now: float, *parts: tuple[int, int]) -> None:
    """Wait until the leases of all these parts are extended from `now` on, and of no others."""
    running.until(lambda: dict.fromkeys(parts, now + LEASE_SECONDS) == running.leases())


def test_parts_of_a_long_batch_are_listed_and_extended(running: Running):
    """Tasks report nothing, so the driver lists their staged parts, and sets its leases to the longest."""
    running.stage(1, 0, "a")
    running.stage(1, 1, "b", dropped=["c"])
    extender = running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (1, 0), (1, 1))

    assert [["ack-a"], ["ack-b", "ack-c"]] == extended(running)
    running.until(lambda: 3 == extender.extended)


def test_leases_are_extended_after_a_thread_could_not_be_started(running: Running):
    """The process had as many as its limit once. The work of the thread is not lost."""
    running.runtime.refused.append("receipts reader")
    running.stage(1, 0, "a")
    running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (1, 0))

    assert [] == running.runtime.refused


def test_leases_in_memory_are_extended_while_no_thread_can_be_started(running: Running):
    """They need none."""
    running.stage(1, 0, "a")
    running.stage(2, 0, "b")
    running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (1, 0), (2, 0))
    running.runtime.refused += ["receipts reader"] * 10**5
    running.stage(3, 0, "c")
    running.advance(DUE_AGAIN)

    running.until(lambda: running.leases().get((1, 0)) == DUE + DUE_AGAIN + LEASE_SECONDS)
    running.runtime.refused.clear()


def test_short_batch_is_not_extended(running: Running):
    """Most batches are committed long before their leases end, and cost no request."""
    running.stage(1, 0, "a")
    calls: list[str] = []
    running.before = lambda call, _: calls.append(call)
    running.extending()
    running.advance(DUE - 1)
    running.arrive("x")  # the extender has polled, and more than once
    running.advance(DUE + 1)
    until_extended(running, 2 * DUE, (1, 0))

    assert 1 == calls.count("list")


def test_long_batch_is_extended_again(running: Running):
    """A batch that takes hours keeps its leases: the second extension is due at a quarter of the first."""
    running.stage(1, 0, "a")
    running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (1, 0))
    running.advance(DUE_AGAIN)
    until_extended(running, DUE + DUE_AGAIN, (1, 0))

    assert [["ack-a"], ["ack-a"]] == extended(running)
    assert [] == running.service.acked


def test_unanswered_extension_is_tried_again_after_a_second(running: Running):
    """An extension that the service did not answer is no extension."""
    running.service.answers = [AWAY]
    running.stage(1, 0, "a")
    extender = running.extending(ExtensionTimes(tick=0.01, timeout=0.0))
    running.advance(DUE)
    running.until(lambda: 1 == len(extended(running)))
    running.until_due_later(1)
    assert 0 == extender.extended
    running.advance(1.0)
    running.until(lambda: {(1, 0): STREAM_LEASE_SECONDS} != running.leases())

    assert [["ack-a"], ["ack-a"]] == extended(running)
    assert {(1, 0): DUE + 1 + LEASE_SECONDS} == running.leases()


def test_extension_of_some_of_the_messages_is_none(running: Running):
    """On a slow uplink its time is over before all ids are sent. The lease counts as the old one until they are."""
    running.stage(1, 0, *map(str, range(3 * acks.MAX_IDS)))
    running.extending(ExtensionTimes(tick=0.01, timeout=0.0))
    running.advance(DUE)
    running.until(lambda: len(extended(running)) >= 2)
    running.until_due_later(1)
    assert {(1, 0): STREAM_LEASE_SECONDS} == running.leases()
    running.advance(1.0)
    running.until(lambda: len(extended(running)) >= 4)

    assert {(1, 0): STREAM_LEASE_SECONDS} == running.leases()
    assert {"ack-0", f"ack-{acks.MAX_IDS}"} == {request[0] for request in extended(running)}
    assert {acks.MAX_IDS} == {len(request) for request in extended(running)}


def test_refused_extension_expires_the_lease(running: Running):
    """Messages whose lease the service does not extend are delivered again."""
    running.service.answers = [REFUSED]
    running.stage(1, 0, "a")
    running.extending()
    running.advance(DUE)
    running.until(lambda: [1] == [part.batch for part in running.ledger.parts_of(1) if part.lease.expired])


def test_committed_batch_is_extended_until_it_is_settled(running: Running):
    """Messages are not delivered again because their acks are not sent for a while."""
    running.stage(1, 0, "a")
    running.commit(1)
    running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (1, 0))

    running.acknowledging().flush(LONG)
    running.advance(DUE_AGAIN)
    running.stage(2, 0, "b")
    running.advance(DUE)
    until_extended(running, DUE + DUE_AGAIN + DUE, (2, 0))
    assert [["ack-a"], ["ack-b"]] == extended(running)


@dataclass
class SilentAcks(Service):
    """A service that does not answer acks before `over`."""

    asked: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def acknowledge(self, subscription: str, request: bytes, timeout: float) -> Answer:
        self.asked.set()
        assert self.over.wait(LONG)
        return super().acknowledge(subscription, request, timeout)


def test_leases_are_extended_while_acks_wait(run_of: RunOf):
    """Acks that take long hold up no extension, not even of the messages that they are for."""
    service = SilentAcks()
    running = run_of(service=service)
    running.stage(1, 0, "a")
    running.stage(2, 0, "b")
    running.commit(1)
    running.acknowledging()
    assert service.asked.wait(LONG)
    running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (1, 0), (2, 0))
    service.over.set()


def test_failed_driver_stream_does_not_stop_the_extensions(running: Running):
    """The error waits for Spark's next call. The batch that runs keeps its leases until then."""
    running.stage(1, 0, "a")
    running.until(lambda: running.service.calls)
    running.service.calls[0].say(grpc.StatusCode.PERMISSION_DENIED)
    running.extending()
    running.until(lambda: running.stream.health.last_error)
    running.advance(DUE)
    until_extended(running, DUE, (1, 0))


def test_buffered_messages_are_extended(running: Running):
    """The leases of messages that are buffered for long, because Spark is slow, do not end."""
    running.arrive("ab")
    extender = running.extending()
    running.advance(DUE)
    running.until(lambda: 2 == extender.extended)

    assert [["ack-a", "ack-b"]] == extended(running)
    running.until(lambda: not running.stream.due(DUE))


def test_buffered_messages_whose_extension_is_refused_are_returned(running: Running):
    """They are no longer rows, and Pub/Sub delivers them again at once."""
    running.arrive("ab")
    running.service.answers = [REFUSED]
    running.extending()
    running.advance(DUE)
    running.until(lambda: (0, ["ack-a", "ack-b"]) in running.service.modified)

    assert 0 == running.stream.message_count


def test_messages_are_taken_while_no_extension_is_answered(run_of: RunOf):
    """Their leases would count from the poll before otherwise."""
    over = threading.Event()

    class Stalled(Answer):
        def result(self) -> bytes:
            assert over.wait(LONG)
            return super().result()

    class Silent(Service):
        def modify_ack_deadline(self, subscription: str, request: bytes, timeout: float) -> Answer:
            super().modify_ack_deadline(subscription, request, timeout)
            return Stalled(None)

    running = run_of(service=Silent())
    running.stage(1, 0, "a")
    running.extending()
    running.advance(DUE)
    running.until(lambda: bool(running.service.modified) and bool(running.service.calls))
    running.service.calls[-1].say(response("b"))
    running.until(lambda: 1 == running.stream.message_count)
    over.set()


def test_ids_in_doubt_are_kept_until_a_returned_message_came_again(running: Running):
    """With a retry policy that takes up to 600 s, and one of them may be a redelivery."""
    running.ledger.in_doubt.add(ids("a"), 1, 0.0)
    running.arrive("a")
    running.service.answers = [REFUSED]
    running.extending()
    running.advance(DUE)
    running.until(lambda: (0, ["ack-a"]) in running.service.modified)

    now = running.run.now()
    assert [False, True] == [running.ledger.is_settled(at) for at in (now + 598, now + 601)]


def test_stalled_read_holds_up_its_own_batch_alone(running: Running, stalling: StallingStore):
    """The other batches are extended in time. When the store answers, the stalled one is extended also."""
    for batch, text in enumerate("abc", 1):
        running.stage(batch, 0, text)
    stalling.batches = {1}
    running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (2, 0), (3, 0))

    stalling.over.set()
    until_extended(running, DUE, (1, 0), (2, 0), (3, 0))


def test_receipts_that_were_read_once_are_extended_without_the_store(running: Running, stalling: StallingStore):
    """A store that stalls for an hour costs no lease."""
    running.stage(1, 0, "a")
    running.stage(2, 0, "b")
    running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (1, 0), (2, 0))
    stalling.batches = {1, 2}
    for extension in range(1, 25):
        running.advance(DUE_AGAIN)
        until_extended(running, DUE + extension * DUE_AGAIN, (1, 0), (2, 0))


def test_part_of_the_driver_is_extended_without_the_store(running: Running, stalling: StallingStore):
    """The driver has the ack ids of its own part."""
    stalling.batches = {1}
    with running.run.changed:
        running.ledger.plan(1, 0.0)
        running.ledger.stage(1, 0, 100)
        [part] = running.ledger.parts_of(1)
        running.ledger.keep(part, [pa.array(["ack-a"])])
    running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (1, 0))

    assert [["ack-a"]] == extended(running)


def test_kept_ack_ids_are_bounded(run_of: RunOf):
    """If there is no room for the ack ids of a part, they are read for each extension, and all are extended."""
    running = run_of(max_kept_bytes=20)
    running.stage(1, 0, "a")
    running.stage(2, 0, "b", "c", "d")
    running.extending()
    running.advance(DUE)
    until_extended(running, DUE, (1, 0), (2, 0))
    running.until(lambda: running.ledger.parts_of(1)[0].ack_ids)
    running.advance(DUE_AGAIN)
    until_extended(running, DUE + DUE_AGAIN, (1, 0), (2, 0))

    assert [["ack-a"]] * 2 + [["ack-b", "ack-c", "ack-d"]] * 2 == extended(running)
    assert running.ledger.parts_of(2)[0].ack_ids is None


def test_store_that_refuses_stops_no_extension(running: Running):
    """A part that cannot be listed or read is due again, and everything else is extended meanwhile."""
    running.stage(1, 0, "a")
    running.stage(2, 0, "b")
    running.stage(3, 0, "c")

    def refuse(call: str, path: str) -> None:
        if (call == "list" and "/1/" in path) or (call == "read_range" and "/2/" in path):
            raise StagingError("no such disk")

    running.before = refuse
    running.extending()
    running.advance(DUE)
    running.until(lambda: [["ack-c"]] == extended(running))

    running.before = lambda *_: None
    running.advance(DUE)
    running.until(lambda: [["ack-a"], ["ack-b"], ["ack-c"]] == extended(running))


def test_fault_while_receipts_are_read_is_logged_and_tried_again(running: Running, caplog: pytest.LogCaptureFixture):
    """An unexpected error ends neither the extensions nor those of its part."""
    running.stage(1, 0, "a")
    faults = [ValueError("Cannot invoke RPC")]

    def fail(call: str, _: str) -> None:
        if call == "read_range" and faults:
            raise faults.pop()

    running.before = fail
    running.extending()
    running.advance(DUE)
    running.until(lambda: "Trying again" in caplog.text)
    running.advance(2.0)
    until_extended(running, DUE + 2.0, (1, 0))


def test_end_waits_for_readers(running: Running, stalling: StallingStore):
    """An end with a time limit does not wait longer for a store that stalls."""
    running.stage(1, 0, "a")
    stalling.batches = {1}
    extender = running.extending()
    running.advance(DUE)
    extender.end(0.05)
    stalling.over.set()
    extender.end(LONG)

    assert [] == extended(running)

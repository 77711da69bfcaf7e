"""Acks: requests within the limits, retried until their deadline, failed ids returned."""

from __future__ import annotations

from itertools import repeat
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf import any_pb2
from google.pubsub_v1 import types
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.read.pull import acks
from pubsub_spark.read.runtime import Runtime
from tests.unit.read.service import SUBSCRIPTION, Service, StatusError

LARGEST = acks.Window(bytes=acks.MAX_BYTES)


class Clock(Runtime):
    """A clock that begins at 0 and moves by the pauses, each over at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


def ids(*texts: str) -> Any:
    return pa.array(texts, pa.string())


def send(service: Any, ack_ids: Any, seconds: int | None = None, **how: Any) -> list[str]:
    """Return the refused ids, of requests that were all answered."""
    failed = ask(service, ack_ids, seconds, **how)
    assert [] == failed.unanswered.to_pylist()
    return list(failed.refused.to_pylist())


def ask(
    service: Service | Link, ack_ids: Any, seconds: int | None = None, timeout: float = 5, **how: Any
) -> acks.FailedIds:
    connection: Any = service
    how = {"runtime": Clock()} | how
    if seconds is None:
        return acks.acknowledge(connection, SUBSCRIPTION, [ack_ids], timeout, **how)
    if seconds == 0:
        return acks.nack(connection, SUBSCRIPTION, [pa.record_batch({"ack_id": ack_ids})], timeout, **how)
    return acks.extend(connection, SUBSCRIPTION, [ack_ids], seconds, timeout, **how)


class PartlyFailedError(StatusError):
    """The error of a subscription with exactly-once delivery: an ErrorInfo names the failed ids."""

    def __init__(
        self,
        reasons: dict[str, str],
        details: str = "Some acks failed.",
        code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
    ) -> None:
        super().__init__(code, details)
        info = any_pb2.Any()
        info.Pack(error_details_pb2.ErrorInfo(reason="ACKS_FAILED", metadata=reasons))
        status = status_pb2.Status(code=code.value[0], message="Some acks failed.", details=[info])
        self.trailing = status.SerializeToString()

    def trailing_metadata(self) -> Any:
        return (("grpc-status-details-bin", self.trailing),)


def test_nothing_asks_nothing():
    """Without ids there is no request."""
    service = Service()
    assert [] == send(service, ids())
    assert [] == service.acked


def test_small_arrays_are_sent_together():
    service = Service()
    connection: Any = service
    arrays = [ids(*(f"ack-{array}-{n}" for n in range(10))) for array in range(301)]

    assert 3010 == acks.acknowledge(connection, SUBSCRIPTION, arrays, 5).taken
    assert [3000, 10] == [len(request) for request in service.acked]


def test_requests_have_three_thousand_ids_at_most():
    """2,500 short ids go in three requests, in order and each once."""
    service = Service()
    many = [f"ack-{n}" for n in range(7500)]

    assert [] == send(service, ids(*many))
    assert [3000, 3000, 1500] == [len(request) for request in service.acked]
    assert many == service.acked_ids


@given(st.lists(st.integers(0, 100_000), max_size=60))
def test_requests_have_half_a_mebibyte_at_most(lengths: list[int]):
    """However long ack ids are, a request stays within 512 KiB, and every id is in exactly one."""
    many = pa.array(["x" * length for length in lengths], pa.string())
    made = list(acks.requests(acks.acknowledge_request(SUBSCRIPTION), many, LARGEST))

    assert all(len(request) <= 512 * 1024 for request, _ in made)
    assert many.to_pylist() == [ack_id for _, part in made for ack_id in part.to_pylist()]
    for request, part in made:
        assert part.to_pylist() == list(types.AcknowledgeRequest.pb().FromString(request).ack_ids)


@pytest.mark.parametrize(("more", "requests"), [(0, 1), (1, 2)])
def test_half_a_mebibyte_is_one_request_and_a_byte_more_are_two(more: int, requests: int):
    """All bytes of a request count: the subscription's name, and before each id a tag and three bytes of length."""
    name = len(types.AcknowledgeRequest.pb()(subscription=SUBSCRIPTION).SerializeToString())
    first = 200_000
    last = 512 * 1024 - name - (4 + first) - 4 + more

    made = acks.requests(acks.acknowledge_request(SUBSCRIPTION), ids("x" * first, "x" * last), LARGEST)
    assert requests == len(list(made))


@pytest.mark.parametrize(("seconds", "timeout"), [(60, 30), (5, 5), (-1, 0.1)])
def test_a_request_is_given_the_time_that_there_is(seconds: float, timeout: float):
    """The timeout of a request is 30 s, or the rest until the deadline, and 0.1 s at least."""
    service = Service()
    ask(service, ids("a"), timeout=seconds)

    assert [timeout] == service.timeouts


@pytest.mark.parametrize("seconds", [0, 600])
def test_leases_are_set(seconds: int):
    """A nack is a lease of 0 s, an extension one of 600 s."""
    service = Service()
    send(service, ids("a", "b"), seconds)

    assert [(seconds, ["a", "b"])] == service.modified
    assert [] == service.acked


def test_slice_of_a_column_is_that_slice():
    """Ids that are a slice of a larger Arrow column are sent without their neighbours."""
    service = Service()
    send(service, ids("a", "b", "c", "d").slice(1, 2))

    assert ["b", "c"] == service.acked_ids


def test_unavailable_is_tried_again():
    """A retryable status is no failure when a later try is accepted."""
    service = Service(answers=[StatusError(grpc.StatusCode.UNAVAILABLE), StatusError(grpc.StatusCode.INTERNAL)])

    assert [] == send(service, ids("a"))
    assert [["a"], ["a"], ["a"]] == service.acked


def test_a_request_that_is_tried_again_does_not_hold_up_the_others():
    """Other requests are sent while one waits for its retry."""
    service = Service(answers=[StatusError(grpc.StatusCode.UNAVAILABLE)])

    clock = Clock()
    assert [] == send(service, ids(*(f"ack-{n}" for n in range(9000))), runtime=clock, window=acks.Window(6, 2**19))
    assert ["ack-0", "ack-3000", "ack-6000", "ack-0"] == [request[0] for request in service.acked]
    assert 1 == len(clock.slept)


def test_the_pause_of_one_request_is_not_that_of_another(monkeypatch: pytest.MonkeyPatch):
    """A request is tried again after its own pause, however long that of an earlier request is."""
    pauses = iter([10.0, 1.0])
    monkeypatch.setattr(acks, "delays", lambda: repeat(next(pauses)))
    clock = Clock()
    service = Service(answers=[StatusError(grpc.StatusCode.UNAVAILABLE)] * 2)

    assert [] == send(
        service,
        ids(*(f"ack-{n}" for n in range(6000))),
        timeout=60,
        runtime=clock,
        window=acks.Window(6),
    )
    assert ["ack-0", "ack-3000", "ack-3000", "ack-0"] == [request[0] for request in service.acked]
    assert [1, 9] == clock.slept


def test_new_requests_wait_while_the_service_is_away():
    """At most 6 requests are in flight or waiting for their retry. No more are begun until one is answered."""
    service = Service(answers=[StatusError(grpc.StatusCode.UNAVAILABLE)] * 8)
    many = ids(*(f"ack-{n}" for n in range(200_000)))

    clock = Clock()
    assert [] == send(service, many, runtime=clock, window=acks.Window(6, 2**19))
    tried = [request[0] for request in service.acked]
    assert 6 == len(set(tried[:6])) == len(set(tried[:8]))
    assert sorted(many.to_pylist()) == sorted(set(service.acked_ids))
    assert sum(clock.slept) < 1


def test_unavailable_for_too_long_is_a_result():
    """After the deadline the ids of failed requests are unanswered. Nothing is raised."""
    service = Service(answers=[StatusError(grpc.StatusCode.UNAVAILABLE)] * 3)

    failed = ask(service, ids("a", "b"), timeout=-1)
    assert ([], ["a", "b"]) == (failed.refused.to_pylist(), failed.unanswered.to_pylist())
    assert 1 == len(service.acked)


def test_cancelled_is_unanswered():
    """A connection that is closed before the answer proves nothing about the acks: they are unanswered, not refused."""
    service = Service(answers=[StatusError(grpc.StatusCode.CANCELLED)])

    assert ["a"] == ask(service, ids("a")).unanswered.to_pylist()
    assert 1 == len(service.acked)


def test_gone_subscription_is_a_result():
    """A permanent status is neither retried nor raised."""
    service = Service(answers=[StatusError(grpc.StatusCode.NOT_FOUND)])

    assert ["a"] == send(service, ids("a"))
    assert 1 == len(service.acked)


def test_refusal_of_many_requests_is_one_line(caplog: pytest.LogCaptureFixture):
    """A subscription that is gone refuses the acks of a large batch three thousand at a time."""
    gone = StatusError(grpc.StatusCode.NOT_FOUND)

    send(Service(answers=[gone, gone, gone]), ids(*(f"ack-{n}" for n in range(9000))))

    assert [f"9000 acks of `{SUBSCRIPTION}` are refused: {gone.details()}"] == caplog.messages


def test_one_request_fails_alone():
    """Of three requests the one that is refused is the result, the others were accepted."""
    service = Service(answers=[None, StatusError(grpc.StatusCode.PERMISSION_DENIED), None])

    failed = send(service, ids(*(f"ack-{n}" for n in range(9000))))

    assert [f"ack-{n}" for n in range(3000, 6000)] == failed


def test_transient_failures_are_sent_again_alone():
    """Exactly-once delivery: only the ids whose failure is transient go a second time."""
    reasons = {"b": "TRANSIENT_FAILURE_UNORDERED_ACK_ID"}
    service = Service(answers=[PartlyFailedError(reasons)])

    assert [] == send(service, ids("a", "b", "c"))
    assert [["a", "b", "c"], ["b"]] == service.acked


@pytest.mark.parametrize(
    ("reasons", "answers"),
    [
        ({"a": "TRANSIENT_FAILURE_OTHER", "b": "TRANSIENT_FAILURE_OTHER"}, 1),
        ({"a": "TRANSIENT_FAILURE_OTHER"}, 2),
        ({"a": "TRANSIENT_FAILURE_OTHER", "b": "PERMANENT_FAILURE_OTHER"}, 2),
    ],
)
def test_request_counts_as_answered_unless_all_its_ids_are_sent_again(reasons: dict[str, str], answers: int):
    """Else a run that waits for acks would see progress for ever."""
    window = acks.Window()
    send(Service(answers=[PartlyFailedError(reasons)]), ids("a", "b"), window=window)

    assert answers == window.answers


def test_failed_ids_have_one_order():
    """The service names them in a map of protobuf, whose order differs from process to process."""
    failing = [f"ack-{n}" for n in range(9)]
    service = Service(answers=[PartlyFailedError(dict.fromkeys(failing, "TRANSIENT_FAILURE_OTHER"))])

    assert [] == send(service, ids(*failing, "ack-9"))
    assert [[*failing, "ack-9"], failing] == service.acked


def test_permanent_failures_are_the_result():
    """Exactly-once delivery: an id whose lease has expired is never accepted, and is not sent again."""
    reasons = {"a": "PERMANENT_FAILURE_INVALID_ACK_ID", "b": "TRANSIENT_FAILURE_OTHER"}
    service = Service(answers=[PartlyFailedError(reasons)])

    assert ["a"] == send(service, ids("a", "b", "c"))
    assert [["a", "b", "c"], ["b"]] == service.acked


def test_what_is_not_named_as_failed_has_counted():
    """An id that the error does not name was accepted, also when all that it names failed for good."""
    service = Service(answers=[PartlyFailedError({"b": "PERMANENT_FAILURE_INVALID_ACK_ID"})])

    assert ["b"] == send(service, ids("a", "b", "c"))
    assert [["a", "b", "c"]] == service.acked


@pytest.mark.parametrize(
    ("code", "sent", "refused"),
    [
        (grpc.StatusCode.UNAVAILABLE, [["a", "b", "c"], ["a", "c"]], ["b"]),
        (grpc.StatusCode.PERMISSION_DENIED, [["a", "b", "c"]], ["b", "a", "c"]),
    ],
)
def test_what_is_not_named_counts_only_if_the_request_was_carried_out(
    code: grpc.StatusCode, sent: list[list[str]], refused: list[str]
):
    """Google's clients send it again, or fail it."""
    service = Service(answers=[PartlyFailedError({"b": "PERMANENT_FAILURE_INVALID_ACK_ID"}, code=code)])

    assert refused == send(service, ids("a", "b", "c"))
    assert sent == service.acked


def test_failure_for_an_unknown_reason_is_permanent():
    """As in the clients of Google. Other keys than ids of the request, such as the name of a quota, are ignored."""
    service = Service(answers=[PartlyFailedError({"b": "ANOTHER_REASON", "quota_limit": "AcksPerMinute"})])

    assert ["b"] == send(service, ids("a", "b", "c"))


def test_acks_of_ordering_keys_are_sent_one_after_the_other():
    """Pub/Sub drops the ack of a message that comes before that of an earlier one of its key, and answers OK."""
    service = Service(answers=[StatusError(grpc.StatusCode.UNAVAILABLE)])
    texts = [f"ack-{n}" for n in range(9000)]

    assert [] == send(service, ids(*texts), in_order=True, window=LARGEST)
    assert [texts[:3000], texts[:3000], texts[3000:6000], texts[6000:]] == service.acked


def test_acks_of_ordering_keys_are_in_order_when_a_request_is_split():
    """After a timeout requests are smaller. The second half waits for the first."""
    service = Service(
        answers=[StatusError(grpc.StatusCode.DEADLINE_EXCEEDED), StatusError(grpc.StatusCode.UNAVAILABLE)]
    )
    texts = [f"ack-{n}".ljust(150, "x") for n in range(3000)]

    assert [] == send(service, ids(*texts), in_order=True, window=acks.Window(requests=1, bytes=acks.MAX_BYTES))
    whole, first, again, second = service.acked
    assert (texts, first, texts) == (whole, again, [*first, *second])


def test_acks_of_ordering_keys_end_with_one_that_is_not_answered():
    """Pub/Sub would drop later ones."""
    service = Service(answers=[StatusError(grpc.StatusCode.UNAVAILABLE)])
    failed = ask(service, ids(*(f"ack-{n}" for n in range(9000))), timeout=-1, in_order=True, window=LARGEST)

    assert (1, 3000, 3000, False) == (len(service.acked), len(failed.unanswered), failed.taken, failed.complete)


def test_details_that_contradict_the_status_are_not_believed():
    """When details contradict the status all ids of the request are refused."""
    error = PartlyFailedError({"b": "TRANSIENT_FAILURE_OTHER"}, details="Something else failed.")

    assert ["a", "b"] == send(Service(answers=[error]), ids("a", "b"))


@pytest.mark.parametrize(
    "details", [b"garbage", status_pb2.Status(code=14, details=[any_pb2.Any(type_url=ERROR_INFO, value=b"garbage")])]
)
def test_details_that_cannot_be_parsed_name_no_ids(details: Any):
    """The request is sent again, as its status says."""
    error = PartlyFailedError({}, code=grpc.StatusCode.UNAVAILABLE, details="")
    error.trailing = details if isinstance(details, bytes) else details.SerializeToString()

    assert [] == send(Service(answers=[error]), ids("a", "b"))


def test_transient_failure_for_too_long_is_a_result():
    """A transient failure that lasts past the deadline is unanswered, not refused."""
    service = Service(answers=[PartlyFailedError({"b": "TRANSIENT_FAILURE_OTHER"})])

    assert ["b"] == ask(service, ids("a", "b"), timeout=-1).unanswered.to_pylist()


def test_window_grows_with_fast_answers_and_shrinks_with_slow_ones():
    """Requests become larger before they become more, and fewer before they become smaller."""
    window = acks.Window()
    sizes = []
    for seconds in (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 5.0, 20.0, 20.0, 20.0):
        window.answered(seconds, window.bytes)
        sizes.append((window.requests, window.bytes // 1024))

    growing = [(2, 64), (2, 128), (2, 256), (2, 512), (3, 512), (4, 512), (4, 512)]
    assert [*growing, (3, 512), (2, 512), (1, 512)] == sizes
    window.answered(20.0, window.bytes)
    assert (1, 256 * 1024) == (window.requests, window.bytes)


def test_window_does_not_grow_by_small_requests():
    """Those that were sent before it grew, and the last one of a part, are fast because they are small."""
    window = acks.Window()
    for size in (32 * 1024, 32 * 1024, 1000):
        window.answered(0.1, size)

    assert (2, 64 * 1024) == (window.requests, window.bytes)


def test_window_has_its_limits():
    """No more than 48 requests of 512 KiB, no less than one of 32 KiB."""
    window = acks.Window()
    for _ in range(100):
        window.answered(0.1, window.bytes)
    assert (48, 512 * 1024) == (window.requests, window.bytes)
    window.timed_out()
    assert 24 == window.requests
    for _ in range(100):
        window.timed_out()
    assert (1, 32 * 1024) == (window.requests, window.bytes)


class Link:
    """A service behind an uplink of limited bytes a second, which requests pass one after the other."""

    def __init__(self, bytes_per_second: float) -> None:
        self.runtime = Clock()
        self.sent = 0
        self._bytes_per_second, self._free_at = bytes_per_second, 0.0

    def acknowledge(self, _subscription: str, request: bytes, timeout: float) -> Any:
        now = self.runtime.monotonic()
        self.sent += len(request)
        self._free_at = max(now, self._free_at) + len(request) / self._bytes_per_second
        answered_at, given_up_at = self._free_at + 0.05, now + timeout

        def result() -> None:
            self.runtime.sleep(max(0.0, min(answered_at, given_up_at) - self.runtime.monotonic()))
            if answered_at > given_up_at:
                raise StatusError(grpc.StatusCode.DEADLINE_EXCEEDED)

        return SimpleNamespace(result=result)

    modify_ack_deadline = acknowledge


@pytest.mark.parametrize("kilobytes_per_second", [15, 30, 60, 250, 100_000])
def test_acks_take_the_time_of_their_bytes_on_any_uplink(kilobytes_per_second: float):
    """Requests that are too many or too large for it would time out, and the part sent would be wasted."""
    link = Link(kilobytes_per_second * 1000)
    many = [f"{n:0190}" for n in range(30_000)]
    volume = sum(map(len, many))

    assert [] == send(link, ids(*many), timeout=1e9, runtime=link.runtime)
    assert link.sent < 1.1 * volume
    assert link.runtime.monotonic() < 1.5 * volume / (kilobytes_per_second * 1000) + 2


@pytest.mark.parametrize("kilobytes_per_second", [15, 30, 60])
def test_small_part_does_not_hide_a_slow_uplink(kilobytes_per_second: float):
    """A first part goes in small requests, whose fast answers do not show that large ones would be answered in time."""
    link, window = Link(kilobytes_per_second * 1000), acks.Window()
    many = [f"{n:0190}" for n in range(30_000)]
    volume = sum(map(len, many))
    for part in (many[:1000], many[1000:]):
        assert [] == send(link, ids(*part), timeout=1e9, runtime=link.runtime, window=window)

    assert link.sent < 1.1 * volume
    assert link.runtime.monotonic() < 1.5 * volume / (kilobytes_per_second * 1000) + 2


def test_extension_that_takes_too_long_is_given_up():
    """After its deadline no more ids are sent: requests without time to be answered would only fill the uplink."""
    link = Link(30_000)
    many = [f"{n:0190}" for n in range(30_000)]
    failed = ask(link, ids(*many), 600, timeout=30.0, runtime=link.runtime)

    assert (False, []) == (failed.complete, failed.refused.to_pylist())
    assert 0 < failed.taken < len(many)
    assert link.sent < 1.2 * 30 * 30_000


def test_no_more_ids_are_taken_after_a_time():
    """A caller that asks again gets the progress of the first requests at least, and learns how far it went."""
    service = Service()
    many = [f"ack-{n}" for n in range(30_000)]
    failed = ask(service, ids(*many), take_for=0)

    assert (6000, False, many[:6000]) == (failed.taken, failed.complete, service.acked_ids)


def test_ids_are_complete_when_all_are_sent():
    """Also when they fill the requests that may be in flight."""
    service: Any = Service()
    arrays = [ids(str(n)) for n in range(2 * acks.MAX_IN_FLIGHT)]
    failed = acks.acknowledge(service, SUBSCRIPTION, arrays, timeout=5, runtime=Clock())

    assert (len(arrays), True) == (failed.taken, failed.complete)

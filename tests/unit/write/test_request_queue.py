"""The request queue: requests that may be sent, and those held back by flow control, ordering keys and failures."""

from __future__ import annotations

from pubsub_spark.publish.requests import EncodedRequest
from pubsub_spark.write.request_queue import RequestQueue, memory_bytes


def request(key: str = "", body: bytes = b"x", topic: str = "t") -> EncodedRequest:
    return EncodedRequest(topic, key, body, 1)


def added(queue: RequestQueue, *keys: str) -> list[EncodedRequest]:
    made = [request(key) for key in keys]
    for each in made:
        queue.add(each)
    return made


def test_no_more_requests_are_in_flight_than_allowed():
    """The request over the limit is sent when one is confirmed."""
    queue = RequestQueue(max_in_flight=2, max_outstanding_bytes=100)
    a, b, c = added(queue, "", "", "")

    assert [a, b] == queue.take_sendable()
    assert [] == queue.take_sendable()
    queue.confirm(b)
    assert [c] == queue.take_sendable()


def test_a_key_has_one_request_in_flight():
    """The second request of a key waits for the first. Requests of other keys and without key do not."""
    queue = RequestQueue(max_in_flight=10, max_outstanding_bytes=100)
    a1, a2, b, free = added(queue, "a", "a", "b", "")

    assert [a1, b, free] == queue.take_sendable()
    queue.confirm(a1)
    assert [a2] == queue.take_sendable()


def test_a_key_of_two_topics_is_two_keys():
    """The same ordering key on two topics is two keys: order is promised within a topic."""
    queue = RequestQueue(max_in_flight=10, max_outstanding_bytes=100)
    here, there = request("a", topic="here"), request("a", topic="there")
    queue.add(here)
    queue.add(there)

    assert [here, there] == queue.take_sendable()


def test_a_request_that_awaits_its_retry_holds_back_its_key_alone():
    """A request that awaits its retry is not in flight, so that another key's request is sent."""
    queue = RequestQueue(max_in_flight=1, max_outstanding_bytes=100)
    a1, _, b = added(queue, "a", "a", "b")
    assert [a1] == queue.take_sendable()

    queue.await_retry()

    assert [b] == queue.take_sendable()
    queue.confirm(b)
    assert [] == queue.take_sendable()
    queue.retry(a1)
    assert [a1] == queue.take_sendable()


def test_no_capacity_until_bytes_are_confirmed():
    """Flow control stops the caller while the outstanding bytes reach the limit."""
    queue = RequestQueue(max_in_flight=1, max_outstanding_bytes=5)
    big = request(body=b"x" * 5)
    assert queue.has_capacity
    queue.add(big)
    assert not queue.has_capacity
    assert queue.has_outstanding
    queue.take_sendable()
    queue.confirm(big)
    assert queue.has_capacity
    assert not queue.has_outstanding


def test_a_caller_that_waited_goes_on_when_a_quarter_is_free():
    """Many requests are added at a time, instead of one for each answer."""
    queue = RequestQueue(max_in_flight=8, max_outstanding_bytes=4 * memory_bytes(request()))
    requests = [request() for _ in range(4)]
    for each in requests:
        queue.add(each)
    assert not queue.has_capacity
    queue.take_sendable()
    queue.confirm(requests[0])
    assert queue.has_capacity
    assert not queue.has_drained
    queue.confirm(requests[1])
    assert queue.has_drained


def test_a_failure_drops_the_queue_of_its_key_and_all_without_key():
    """Queued requests of other keys are still sent."""
    queue = RequestQueue(max_in_flight=2, max_outstanding_bytes=100)
    a1, _, b1, b2, _, c = added(queue, "a", "a", "b", "b", "", "c")
    assert [a1, b1] == queue.take_sendable()

    queue.fail(a1)

    assert [c] == queue.take_sendable()
    queue.confirm(b1)
    assert [b2] == queue.take_sendable()
    queue.confirm(b2)
    queue.confirm(c)
    assert not queue.has_outstanding
    assert 0 == queue.outstanding_bytes


def test_queued_requests_can_be_dropped():
    """Queued requests can be dropped. Those in flight and those that await a retry stay, with their keys."""
    queue = RequestQueue(max_in_flight=2, max_outstanding_bytes=100)
    a1, b1, *_ = added(queue, "a", "b", "a", "c", "")
    assert [a1, b1] == queue.take_sendable()
    queue.await_retry()

    queue.drop_queued()

    assert [] == queue.take_sendable()
    queue.confirm(a1)
    queue.retry(b1)
    assert [b1] == queue.take_sendable()
    queue.fail(b1)
    assert not queue.has_outstanding
    assert 0 == queue.outstanding_bytes

"""The publisher: message ids are counted, calls retried, a key has one request in flight, failures are errors."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from pubsub_spark.backend import status
from pubsub_spark.errors import ResourceError, ServiceError
from pubsub_spark.publish import limits, requests
from pubsub_spark.write import publisher as publisher_module
from pubsub_spark.write.publisher import Publisher
from pubsub_spark.write.request_queue import RequestQueue, memory_bytes
from pubsub_spark.write.retry_scheduler import RetryScheduler
from tests.engine import until

TOPIC = "projects/p/topics/t"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def made(keys: list[str], count: int = 1000) -> list[requests.EncodedRequest]:
    """Return requests of the messages 0, 1, 2 ... with these ordering keys."""
    batch = pa.RecordBatch.from_pydict(
        {"data": pa.array([b"%d" % i for i in range(len(keys))]), "ordering_key": pa.array(keys, pa.string())}
    )
    return list(requests.encoded_requests(batch, limits.message_sizes(batch), TOPIC, count, 1_000_000))


def published(pubsub, keys, count=1000, max_in_flight=8, publish_timeout=60.0):
    with Publisher(pubsub, max_in_flight, publish_timeout) as publisher:
        for request in made(keys, count):
            publisher.send(request)
        return publisher.finish()


def numbers(data: list[bytes]) -> list[int]:
    return [int(each) for each in data]


def test_every_message_is_counted(pubsub):
    """Confirmed messages are counted in messages, bytes and requests."""
    metrics = published(pubsub, [""] * 25, count=10)

    assert (25, 3, 0) == (metrics.messages, metrics.requests, metrics.retries)
    assert sum(pubsub.sizes) == metrics.bytes
    assert list(range(25)) == sorted(numbers(pubsub.data))


def test_several_requests_are_in_flight_but_no_more_than_allowed(pubsub):
    """`maxOutstandingRequests` is used and kept."""
    both = threading.Barrier(2, timeout=20)

    def answer(request):
        both.wait()
        return len(request.messages)

    pubsub.answer = answer
    published(pubsub, [""] * 8, count=1, max_in_flight=2)

    assert 2 == pubsub.most_in_flight


def test_one_request_of_a_key_after_the_other(pubsub):
    """Each key's messages arrive in the order of the rows. Requests of several keys are in flight at the same time."""
    keys = [f"k{i % 5}" for i in range(500)]
    published(pubsub, keys, count=7)

    assert 1 == pubsub.most_in_flight_of_a_key
    for key in set(keys):
        assert [i for i, each in enumerate(keys) if each == key] == numbers(pubsub.data_of_key(key))


def test_a_retryable_failure_is_tried_again(pubsub, refused):
    """Each failure costs a retry and no message. The codes are those of google-cloud-pubsub's policy for Publish."""
    codes = [
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    ]

    def answer(request):
        if codes:
            raise refused(codes.pop())
        return len(request.messages)

    pubsub.answer = answer
    metrics = published(pubsub, [""] * 3)

    assert (3, 7) == (metrics.messages, metrics.retries)
    assert [0, 1, 2] == numbers(pubsub.data)


def test_a_retry_keeps_the_order_of_its_key(pubsub, refused):
    """While a request of a key is tried again, the next of that key waits."""
    tries: dict[bytes, int] = {}

    def answer(request):
        first = request.messages[0].data
        tries[first] = tries.get(first, 0) + 1
        if tries[first] < 3:
            raise refused(UNAVAILABLE)
        return len(request.messages)

    pubsub.answer = answer
    published(pubsub, ["a", "b"] * 50, count=10)

    assert list(range(0, 100, 2)) == numbers(pubsub.data_of_key("a"))
    assert list(range(1, 100, 2)) == numbers(pubsub.data_of_key("b"))


def test_a_final_failure_says_what_was_confirmed(pubsub, refused):
    """The error names the topic, and the count and first ids of the messages that had arrived."""

    def answer(request):
        if request.messages[0].data == b"20":
            raise refused(grpc.StatusCode.NOT_FOUND, "Resource not found")
        return len(request.messages)

    pubsub.answer = answer
    with pytest.raises(ResourceError) as caught:
        published(pubsub, [""] * 30, count=10, max_in_flight=1)

    assert (
        "Topic `projects/p/topics/t` does not exist at `fake:1`. Create it, or correct its name. (Resource not found) "
        "Before that, 20 messages of this task were confirmed, the first of them `0`, `1`, `2`." == str(caught.value)
    )


def test_a_failure_before_anything_says_so(pubsub, refused):
    """The error reports that no message was confirmed."""

    def answer(request):
        raise refused(grpc.StatusCode.PERMISSION_DENIED)

    pubsub.answer = answer
    with pytest.raises(ResourceError, match=r"`roles/pubsub.publisher`.* No message of this task was confirmed\."):
        published(pubsub, [""] * 30, count=10)


def test_a_missing_id_fails_the_task(pubsub):
    """Fewer ids than messages is no success."""
    pubsub.answer = lambda request: len(request.messages) - 1

    with pytest.raises(ServiceError, match="`fake:1` returned 9 message ids for 10 messages published to Topic"):
        published(pubsub, [""] * 10)


def test_an_answer_that_is_none_fails_the_task(pubsub):
    """Bytes that are no PublishResponse confirm nothing, and no caller waits for ever."""
    answered: Future[bytes] = Future()
    answered.set_result(b"<html>")
    pubsub.publish = lambda topic, body, timeout: answered

    with pytest.raises(ServiceError, match="`fake:1` returned 0 message ids for 10 messages published"):
        published(pubsub, [""] * 10)


def test_a_failing_key_stops_and_the_others_end(pubsub, refused):
    """After a failure nothing more of its key is sent. Started messages of other keys arrive in order."""

    all_sent = threading.Event()

    def answer(request):
        assert all_sent.wait(20)
        if request.messages[0].ordering_key == "bad" and request.messages[0].data != b"0":
            raise refused(grpc.StatusCode.INVALID_ARGUMENT, "bad")
        return len(request.messages)

    pubsub.answer = answer
    with Publisher(pubsub, 1, 60.0) as publisher:
        for request in made(["bad", "good"] * 20, count=1):
            publisher.send(request)
        all_sent.set()
        with pytest.raises(ResourceError, match="Nothing further was sent with ordering key `bad`") as caught:
            publisher.finish()

    assert [0] == numbers(pubsub.data_of_key("bad"))
    assert list(range(1, 40, 2)) == numbers(pubsub.data_of_key("good"))
    assert "21 messages of this task were confirmed" in str(caught.value)


def test_gives_up_when_the_time_is_over(pubsub, refused, monkeypatch):
    """After `publishTimeout` a retryable code is final."""
    monkeypatch.setattr(status, "delays", lambda: iter([0.0, 0.0, 100.0]))
    tries = []

    def answer(request):
        tries.append(1)
        raise refused(grpc.StatusCode.ABORTED)

    pubsub.answer = answer
    with pytest.raises(ServiceError, match=r"`fake:1` failed to publish to Topic `projects/p/topics/t`: ABORTED"):
        published(pubsub, [""], publish_timeout=60.0)

    assert 3 == len(tries)


@pytest.mark.parametrize(("publish_timeout", "pause"), [(3600.0, 21.0), (10.0, 11.0)])
def test_nobody_there_is_told_within_the_connect_timeout(pubsub, refused, monkeypatch, publish_timeout, pause):
    """An address that has never answered is not tried for the whole of `publishTimeout`, nor for longer."""
    monkeypatch.setattr(status, "delays", lambda: iter([0.0, pause]))

    def answer(request):
        raise refused(UNAVAILABLE, "connection refused")

    pubsub.answer = answer
    with pytest.raises(ServiceError, match=r"`fake:1` did not answer when asked to publish to Topic"):
        published(pubsub, [""], publish_timeout=publish_timeout)


@pytest.mark.parametrize(("code", "confirmed"), [(grpc.StatusCode.ABORTED, 0), (UNAVAILABLE, 1)])
def test_where_somebody_answers_there_is_time_for_more_tries(pubsub, refused, monkeypatch, code, confirmed):
    """Once the service has answered, a request is retried for `publishTimeout`, also beyond the connect timeout."""
    now, failures = [0.0], [refused(code)]
    monkeypatch.setattr(publisher_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def answer(request):
        if request.messages[0].data == b"%d" % confirmed and failures:
            now[0] = 25.0
            raise failures.pop()
        return len(request.messages)

    pubsub.answer = answer
    metrics = published(pubsub, [""] * (confirmed + 1), count=1, max_in_flight=1)

    assert (confirmed + 1, 1) == (metrics.messages, metrics.retries)


@pytest.fixture
def queues(monkeypatch) -> list[RequestQueue]:
    """Return the queue of each publisher that is made afterwards."""
    queues: list[RequestQueue] = []

    def made_queue(*arguments):
        queues.append(RequestQueue(*arguments))
        return queues[-1]

    monkeypatch.setattr(publisher_module, "RequestQueue", made_queue)
    return queues


def test_flow_control_bounds_the_outstanding_bytes(pubsub, queues, monkeypatch):
    """A task that makes requests faster than they are confirmed has a limited number of bytes outstanding."""
    sent = made([""] * 100, count=1)
    one = memory_bytes(sent[-1])
    monkeypatch.setattr(publisher_module, "MAX_OUTSTANDING_BYTES", 2 * one)
    outstanding = []
    pubsub.answer = lambda request: len(request.messages)
    with Publisher(pubsub, 1, 60.0) as publisher:
        for request in sent:
            publisher.send(request)
            outstanding.append(queues[0].outstanding_bytes)
        publisher.finish()

    assert max(outstanding) < 2 * one + one
    assert 100 == len(pubsub.data)


@pytest.fixture
def timeouts(pubsub) -> list[float]:
    """Return the timeout of each call, in seconds."""
    found: list[float] = []
    send = pubsub.publish

    def noted(topic, body, timeout):
        found.append(timeout)
        return send(topic, body, timeout)

    pubsub.publish = noted
    return found


@pytest.mark.parametrize(("publish_timeout", "timeout"), [(600.0, 300.0), (40.0, 30.0), (20.0, 20.0)])
def test_a_call_that_hangs_is_given_up_before_the_end(pubsub, timeouts, monkeypatch, publish_timeout, timeout):
    """A call may take half of `publishTimeout`, or half a minute, so that a lost one is tried again within it."""
    monkeypatch.setattr(publisher_module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    published(pubsub, [""], publish_timeout=publish_timeout)

    assert [timeout] == timeouts


def test_a_later_try_has_the_time_that_is_left(pubsub, refused, timeouts, monkeypatch):
    """However often it is tried, a request takes no longer than `publishTimeout`."""
    now, moments = [0.0], [590.0, 599.99]
    monkeypatch.setattr(publisher_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def answer(request):
        if moments:
            now[0] = moments.pop(0)
            raise refused(grpc.StatusCode.ABORTED)
        return len(request.messages)

    pubsub.answer = answer
    published(pubsub, [""], publish_timeout=600.0)

    assert [300.0, 10.0, 0.1] == timeouts


def test_a_call_that_was_cancelled_is_tried_again(pubsub):
    """A cancelled call is tried again. gRPC raises an exception without a status for it."""
    cancelled: Future[bytes] = Future()
    cancelled.set_exception(grpc.FutureCancelledError())
    send, answers = pubsub.publish, [cancelled]
    pubsub.publish = lambda *call: answers.pop() if answers else send(*call)
    metrics = published(pubsub, [""])

    assert (1, 1) == (metrics.messages, metrics.retries)


def test_nothing_is_sent_after_a_failure(pubsub, refused):
    """The next `send` raises the failure, and its request stays unsent."""
    asked, sent = [], threading.Event()

    def answer(request):
        assert sent.wait(20)
        asked.append(request.messages[0].data)
        raise refused(grpc.StatusCode.NOT_FOUND)

    pubsub.answer = answer
    first, second = made(["a", "b"])
    with Publisher(pubsub, 8, 60.0) as publisher:
        publisher.send(first)
        sent.set()
        publisher.finish_outstanding()
        with pytest.raises(ResourceError):
            publisher.send(second)

    assert [b"0"] == asked


def test_outstanding_requests_end_before_messages_are_counted(pubsub):
    """A task that fails for a row reports how many messages were confirmed, not how many were at that moment."""
    all_sent = threading.Event()
    pubsub.answer = lambda request: len(request.messages) if all_sent.wait(20) else 0
    with Publisher(pubsub, 1, 60.0) as publisher:
        for request in made([""] * 20, count=1):
            publisher.send(request)
        all_sent.set()
        assert publisher.finish_outstanding().startswith("Before that, 20 messages of this task were confirmed")


def retry_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pubsub-publish-retries"]


def test_a_task_that_ends_early_leaves_no_thread(pubsub, refused, monkeypatch):
    """A request that awaits its retry is not sent again once its task is over, and no thread is left."""
    monkeypatch.setattr(status, "delays", lambda: iter([3600.0]))

    def answer(request):
        raise refused(grpc.StatusCode.ABORTED)

    pubsub.answer = answer
    with Publisher(pubsub, 1, 7200.0) as publisher:
        publisher.send(*made([""]))
        until(retry_threads, "the thread of retries")
        [thread] = retry_threads()

    thread.join(20)
    assert not thread.is_alive()


def test_an_outage_of_many_keys_takes_one_thread(pubsub, refused, monkeypatch):
    """However many requests await their retry, one thread waits for all of them, and each key keeps its order."""
    monkeypatch.setattr(status, "delays", lambda: iter(lambda: 0.2, None))
    keys, threads, recovered = 1500, [0], threading.Event()

    def answer(request):
        threads.append(threading.active_count())
        if recovered.is_set():
            return len(request.messages)
        raise refused(UNAVAILABLE)

    pubsub.answer = answer
    before = threading.active_count()
    with Publisher(pubsub, 8, 60.0) as publisher:
        for request in made([f"k{i % keys}" for i in range(2 * keys)], count=1):
            publisher.send(request)
        until(lambda: len(threads) > 2 * keys, "a retry of each key")
        recovered.set()
        metrics = publisher.finish()

    assert max(threads) <= before + 4 + 1  # the fake's own four, and the scheduler's
    assert 2 * keys == metrics.messages
    assert [7, keys + 7] == numbers(pubsub.data_of_key("k7"))


@pytest.mark.timeout(30)
@pytest.mark.parametrize("thread", ["gRPC", "scheduler"])
def test_an_exception_of_another_thread_ends_the_task(pubsub, refused, monkeypatch, thread):
    """The task raises it, as the exception that it is, and stops waiting."""
    answered = Future[bytes]()
    answered.set_exception(refused(UNAVAILABLE))
    calls = [answered]

    def publish(topic, body, timeout):
        if not calls:
            raise RuntimeError("can't start new thread")
        return calls.pop()

    pubsub.publish = publish
    if thread == "gRPC":
        schedule = lambda scheduler, request, delay: publish("", b"", 1.0)  # noqa: E731
        monkeypatch.setattr(RetryScheduler, "schedule", schedule)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        published(pubsub, ["a"])


def test_after_a_failure_other_keys_have_so_much_time_and_no_more(pubsub, refused, monkeypatch):
    """When the service no longer answers, a task with many keys ends after `publishTimeout`, not key by key."""
    now, all_sent = [0.0], threading.Event()
    monkeypatch.setattr(publisher_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def answer(request):
        assert all_sent.wait(20)
        if request.messages[0].ordering_key == "k0":
            raise refused(grpc.StatusCode.NOT_FOUND)
        now[0] = 61.0
        return len(request.messages)

    pubsub.answer = answer
    with Publisher(pubsub, 1, 60.0) as publisher:
        for request in made([f"k{i}" for i in range(100)], count=1):
            publisher.send(request)
        all_sent.set()
        with pytest.raises(ResourceError, match="1 messages of this task were confirmed"):
            publisher.finish()


def test_flow_control_counts_what_python_needs(refused, queues, monkeypatch):
    """The objects of a small message for each of many keys are most of the memory that flow control counts."""
    monkeypatch.setattr(status, "delays", lambda: iter(lambda: 900.0, None))

    def publish(*call):
        failed = Future[bytes]()
        failed.set_exception(refused(grpc.StatusCode.ABORTED))
        return failed

    pubsub: Any = SimpleNamespace(address="fake:1", connect_timeout=20.0, publish=publish)
    tracemalloc.start()
    try:
        with Publisher(pubsub, 8, 3600.0) as publisher:
            before = tracemalloc.get_traced_memory()[0]
            for i in range(500):
                publisher.send(requests.EncodedRequest(TOPIC, f"key-{i}", b"%100d" % i, 1))
            used = tracemalloc.get_traced_memory()[0] - before
            assert used <= queues[0].outstanding_bytes <= 2 * used
    finally:
        tracemalloc.stop()


def test_a_task_that_ends_early_sends_nothing_more(pubsub, timeouts):
    """A response after the end of its task sends no queued request."""
    over = threading.Event()
    pubsub.answer = lambda request: len(request.messages) if over.wait(20) else 0
    with Publisher(pubsub, 1, 60.0) as publisher:
        for request in made([""] * 2, count=1):
            publisher.send(request)
    over.set()
    pubsub.calls.shutdown()  # its threads have run the callbacks of their answers

    assert 1 == len(timeouts)

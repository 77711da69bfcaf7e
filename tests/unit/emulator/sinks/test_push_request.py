"""The contents of a push and the rate of pushes, without a socket."""

from __future__ import annotations

import json

import pytest

from pubsub_spark.emulator.sinks import push_request
from pubsub_spark.emulator.sinks.push_request import Endpoint, PushMessage, Window

SUBSCRIPTION = "projects/p/subscriptions/s"
MOMENT = 1_614_366_835.749  # 2021-02-26T19:13:55.749Z, the documentation's example

FULL = PushMessage(
    message_id="42",
    publish_time=MOMENT,
    data=b"Hello",
    attributes={"key": "value"},
    ordering_key="k",
    delivery_attempt=3,
)
BARE = PushMessage(message_id="42", publish_time=MOMENT, data=b"Hello")


def test_wrapped_push_has_both_spellings():
    """The body is the documented JSON: both spellings of id and time, the ordering key, the attempt."""
    headers, body = push_request.request(Endpoint("http://localhost/"), SUBSCRIPTION, FULL)

    assert {"Content-Type": "application/json"} == headers
    assert {
        "deliveryAttempt": 3,
        "message": {
            "attributes": {"key": "value"},
            "data": "SGVsbG8=",
            "messageId": "42",
            "message_id": "42",
            "orderingKey": "k",
            "publishTime": "2021-02-26T19:13:55.749Z",
            "publish_time": "2021-02-26T19:13:55.749Z",
        },
        "subscription": SUBSCRIPTION,
    } == json.loads(body)


def test_wrapped_push_leaves_out_what_is_not_set():
    """Without attributes, ordering key and dead-letter policy their fields are absent."""
    _, body = push_request.request(Endpoint("http://localhost/"), SUBSCRIPTION, BARE)

    document = json.loads(body)

    assert {"message", "subscription"} == document.keys()
    assert {"data", "messageId", "message_id", "publishTime", "publish_time"} == document["message"].keys()


def test_unwrapped_push_is_the_data():
    """Without wrapper and metadata the body is the data, and no header refers to the message."""
    headers, body = push_request.request(Endpoint("http://localhost/", wrapped=False), SUBSCRIPTION, FULL)

    assert b"Hello" == body
    assert {"Content-Type": "application/octet-stream"} == headers


def test_unwrapped_push_writes_metadata_into_headers():
    """An unwrapped push with write_metadata has the message's properties and its attributes as headers."""
    endpoint = Endpoint("http://localhost/", wrapped=False, write_metadata=True)

    headers, body = push_request.request(endpoint, SUBSCRIPTION, FULL)

    assert b"Hello" == body
    assert {
        "Content-Type": "application/octet-stream",
        "key": "value",
        "x-goog-pubsub-subscription-name": SUBSCRIPTION,
        "x-goog-pubsub-message-id": "42",
        "x-goog-pubsub-publish-time": "2021-02-26T19:13:55.749Z",
        "x-goog-pubsub-ordering-key": "k",
    } == headers


def test_unwrapped_push_leaves_out_attributes_that_are_no_headers():
    """A line break cannot be smuggled into the request, and the envelope's own headers stay."""
    attributes = {"a b": "x", "evil": "x\r\nHost: y", "Host": "y", "ok": "z", "content-type": "text/plain"}
    delivery = PushMessage("42", MOMENT, b"", attributes)

    headers, _ = push_request.request(Endpoint("u", wrapped=False, write_metadata=True), SUBSCRIPTION, delivery)

    assert {"ok": "z", "content-type": "text/plain"} == {
        name: value for name, value in headers.items() if not name.startswith("x-goog-")
    }


def test_unwrapped_push_keeps_its_own_headers():
    """An attribute of the same name, in any case, does not replace or duplicate Pub/Sub's own header."""
    attributes = {"X-Goog-Pubsub-Message-Id": "another", "x-goog-pubsub-publish-time": "never"}
    delivery = PushMessage("7", 1_700_000_000.0, b"", attributes=attributes)

    headers, _ = push_request.request(Endpoint("u", wrapped=False, write_metadata=True), SUBSCRIPTION, delivery)

    assert {"7"} == {value for name, value in headers.items() if name.lower() == "x-goog-pubsub-message-id"}
    assert "2023-11-14T22:13:20Z" == headers["x-goog-pubsub-publish-time"]


@pytest.mark.parametrize("key", ["", "k\r\nHost: y"])
def test_unwrapped_push_leaves_out_an_ordering_key_that_is_no_header(key):
    """A missing ordering key, or one with a line break, has no header."""
    delivery = PushMessage("42", MOMENT, b"", {}, ordering_key=key)

    headers, _ = push_request.request(Endpoint("u", wrapped=False, write_metadata=True), SUBSCRIPTION, delivery)

    assert "x-goog-pubsub-ordering-key" not in headers


def test_five_codes_acknowledge():
    """102, 200, 201, 202 and 204 acknowledge. 203 and everything else does not."""
    assert {102, 200, 201, 202, 204} == {code for code in range(100, 600) if code in push_request.ACKNOWLEDGES}


def test_whole_second_has_no_fraction():
    """Zero milliseconds are left out of a timestamp, as protobuf's JSON does."""
    assert "1970-01-01T00:00:05Z" == push_request.timestamp(5.0)
    assert "1970-01-01T00:00:05.120Z" == push_request.timestamp(5.12)


def test_round_of_successes_doubles_the_window():
    """If every request of a full window succeeds, twice as many may follow."""
    window = Window()

    for _ in range(push_request.FIRST_WINDOW_REQUESTS):
        window.started()
    assert 0 == window.room(now=0)
    for _ in range(push_request.FIRST_WINDOW_REQUESTS):
        window.succeeded()

    assert 2 * push_request.FIRST_WINDOW_REQUESTS == window.room(now=0)


def test_failure_halves_the_window_and_pauses_it():
    """After a failure half of the window is left, and nothing is sent for 100 ms."""
    window = Window()
    window.started()

    window.failed(now=10.0, pauses=True)

    assert 0 == window.room(now=10.05)
    assert push_request.FIRST_WINDOW_REQUESTS // 2 == window.room(now=10.1)


def test_failures_in_a_row_pause_longer_and_longer():
    """The pause doubles with each further failure, up to a minute. The window never closes for good."""
    window, now, pauses = Window(), 0.0, []
    for _ in range(12):
        window.started()
        window.failed(now=now, pauses=True)
        pauses.append(round(window.resumes_at - now, 3))
        now = window.resumes_at

    assert [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0] == pauses
    assert 1 == window.room(now)


def test_failures_of_one_round_pause_once():
    """Requests that fail during the pause do not lengthen it."""
    window = Window()
    window.started()
    window.started()

    window.failed(now=0.0, pauses=True)
    window.failed(now=0.05, pauses=True)

    assert 0.1 == window.resumes_at


def test_success_ends_the_pause():
    """An acknowledged message ends the pause, because the endpoint works again."""
    window = Window()
    window.started()
    window.started()
    window.failed(now=0.0, pauses=True)

    window.succeeded()

    assert window.room(now=0.0) > 0


def test_retry_policy_replaces_the_pause():
    """A retry policy delays each message separately instead of the subscription."""
    window = Window()
    window.started()

    window.failed(now=0.0, pauses=False)

    assert push_request.FIRST_WINDOW_REQUESTS // 2 == window.room(now=0.0)


def test_audience_is_the_endpoint_unless_given():
    """`aud` defaults to the URL of the push endpoint."""
    assert "http://localhost/" == Endpoint("http://localhost/").token_audience
    assert "mine" == Endpoint("http://localhost/", audience="mine").token_audience

"""What may be sent now and what must wait."""

from __future__ import annotations

from pubsub_spark.write.requests import Request
from pubsub_spark.write.window import Window


def request(key: str = "", body: bytes = b"x", topic: str = "t") -> Request:
    return Request(topic, key, body, 1)


def offered(window: Window, *keys: str) -> list[Request]:
    made = [request(key) for key in keys]
    for each in made:
        window.offer(each)
    return made


def test_so_many_are_under_way_and_no_more():
    """The next goes when one is confirmed."""
    window = Window(max_requests=2, max_bytes=100)
    a, b, c = offered(window, "", "", "")

    assert [a, b] == window.due()
    assert [] == window.due()
    window.confirmed(b)
    assert [c] == window.due()


def test_a_key_has_one_request_under_way():
    """The second of a key waits for the first; other keys and no key pass it."""
    window = Window(max_requests=10, max_bytes=100)
    a1, a2, b, free = offered(window, "a", "a", "b", "")

    assert [a1, b, free] == window.due()
    window.confirmed(a1)
    assert [a2] == window.due()


def test_a_key_of_two_topics_is_two_keys():
    """Order is promised within a topic."""
    window = Window(max_requests=10, max_bytes=100)
    here, there = request("a", topic="here"), request("a", topic="there")
    window.offer(here)
    window.offer(there)

    assert [here, there] == window.due()


def test_a_paused_request_keeps_its_key_but_not_its_place():
    """While a request waits for another try, its key waits and others use its place."""
    window = Window(max_requests=1, max_bytes=100)
    a1, _, b = offered(window, "a", "a", "b")
    assert [a1] == window.due()

    window.paused()

    assert [b] == window.due()
    window.confirmed(b)
    assert [] == window.due()
    window.resumed(a1)
    assert [a1] == window.due()


def test_no_room_until_bytes_are_confirmed():
    """Whoever makes requests waits while the bytes that are held reach the bound."""
    window = Window(max_requests=1, max_bytes=5)
    big = request(body=b"x" * 5)
    assert window.room
    window.offer(big)
    assert not window.room
    assert window.busy
    window.due()
    window.confirmed(big)
    assert window.room
    assert not window.busy


def test_a_failure_stops_its_key_and_all_without_key():
    """Other keys end what they have begun."""
    window = Window(max_requests=2, max_bytes=100)
    a1, _, b1, b2, _, c = offered(window, "a", "a", "b", "b", "", "c")
    assert [a1, b1] == window.due()

    window.failed(a1)

    assert [c] == window.due()
    window.confirmed(b1)
    assert [b2] == window.due()
    window.confirmed(b2)
    window.confirmed(c)
    assert not window.busy
    assert 0 == window.held_bytes

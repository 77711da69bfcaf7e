"""A subscription's messages page by page, with the state of each. Reading changes nothing."""

from __future__ import annotations

import pytest

from pubsub_spark.emulator.state.delivery import Consumer
from pubsub_spark.emulator.state.inspection import DeliveryState, messages, total
from pubsub_spark.emulator.state.message import Publication
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.subscription import Subscription
from pubsub_spark.emulator.state.wire_format import message_frames, publish_time_field

NOW = 1000.0


class Sub(Subscription):
    """A subscription with published texts, numbered from 1."""

    def __init__(self, **settings: object) -> None:
        super().__init__("projects/p/subscriptions/all", Settings(**settings), NOW)  # type: ignore[arg-type]
        self.count = 0

    def add(self, *data: str, key: str = "") -> None:
        bodies = [b"\x0a" + bytes([len(each)]) + each.encode() for each in data]
        made = message_frames(bodies, self.count + 1, publish_time_field(NOW))
        self.publish(Publication(self.count + 1, NOW, key, made))
        self.count += len(data)

    def seen(self, start: int = 0, most: int = 100) -> list[tuple[str, DeliveryState]]:
        return [(each.message.data.decode(), each.state) for each in messages(self, start, most)]


def test_each_message_has_its_delivery_state():
    """Leased, returned, backing off and fresh messages are distinguished, in the order of delivery."""
    sub = Sub(ack_deadline=10)
    sub.add("a", "b", "c", "d")
    first = sub.take(Consumer(), NOW, 3).numbers
    sub.modify(first[:1], 0, NOW)
    sub.settings = Settings(min_backoff=5, max_backoff=50)
    sub.modify(first[1:2], 0, NOW)

    assert [
        ("c", DeliveryState.LEASED),
        ("a", DeliveryState.RETURNED),
        ("b", DeliveryState.BACKING_OFF),
        ("d", DeliveryState.FRESH),
    ] == sub.seen()
    [leased, _, delayed, fresh] = messages(sub, 0, 10)
    assert (first[2], NOW + 10, 1, 0) == (leased.lease, leased.until, leased.deliveries, leased.failures)
    assert (None, NOW + 5, 1, 1) == (delayed.lease, delayed.until, delayed.deliveries, delayed.failures)
    assert (None, None, 0, 0) == (fresh.lease, fresh.until, fresh.deliveries, fresh.failures)


def test_messages_of_a_key_wait_behind_it():
    """A message behind a leased one of its key is marked so. An ack behind a gap is distinguished from a plain ack."""
    sub = Sub(ordering=True)
    sub.add("a", "b", "c", key="k")
    sub.add("x", key="other")
    held = sub.take(Consumer(), NOW, 2).numbers
    sub.ack(held[1:], NOW)

    assert [
        ("a", DeliveryState.LEASED),
        ("b", DeliveryState.ACKED_BEHIND_GAP),
        ("c", DeliveryState.KEY_BUSY),
        ("x", DeliveryState.KEY_READY),
    ] == sub.seen()
    assert (4, 3) == (total(sub), sub.backlog)
    sub.settings = Settings(ordering=True, min_backoff=5, max_backoff=50)
    sub.modify(held[:1], 0, NOW)
    assert {DeliveryState.KEY_BACKING_OFF} == {state for text, state in sub.seen() if text in "abc"}
    assert NOW + 5 == next(each.until for each in messages(sub, 0, 10) if each.state is DeliveryState.KEY_BACKING_OFF)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_pages_are_the_whole(size):
    """Pages of any size, one after the other, have each unacked message once."""
    sub = Sub()
    sub.add(*map(str, range(10)))
    sub.add("x", "y")
    held = sub.take(Consumer(), NOW, 6).numbers
    sub.ack(held[2:3], NOW)
    sub.modify(held[4:5], 0, NOW)

    pages = [sub.seen(start, size) for start in range(0, 14, size)]

    assert sub.seen() == [each for page in pages for each in page]
    assert {*map(str, range(10)), "x", "y"} - {"2"} == {text for text, _ in sub.seen()}
    assert 11 == len(sub.seen()) == sub.backlog == total(sub)


def test_looking_changes_nothing():
    """A batch that was read is still leased, and is acked as any other."""
    sub = Sub()
    sub.add(*map(str, range(100)))
    held = sub.take(Consumer(), NOW).numbers
    messages(sub, 0, 50)

    assert [] == sub.ack(held, NOW)
    assert [] == messages(sub, 0, 50)


def test_released_lease_is_returned():
    """A message that could not be sent is listed once, as one to be delivered again."""
    sub = Sub()
    sub.add("a")
    sub.release(sub.take(Consumer(), NOW).numbers)

    assert [("a", DeliveryState.RETURNED)] == sub.seen()

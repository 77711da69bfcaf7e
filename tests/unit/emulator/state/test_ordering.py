"""Ordering keys on a subscription of the emulator. No server. Time moves by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.delivery import Consumer, Lease
from pubsub_spark.emulator.state.message import Publication, published_since
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.subscription import Subscription


def ordered(*keyed: str, **settings: object) -> Subscription:
    """Return a backlog of messages whose first letter is their ordering key. `-` means no key."""
    subscription = Subscription(
        "projects/p/subscriptions/sub",
        Settings(ordering=True, **settings),  # type: ignore[arg-type]
        now=0,
    )
    add(subscription, *keyed, first=1)
    return subscription


def add(subscription: Subscription, *keyed: str, first: int) -> None:
    for number, text in enumerate(keyed, first):
        body = b"\x0a" + bytes([len(text)]) + text.encode()
        [frame] = wire_format.message_frames([body], number, wire_format.publish_time_field(0))
        subscription.publish(Publication(number, 0, text[0].strip("-"), [frame]))


def take(subscription: Subscription, now: float = 0, most: int = 1000) -> list[Lease]:
    return list(subscription.take(Consumer(), now, most))


def texts(batch: Iterable[Lease]) -> list[str]:
    return sorted(each.message.data.decode() for each in batch)


def test_a_key_waits_for_its_outstanding_batch():
    """While a1 is out, a2 is held back. Other keys and keyless messages flow."""
    subscription = ordered("a1", "a2")
    [held] = take(subscription, most=1)
    add(subscription, "b1", "-1", first=3)

    assert ["-1", "b1"] == texts(take(subscription))
    subscription.ack([held.number], now=0)
    assert ["a2"] == texts(take(subscription))


def test_a_batch_of_one_key_comes_in_order():
    """All waiting messages of a key may go out at once, in order."""
    batch = take(ordered("a1", "a2", "a3"))

    assert ["a1", "a2", "a3"] == [each.message.data.decode() for each in batch]


def test_a_nack_brings_back_what_follows():
    """The nacked message and its successors are redelivered in order, also the acked one. The one before is not."""
    subscription = ordered("a1", "a2", "a3", "a4")
    a1, a2, a3, a4 = (each.number for each in take(subscription))
    subscription.ack([a1, a4], now=1)
    subscription.modify([a2], 0, now=1)

    assert ["a2", "a3", "a4"] == [each.message.data.decode() for each in take(subscription, now=1)]
    assert [a3] == subscription.ack([a3], now=1)


def test_nacks_of_one_request_count_alike():
    """Each named message has failed once, in any order, and no number is stale because of another's nack."""
    for order in ((0, 1), (1, 0)):
        subscription = ordered("a1", "a2", dead_letter_attempts=5)
        numbers = [each.number for each in take(subscription)]

        assert [] == subscription.modify([numbers[each] for each in order], 0, now=1)
        assert [2, 2] == [each.attempt for each in take(subscription, now=1)]


def test_a_message_that_waits_again_already_stays_where_it_is():
    """If two messages of a key are dead at once and cannot be forwarded, the first takes the second back with it."""
    subscription = ordered("a1", "a2", dead_letter_attempts=1, ack_deadline=10)
    take(subscription)
    subscription.tick(10)
    dead, subscription.dead = subscription.dead, []
    for delivery in dead:
        subscription.requeue(delivery, now=10)

    assert ["a1", "a2"] == [each.message.data.decode() for each in take(subscription, now=10)]


@pytest.mark.parametrize("forwarded", [True, False])
def test_who_waits_is_called_when_a_dead_message_is_out_of_the_way(forwarded: bool):
    """A waiting consumer is notified when a dead message leaves its key, or is requeued without a dead-letter topic."""
    subscription, consumer = ordered("a1", "a2", dead_letter_attempts=1), Consumer(max_messages=1)
    [held] = subscription.take(consumer, now=0)
    subscription.consumers.wait(consumer)
    subscription.modify([held.number], 0, now=0)
    [dead], subscription.dead = subscription.dead, []
    subscription.consumers.ready.clear()
    subscription.consumers.wait(consumer)

    if forwarded:
        subscription.finish_dead_letter(dead)
    else:
        subscription.requeue(dead, now=0)
    assert [consumer] == subscription.consumers.ready


def test_an_expired_message_brings_back_what_follows():
    """An expired deadline has the effect of a nack. A successor with a longer lease is also redelivered."""
    subscription = ordered("a1", "a2", ack_deadline=10)
    _, a2 = (each.number for each in take(subscription))
    subscription.modify([a2], 600, now=0)

    assert ["a1", "a2"] == [each.message.data.decode() for each in take(subscription, now=10)]


def test_a_key_is_shut_while_a_predecessor_is_out():
    """When a2 fails while a1 is still leased, the key waits until a1 is acked or returned."""
    subscription = ordered("a1", "a2")
    a1, a2 = (each.number for each in take(subscription))
    subscription.modify([a2], 0, now=0)

    assert [] == take(subscription)
    subscription.ack([a1], now=0)
    assert ["a2"] == texts(take(subscription))


def test_acks_out_of_order_finish_a_key():
    """Once the gap is closed, nothing of the batch remains."""
    subscription = ordered("a1", "a2")
    a1, a2 = (each.number for each in take(subscription))
    subscription.ack([a2], now=0)
    subscription.ack([a1], now=0)

    assert [] == subscription.unacked(now=0)
    assert [] == take(subscription, now=1000)


def test_a_batch_that_is_acked_at_once_finishes_its_keys():
    """One request acks all messages of several keys."""
    subscription = ordered("a1", "b1", "a2")

    assert [] == subscription.ack([each.number for each in take(subscription)], now=0)
    assert [] == subscription.unacked(now=0)


def test_a_retry_policy_shuts_the_whole_key():
    """Successors wait for the backoff of the failed message. Other keys do not."""
    subscription = ordered("a1", "a2", "b1", min_backoff=10, max_backoff=600)
    [a1] = take(subscription, most=1)
    subscription.modify([a1.number], 0, now=0)

    assert ["b1"] == texts(take(subscription, now=9))
    assert ["a1", "a2"] == texts(take(subscription, now=10))


def test_unsent_messages_of_a_key_keep_their_order():
    """Messages of a key that a broken stream did not get are redelivered before those that follow."""
    subscription = ordered("a1", "a2")
    batch = take(subscription, most=1)
    subscription.release([each.number for each in batch])

    assert ["a1", "a2"] == [each.message.data.decode() for each in take(subscription)]


def test_retention_empties_a_key():
    """Messages that waited too long are forgotten, and the key starts again."""
    subscription = ordered("a1", retention=600)
    assert 600 == subscription.due()
    subscription.tick(now=601)
    assert [] == list(subscription.deliveries())

    body = b"\x0a\x02a2"
    [frame] = wire_format.message_frames([body], 2, wire_format.publish_time_field(601))
    subscription.publish(Publication(2, 601, "a", [frame]))
    assert ["a2"] == texts(take(subscription, now=601))


def test_seek_puts_keys_back_in_order():
    """After a seek to the beginning a key starts with its first message."""
    subscription = ordered("a1", "a2", "a3", retain_acked=True)
    batch = take(subscription, most=2)
    subscription.ack([batch[0].number], now=0)

    subscription.seek((), published_since(0), now=1)
    assert ["a1", "a2", "a3"] == [each.message.data.decode() for each in take(subscription, now=1)]

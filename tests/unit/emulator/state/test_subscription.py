"""One subscription of the emulator: leases, redelivery, flow control, retention. No server. Time moves by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pubsub_spark.emulator.state import delivery, wire_format
from pubsub_spark.emulator.state import leases as module
from pubsub_spark.emulator.state.delivery import Consumer, Delivery, Lease
from pubsub_spark.emulator.state.message import Publication, published_since
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.subscription import Subscription


def messages(*texts: str, first: int = 1, at: float = 0, key: str = "") -> Publication:
    bodies = [b"\x0a" + bytes([len(text)]) + text.encode() for text in texts]
    made = wire_format.message_frames(bodies, first, wire_format.publish_time_field(at))
    return Publication(first, at, key, made)


def subscribed(*texts: str, **settings: object) -> Subscription:
    """Return a subscription with a backlog."""
    subscription = Subscription("projects/p/subscriptions/sub", Settings(**settings), now=0)  # type: ignore[arg-type]
    if texts:
        subscription.publish(messages(*texts))
    return subscription


def texts(batch: Iterable[Lease]) -> list[str]:
    return [each.message.data.decode() for each in batch]


def test_messages_come_in_the_order_of_publishing():
    """Messages are delivered in the order of publishing."""
    assert ["a", "b", "c"] == texts(subscribed("a", "b", "c").take(Consumer(), now=0))


def test_leased_messages_are_not_given_twice():
    """A message that one consumer holds is not delivered to another."""
    subscription = subscribed("a", "b")

    assert ["a"] == texts(subscription.take(Consumer(), now=0, most=1))
    assert ["b"] == texts(subscription.take(Consumer(), now=0))
    assert [] == texts(subscription.take(Consumer(), now=0))


def test_acked_messages_are_done():
    """An ack in time leaves nothing behind."""
    subscription = subscribed("a")
    [held] = subscription.take(Consumer(), now=0)

    assert [] == subscription.ack([held.number], now=9)
    assert [] == subscription.unacked(now=100)


def test_late_ack_is_refused():
    """An ack id whose lease has expired acknowledges nothing."""
    subscription = subscribed("a", ack_deadline=10)
    [held] = subscription.take(Consumer(), now=0)

    assert [held.number] == subscription.ack([held.number], now=11)
    assert 1 == len(subscription.unacked(now=11))


def test_unacked_message_comes_again_at_its_deadline():
    """An unacked message is redelivered at its deadline, not before, with a new number."""
    subscription = subscribed("a", ack_deadline=10)
    [first] = [each.number for each in subscription.take(Consumer(), now=0)]

    assert not subscription.take(Consumer(), now=9.9)
    [again] = subscription.take(Consumer(), now=10)
    [known] = subscription.deliveries()
    assert again.number != first
    assert isinstance(known, Delivery)
    assert 2 == known.deliveries


def test_ack_id_of_an_earlier_delivery_acknowledges_nothing():
    """Only the number of the latest delivery acknowledges."""
    subscription = subscribed("a", ack_deadline=10)
    [first] = [each.number for each in subscription.take(Consumer(), now=0)]
    [again] = subscription.take(Consumer(), now=10)

    assert [first] == subscription.ack([first], now=11)
    assert [] == subscription.ack([again.number], now=11)


def test_extended_lease_outlives_its_first_deadline():
    """A deadline counts from the request that set it."""
    subscription = subscribed("a", ack_deadline=10)
    [held] = subscription.take(Consumer(), now=0)

    assert [] == subscription.modify([held.number], 30, now=5)
    assert not subscription.take(Consumer(), now=34)
    assert ["a"] == texts(subscription.take(Consumer(), now=35))


def test_shortened_lease_ends_early():
    """A modack may also bring the deadline forward."""
    subscription = subscribed("a", ack_deadline=600)
    [held] = subscription.take(Consumer(), now=0)

    subscription.modify([held.number], 10, now=0)

    assert ["a"] == texts(subscription.take(Consumer(), now=10))


def test_nacked_message_comes_at_once():
    """A deadline of zero returns the message."""
    subscription = subscribed("a")
    [held] = subscription.take(Consumer(), now=0)

    assert [] == subscription.modify([held.number], 0, now=1)
    assert ["a"] == texts(subscription.take(Consumer(), now=1))


def test_stale_modack_is_told():
    """The number of an ended lease extends nothing."""
    subscription = subscribed("a", ack_deadline=10)
    [held] = subscription.take(Consumer(), now=0)

    assert [held.number] == subscription.modify([held.number], 60, now=10)


def test_stream_deadline_replaces_the_subscriptions():
    """A consumer with a deadline of its own leases for that long."""
    subscription = subscribed("a", ack_deadline=10)
    subscription.take(Consumer(ack_deadline=60), now=0)

    assert not subscription.take(Consumer(), now=59)
    assert ["a"] == texts(subscription.take(Consumer(), now=60))


def test_flow_control_by_messages():
    """The limit bounds the outstanding messages, and an ack makes room."""
    subscription, consumer = subscribed("a", "b", "c"), Consumer(max_messages=2)
    held = list(subscription.take(consumer, now=0))

    assert ["a", "b"] == texts(held)
    assert not subscription.take(consumer, now=0)
    subscription.ack([held[0].number], now=0)
    assert ["c"] == texts(subscription.take(consumer, now=0))


def test_flow_control_by_bytes():
    """Sending stops once the limit is reached, so one message always fits."""
    subscription, consumer = subscribed("a", "b"), Consumer(max_size=1)
    held = list(subscription.take(consumer, now=0))

    assert ["a"] == texts(held)
    subscription.modify([held[0].number], 0, now=0)
    assert 1 == len(subscription.take(consumer, now=0))


@pytest.mark.parametrize("key", ["", "key"])
@pytest.mark.parametrize("again", [False, True])
def test_batch_is_not_larger_than_a_client_takes(monkeypatch, key: str, again: bool):
    """The limit holds for fresh, returned and ordered messages. One that is too large by itself is delivered alone, and
    nothing is left behind.
    """
    size = len(messages("aaaa").frames[0])
    monkeypatch.setattr(delivery, "LARGEST_BATCH_BYTES", 2 * size)
    subscription, batches = subscribed(ordering=True), []
    subscription.publish(messages("aaaa", "bbbb", "c" * 100, "dddd", "eeee", "ffff", key=key))
    if again:
        held = subscription.take(Consumer(), now=0, most=1)
        subscription.modify(held.numbers, 0, now=0)

    while batch := subscription.take(Consumer(), now=0):
        batches.append(texts(batch))
        subscription.ack(batch.numbers, now=0)

    assert ["aaaa", "bbbb", "c" * 100, "dddd", "eeee", "ffff"] == sorted(text for batch in batches for text in batch)
    assert all(len(batch) <= 2 and (len(batch) == 1 or "c" * 100 not in batch) for batch in batches)


def test_expired_leases_make_room():
    """An unacked message is no longer outstanding once its deadline has passed."""
    subscription, consumer = subscribed("a", "b", ack_deadline=10), Consumer(max_messages=1)
    subscription.take(consumer, now=0)

    assert 1 == len(subscription.take(consumer, now=10))
    assert 1 == consumer.messages


def test_closed_consumer_takes_nothing():
    """A consumer whose client has left gets no message."""
    subscription, consumer = subscribed("a"), Consumer()
    subscription.consumers.join(consumer)
    subscription.leave(consumer, now=0)

    assert not subscription.take(consumer, now=0)


def test_unsent_message_comes_at_once_and_its_ack_still_counts():
    """An unsent message is redelivered without a failure. Its old ack id is valid until then."""
    subscription = subscribed("a")
    [held] = subscription.take(Consumer(), now=0)
    subscription.release([held.number])

    assert [] == subscription.ack([held.number], now=1)
    assert not subscription.take(Consumer(), now=1)
    assert [] == subscription.unacked(now=1)


def test_unsent_message_goes_to_the_next_consumer():
    """An unsent message goes to the next consumer, and then its old ack id is stale."""
    subscription = subscribed("a")
    [held] = subscription.take(Consumer(), now=0)
    stale = held.number
    subscription.release([held.number])

    [again] = subscription.take(Consumer(), now=1)
    [known] = subscription.deliveries()
    assert isinstance(known, Delivery)
    assert 0 == known.failures
    assert again.number != stale
    assert [stale] == subscription.ack([stale], now=1)


def test_unsent_message_that_is_released_again_comes_once():
    """A message that is released twice before the next take is still one. After its ack it is not held any more."""
    subscription = subscribed("a")
    subscription.release(subscription.take(Consumer(), now=0).numbers)
    subscription.release(subscription.leased_numbers())

    taken = subscription.take(Consumer(), now=1)

    assert ["a"] == texts(taken)
    assert [] == subscription.ack([*taken.numbers], now=1)
    assert 0 == subscription.outstanding


def test_unsent_message_waits_as_long_as_it_must():
    """An unsent message has no deadline. It is redelivered once, and has not failed."""
    subscription = subscribed("a", ack_deadline=10)
    subscription.release([*subscription.take(Consumer(), now=0).numbers, 99])
    subscription.tick(now=100)

    assert ["a"] == texts(subscription.take(Consumer(), now=100))
    assert not subscription.take(Consumer(), now=100)
    [known] = subscription.deliveries()
    assert isinstance(known, Delivery)
    assert 0 == known.failures


def test_unacked_messages_end_with_their_retention():
    """A message older than the retention is gone, wherever it was."""
    subscription = subscribed("a", "b", "c", retention=600, ack_deadline=10)
    held = list(subscription.take(Consumer(), now=0, most=2))
    subscription.modify([held[0].number], 0, now=1)

    assert not subscription.take(Consumer(), now=601)
    assert [] == subscription.unacked(now=601)


def test_retention_is_over_when_it_is_due():
    """A message is gone exactly at the end of its retention. Otherwise the next tick would be due at the same moment
    for ever.
    """
    for retain_acked in (False, True):
        subscription = subscribed("a", retention=600, retain_acked=retain_acked)
        if retain_acked:
            subscription.ack([each.number for each in subscription.take(Consumer(), now=0)], now=0)
        subscription.tick(10)
        assert 600 == subscription.due()

        subscription.tick(600)
        assert subscription.due() > 600


def test_a_snapshot_outlives_the_retention():
    """Messages that a snapshot brings back are kept as long as the snapshot, then they are removed."""
    subscription = subscribed(retention=600)
    old = messages("old")
    subscription.retain(0, until=5000)
    subscription.seek([old], published_since(0), now=2000)

    assert ["old"] == [message.data.decode() for each in subscription.unacked(4999) for message in each.messages()]
    subscription.tick(5000)
    assert [] == subscription.unacked(5000)


def test_acked_messages_are_gone_once_they_are_not_retained():
    """Switching retention off and on again starts with no retained messages."""
    subscription = subscribed("a", retain_acked=True)
    subscription.ack([each.number for each in subscription.take(Consumer(), now=0)], now=0)
    subscription.configure(Settings())
    subscription.configure(Settings(retain_acked=True))

    subscription.seek((), published_since(0), now=1)
    assert not subscription.take(Consumer(), now=1)


def test_one_message_calls_one_consumer():
    """Of many waiting consumers one is notified. The next is notified only if messages remain after it has taken."""
    subscription = subscribed()
    waiting = [Consumer() for _ in range(3)]
    for consumer in waiting:
        subscription.consumers.wait(consumer)

    subscription.publish(messages("a", "b"))
    assert waiting[:1] == subscription.consumers.ready
    subscription.take(waiting[0], now=0, most=1)
    assert waiting[:2] == subscription.consumers.ready
    subscription.take(waiting[1], now=0, most=1)
    assert waiting[:2] == subscription.consumers.ready


def test_consumer_without_room_is_called_when_it_has_room():
    """A consumer without room is notified only when it has room, however many messages arrive."""
    subscription, consumer = subscribed("a"), Consumer(max_messages=1)
    [held] = subscription.take(consumer, now=0)
    subscription.consumers.wait(consumer)
    subscription.publish(messages("b", first=2))
    assert [] == subscription.consumers.ready

    subscription.ack([held.number], now=0)
    assert [consumer] == subscription.consumers.ready


def test_consumer_that_leaves_passes_its_call_on():
    """When a notified consumer leaves, another is notified in its place."""
    subscription = subscribed()
    first, second = Consumer(), Consumer()
    for consumer in (first, second):
        subscription.consumers.join(consumer)
        subscription.consumers.wait(consumer)
    subscription.publish(messages("a"))

    subscription.leave(first, now=0)
    assert [first, second] == subscription.consumers.ready


def test_due_is_the_next_deadline():
    """A tick at `due` expires the lease."""
    subscription = subscribed("a", ack_deadline=10)
    subscription.take(Consumer(), now=5)

    assert 15 == subscription.due()


def test_delivery_attempts_count_failures_only_under_a_dead_letter_policy():
    """`delivery_attempt` is one more than nacks and passed deadlines under a dead-letter policy, and 0 without one."""
    for attempts, expected in ((0, [0, 0]), (5, [1, 2])):
        subscription = subscribed("a", dead_letter_attempts=attempts)
        [held] = subscription.take(Consumer(), now=0)
        seen = [held.attempt]
        subscription.modify([held.number], 0, now=0)
        [held] = subscription.take(Consumer(), now=0)
        assert expected == [*seen, held.attempt]


def test_retry_policy_spaces_redeliveries_and_leaves_others_alone():
    """A failed message is redelivered 10 s after its first failure and 20 s after its second. Others do not wait."""
    subscription = subscribed("a", min_backoff=10, max_backoff=600)
    [held] = subscription.take(Consumer(), now=0)
    subscription.modify([held.number], 0, now=0)
    subscription.publish(messages("b", first=2))

    assert ["b"] == texts(subscription.take(Consumer(ack_deadline=600), now=9))
    [held] = subscription.take(Consumer(), now=10)
    subscription.modify([held.number], 0, now=10)
    assert not subscription.take(Consumer(), now=29)
    assert ["a"] == texts(subscription.take(Consumer(), now=30))


def test_exactly_once_forgives_a_repeated_ack():
    """A second ack of the same delivery is not an error. An ack of an unknown delivery is."""
    subscription = subscribed("a", exactly_once=True)
    [held] = subscription.take(Consumer(), now=0)
    subscription.ack([held.number], now=0)

    assert [] == subscription.ack([held.number] * 2, now=1)
    assert [held.number + 1] == subscription.ack([held.number + 1], now=1)


def test_exactly_once_forgives_the_latest_acks(monkeypatch):
    """A repeated ack is not an error while its ack is kept. The oldest acks are forgotten."""
    monkeypatch.setattr(module, "MAX_ACKED_NUMBERS", 2)
    subscription = subscribed("a", "b", "c", exactly_once=True)
    numbers = list(subscription.take(Consumer(), now=0).numbers)
    subscription.ack(numbers, now=0)

    assert numbers[:1] == subscription.ack(numbers, now=1)


def test_exactly_once_does_not_forgive_what_a_seek_took_back():
    """After a seek made a message unacked again, its old ack id is stale."""
    subscription = subscribed("a", exactly_once=True, retain_acked=True)
    [held] = subscription.take(Consumer(), now=0)
    subscription.ack([held.number], now=0)

    subscription.seek((), published_since(0), now=1)

    assert ["a"] == texts(subscription.take(Consumer(), now=1))
    assert [held.number] == subscription.ack([held.number], now=1)


def test_exactly_once_does_not_forgive_what_its_key_took_back():
    """An acked message is redelivered when one before it in its key is nacked. Its old ack id is then stale."""
    subscription = Subscription("sub", Settings(exactly_once=True, ordering=True), now=0)
    subscription.publish(messages("a", "b", key="key"))
    first, second = subscription.take(Consumer(), now=0).numbers
    assert [] == subscription.ack([second], now=0)

    subscription.modify([first], 0, now=0)

    assert ["a", "b"] == texts(subscription.take(Consumer(), now=0))
    assert [second] == subscription.ack([second], now=0)


def test_exactly_once_forgives_an_ack_id_that_is_named_twice():
    """An ack id named twice in one request is not an error."""
    subscription = subscribed("a", "b", exactly_once=True)
    first, second = (each.number for each in subscription.take(Consumer(), now=0))

    assert [] == subscription.ack([first, first, second], now=0)
    assert [] == subscription.unacked(now=0)


def test_seek_back_brings_retained_acked_messages_again():
    """Acked messages are kept if the subscription is configured so, and are redelivered from the requested time on."""
    subscription = Subscription("projects/p/subscriptions/sub", Settings(retain_acked=True), now=0)
    subscription.publish(messages("a", at=1))
    subscription.publish(messages("b", first=2, at=2))
    subscription.ack([each.number for each in subscription.take(Consumer(), now=3)], now=3)

    subscription.seek((), published_since(2), now=4)
    assert ["b"] == texts(subscription.take(Consumer(), now=4))


def test_seek_invalidates_what_was_handed_out():
    """Ack ids from before a seek acknowledge nothing."""
    subscription = subscribed("a")
    [held] = subscription.take(Consumer(), now=0)

    subscription.seek((), published_since(0), now=1)
    assert [held.number] == subscription.ack([held.number], now=1)
    assert ["a"] == texts(subscription.take(Consumer(), now=1))


def test_consumer_that_leaves_is_forgotten():
    """Consumers that found nothing and left do not pile up among the waiting ones."""
    subscription, consumer = subscribed(), Consumer()
    subscription.consumers.join(consumer)
    subscription.consumers.wait(consumer)
    subscription.leave(consumer, now=0)

    assert not subscription.consumers.connected
    assert not subscription.consumers.waiting


def test_leases_of_single_messages_do_not_pile_up():
    """No leases are kept that were acked long ago, however long their deadlines."""
    subscription = subscribed(ack_deadline=600)
    for number in range(1, 5001):
        subscription.publish(messages("a", first=number))
        subscription.ack([each.number for each in subscription.take(Consumer(), now=0)], now=0)

    assert len(subscription._leases._deadlines) <= 1001

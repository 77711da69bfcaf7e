"""Leases: their numbers, their ends and their deadlines. Time moves by hand."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from itertools import count, starmap

import pytest

from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import BatchBuilder, Consumer, Delivery
from pubsub_spark.emulator.state.leases import Leases
from pubsub_spark.emulator.state.message import Publication, publications
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.wire_format import SPAN

TEN = Publication(100, 5.0, "", [b"frame%d" % number for number in range(10)])


def deliveries() -> list[Delivery]:
    return list(starmap(Delivery, TEN.rows()))


def granted() -> tuple[Leases, range]:
    leases = Leases(count(1))
    return leases, leases.grant(deliveries(), Consumer(), deadline=10)


def ids(deliveries: Iterable[Delivery]) -> list[int]:
    return [each.message_number for each in deliveries]


def test_leases_end_one_by_one_and_leave_nothing():
    """A number ends its own lease, once. Nothing is left after the last one."""
    leases, numbers = granted()
    last = leases.pop(numbers[9])

    assert numbers[9] == last.number
    assert list(range(100, 109)) == ids(leases.values())
    assert list(range(100, 109)) == ids(leases.pop(number) for number in numbers[:9])
    assert not leases


def test_nothing_is_due_when_nothing_is_leased():
    """Nothing is due while nothing is leased, and nothing after `clear`."""
    leases, _ = granted()
    assert 10 == leases.due
    leases.clear()

    assert NEVER == leases.due == Leases(count(1)).due
    assert not leases


def test_leases_that_are_extended_without_end_expire_at_their_last_deadlines():
    """Leases that are extended again and again expire at their last deadline. Earlier deadlines are dropped."""
    leases, numbers = granted()
    leases.extend(list(leases.values()), deadline=20)
    other = leases.grant(deliveries(), Consumer(), deadline=10)
    del leases[other[1]]
    alone = leases[other[0]]
    for deadline in range(2000, 30, -1):
        leases.extend([alone], deadline)
        assert len(leases._deadlines) <= 2 * 19 + 1000
    leases.extend([alone], deadline=30)

    assert list(range(102, 110)) == ids(leases.expired(19))
    assert list(range(100, 110)) == ids(leases.expired(29))
    assert [100] == ids(leases.expired(30))
    assert not leases
    assert numbers.start + SPAN == other.start


def test_leases_that_are_extended_to_an_earlier_time_expire_then():
    """The last deadline counts, even if it is earlier."""
    leases, _ = granted()
    leases.extend(list(leases.values()), deadline=20)
    assert [] == ids(leases.expired(19))
    leases.extend(list(leases.values()), deadline=15)

    assert list(range(100, 110)) == ids(leases.expired(19))
    assert [] == ids(leases.expired(100))


def test_batches_are_numbered_apart():
    """The numbers of two batches never touch."""
    leases, numbers = granted()

    assert numbers.start % SPAN == 0
    assert numbers.start + SPAN == leases.grant(deliveries(), Consumer(), deadline=10).start


@pytest.mark.parametrize(
    ("messages", "size", "fits"), [(3, 1000, 3), (20, 12, 2), (20, 13, 3), (20, 1, 1), (20, 60, 10)]
)
def test_a_batch_builder_takes_what_it_has_room_for(messages: int, size: int, fits: int):
    """With frames of 6 bytes, the one that reaches the limit of bytes still fits."""
    building = BatchBuilder(messages, size)

    rest = building.fill(TEN)

    assert list(TEN.messages())[:fits] == [delivery.message for delivery in building.deliveries]
    assert [(TEN.first, fits, TEN.published)] == building.parts
    assert list(TEN.messages())[fits:] == ([] if rest is None else list(rest.messages()))
    assert (messages - fits, size - 6 * fits) == (building.messages, building.size)


def test_publications_are_put_together_again():
    """Messages with consecutive numbers and the same time and key become one publication."""
    gap = [message for message in TEN.messages() if message.number != 104]
    keyed = Publication(110, 5.0, "key", [b"x"])

    again = list(publications([*gap, *keyed.messages()]))

    assert [(100, 4), (105, 5), (110, 1)] == [(each.first, len(each)) for each in again]
    assert [*gap, *keyed.messages()] == [message for each in again for message in each.messages()]


def test_numbers_do_not_grow_with_the_subscriptions_there_were():
    """The number in an ack id fits in 64 bits, even after a million subscriptions of a long-lived emulator."""
    broker = Broker()
    topic = broker.create_topic("topic")
    for _ in range(10):
        subscription = broker.create_subscription("subscription", topic, Settings(), now=0)
        broker.publish(topic, [b"\x0a\x01a"], "", now=0)
        last = subscription.take(Consumer(), now=0).numbers
        broker.delete_subscription(subscription)

    assert 10 * SPAN == last.start


def test_large_messages_are_not_kept_for_their_attributes():
    """The cache of attributes does not keep large messages that a filter has stopped."""
    tracemalloc.start()
    broker = Broker()
    topic = broker.create_topic("topic")
    for name in ("one", "other"):
        broker.create_subscription(name, topic, Settings(matches=lambda attributes: "k" not in attributes), now=0)

    for number in range(50):
        body = (
            b"\x0a" + wire_format.varint(100_000) + b"%05d" % number * 20_000 + wire_format.attribute_fields({"k": "v"})
        )
        broker.publish(topic, [body], "", now=0)
        broker.events.clear()  # as the engine does

    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000

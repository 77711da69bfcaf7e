"""Leases by the batch: changes to a run of them and to a single one are kept apart. Time moves by hand."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import count

import pytest

from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import BatchBuilder, Consumer, Delivery
from pubsub_spark.emulator.state.leases import Acked, Leases
from pubsub_spark.emulator.state.message import Publication, publications
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.wire_format import SPAN

TEN = Publication(100, 5.0, "", [b"frame%d" % number for number in range(10)])


def granted(*parts: Publication | Delivery) -> tuple[Leases, range]:
    leases = Leases(count(1))
    return leases, leases.grant(parts, Consumer(), deadline=10)


def leased(leases: Leases) -> list[int]:
    """Return the numbers of the leased messages."""
    messages = ((part.message,) if isinstance(part, Delivery) else part.messages() for _, part in leases.parts())
    return [message.number for part in messages for message in part]


def ids(deliveries: Sequence[Delivery]) -> list[int]:
    return [each.message.number for each in deliveries]


def test_a_whole_batch_ends_as_one_run():
    """A batch whose leases all end together ends as one run, and nothing is left of it."""
    leases, numbers = granted(TEN)

    [run], rest = leases.end_runs(numbers)

    assert [] == rest
    assert list(TEN.messages()) == list(run.messages())
    assert [] == leased(leases)
    assert ([], list(numbers)) == leases.end_runs(numbers)


def test_numbers_in_any_order_end_what_they_stand_for():
    """Numbers in any order end their leases. Each stretch of consecutive ones is a run."""
    leases, numbers = granted(TEN)
    first = numbers.start

    runs, rest = leases.end_runs([first + 7, first + 2, first + 3, first + 99])

    assert [[107], [102, 103]] == [[message.number for message in run.messages()] for run in runs]
    assert [first + 99] == rest
    assert [100, 101, 104, 105, 106, 108, 109] == leased(leases)
    assert [None, None] == [leases.get(first + 10), leases.end(first + 99)]


def test_a_number_that_is_named_twice_stands_for_no_other():
    """A number named twice does not replace a missing one: 0, 2, 2, 3 do not end lease 1."""
    leases, numbers = granted(TEN)
    first = numbers.start

    runs, rest = leases.end_runs([first, first + 2, first + 2, first + 3])

    assert [[100], [102]] == [[message.number for message in run.messages()] for run in runs]
    assert [first + 2, first + 3] == rest
    assert 101 in leased(leases)


def test_a_batch_that_ends_one_by_one_leaves_nothing():
    """A batch whose leases end one by one leaves as little behind as one that ends as a whole."""
    leases, numbers = granted(TEN)

    assert list(range(100, 110)) == [ended.message.number for each in numbers if (ended := leases.end(each))]
    assert {} == leases._batches


def test_nothing_is_due_when_nothing_is_leased():
    """Nothing is due while nothing is leased, and nothing after `clear`."""
    leases, _ = granted(TEN)
    assert 10 == leases.due
    leases.clear()

    assert NEVER == leases.due == Leases(count(1)).due
    assert [] == leased(leases)


def test_leases_that_are_extended_without_end_expire_at_their_last_deadlines():
    """Leases that are extended again and again expire at their last deadline. Earlier deadlines are dropped."""
    leases, _ = granted(TEN)
    leases.extend_batches(range(SPAN, SPAN + 10), deadline=20)
    other = leases.grant([TEN], Consumer(), deadline=10)
    leases.end(other[1])
    alone = leases.get(other[0])
    assert alone is not None
    for deadline in range(2000, 30, -1):
        leases.extend([alone], deadline)
        assert len(leases._deadlines) <= 2 * 19 + 1000
    leases.extend([alone], deadline=30)

    assert list(range(102, 110)) == ids(list(leases.expired(19)))
    assert list(range(100, 110)) == ids(list(leases.expired(29)))
    assert [100] == ids(list(leases.expired(30)))


def test_a_message_that_something_happened_to_alone_is_left_out_of_runs():
    """A message with a Delivery of its own is not part of a run, because a run could not hold its state."""
    leases, numbers = granted(TEN)
    alone = leases.get(numbers[4])

    assert alone is not None
    assert numbers[4] == alone.number
    assert ([], list(numbers)) == leases.end_runs(numbers)
    assert alone is leases.end(numbers[4])
    assert leases.get(numbers[4]) is None


def test_messages_of_several_publications_keep_their_own_time():
    """Messages of one batch keep the publish time of the publication that each came in."""
    later = Publication(900, 7.0, "key", [b"later"])
    leases, numbers = granted(TEN, later, Publication(901, 8.0, "", [b"last"]))

    [run], _ = leases.end_runs(numbers)

    assert [(109, 5.0, ""), (900, 7.0, "key"), (901, 8.0, "")] == [each[:3] for each in run.messages()][-3:]


def test_batches_are_numbered_apart():
    """The numbers of two batches never touch, so no run reaches from one into the next."""
    leases, numbers = granted(TEN)

    assert numbers.start % SPAN == 0
    assert numbers.start + SPAN == leases.grant([TEN], Consumer(), deadline=10).start


@pytest.mark.parametrize(("start", "stop"), [(0, 9), (1, 10), (1, 11), (-1, 9)])
def test_only_a_batch_that_is_named_from_end_to_end_is_extended_as_one(start: int, stop: int):
    """A batch named from end to end is extended as one. Others are extended one by one, so that stale ones are
    returned.
    """
    leases, numbers = granted(TEN)
    some = list(range(numbers.start + start, numbers.start + stop))

    assert some == leases.extend_batches(some, deadline=20)
    assert 10 == len(list(leases.expired(10)))


def test_an_extended_batch_expires_at_its_new_deadline():
    """An extended batch expires at its new deadline, even an earlier one, and each message counts the extension."""
    leases, numbers = granted(TEN)

    assert [] == leases.extend_batches(numbers, deadline=20)
    assert [] == list(leases.expired(19))
    assert [] == leases.extend_batches(numbers, deadline=15)
    expired = list(leases.expired(19))
    assert list(range(100, 110)) == ids(expired)
    assert {2} == {each.modacks for each in expired}
    assert [] == list(leases.expired(100))


def test_an_extension_of_one_leaves_the_others():
    """The neighbours of an extended message expire at the deadline of their batch."""
    leases, numbers = granted(TEN)
    alone = leases.get(numbers[0])
    assert alone is not None
    leases.extend([alone], deadline=30)

    assert list(range(101, 110)) == ids(list(leases.expired(10)))
    assert [100] == ids(list(leases.expired(30)))


@pytest.mark.parametrize(
    ("messages", "size", "fits"), [(3, 1000, 3), (20, 12, 2), (20, 13, 3), (20, 1, 1), (20, 60, 10)]
)
def test_a_batch_builder_takes_what_it_has_room_for(messages: int, size: int, fits: int):
    """With frames of 6 bytes, the one that reaches the limit of bytes still fits."""
    building = BatchBuilder(messages, size)

    rest = building.fill(TEN)

    [part] = building.parts
    assert isinstance(part, Publication)
    assert list(TEN.messages())[:fits] == list(part.messages())
    assert list(TEN.messages())[fits:] == ([] if rest is None else list(rest.messages()))
    assert (messages - fits, size - 6 * fits) == (building.messages, building.size)


def test_publications_are_put_together_again():
    """Messages with consecutive numbers and the same time and key become one publication."""
    gap = [message for message in TEN.messages() if message.number != 104]
    keyed = Publication(110, 5.0, "key", [b"x"])

    again = list(publications([*gap, *keyed.messages()]))

    assert [(100, 4), (105, 5), (110, 1)] == [(each.first, len(each)) for each in again]
    assert [*gap, *keyed.messages()] == [message for each in again for message in each.messages()]


def test_the_latest_acked_are_remembered():
    """The latest acked messages are kept, up to the limit, whether acknowledged alone or in a run. A limit of zero
    keeps none.
    """
    leases, numbers = granted(TEN, Publication(200, 6.0, "", [b"x"] * 5))
    alone = leases.end(numbers[0])
    assert alone is not None
    runs, _ = Leases(count(1)).end_runs([])
    assert [] == runs
    other, others = granted(TEN)
    [run], _ = other.end_runs(others)

    for most, expected in ((0, []), (4, [107, 108, 109, 100]), (100, [*range(100, 110), 100])):
        acked = Acked(most)
        acked.add([run])
        acked.add([alone])
        assert expected == ids(list(acked))
    assert {(True, 1, 1)} == {(each.acked, each.acks, each.deliveries) for each in run.deliveries()}


def test_what_was_acked_before_the_latest_is_forgotten():
    """A run as long as the limit leaves none of the messages acked before it."""
    leases, numbers = granted(TEN, TEN)
    alone = leases.end(numbers[0])
    assert alone is not None
    other, others = granted(TEN)
    runs, _ = other.end_runs(others)
    acked = Acked(10)
    acked.add([alone])
    acked.add(runs)

    assert list(range(100, 110)) == ids(list(acked))
    assert runs == list(acked._items)


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

"""Publications as sets of messages: unions, and the parts that a range of numbers cuts out. No server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.emulator.state.message import Message, Publication, among, ranges, union

FRAMES = [b"%d" % number for number in range(100)]
_spans = st.tuples(st.integers(0, 99), st.integers(1, 30)).map(lambda it: range(it[0], min(sum(it), 100)))


def publication(numbers: range) -> Publication:
    return Publication(numbers.start, 0.0, "", FRAMES[numbers.start : numbers.stop])


def messages(*publications: Publication) -> list[Message]:
    return [message for each in publications for message in each.messages()]


@given(st.lists(_spans), st.lists(_spans))
def test_union_has_each_message_once_and_in_order(some, others):
    """The union of publications that overlap in any way has each message once, in the order of the numbers."""
    everything = sorted({*messages(*map(publication, [*some, *others]))})

    assert everything == messages(*union(map(publication, some), map(publication, others)))


@given(_spans, st.lists(_spans))
def test_parts_say_which_numbers_are_among_the_ranges(whole, chosen):
    """The parts of a publication are its messages in order, each part wholly in the ranges or wholly outside."""
    numbers = ranges(union(map(publication, chosen)))

    parts = list(among(publication(whole), numbers))

    assert messages(publication(whole)) == messages(*(part for part, _ in parts))
    inside = {number for each in chosen for number in each}
    assert [number in inside for number in whole] == [is_in for part, is_in in parts for _ in part.frames]


def test_ranges_of_neighbours_are_one():
    """The numbers of publications that follow one another are one range."""
    assert [range(3, 9), range(20, 21)] == ranges(map(publication, [range(3, 5), range(5, 9), range(20, 21)]))

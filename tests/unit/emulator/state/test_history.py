"""The life of a message, read from the broker's events."""

from __future__ import annotations

import pytest

from pubsub_spark.emulator.state import history
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Consumer
from pubsub_spark.emulator.state.history import History, done, lives
from pubsub_spark.emulator.state.settings import Settings

TOPIC, DEAD, SUB = "projects/p/topics/news", "projects/p/topics/dead", "projects/p/subscriptions/all"
A = b"\x0a\x01a"


class Story:
    """A broker with a topic and a subscription, and a History that follows its events. `now` moves by hand."""

    def __init__(self, **settings: object) -> None:
        self.now = 0.0
        self.broker = Broker()
        self.history = History(lambda: self.now)
        self.topic = self.broker.create_topic(TOPIC)
        self.dead = self.broker.create_topic(DEAD)
        self.subscription = self.broker.create_subscription(SUB, self.topic, Settings(**settings), 0)  # type: ignore[arg-type]

    def publish(self, *bodies: bytes) -> range:
        ids = self.broker.publish(self.topic, bodies or [A], "", self.now)
        self.follow()
        return ids

    def take(self, most: int = 1000) -> range:
        numbers = self.broker.take(self.subscription, Consumer(name="a client"), self.now, most).numbers
        self.follow()
        return numbers

    def follow(self) -> None:
        self.history.follow(self.broker.events)
        self.broker.events.clear()

    def life(self, number: int) -> list[tuple[object, ...]]:
        [steps] = lives(self.history.entries(SUB), {number: 0.0}).values()
        return [tuple(step) for step in steps]


def test_life_of_a_message():
    """Published, delivered, nacked, delivered, expired, delivered, acked: each has its time."""
    story = Story(ack_deadline=10)
    [_, number] = story.publish(A, A)
    story.now = 1
    story.broker.modify(story.subscription, [story.take()[1]], 0, now=1)
    story.follow()
    story.now = 2
    [_] = story.take(1)
    story.broker.tick(12)
    story.now = 20
    story.broker.ack(story.subscription, [*story.take()], now=20)
    story.follow()

    assert [
        (0, "published", ""),
        (1, "delivered", "a client"),
        (1, "nacked", ""),
        (2, "delivered", "a client"),
        (12, "lease expired", ""),
        (20, "delivered", "a client"),
        (20, "acked", ""),
    ] == story.life(number)
    assert {number, number - 1} == set(done(story.history.entries(SUB), 10))


def test_dead_letter_names_its_topic():
    """A message that failed too often goes to the dead-letter topic, and is done."""
    story = Story(dead_letter_topic=DEAD, dead_letter_attempts=1)
    [number] = story.publish()
    story.now = 3
    story.broker.modify(story.subscription, story.take(), 0, now=3)
    story.follow()

    assert [(3, "nacked", ""), (3, "dead-lettered", DEAD)] == story.life(number)[2:]
    assert [number] == list(done(story.history.entries(SUB), 10))


def test_seek_makes_acked_messages_undone():
    """After a seek no message counts as done. The messages published before it have the step."""
    story = Story(retain_acked=True)
    [number] = story.publish()
    story.broker.ack(story.subscription, story.take(), now=1)
    story.now = 5
    story.broker.seek_to_time(story.subscription, 0, now=5)
    story.follow()

    assert (5, "seek", "") == story.life(number)[-1]
    assert {} == done(story.history.entries(SUB), 10)


def test_what_is_kept_is_bounded(monkeypatch):
    """Old steps are dropped. The newest batch with its ack stays, whatever its size."""
    monkeypatch.setattr(history, "MAX_STEPS", 10)
    story = Story()
    for _ in range(20):
        story.publish()
        story.broker.ack(story.subscription, story.take(), now=0)
    story.follow()
    assert 10 == len(story.history.entries(SUB))
    [*_, number] = story.publish(*[A] * 50)
    story.broker.ack(story.subscription, story.take(), now=0)
    story.follow()

    assert [50, 50] == [len(each.numbers) for each in story.history.entries(SUB)]
    assert ["published", "delivered", "acked"] == [what for _, what, _ in story.life(number)]


@pytest.mark.parametrize("gone", ["deleted", "cleared"])
def test_latest_messages_of_a_topic(gone):
    """The latest fifty messages that are not large are listed, newest first, even without a subscription. A topic that
    is gone has none.
    """
    story = Story()
    large = b"\x0a\x80\x80\x01" + b"x" * 16384
    first = story.broker.publish(story.dead, [A], "", 0)[0]
    story.broker.publish(story.dead, [A] * 60, "", 0)
    story.broker.publish(story.dead, [large], "", 0)
    story.follow()
    assert [*range(first + 60, first + 10, -1)] == [each.number for each in story.history.latest(DEAD)]

    story.broker.delete_topic(story.dead) if gone == "deleted" else story.broker.clear()
    story.follow()
    assert [] == story.history.latest(DEAD)

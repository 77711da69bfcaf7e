"""Laws of delivery, tested by hypothesis in any order of publishing, pulling, acking, nacking, waiting and seeking.

- Nothing is lost: unacknowledged messages are in the backlog, and can be drained in the end.
- Acknowledged messages are not redelivered, unless by a seek or the ordering rule.
- A leased message is not delivered to another consumer before its deadline.
- The messages of a key are delivered in order, one outstanding batch at a time.
- The count of a consumer's outstanding messages is right, and never more than it allows.
- A stream does not wait while there is something for it, and time does not stand still.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.chaos import Chaos
from pubsub_spark.emulator.state.delivery import Batch, Consumer
from pubsub_spark.emulator.state.message import Message, Publication, published_since
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.subscription import Subscription

KEYS = ("", "a")


@dataclass
class Sent:
    """One message as the model sees it."""

    message: Message
    acked: bool = False
    held: tuple[int, float, Consumer] | None = None  # number, deadline, holder
    numbers: list[int] = field(default_factory=list)


class DeliveryMachine(RuleBasedStateMachine):
    numbers: Bundle[int] = Bundle("numbers")

    @initialize(ordering=st.booleans(), backoff=st.sampled_from([0, 10]), limit=st.integers(0, 3))
    def begin(self, ordering: bool, backoff: int, limit: int) -> None:
        self.now = 1000.0
        self.ordering = ordering
        self.subscription = Subscription(
            "projects/p/subscriptions/sub",
            Settings(ordering=ordering, retain_acked=True, min_backoff=backoff, max_backoff=backoff * 4),
            self.now,
        )
        self.consumers = [Consumer(max_messages=each, ack_deadline=30) for each in (limit, 0)]
        self.sent: dict[int, Sent] = {}
        self.batches: list[list[int]] = []

    # What happens

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 4))
    def publish(self, key: str, count: int) -> None:
        first = len(self.sent) + 1
        made = wire_format.message_frames([b"\x0a\x01x"] * count, first, wire_format.publish_time_field(self.now))
        publication = Publication(first, self.now, key, made)
        self.sent.update((message.number, Sent(message)) for message in publication.messages())
        self.subscription.publish(publication)

    @rule(target=numbers, who=st.integers(0, 1), most=st.integers(1, 5))
    def take(self, who: int, most: int) -> MultipleResults[int]:
        consumer = self.consumers[who]
        batch = self.subscription.take(consumer, self.now, most)
        self._expire()
        self._check_batch(batch)
        for delivery in batch:
            sent = self.sent[delivery.message.number]
            sent.held = delivery.number, self.now + 30, consumer
            sent.numbers.append(delivery.number)
        self.batches += [list(batch.numbers)] if batch else []
        return multiple(*(delivery.number for delivery in batch))

    @rule(which=st.integers(0, 2), start=st.integers(0, 2), stop=st.integers(2, 5))
    def ack_run(self, which: int, start: int, stop: int) -> None:
        """Ack as clients mostly do: the messages of one of the last batches, or consecutive ones."""
        for numbers in self.batches[-1 - which :][:1]:
            self.ack(numbers[start:stop])

    @rule(which=st.integers(0, 2), stop=st.sampled_from([2, 5]), seconds=st.sampled_from([0, 10, 600]))
    def modify_run(self, which: int, stop: int, seconds: int) -> None:
        for numbers in self.batches[-1 - which :][:1]:
            self.modify(numbers[:stop], seconds)

    @rule(numbers=st.lists(numbers, min_size=1, max_size=3, unique=True))
    def ack(self, numbers: list[int]) -> None:
        failed = self.subscription.ack(numbers, self.now)
        self._expire()
        for number in numbers:
            sent = self._holding(number)
            assert (sent is None) == (number in failed)
            if sent is not None:
                sent.acked, sent.held = True, None

    @rule(numbers=st.lists(numbers, min_size=1, max_size=3, unique=True), seconds=st.sampled_from([0, 10, 600]))
    def modify(self, numbers: list[int], seconds: int) -> None:
        failed = self.subscription.modify(numbers, seconds, self.now)
        self._expire()
        holding = {number: self._holding(number) for number in numbers}  # before any of them takes others back
        assert failed == [number for number, sent in holding.items() if sent is None]
        for number, sent in holding.items():
            if sent is not None and seconds:
                assert sent.held is not None
                sent.held = number, self.now + seconds, sent.held[2]
            elif sent is not None:
                self._fail(sent)

    @rule(seconds=st.sampled_from([1, 10, 31]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.subscription.tick(self.now)
        self._expire()

    @rule(back=st.sampled_from([0, 5, 50, 5000]), rarely=st.integers(0, 4))
    def seek(self, back: int, rarely: int) -> None:
        if rarely:
            return
        time = self.now - back
        self.subscription.seek((), published_since(time), self.now)
        for sent in self.sent.values():
            sent.acked, sent.held = sent.message.published < time, None

    # Invariants

    @invariant()
    def backlog_is_what_was_not_acked(self) -> None:
        backlog = [message.number for each in self.subscription.unacked(self.now) for message in each.messages()]
        assert [number for number, sent in self.sent.items() if not sent.acked] == backlog

    @invariant()
    def outstanding_is_counted(self) -> None:
        for consumer in self.consumers:
            held = [sent for sent in self.sent.values() if sent.held and sent.held[2] is consumer]
            assert len(held) == consumer.messages
            assert sum(len(sent.message.frame) for sent in held) == consumer.size
            assert len(held) <= consumer.max_messages

    def teardown(self) -> None:
        """Drain everything, whatever happened."""
        if not hasattr(self, "sent"):
            return
        consumer = Consumer()
        for _ in range(100):
            self.now += 601
            batch = self.subscription.take(consumer, self.now)
            self._expire()
            self._check_batch(batch)
            assert [] == self.subscription.ack([each.number for each in batch], self.now)
            for each in batch:
                self.sent[each.message.number].acked = True
            if not self.subscription.unacked(self.now):
                return
        raise AssertionError("The backlog does not end.")

    # The model

    def _keyed(self, sent: Sent) -> bool:
        return self.ordering and bool(sent.message.key)

    def _check_batch(self, batch: Batch) -> None:
        for delivery in batch:
            sent = self.sent[delivery.message.number]
            assert not sent.acked
            assert sent.held is None
            assert delivery.number not in sent.numbers
        for key in KEYS[1:] if self.ordering else ():
            came = [each.message.number for each in batch if each.message.key == key]
            of_key = [number for number, sent in self.sent.items() if sent.message.key == key]
            open_ = [number for number in of_key if not self.sent[number].acked or self._behind_a_gap(number)]
            assert open_[: len(came)] == came
            assert not came or not any(self.sent[number].held for number in of_key)

    def _behind_a_gap(self, number: int) -> bool:
        key = self.sent[number].message.key
        return any(
            not sent.acked for earlier, sent in self.sent.items() if earlier < number and sent.message.key == key
        )

    def _holding(self, number: int) -> Sent | None:
        return next((sent for sent in self.sent.values() if sent.held and sent.held[0] == number), None)

    def _expire(self) -> None:
        for sent in self.sent.values():
            if sent.held and sent.held[1] <= self.now:
                self._fail(sent)

    def _fail(self, failed: Sent) -> None:
        """Fail the message alone, or with ordering everything of its key that was delivered after it."""
        failed.held = None
        if self._keyed(failed):
            for number, sent in self.sent.items():
                if number > failed.message.number and sent.message.key == failed.message.key and sent.numbers:
                    sent.held, sent.acked = None, False


TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)


class BrokerMachine(RuleBasedStateMachine):
    """Streams of one subscription whose dead letters may have nowhere to go: time advances, and none waits in vain."""

    @initialize(ordering=st.booleans(), backoff=st.sampled_from([0, 10]), dead_letters=st.booleans())
    def begin(self, ordering: bool, backoff: int, dead_letters: bool) -> None:
        self.now = 1000.0
        self.broker = Broker()
        self.topic = self.broker.create_topic("projects/p/topics/topic")
        if dead_letters:
            self.broker.create_topic("projects/p/topics/dead")
        chosen = Settings(
            ordering=ordering,
            min_backoff=backoff,
            max_backoff=backoff * 4,
            retention=600,
            dead_letter_topic="projects/p/topics/dead",
            dead_letter_attempts=2,
        )
        name = "projects/p/subscriptions/sub"
        self.subscription = self.broker.create_subscription(name, self.topic, chosen, self.now)
        self.held: list[int] = []
        self.streams = [Consumer(ack_deadline=deadline, max_messages=most) for deadline, most in ((20, 1), (30, 3))]
        for stream in self.streams:
            self.broker.join(self.subscription, stream)
        self._look(self.streams)

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 4))
    def publish(self, key: str, count: int) -> None:
        self.broker.publish(self.topic, [b"\x0a\x01x"] * count, key, self.now)
        self._serve()

    @rule(chosen=st.lists(st.integers(0, 20), max_size=4), acked=st.booleans())
    def answer(self, chosen: list[int], acked: bool) -> None:
        numbers = [self.held[-1 - each] for each in chosen if each < len(self.held)]
        if acked:
            self.broker.ack(self.subscription, numbers, self.now)
        else:
            self.broker.modify(self.subscription, numbers, 0, self.now)
        self._serve()

    @rule(seconds=st.sampled_from([1, 20, 61, 600]))
    def wait(self, seconds: int) -> None:
        """Move time to the next moment at which something is due, exactly."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.broker.due, end)
            self.broker.tick(self.now)
            assert self.broker.due > self.now, "what was due is done"
            self._serve()

    @rule()
    def go_back(self) -> None:
        self.broker.seek_to_time(self.subscription, self.now - 30, self.now)
        self._serve()

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        assert not (self.subscription.has_ready and self.subscription.consumers.waiting)

    def _serve(self) -> None:
        while self.broker.ready_consumers:
            called = [stream for stream in self.streams if stream in self.broker.ready_consumers]
            self.broker.ready_consumers.clear()
            self._look(called)

    def _look(self, streams: list[Consumer]) -> None:
        for stream in streams:
            while batch := self.broker.take(self.subscription, stream, self.now):
                self.held += batch.numbers
            self.broker.wait(self.subscription, stream)


TestBroker = BrokerMachine.TestCase
TestBroker.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


def test_hostility_loses_nothing():
    """Chaos reorders and redelivers, yet every message arrives, and in the end all are acknowledged."""
    for seed in range(20):
        subscription = Subscription("projects/p/subscriptions/sub", Settings(ordering=True), now=0)
        subscription.chaos = Chaos(seed, subscription.name)
        made = wire_format.message_frames([b"\x0a\x01x"] * 200, 1, wire_format.publish_time_field(0))
        for number, frame in enumerate(made, 1):
            subscription.publish(Publication(number, 0, "key" if number % 4 == 0 else "", [frame]))
        seen: list[int] = []
        now = 0.0
        while subscription.unacked(now):
            batch = subscription.take(Consumer(), now)
            seen += [each.message.number for each in batch]
            subscription.ack([each.number for each in batch], now + 0.5)
            now += 1
        keyed = [number for number in dict.fromkeys(seen) if number % 4 == 0]

        assert set(range(1, 201)) == set(seen)
        assert len(seen) > 200
        assert sorted(keyed) == keyed
        assert sorted(seen) != seen

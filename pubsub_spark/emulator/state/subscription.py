"""One subscription: its queues of messages, their leases, and their redelivery.

`now` (seconds since the epoch) is always an argument, and it never goes back. The places of a message:

    published -> fresh -> leased -> acked (retained, if so configured)
             per-key queues |
                            +-> returned          at once, when nacked or its deadline passed
                            +-> delayed -> returned      after a backoff, with a retry policy
                            +-> dead              the broker forwards it to the dead-letter topic

Each lease has its own number, and only the number of the latest one acknowledges, extends or returns a message. Work
per message does not grow with the backlog: queues are popped from the front, leases expire by the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, groupby, repeat
from operator import attrgetter
from typing import Any

from pubsub_spark.emulator.state.backlog import NEVER, Unacked
from pubsub_spark.emulator.state.chaos import Chaos
from pubsub_spark.emulator.state.consumers import Consumers
from pubsub_spark.emulator.state.delivery import Batch, BatchBuilder, Consumer, Delivery, message_of
from pubsub_spark.emulator.state.events import Event, Expired
from pubsub_spark.emulator.state.fresh_queue import FreshQueue
from pubsub_spark.emulator.state.leases import AckedNumbers, Leases
from pubsub_spark.emulator.state.message import Message, Publication, Split, publications, union
from pubsub_spark.emulator.state.ordering import KeyQueues
from pubsub_spark.emulator.state.redelivery_queue import RedeliveryQueue
from pubsub_spark.emulator.state.settings import Settings

MOST_MESSAGES = 1000  # in one response. The service's own limit for Pull


class Subscription:
    """`ready_consumers` collects the consumers that are to be notified. `Broker` documents the methods that have the
    same name there.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        now: float,
        resource: Any = None,
        *,
        batches: Iterator[int] | None = None,
        ready_consumers: list[Consumer] | None = None,
        events: list[Event] | None = None,
        remembered: int = 10_000,
    ) -> None:
        self.name = name
        self.settings = settings
        self.resource = resource
        self.topic_retention = 0.0
        self.active = now  # the last use, which decides about expiry. A failed push is no use
        self.consumers = Consumers(ready_consumers if ready_consumers is not None else [])
        self.events = events if events is not None else []
        self.chaos: Chaos | None = None
        self.dead: list[Delivery] = []  # failed too often. The broker takes them from here
        self.outstanding = 0  # messages that a consumer holds: leased, and neither acked, nacked nor expired
        self._fresh = FreshQueue()
        self._unacked = Unacked()  # the others
        self._redelivery = RedeliveryQueue()
        self._key_queues = KeyQueues()
        self._leases = Leases(batches or count(1))
        self._retained: deque[Publication] = deque()
        self._finished: deque[Delivery] = deque(maxlen=remembered)  # the latest acked
        self._acked_numbers = AckedNumbers()
        self._turn = 0
        self._prune_at = NEVER
        self._snapshot_retention = 0.0
        self._snapshot_ends = NEVER

    def configure(self, settings: Settings) -> None:
        """Acked messages that the settings do not retain are dropped."""
        self.settings = settings
        if not settings.retain_acked:
            self._retained.clear()
        self.consumers.notify_all()

    # New messages

    def publish(self, publication: Publication) -> None:
        """Messages that do not pass the filter are left out."""
        for part in self._passed(publication):
            self._add(part)
        self._notify_one()

    def _passed(self, publication: Publication) -> Iterable[Publication]:
        matches = self.settings.matches
        if matches is None:
            return (publication,)
        return publications(message for message in publication.messages() if matches(message.attributes))

    def _add(self, publication: Publication) -> None:
        if not (self.settings.ordering and publication.key):
            self._fresh.add(publication)
            return
        self._unacked.add(publication.published, len(publication))
        for message in publication.messages():
            self._key_queues.add(message)
        self._prune_at = min(self._prune_at, publication.published + self._retention)

    # Delivery

    @property
    def has_ready(self) -> bool:
        return bool(self._fresh.count or self._redelivery.ready or self._key_queues.ready)

    def take(self, consumer: Consumer, now: float, most: int = MOST_MESSAGES, size: int = 1 << 62) -> Batch:
        self.tick(now)
        room = min(size, consumer.max_size - consumer.size)
        most = min(most, MOST_MESSAGES, consumer.max_messages - consumer.messages)
        horizon = self._unacked.expired_until
        chaos = None if self.settings.exactly_once else self.chaos
        building = BatchBuilder(most if chaos is None else chaos.portion(most), room)
        for source in range(self._turn + 1, self._turn + 4):  # each in turn is served first, so none starves
            if not building.has_room or consumer.closed:
                break
            if source % 3 == 0:
                for published, messages in self._fresh.take(building):
                    self._unacked.add(published, messages)
            elif source % 3 == 1:
                self._take_returned(building, horizon)
            else:
                self._key_queues.take(building, horizon)
        if not building.deliveries:
            self._notify_one()
            return Batch(range(0), (), ())
        self._turn += 1
        if chaos is not None:
            building.reorder(chaos.reordered(building.deliveries))
        deadline = now + (consumer.ack_deadline or self.settings.ack_deadline)
        numbers = self._leases.grant(building.deliveries, consumer, deadline)
        self.outstanding += len(numbers)
        consumer.messages += len(numbers)
        consumer.size += room - building.size
        if chaos is not None:
            chaos.shorten(self._leases, numbers, now)
        self._notify_one()
        counts = self.settings.dead_letter_attempts and [delivery.failures + 1 for delivery in building.deliveries]
        return Batch(numbers, building.deliveries, building.parts, counts or None)

    def _take_returned(self, building: BatchBuilder, horizon: float) -> None:
        returned = self._redelivery.ready
        while returned and building.has_room:
            delivery = returned[0]
            if not delivery.acked and delivery.published > horizon and not building.add(delivery):
                return
            returned.popleft()
            self._leases.pop(delivery.number, None)  # the last ack id of an unsent message was good until now

    # Acks, nacks and redelivery

    def ack(self, numbers: Sequence[int], now: float) -> list[int]:
        self.tick(now)
        self.active = now
        ended = [*map(self._leases.pop, numbers, repeat(None))]
        done = [delivery for delivery in ended if delivery is not None]
        for delivery in done:
            delivery.acks += 1
        if self.chaos is not None:
            done = [delivery for delivery in done if not self._lost(delivery, self.chaos)]
        if self.settings.exactly_once:
            self._acked_numbers.add(delivery.number for delivery in done)
        self._finish(done)
        self._notify_one()
        if len(done) == len(ended):
            return []
        failed = (number for number, delivery in zip(numbers, ended, strict=True) if delivery is None)
        return [number for number in failed if number not in self._acked_numbers]

    def modify(self, numbers: Sequence[int], seconds: float, now: float) -> list[int]:
        self.tick(now)
        deliveries = {number: self._leases.get(number) for number in numbers}
        leased = [delivery for delivery in deliveries.values() if delivery is not None]
        for delivery in leased:
            delivery.modacks += 1
        # An unsent message waits to be sent: there is nothing to extend or to return.
        sent = [delivery for delivery in leased if delivery.deadline != NEVER]
        if seconds <= 0:
            self._return(sent, now)
        elif sent:
            self._leases.extend(sent, now + seconds)
        self._notify_one()
        return [number for number, delivery in deliveries.items() if delivery is None]

    def _return(self, nacked: list[Delivery], now: float) -> None:
        """Return messages at once. Each counts as failed, even if an earlier message of its key takes it back."""
        for delivery in nacked:
            delivery.deadline = now
        for delivery in nacked:
            if self._leases.pop(delivery.number, None) is not None:
                self._fail(delivery, now)

    def release(self, numbers: Iterable[int]) -> None:
        for delivery in map(self._leases.get, numbers):
            if delivery is None or delivery.deadline == NEVER:  # the latter was taken back before
                continue
            self._release_quota(delivery)
            if self._is_ordered(delivery):
                for entry in self._rewind(delivery, opens=0):
                    self._leases.pop(entry.number, None)
                    self._release_quota(entry)
            else:
                delivery.deadline = NEVER
                self._redelivery.add(delivery)
        self._notify_one()

    def leased_numbers(self) -> list[int]:
        return list(self._leases)

    def finish_dead_letter(self, delivery: Delivery) -> None:
        self._finish([delivery])
        self._notify_one()

    def requeue(self, delivery: Delivery, now: float) -> None:
        self._again(delivery, now)
        self._notify_one()

    def _finish(self, done: Sequence[Delivery]) -> None:
        for holder, held in groupby(done, attrgetter("holder")):
            if holder is not None:
                sizes = [len(delivery.frame) for delivery in held]
                self._free(holder, len(sizes), sum(sizes))
        for published, unacked in groupby([entry for entry in done if not entry.acked], attrgetter("published")):
            self._unacked.remove(published, len([*unacked]))
        for delivery in done:
            delivery.holder = None
        if self.settings.ordering:
            retire = self._key_queues.retire
            done = [entry for it in done for entry in (retire(it) if it.key else (it,))]
        for delivery in done:
            delivery.acked = True
        self._finished.extend(done)
        if self.settings.retain_acked:
            self._retained.extend(publications(delivery.message for delivery in done))

    def _lost(self, delivery: Delivery, chaos: Chaos) -> bool:
        if self.settings.exactly_once or self._is_ordered(delivery) or not chaos.loses():
            return False
        if delivery.deadline != NEVER:  # otherwise it already waits
            self._release_quota(delivery)
            self._redelivery.add(delivery)
        return True

    def _fail(self, delivery: Delivery, now: float) -> None:
        delivery.failures += 1
        self._release_quota(delivery)
        if 0 < self.settings.dead_letter_attempts <= delivery.failures:
            self.dead.append(delivery)
        else:
            self._again(delivery, now)

    def _again(self, delivery: Delivery, now: float) -> None:
        opens = now + self.settings.backoff(delivery.failures)
        if self._is_ordered(delivery):
            for entry in self._rewind(delivery, opens if opens > now else 0):
                if self._leases.pop(entry.number, None) is not None and entry is not delivery and entry.deadline <= now:
                    entry.failures += 1  # its own deadline has also passed
                self._acked_numbers.pop(entry.number, None)  # no longer acked behind the gap
                self._release_quota(entry)
        else:
            self._redelivery.add(delivery, opens if opens > now else 0)

    def _rewind(self, delivery: Delivery, opens: float) -> list[Delivery]:
        withdrawn = self._key_queues.rewind(delivery, opens)
        for entry in withdrawn:
            if entry.acked:
                entry.acked = False
                self._unacked.add(entry.published)
        return withdrawn

    def _release_quota(self, delivery: Delivery) -> None:
        if delivery.holder is not None:
            self._free(delivery.holder, 1, len(delivery.frame))
            delivery.holder = None

    def _free(self, holder: Consumer, messages: int, size: int) -> None:
        self.outstanding -= messages
        self.consumers.free(holder, messages, size)

    def _is_ordered(self, delivery: Delivery) -> bool:
        return self.settings.ordering and bool(delivery.key)

    # Time

    @property
    def _retention(self) -> float:
        return max(self.settings.retention, self.topic_retention, self._snapshot_retention)

    def retain(self, since: float, until: float) -> None:
        """Raise the retention until a snapshot ends: messages published at `since` are kept until then."""
        self._snapshot_retention, self._snapshot_ends = until - since, until

    def due(self) -> float:
        return min(
            self._leases.due,
            self._redelivery.due,
            self._fresh.oldest + self._retention,
            self._retained[0].published + self._retention if self._retained else NEVER,
            self._key_queues.due,
            self._unacked.oldest + self._retention,
            self._prune_at,
            self._snapshot_ends,
            self.expires_at,
        )

    @property
    def expires_at(self) -> float:
        """The time when the subscription itself expires if it is not used until then."""
        return NEVER if self.consumers.connected else self.active + self.settings.ttl

    def tick(self, now: float) -> None:
        """Apply everything that is due: leases that expire, backoffs that end, messages beyond their retention."""
        expired: list[int] = []
        for delivery in self._leases.expired(now):
            self._fail(delivery, now)
            expired.append(delivery.number)
        if expired:
            self.events.append(Expired(self.name, expired, now))
        opened = self._redelivery.open(now) + self._key_queues.open(now)
        if self._snapshot_ends <= now:
            self._snapshot_retention, self._snapshot_ends = 0.0, NEVER
        self._unacked.expire(self._retention, now)
        self._forget(now)
        if expired or opened:
            self._notify_one()

    def _forget(self, now: float) -> None:
        """Drop messages beyond their retention.

        The sum is that of `due`. Otherwise rounding could keep a message due for ever.
        """
        self._fresh.expire(self._retention, now)
        while self._retained and self._retained[0].published + self._retention <= now:
            self._retained.popleft()
        if self._prune_at <= now:
            self._key_queues.prune(self._unacked.expired_until)
            waiting = (message_of(entry).published for entry in self._key_queues.entries())
            oldest = min(waiting, default=NEVER)
            # At least a minute after the last pass over all queues, so that its cost stays small.
            self._prune_at = max(oldest + self._retention, now + 60) if self._key_queues.any else NEVER

    def leave(self, consumer: Consumer, now: float) -> None:
        self.consumers.leave(consumer)
        self.active = now
        self._notify_one()

    def _notify_one(self) -> None:
        if self.consumers.waiting and self.has_ready:
            self.consumers.notify_one()

    # The whole backlog at once

    @property
    def backlog(self) -> int:
        """The number of unacked messages, held ones included, as of the last `tick`."""
        return self._fresh.count + self._unacked.total

    @property
    def oldest_unacked(self) -> float | None:
        """The publish time of the oldest unacked message as of the last `tick`, or None."""
        return None if (oldest := min(self._unacked.oldest, self._fresh.oldest)) == NEVER else oldest

    def unacked(self, now: float) -> list[Publication]:
        """Return the backlog, in the order of publishing."""
        known = chain(self._leases.values(), self._redelivery, self._key_queues.entries())
        messages = {
            message.number: message
            for message in (message_of(entry) for entry in known if not (isinstance(entry, Delivery) and entry.acked))
            if message.published > self._unacked.expired_until
        }
        alone = publications(messages[number] for number in sorted(messages))
        return self._kept(union(self._fresh.publications, alone), now)

    def _kept(self, known: Iterable[Publication], now: float) -> list[Publication]:
        return [publication for publication in known if publication.published + self._retention > now]

    def seek(self, log: Iterable[Publication], split: Split, now: float) -> None:
        """Make every message still known, here or in the topic's `log`, unacked or acked as `split` decides."""
        self.active = now
        # Includes acked ones: an ack behind a gap is not kept yet.
        keyed = sorted(map(message_of, self._key_queues.entries()))
        sources = self._retained, publications(keyed), self.unacked(now), chain.from_iterable(map(self._passed, log))
        known = self._kept(union(*sources), now)
        self.clear()
        for part, is_unacked in chain.from_iterable(map(split, known)):
            if is_unacked:
                self._add(part)
            elif self.settings.retain_acked:
                self._retained.append(part)
        self._notify_one()

    def clear(self) -> None:
        """Ack ids handed out so far acknowledge nothing."""
        for entry in chain(self._leases.values(), self._key_queues.entries()):
            if isinstance(entry, Delivery):
                self._release_quota(entry)
        self._key_queues = KeyQueues()
        self._fresh, self._redelivery, self._unacked = FreshQueue(), RedeliveryQueue(), Unacked()
        for store in (self._leases, self._retained, self._acked_numbers):
            store.clear()

    def deliveries(self) -> Iterator[Message | Delivery]:
        """Yield every known message with its delivery state, including the latest acked ones."""
        yield from self._finished
        yield from self._fresh.messages()
        yield from self._redelivery
        yield from self._leases.values()
        yield from self._key_queues.entries()

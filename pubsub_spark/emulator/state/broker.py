"""The broker: topics, subscriptions and snapshots, and every operation on them.

All changes are methods of the broker, which also append to `events`. They accept the Topic, Subscription or Snapshot
itself instead of its name: a change to a deleted one does nothing to a successor of that name.

`resource` of each record is the configuration as the client sees it. It is replaced as a whole, never changed in place.
The handlers check existence and permission.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.agenda import Agenda
from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.chaos import Chaos
from pubsub_spark.emulator.state.delivery import UNLIMITED, Batch, Consumer, dead_letter
from pubsub_spark.emulator.state.events import (
    Acked,
    Cleared,
    Created,
    DeadLettered,
    Deleted,
    Delivered,
    Event,
    Modified,
    Published,
    Released,
    Sought,
    Updated,
)
from pubsub_spark.emulator.state.leases import BatchNumbers
from pubsub_spark.emulator.state.message import PackedFrames, Publication, Split, among, published_since, ranges
from pubsub_spark.emulator.state.settings import DAY, Settings
from pubsub_spark.emulator.state.subscription import MOST_MESSAGES, Subscription
from pubsub_spark.emulator.state.topic import Snapshot, Topic

SNAPSHOT_LIFETIME_SECONDS = 7 * DAY
# The service's ids have 17 or 18 digits. All of ours have 17, so that their order as text is the order of publishing.
# They begin at the start of the emulator, ten a microsecond, so that a restarted emulator does not reuse an id.
_FIRST_MESSAGE = 10**16
_IDS_PER_SECOND = 10**7
_LEAST_PACKED = 16  # messages of one Publish
_SPARE_BATCHES = 1 << 20  # more than a run leases between its last journaled change and its end


class Broker:
    def __init__(
        self,
        events: list[Event] | None = None,
        on_delete: Callable[[str], None] | None = None,
        *,
        remembered: int = 10_000,
        started: float = 0,
    ) -> None:
        self.events = events if events is not None else []  # the changes since they were last read
        self._on_delete = on_delete
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.ready_consumers: list[Consumer] = []  # those that the wire layer must wake
        self._snapshots_due = NEVER
        self._origins: dict[str, Topic] = {}  # the topic that each subscription was created on, deleted or not
        self._remembered = remembered
        self.chaos_seed: int | None = None
        self._next_message = _FIRST_MESSAGE + int(started * _IDS_PER_SECOND)
        # All subscriptions number their batches by one count, so an ack id of a deleted one never fits its successor.
        self._batches = BatchNumbers()
        self._agenda = Agenda()

    # Topics

    def create_topic(self, name: str, resource: Any = None, retention: float = 0) -> Topic:
        """The topic keeps messages for every subscription for `retention` seconds (0: not at all)."""
        topic = self.topics[name] = Topic(name, resource, retention)
        self.events.append(Created(name, resource))
        return topic

    def update_topic(self, topic: Topic, resource: Any, retention: float, now: float) -> None:
        topic.retention = retention
        for subscription in topic.subscriptions.values():
            subscription.topic_retention = retention
            subscription.tick(now)
            self._schedule(subscription, now)
        self._trim(topic, now)
        self.replace(topic, resource)

    def delete_topic(self, topic: Topic) -> None:
        """The topic's subscriptions stay and can be drained. Its snapshots also stay, as long as they live."""
        del self.topics[topic.name]
        topic.retention = 0
        for subscription in topic.subscriptions.values():
            subscription.topic_retention = 0
            self._agenda.add(subscription.due(), subscription)
        topic.subscriptions.clear()
        self._deleted(topic.name)

    def replace(self, record: Topic | Subscription | Snapshot, resource: Any) -> None:
        """Replace the resource of a topic, subscription or snapshot if nothing else changes with it."""
        record.resource = resource
        self.events.append(Updated(record.name, resource))

    def publish(self, topic: Topic, bodies: Sequence[bytes], key: str, now: float) -> range:
        """Assign ids to serialized PubsubMessages of one ordering key (or none), and hand them to all subscriptions."""
        first = self._next_message
        published = int(now * 1000) / 1000  # the service's publish times are whole milliseconds
        ids = range(first, first + len(bodies))
        self._next_message = ids.stop
        # Filters and keys look at each message alone. Their subscriptions share the separate frames.
        settings = (subscription.settings for subscription in topic.subscriptions.values())
        frames: Sequence[bytes]
        if len(bodies) >= _LEAST_PACKED and not key and all(setting.matches is None for setting in settings):
            frames = PackedFrames(bodies, first, published)
        else:
            frames = wire_format.message_frames(bodies, first, wire_format.publish_time_field(published))
        publication = Publication(first, published, key, frames)
        for subscription in topic.subscriptions.values():
            subscription.publish(publication)
            self._schedule(subscription, now)
        self.events.append(Published(topic.name, publication))
        if topic.retention or topic.snapshots:
            topic.log.append(publication)
            self._trim(topic, now)
        return ids

    def note_ingested(self, topic: Topic, part: str, mark: str) -> None:
        topic.ingested[part] = mark

    def _trim(self, topic: Topic, now: float) -> None:
        pinned = min((snapshot.after for snapshot in topic.snapshots.values()), default=NEVER)
        horizon = now - topic.retention
        while topic.log and topic.log[0].first < pinned and topic.log[0].published < horizon:
            topic.log.popleft()

    # Subscriptions

    def create_subscription(
        self, name: str, topic: Topic, settings: Settings, now: float, resource: Any = None
    ) -> Subscription:
        """The subscription starts empty, even if its topic retains messages."""
        subscription = self.add_subscription(name, topic, settings, now, resource)
        self.events.append(Created(name, resource))
        self._schedule(subscription, now)
        return subscription

    def add_subscription(
        self, name: str, topic: Topic, settings: Settings, now: float, resource: Any = None
    ) -> Subscription:
        """Add a subscription that was loaded. No event is emitted."""
        subscription = Subscription(
            name,
            settings,
            now,
            resource,
            batches=self._batches,
            ready_consumers=self.ready_consumers,
            events=self.events,
            remembered=self._remembered,
        )
        subscription.topic_retention = topic.retention
        subscription.chaos = self._chaos(name)
        self.subscriptions[name] = topic.subscriptions[name] = subscription
        self._origins[name] = topic
        return subscription

    def configure(self, subscription: Subscription, settings: Settings, resource: Any, now: float) -> None:
        subscription.configure(settings)
        subscription.active = now
        subscription.tick(now)  # the retention may have changed
        self.replace(subscription, resource)
        self._schedule(subscription, now)

    def detach_subscription(self, subscription: Subscription, resource: Any) -> None:
        """The messages of the subscription are dropped."""
        self._detach(subscription)
        self.replace(subscription, resource)

    def delete_subscription(self, subscription: Subscription) -> None:
        """Delete a subscription with its messages, and notify its consumers."""
        name = subscription.name
        self._detach(subscription)
        del self.subscriptions[name], self._origins[name]
        self._agenda.discard(subscription)
        self._deleted(name)

    def _detach(self, subscription: Subscription) -> None:
        self._origins[subscription.name].subscriptions.pop(subscription.name, None)
        subscription.clear()
        subscription.consumers.notify_all()

    def _deleted(self, name: str) -> None:
        if self._on_delete is not None:
            self._on_delete(name)
        self.events.append(Deleted(name))

    def clear(self) -> None:
        """Delete everything. Ids are not reset."""
        for subscription in list(self.subscriptions.values()):
            self.delete_subscription(subscription)
        self.topics.clear()
        self.snapshots.clear()
        self._snapshots_due = NEVER
        self.events.append(Cleared())

    def restart(self, now: float) -> None:
        """Continue in another process: disconnect all consumers, stop chaos, and reuse no id."""
        for subscription in self.subscriptions.values():
            for consumer in list(subscription.consumers.connected):
                self.leave(subscription, consumer, now)
        self.set_chaos(None)
        self._next_message = max(self._next_message, _FIRST_MESSAGE + int(now * _IDS_PER_SECOND))
        self._batches.next_number += _SPARE_BATCHES

    def set_chaos(self, seed: int | None) -> None:
        """Reorder, redeliver and end leases early on every subscription, including later ones. None stops it."""
        self.chaos_seed = seed
        for subscription in self.subscriptions.values():
            subscription.chaos = self._chaos(subscription.name)

    def _chaos(self, subscription: str) -> Chaos | None:
        return None if self.chaos_seed is None else Chaos(self.chaos_seed, subscription)

    def topic_of(self, subscription: str) -> Topic | None:
        """Return None if the topic was deleted or the subscription detached."""
        topic = self._origins[subscription]
        return topic if subscription in topic.subscriptions else None

    def origin_of(self, subscription: str) -> Topic:
        """Return the topic that a subscription was created on, even if it was deleted."""
        return self._origins[subscription]

    # Consumers and leases

    def join(self, subscription: Subscription, consumer: Consumer) -> None:
        subscription.consumers.join(consumer)

    def take(
        self,
        subscription: Subscription,
        consumer: Consumer,
        now: float,
        most: int = MOST_MESSAGES,
        size: int = UNLIMITED,
    ) -> Batch:
        """Lease messages to `consumer` within its limits: at most `most`, and none once `size` bytes are reached."""
        batch = subscription.take(consumer, now, most, size)
        if batch:
            self.events.append(Delivered(subscription.name, batch, consumer.name))
        self._schedule(subscription, now)
        return batch

    def wait(self, subscription: Subscription, consumer: Consumer) -> None:
        subscription.consumers.wait(consumer)

    def leave(self, subscription: Subscription, consumer: Consumer, now: float) -> None:
        """Disconnect a consumer. Its messages stay leased, and another consumer is notified in its place."""
        subscription.leave(consumer, now)
        self._schedule(subscription, now)

    def ack(self, subscription: Subscription, numbers: Sequence[int], now: float) -> list[int]:
        """Acknowledge leases. Return the numbers that acknowledge nothing: expired, superseded or never assigned."""
        failed = subscription.ack(numbers, now)
        if len(failed) < len(numbers):
            self.events.append(Acked(subscription.name, _exclude(numbers, failed)))
        self._schedule(subscription, now)
        return failed

    def modify(
        self, subscription: Subscription, numbers: Sequence[int], seconds: float, now: float, *, is_use: bool = True
    ) -> list[int]:
        """Set the deadlines of leases to `now + seconds`. 0 returns them at once. Return the stale numbers.

        is_use: whether this puts off the subscription's expiration. A failed push does not.
        """
        failed = subscription.modify(numbers, seconds, now)
        if is_use:
            subscription.active = now
        if len(failed) < len(numbers):
            self.events.append(Modified(subscription.name, _exclude(numbers, failed), seconds))
        self._schedule(subscription, now)
        return failed

    def release(self, subscription: Subscription, numbers: Sequence[int], now: float) -> None:
        """Take back leases that could not be sent. Nothing is counted against their messages.

        It is unknown whether the last response of a broken stream arrived, so their ack ids stay good until the message
        is handed out again.
        """
        subscription.release(numbers)
        if numbers:
            self.events.append(Released(subscription.name, numbers))
        self._schedule(subscription, now)

    # Counters, as of the last `tick`. They are kept as things change, so reading them costs nothing.

    def leased_numbers(self, subscription: Subscription) -> list[int]:
        """Messages that were released and not handed out again are included."""
        return subscription.leased_numbers()

    def backlog(self, subscription: Subscription) -> int:
        return subscription.backlog

    def outstanding(self, subscription: Subscription) -> int:
        """Return the number of messages that a consumer holds: leased, and neither acked, nacked nor expired."""
        return subscription.outstanding

    def oldest_unacked(self, subscription: Subscription) -> float | None:
        return subscription.oldest_unacked

    # Time

    def _schedule(self, subscription: Subscription, now: float) -> None:
        """Forward the dead messages of a changed subscription, and note when it is due next.

        A deleted one is left out: another subscription may have its name by now.
        """
        if self.subscriptions.get(subscription.name) is not subscription:
            return
        if subscription.dead:
            self._forward(subscription, now)
        self._agenda.add(subscription.due(), subscription)

    def scheduled(self) -> list[tuple[float, str]]:
        return self._agenda.entries()

    def resume(self, scheduled: Iterable[tuple[float, str]]) -> None:
        """Build the agenda of a loaded broker. Without connected consumers, more may be due than was scheduled."""
        for due, name in scheduled:
            self._agenda.add(due, self.subscriptions[name])
        for subscription in self.subscriptions.values():
            self._schedule(subscription, 0)
        self._snapshots_due = min((snapshot.expires for snapshot in self.snapshots.values()), default=NEVER)

    @property
    def due(self) -> float:
        """The time when `tick` next has something to do, or infinity."""
        return min(self._agenda.due, self._snapshots_due)

    def tick(self, now: float) -> list[Subscription]:
        """Let time pass for every subscription that is due. Return the expired ones, which are deleted."""
        expired = []
        while (subscription := self._agenda.pop(now)) is not None:
            if subscription.expires_at <= now:
                self.delete_subscription(subscription)
                expired.append(subscription)
                continue
            subscription.tick(now)
            self._schedule(subscription, now)
        if self._snapshots_due <= now:
            for snapshot in [snapshot for snapshot in self.snapshots.values() if snapshot.expires <= now]:
                self.delete_snapshot(snapshot, now)
            self._snapshots_due = min((snapshot.expires for snapshot in self.snapshots.values()), default=NEVER)
        return expired

    def _forward(self, subscription: Subscription, now: float) -> None:
        """If the dead-letter topic was deleted, the messages are redelivered, as by the service."""
        dead, subscription.dead = subscription.dead, []
        target = self.topics.get(subscription.settings.dead_letter_topic)
        for delivery in dead:
            if target is None:
                subscription.requeue(delivery, now)
            else:
                self.publish(target, [dead_letter(subscription.name, delivery)], delivery.key, now)
                subscription.finish_dead_letter(delivery)
        if target is not None:
            message_numbers = [delivery.message_number for delivery in dead]
            self.events.append(DeadLettered(subscription.name, target.name, message_numbers, now))

    # Snapshots and seek

    def create_snapshot(
        self, name: str, subscription: Subscription, expires: float, now: float, resource: Any = None
    ) -> Snapshot:
        """Create a snapshot of the unacked messages, and of those that the topic publishes until `expires`."""
        topic = self.origin_of(subscription.name)
        snapshot = Snapshot(name, topic, subscription.unacked(now), self._next_message, expires, resource)
        self.snapshots[name] = topic.snapshots[name] = snapshot
        self._snapshots_due = min(self._snapshots_due, expires)
        self.events.append(Created(name, resource))
        return snapshot

    def update_snapshot(self, snapshot: Snapshot, resource: Any, expires: float) -> None:
        snapshot.expires = expires
        self._snapshots_due = min(self._snapshots_due, expires)
        self.replace(snapshot, resource)

    def snapshot_expiry(self, subscription: Subscription, now: float) -> float:
        """Return the time seven days from now, less the age of the oldest unacked message."""
        oldest = self.oldest_unacked(subscription)
        return SNAPSHOT_LIFETIME_SECONDS + (now if oldest is None else oldest)

    def delete_snapshot(self, snapshot: Snapshot, now: float) -> None:
        """The messages that its topic kept only for it are also deleted."""
        del self.snapshots[snapshot.name], snapshot.topic.snapshots[snapshot.name]
        self._trim(snapshot.topic, now)
        self._deleted(snapshot.name)

    def seek_to_time(self, subscription: Subscription, time: float, now: float) -> None:
        """Mark retained messages published before `time` as acked, later ones as unacked."""
        topic = self.topic_of(subscription.name)
        # A snapshot may make the log longer than the topic's own retention does.
        retained = now - topic.retention if topic is not None and topic.retention else NEVER
        log = [entry for entry in (topic.log if topic is not None else ()) if entry.published >= retained]
        self._seek(subscription, log, published_since(time), now)

    def seek_to_snapshot(self, subscription: Subscription, snapshot: Snapshot, now: float) -> None:
        """Mark the snapshot's messages, and those published after it was made, as unacked until it expires."""
        unacked = [*ranges(snapshot.unacked), range(snapshot.after, sys.maxsize)]
        kept = (*snapshot.unacked, *(entry for entry in snapshot.topic.log if entry.first >= snapshot.after))
        subscription.retain(min((publication.published for publication in kept), default=now), snapshot.expires)
        self._seek(subscription, kept, lambda publication: among(publication, unacked), now)

    def _seek(self, subscription: Subscription, log: Iterable[Publication], split: Split, now: float) -> None:
        subscription.seek(log, split, now)
        self._schedule(subscription, now)
        self.events.append(Sought(subscription.name, subscription.backlog))


def _exclude(numbers: Sequence[int], failed: Sequence[int]) -> Sequence[int]:
    if not failed:
        return numbers
    excluded = set(failed)
    return [number for number in numbers if number not in excluded]

"""Topics, subscriptions and snapshots, and the way of a message from the one to the other.

Pure, like `subscription`: no lock, no proto, no clock. `resource` of each record is whatever the handlers keep there
(the configuration as the client gave it); it is carried, never read. Existence and permission are the handlers'
business: what is asked for here by name is there.

The agenda is one heap for all subscriptions: the earliest time at which any of them has something to do. `tick` visits
only those that are due, so a thousand idle subscriptions cost nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from pubsub_spark import names
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.chaos import Chaos
from pubsub_spark.emulator.state.delivery import Consumer, Delivery
from pubsub_spark.emulator.state.message import Message, Publication
from pubsub_spark.emulator.state.subscription import DAY, Settings, Subscription

SNAPSHOT_LIFETIME = 7 * DAY
_NEVER = float("inf")
# The service's ids have 17 or 18 digits; all of ours have 17, so that their order as text is the order of publishing.
_FIRST_MESSAGE = 10**16
_SPARE_ENTRIES = 64  # of the agenda, beyond two for each subscription, before it is tidied


@dataclass(eq=False)
class Topic:
    """A topic; `log` holds messages only while the topic retains them, or a snapshot does."""

    name: str
    resource: Any = None
    retention: float = 0
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    log: deque[Message] = field(default_factory=deque)


@dataclass(eq=False)
class Snapshot:
    """The backlog of a subscription at one moment, and everything published from message `after` on."""

    name: str
    topic: Topic
    unacked: list[Message]
    after: int
    expires: float
    resource: Any = None


class Broker:
    """Everything that the emulator knows of messages."""

    def __init__(self, *, remembered: int = 10_000) -> None:
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.resources: dict[str, Any] = {}  # of subscriptions, by name
        self.snapshots: dict[str, Snapshot] = {}
        self.called: list[Consumer] = []  # whom the wire layer must wake
        self._snapshots_due = _NEVER
        self._origins: dict[str, Topic] = {}  # what each subscription was created on, deleted or not
        self._remembered = remembered
        self._hostility: int | None = None
        self._next_message = _FIRST_MESSAGE
        # All subscriptions number their batches by one count, so an ack id of a deleted one never fits its successor.
        self._batches = count(1)
        self._agenda: list[tuple[float, int, Subscription]] = []
        self._scheduled: dict[str, float] = {}
        self._ties = count()

    # Topics

    def create_topic(self, name: str, resource: Any = None, retention: float = 0) -> Topic:
        topic = self.topics[name] = Topic(name, resource, retention)
        return topic

    def delete_topic(self, name: str) -> None:
        """Its subscriptions stay and can be drained, and its snapshots as long as they live."""
        topic = self.topics.pop(name)
        topic.retention = 0
        for subscription in topic.subscriptions.values():
            subscription.topic_retention = 0
        topic.subscriptions.clear()

    def retain(self, topic: Topic, seconds: float, now: float) -> None:
        """Set how long the topic keeps its messages for every subscription; 0 for not at all."""
        topic.retention = seconds
        for subscription in topic.subscriptions.values():
            subscription.topic_retention = seconds
            self.schedule(subscription, now)
        self._trim(topic, now)

    def publish(self, topic: Topic, bodies: Sequence[bytes], key: str, now: float) -> range:
        """Give serialized PubsubMessages of one ordering key (or none) ids, and hand them to all subscriptions."""
        first = self._next_message
        published = int(now * 1000) / 1000  # the service's publish times are whole milliseconds
        made = wire_format.message_frames(bodies, first, wire_format.publish_time_field(published))
        ids = range(first, first + len(made))
        self._next_message = ids.stop
        publication = Publication(first, published, key, made)
        for subscription in topic.subscriptions.values():
            subscription.publish(publication)
            self.schedule(subscription, now)
        if topic.retention or topic.snapshots:
            topic.log.extend(publication.messages())
            self._trim(topic, now)
        return ids

    def _trim(self, topic: Topic, now: float) -> None:
        pinned = min((snapshot.after for snapshot in topic.snapshots.values()), default=_NEVER)
        horizon = now - topic.retention
        while topic.log and topic.log[0].number < pinned and topic.log[0].published < horizon:
            topic.log.popleft()

    # Subscriptions

    def create_subscription(
        self, name: str, topic: Topic, settings: Settings, now: float, resource: Any = None
    ) -> Subscription:
        """A subscription starts empty, whatever its topic retains."""
        subscription = Subscription(
            name,
            settings,
            now,
            batches=self._batches,
            called=self.called,
            remembered=self._remembered,
        )
        subscription.topic_retention = topic.retention
        subscription.chaos = self._chaos(name)
        self.subscriptions[name] = topic.subscriptions[name] = subscription
        self._origins[name] = topic
        self.resources[name] = resource
        self.schedule(subscription, now)
        return subscription

    def delete_subscription(self, name: str) -> None:
        self.detach_subscription(name)
        del self.subscriptions[name], self.resources[name], self._origins[name]
        self._scheduled.pop(name, None)

    def clear(self) -> None:
        """Forget everything; ids go on from where they are."""
        for name in list(self.subscriptions):
            self.delete_subscription(name)
        self.topics.clear()
        self.snapshots.clear()
        self._snapshots_due = _NEVER

    def be_hostile(self, seed: int | None) -> None:
        """Do on every subscription, those to come included, what at-least-once delivery allows; None stops it."""
        self._hostility = seed
        for subscription in self.subscriptions.values():
            subscription.chaos = self._chaos(subscription.name)

    def _chaos(self, subscription: str) -> Chaos | None:
        return None if self._hostility is None else Chaos(self._hostility, subscription)

    def detach_subscription(self, name: str) -> Subscription:
        """Take a subscription from its topic and drop its messages."""
        subscription = self.subscriptions[name]
        self._origins[name].subscriptions.pop(name, None)
        subscription.clear()
        subscription.call_all()
        return subscription

    def topic_of(self, subscription: str) -> Topic | None:
        """The topic that feeds a subscription; None when that was deleted, or the subscription detached."""
        topic = self._origins[subscription]
        return topic if subscription in topic.subscriptions else None

    def origin_of(self, subscription: str) -> Topic:
        """The topic that a subscription was created on, also when that is deleted."""
        return self._origins[subscription]

    # Time

    def schedule(self, subscription: Subscription, now: float) -> None:
        """After anything was done to a subscription: forward its dead messages, and note when it is due next.

        Somebody may be at one that is gone, and its name another's by now: nothing is due then.
        """
        if self.subscriptions.get(subscription.name) is not subscription:
            return
        if subscription.dead:
            self._forward(subscription, now)
        due = subscription.due()
        if due < self._scheduled.get(subscription.name, _NEVER):
            self._scheduled[subscription.name] = due
            heapq.heappush(self._agenda, (due, next(self._ties), subscription))
            if len(self._agenda) > 2 * len(self.subscriptions) + _SPARE_ENTRIES:
                self._tidy()

    def _tidy(self) -> None:
        """Drop the entries that an earlier one has replaced, or whose subscription is gone."""
        self._agenda = [
            (due, tie, subscription)
            for due, tie, subscription in self._agenda
            if self.subscriptions.get(subscription.name) is subscription
            and self._scheduled.get(subscription.name) == due
        ]
        heapq.heapify(self._agenda)

    @property
    def due(self) -> float:
        """When `tick` next has something to do; infinity when never."""
        return min(self._agenda[0][0] if self._agenda else _NEVER, self._snapshots_due)

    def tick(self, now: float) -> list[Subscription]:
        """Let time pass for every subscription that is due; returns those that expired, which are gone."""
        expired = []
        while self._agenda and self._agenda[0][0] <= now:
            due, _, subscription = heapq.heappop(self._agenda)
            name = subscription.name
            if self.subscriptions.get(name) is not subscription or self._scheduled.get(name) != due:
                continue
            del self._scheduled[name]
            if subscription.expires_at <= now:
                self.delete_subscription(name)
                expired.append(subscription)
                continue
            subscription.tick(now)
            self.schedule(subscription, now)
        if self._snapshots_due <= now:
            for snapshot in [each for each in self.snapshots.values() if each.expires <= now]:
                self.delete_snapshot(snapshot.name, now)
            self._snapshots_due = min((each.expires for each in self.snapshots.values()), default=_NEVER)
        return expired

    def _forward(self, subscription: Subscription, now: float) -> None:
        """Publish dead messages to the dead-letter topic; when that is gone they come again, as in the service."""
        dead, subscription.dead = subscription.dead, []
        target = self.topics.get(subscription.settings.dead_letter_topic)
        for delivery in dead:
            if target is None:
                subscription.revive(delivery, now)
            else:
                self.publish(target, [_dead_letter(subscription.name, delivery)], delivery.message.key, now)
                subscription.bury(delivery)

    # Snapshots and seek

    def create_snapshot(self, name: str, subscription: Subscription, now: float, resource: Any = None) -> Snapshot:
        """What the subscription has not acked by now, and what its topic will publish from now on."""
        topic = self.origin_of(subscription.name)
        expires = self.snapshot_expiry(subscription, now)
        snapshot = Snapshot(name, topic, subscription.unacked(now), self._next_message, expires, resource)
        self.snapshots[name] = topic.snapshots[name] = snapshot
        self.expire_snapshot(snapshot, expires)
        return snapshot

    def expire_snapshot(self, snapshot: Snapshot, expires: float) -> None:
        """Set when a snapshot goes by itself."""
        snapshot.expires = expires
        self._snapshots_due = min(self._snapshots_due, expires)

    def snapshot_expiry(self, subscription: Subscription, now: float) -> float:
        """Seven days, less the age of the oldest unacked message."""
        unacked = subscription.unacked(now)
        return SNAPSHOT_LIFETIME + (unacked[0].published if unacked else now)

    def delete_snapshot(self, name: str, now: float) -> None:
        snapshot = self.snapshots.pop(name)
        del snapshot.topic.snapshots[name]
        self._trim(snapshot.topic, now)

    def seek_to_time(self, subscription: Subscription, time: float, now: float) -> None:
        """Published before `time`: acked; later: unacked; as far as it is retained."""
        topic = self.topic_of(subscription.name)
        # A snapshot may make the log longer than the topic's own retention does.
        retained = now - topic.retention if topic is not None and topic.retention else _NEVER
        log = [message for message in (topic.log if topic is not None else ()) if message.published >= retained]
        subscription.seek(log, lambda message: message.published >= time, now)
        self.schedule(subscription, now)

    def seek_to_snapshot(self, subscription: Subscription, snapshot: Snapshot, now: float) -> None:
        """Unacked: what the snapshot holds, and everything published after it was made, as long as it lives."""
        held = {message.number for message in snapshot.unacked}
        kept = (*snapshot.unacked, *(message for message in snapshot.topic.log if message.number >= snapshot.after))
        subscription.retain(min((message.published for message in kept), default=now), snapshot.expires)
        subscription.seek(kept, lambda message: message.number in held or message.number >= snapshot.after, now)
        self.schedule(subscription, now)


def _dead_letter(subscription: str, delivery: Delivery) -> bytes:
    """A copy of a dead message that says where it came from; the fields appended replace those of the original."""
    message = delivery.message
    name = names.parse(subscription, "subscriptions")
    published = datetime.fromtimestamp(message.published, UTC)
    origin = {
        "CloudPubSubDeadLetterSourceSubscription": name.id,
        "CloudPubSubDeadLetterSourceSubscriptionProject": name.project,
        "CloudPubSubDeadLetterSourceDeliveryCount": str(delivery.failures),
        "CloudPubSubDeadLetterSourceTopicPublishTime": published.isoformat(timespec="milliseconds"),
    }
    return message.body + wire_format.attribute_fields(origin)

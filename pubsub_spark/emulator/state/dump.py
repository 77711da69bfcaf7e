"""The plain data of a dumped state, and how to load it.

Messages are tuples, publications are tuples with their list of frames. A Delivery may be in two places (leased and in
its key's queue), so deliveries are rows of a table, and both places refer to them by index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from pubsub_spark.emulator.state.backlog import NEVER
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import Consumer, Delivery
from pubsub_spark.emulator.state.message import Message, Publication
from pubsub_spark.emulator.state.ordering import KeyQueue, KeyQueues, QueueState
from pubsub_spark.emulator.state.policies import Policies, Policy
from pubsub_spark.emulator.state.schema_store import Revision, Schema, Schemas
from pubsub_spark.emulator.state.settings import Settings
from pubsub_spark.emulator.state.subscription import Subscription
from pubsub_spark.emulator.state.topic import Snapshot, Topic
from pubsub_spark.schema import schema_types

_COUNTS = ("number", "deadline", "deliveries", "failures", "acks", "modacks", "acked")  # of a Delivery
# Of a Subscription.
_FIELDS = ("topic_retention", "active", "_turn", "_prune_at", "_snapshot_retention", "_snapshot_ends")


class ResourceFormat(NamedTuple):
    """Writer and reader of resources, which are opaque to the state.

    `read` is by collection. `settings` reads the delivery settings of a Subscription resource.
    """

    write: Callable[[Any], Any]
    read: Mapping[str, Callable[[Any], Any]]
    settings: Callable[[Any], Settings]


class _Deliveries:
    def __init__(self, rows: Iterable[Any] = (), holder: Consumer | None = None) -> None:
        self.rows: list[Any] = []
        self._indexes: dict[Delivery, int] = {}
        self._loaded: list[Delivery] = []
        for message, counts, is_held in rows:
            delivery = Delivery(*message)
            for name, value in zip(_COUNTS, counts, strict=True):
                setattr(delivery, name, value)
            delivery.holder = holder if is_held else None
            self._loaded.append(delivery)

    def dump(self, entry: Any) -> Any:
        """Return a message as a tuple, a delivery as its index, and anything else unchanged."""
        if isinstance(entry, Message):
            return tuple(entry)
        if not isinstance(entry, Delivery):
            return entry
        if entry not in self._indexes:
            self._indexes[entry] = len(self.rows)
            counts = [getattr(entry, name) for name in _COUNTS]
            self.rows.append((tuple(entry.message), counts, entry.holder is not None))
        return self._indexes[entry]

    def load(self, dumped: Any) -> Any:
        if isinstance(dumped, int):
            return self._loaded[dumped]
        return Message(*dumped) if isinstance(dumped, tuple) else dumped


# Subscriptions


def _dump_subscription(subscription: Subscription) -> dict[str, Any]:
    table = _Deliveries()
    queues, leases = subscription._key_queues, subscription._leases
    dumped: dict[str, Any] = {name: getattr(subscription, name) for name in _FIELDS}
    dumped["fresh"] = _rows(subscription._fresh.publications)
    dumped["returned"] = list(map(table.dump, subscription._redelivery.ready))
    dumped["delayed"] = [(opens, table.dump(delivery)) for opens, delivery in subscription._redelivery.backing_off()]
    dumped["queues"] = [
        (key, [*map(table.dump, queue.waiting)], [*map(table.dump, queue.outstanding)], queue.opens, queue.state.name)
        for key, queue in queues._queues.items()
    ]
    dumped["ready_keys"], dumped["backing_off"] = list(queues._ready), sorted(queues._backing_off)
    dumped["leases"] = list(map(table.dump, leases.values()))
    dumped["deadlines"] = [(deadline, list(numbers)) for deadline, _, numbers in sorted(leases._deadlines)]
    dumped["retained"] = _rows(subscription._retained)
    dumped["acked_numbers"] = list(subscription._acked_numbers)
    dumped["expired_until"] = subscription._unacked.expired_until
    return dumped | {"deliveries": table.rows}


def _rows(publications: Iterable[Publication]) -> list[Any]:
    return [
        (publication.first, publication.published, publication.key, list(publication.frames))
        for publication in publications
    ]


def _load_leases(dumped: int | Sequence[Any], table: _Deliveries, holder: Consumer) -> Iterator[Delivery]:
    """Format 1 of the files had batches instead of deliveries. An entry of a batch is None, a delivery, or a frame.

    Nothing had happened to a frame alone. `origins` are the publications of the frames: where each begins in the batch,
    its first number, time and key.
    """
    if isinstance(dumped, int):
        yield table.load(dumped)
        return
    first, entries, origins, deadline, _, modacks = dumped
    for at, entry in enumerate(entries):
        if isinstance(entry, bytes):
            begin, number, published, key = origins[bisect_right(origins, at, key=itemgetter(0)) - 1]
            delivery = Delivery(number + at - begin, published, key, entry)
            delivery.number, delivery.deadline, delivery.holder = first + at, deadline, holder
            delivery.deliveries, delivery.modacks = 1, modacks
            yield delivery
        elif entry is not None:
            yield table.load(entry)


def _load_subscription(subscription: Subscription, dumped: Mapping[str, Any]) -> None:
    nobody = Consumer()  # the previous holders are no longer connected
    table = _Deliveries(dumped["deliveries"], nobody)
    for name in _FIELDS:
        setattr(subscription, name, dumped[name])
    subscription._redelivery.ready.extend(map(table.load, dumped["returned"]))
    for opens, row in dumped["delayed"]:
        subscription._redelivery.add(table.load(row), opens)
    _load_queues(subscription._key_queues, dumped, table)
    leases = subscription._leases
    for entry in dumped["leases"]:
        leases.update({delivery.number: delivery for delivery in _load_leases(entry, table, nobody)})
    for deadline, numbers in dumped["deadlines"]:  # a sorted list is a heap
        leases._deadlines.append((deadline, next(leases._ties), numbers))
    subscription._retained.extend(Publication(*row) for row in dumped["retained"])
    subscription._acked_numbers.update(dict.fromkeys(dumped["acked_numbers"]))
    subscription._unacked.expired_until = dumped["expired_until"]
    for publication in subscription.unacked(-NEVER):
        subscription._unacked.add(publication.published, len(publication))
    for row in dumped["fresh"]:
        subscription._fresh.add(Publication(*row))
    subscription.outstanding = sum(delivery.holder is not None for delivery in leases.values())


def _load_queues(queues: KeyQueues, dumped: Mapping[str, Any], table: _Deliveries) -> None:
    for key, waiting, outstanding, opens, state in dumped["queues"]:
        queue = queues._queues[key] = KeyQueue()
        queue.waiting = deque(map(table.load, waiting))
        queue.outstanding = deque(map(table.load, outstanding))
        queue.opens, queue.state = opens, QueueState[state]
    queues._ready.extend(dumped["ready_keys"])
    queues._backing_off.extend(dumped["backing_off"])


# The broker


def dump_broker(broker: Broker, resources: ResourceFormat) -> dict[str, Any]:
    """Deleted topics that are still referenced are included."""
    topics = {**dict.fromkeys(broker.topics.values()), **dict.fromkeys(broker._origins.values())}
    topics |= dict.fromkeys(snapshot.topic for snapshot in broker.snapshots.values())
    indexes = {topic: index for index, topic in enumerate(topics)}
    write = resources.write

    def topic(it: Topic) -> tuple[Any, ...]:
        exists = broker.topics.get(it.name) is it
        return it.name, write(it.resource), it.retention, _rows(it.log), list(it.subscriptions), exists, it.ingested

    def subscription(it: Subscription) -> tuple[Any, ...]:
        return it.name, write(it.resource), indexes[broker.origin_of(it.name)], _dump_subscription(it)

    def snapshot(it: Snapshot) -> tuple[Any, ...]:
        return it.name, write(it.resource), indexes[it.topic], _rows(it.unacked), it.after, it.expires

    return {
        "topics": list(map(topic, topics)),
        "subscriptions": list(map(subscription, broker.subscriptions.values())),
        "snapshots": list(map(snapshot, broker.snapshots.values())),
        "next_message": broker._next_message,
        "next_batch": broker._batches.next_number,
        "agenda": broker.scheduled(),
    }


def load_broker(broker: Broker, dumped: Mapping[str, Any], resources: ResourceFormat) -> None:
    read = resources.read
    topics: list[Topic] = []
    for name, resource, retention, log, _, exists, *ingested in dumped["topics"]:
        # missing in dumps from before there were marks
        topic = Topic(name, read["topics"](resource), retention, ingested=dict(*ingested))
        topic.log.extend(Publication(*row) for row in log)
        topics.append(topic)
        if exists:
            broker.topics[name] = topic
    for name, resource, origin, messages in dumped["subscriptions"]:
        shown = read["subscriptions"](resource)
        subscription = broker.add_subscription(name, topics[origin], resources.settings(shown), 0, shown)
        _load_subscription(subscription, messages)
    for topic, (_, _, _, _, attached, *_) in zip(topics, dumped["topics"], strict=True):
        topic.subscriptions = {name: broker.subscriptions[name] for name in attached}
    for name, resource, index, unacked, after, expires in dumped["snapshots"]:
        kept = [Publication(*row) for row in unacked]
        snapshot = Snapshot(name, topics[index], kept, after, expires, read["snapshots"](resource))
        broker.snapshots[name] = snapshot.topic.snapshots[name] = snapshot
    broker._next_message = dumped["next_message"]
    broker._batches.next_number = dumped["next_batch"]
    broker.resume(dumped["agenda"])


# Schemas and policies


def dump_schemas(schemas: Schemas) -> list[Any]:
    return list(map(dump_schema, schemas._schemas.values()))


def dump_schema(schema: Schema) -> tuple[Any, ...]:
    revisions = [(revision[:3], revision.definition.type, revision.definition.text) for revision in schema.revisions]
    return schema.name, revisions, dict(schema.numbers)


def load_schemas(schemas: Schemas, dumped: Iterable[Any]) -> None:
    """Add schemas, or replace those of the same names. The definitions are parsed again."""
    for name, revisions, numbers in dumped:
        loaded = tuple(
            Revision(id_, number, created, schema_types.parse(kind, text))
            for (id_, number, created), kind, text in revisions
        )
        schemas._schemas[name] = Schema(name, loaded, dict(numbers))


def load_policies(policies: Policies, dumped: Mapping[str, Any]) -> None:
    policies.by_name.update({name: Policy(*policy) for name, policy in dumped["by_name"].items()})
    policies.changes = dumped["changes"]

"""The steps that are sent to both emulators, one after the other.

A step is an RPC and its request as proto-JSON, so `player` can send it by gRPC and by HTTP. `saves` keeps parts of an
answer under a name, and `$name` in a later request is replaced by them. A Pull with `expects` is repeated until that
many messages have arrived: the messages are compared, not the number of answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One request. `name` describes it."""

    name: str
    rpc: str
    request: Mapping[str, Any]
    saves: Mapping[str, str] = field(default_factory=dict)
    expects: int | None = None


def _steps() -> Iterator[Step]:
    yield from _topics()
    yield from _publishing()
    yield from _subscriptions()
    yield from _pulling()
    yield from _filtering()
    yield from _ordering()
    yield from _exactly_once()
    yield from _dead_letters()
    yield from _snapshots()
    yield from _schemas()
    yield from _detaching()
    yield from _policies()
    yield from _endings()


P = "projects/conform"
TOPIC, OTHER, SUB = f"{P}/topics/news", f"{P}/topics/other", f"{P}/subscriptions/all"
AVRO = '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}'
WIDER = (
    '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}, '
    '{"name": "y", "type": "int", "default": 0}]}'
)
NARROWER = '{"type": "record", "name": "Point", "fields": [{"name": "x", "type": "string"}]}'
PROTO = 'syntax = "proto3"; message Point { int32 x = 1; }'


def _topics() -> Iterator[Step]:
    create, get, update, listing = "Publisher/CreateTopic", "Publisher/GetTopic", "Publisher/UpdateTopic", "ListTopics"
    yield Step("a topic is created", create, {"name": TOPIC})
    yield Step("a topic exists already", create, {"name": TOPIC})
    yield Step("a topic's name is too short", create, {"name": f"{P}/topics/ab"})
    yield Step("a topic's name begins with goog", create, {"name": f"{P}/topics/google"})
    yield Step("a topic's name begins with a digit", create, {"name": f"{P}/topics/1abc"})
    yield Step("a topic has no name", create, {})
    yield Step("a topic has labels", create, {"name": OTHER, "labels": {"a": "b"}})
    yield Step("a topic is read", get, {"topic": OTHER})
    yield Step("a missing topic is read", get, {"topic": f"{P}/topics/missing"})
    yield Step("topics are listed", f"Publisher/{listing}", {"project": P})
    yield Step(
        "topics are listed by page", f"Publisher/{listing}", {"project": P, "pageSize": 1}, {"t": "nextPageToken"}
    )
    yield Step(
        "the next page of topics is listed",
        f"Publisher/{listing}",
        {"project": P, "pageSize": 1, "pageToken": "$t"},
    )
    yield Step("a page of negative size is asked for", f"Publisher/{listing}", {"project": P, "pageSize": -1})
    yield Step("a page token is made up", f"Publisher/{listing}", {"project": P, "pageToken": "garbage"})
    yield Step("topics of no project are listed", f"Publisher/{listing}", {"project": "conform"})
    retention = {"name": f"{P}/topics/kept", "messageRetentionDuration": "600s"}
    yield Step("a topic keeps its messages", create, retention)
    yield Step(
        "a topic keeps its messages too short",
        create,
        {"name": f"{P}/topics/short", "messageRetentionDuration": "599s"},
    )
    yield Step(
        "a topic's retention is changed",
        update,
        {
            "topic": {"name": f"{P}/topics/kept", "messageRetentionDuration": "1200s"},
            "updateMask": "messageRetentionDuration",
        },
    )
    yield Step(
        "a topic's retention is cleared",
        update,
        {"topic": {"name": f"{P}/topics/kept"}, "updateMask": "messageRetentionDuration"},
    )
    yield Step(
        "a topic's labels are changed", update, {"topic": {"name": OTHER, "labels": {"c": "d"}}, "updateMask": "labels"}
    )
    yield Step("a topic is updated without a mask", update, {"topic": {"name": OTHER}})
    yield Step("a topic's unknown field is updated", update, {"topic": {"name": OTHER}, "updateMask": "colour"})
    yield Step("a topic's name is updated", update, {"topic": {"name": OTHER}, "updateMask": "name"})
    missing = {"topic": {"name": f"{P}/topics/missing"}, "updateMask": "labels"}
    yield Step("a missing topic is updated", update, missing)
    yield Step("a label's key is in capitals", create, {"name": f"{P}/topics/labels", "labels": {"Upper": "x"}})


def _publishing() -> Iterator[Step]:
    def publish(name: str, *messages: Mapping[str, Any], topic: str = OTHER) -> Step:
        return Step(name, "Publisher/Publish", {"topic": topic, "messages": list(messages)})

    yield publish("data is published", {"data": "YQ=="})
    yield publish("an attribute alone is published", {"attributes": {"k": ""}})
    yield publish("two messages are published", {"data": "YQ=="}, {"data": "Yg=="})
    yield publish("an empty message is published", {})
    yield publish("an ordering key alone is published", {"orderingKey": "k"})
    yield publish("no message is published")
    yield publish("1001 messages are published", *({"data": "YQ=="} for _ in range(1001)))
    yield publish("messages go to a missing topic", {"data": "YQ=="}, topic=f"{P}/topics/missing")
    yield publish(
        "two ordering keys share a request", {"data": "YQ==", "orderingKey": "k"}, {"data": "YQ==", "orderingKey": "l"}
    )
    yield publish("an attribute begins with goog", {"attributes": {"googclient": "x"}})
    yield publish("an attribute has no key", {"attributes": {"": "x"}})
    yield publish("an attribute is longer than 1024 bytes", {"attributes": {"k": "x" * 1025}})
    yield publish("a message has 101 attributes", {"attributes": {f"k{i}": "" for i in range(101)}})
    yield publish("an ordering key is longer than 1024 bytes", {"data": "YQ==", "orderingKey": "x" * 1025})


def _subscriptions() -> Iterator[Step]:
    create, get, update = "Subscriber/CreateSubscription", "Subscriber/GetSubscription", "Subscriber/UpdateSubscription"

    def creating(name: str, sub: str = "sub", **settings: Any) -> Step:
        return Step(name, create, {"name": f"{P}/subscriptions/{sub}", "topic": TOPIC, **settings})

    def updating(name: str, mask: str, **settings: Any) -> Step:
        return Step(name, update, {"subscription": {"name": SUB, **settings}, "updateMask": mask})

    yield creating("a subscription is created", "all")
    yield creating("a subscription exists already", "all")
    yield creating("a subscription's name is too short", "ab")
    yield creating("a subscription's topic is missing", topic=f"{P}/topics/missing")
    yield creating("an ack deadline is below 10", "early", ackDeadlineSeconds=9)
    yield creating("an ack deadline is above 600", "late", ackDeadlineSeconds=601)
    yield creating("an ack deadline is negative", "before", ackDeadlineSeconds=-1)
    yield creating("a subscription keeps messages too short", "short", messageRetentionDuration="599s")
    yield creating("a subscription keeps messages for a month", "month", messageRetentionDuration="2678400s")
    yield creating("a subscription keeps messages too long", "long", messageRetentionDuration="2678401s")
    yield creating("a subscription expires too soon", "soon", expirationPolicy={"ttl": "3600s"})
    yield creating("a subscription never expires", "forever", expirationPolicy={})
    yield creating("a retry policy is empty", "retry", retryPolicy={})
    yield creating("a retry policy's backoff is too long", "retry2", retryPolicy={"minimumBackoff": "601s"})
    dead = {"deadLetterTopic": OTHER}
    yield creating("a dead-letter policy is given", "dead", deadLetterPolicy=dead)
    yield creating(
        "a dead-letter policy allows 4 attempts", "dead4", deadLetterPolicy=dead | {"maxDeliveryAttempts": 4}
    )
    gone = {"deadLetterTopic": f"{P}/topics/missing"}
    yield creating("a dead-letter topic is missing", "dead0", deadLetterPolicy=gone)
    yield creating("a push endpoint is no URL", "push0", pushConfig={"pushEndpoint": "x"})
    yield creating(
        "a push version is unknown",
        "push9",
        pushConfig={"pushEndpoint": "http://127.0.0.1:9/", "attributes": {"x-goog-version": "v9"}},
    )
    export = {"bigqueryConfig": {"table": "p.d.t"}, "cloudStorageConfig": {"bucket": "bucket"}}
    yield creating("a subscription has two ways to deliver", "two", **export)
    yield Step("a subscription is read", get, {"subscription": SUB})
    yield Step("a missing subscription is read", get, {"subscription": f"{P}/subscriptions/missing"})
    yield Step(
        "subscriptions of a missing topic are listed",
        "Publisher/ListTopicSubscriptions",
        {"topic": f"{P}/topics/no-one"},
    )
    yield Step("subscriptions of a topic are listed", "Publisher/ListTopicSubscriptions", {"topic": OTHER})
    yield updating("a retry policy is set", "retryPolicy", retryPolicy={"minimumBackoff": "1s"})
    yield updating("a retry policy is cleared", "retryPolicy")
    yield updating("an ack deadline is changed", "ackDeadlineSeconds", ackDeadlineSeconds=20)
    yield updating("an ack deadline is changed to 5", "ackDeadlineSeconds", ackDeadlineSeconds=5)
    yield updating("a subscription's labels are changed", "labels", labels={"a": "b"})
    yield updating("a subscription's expiration is changed", "expirationPolicy", expirationPolicy={"ttl": "86400s"})
    yield updating("a subscription's filter is changed", "filter", filter="attributes:a")
    yield updating("a subscription's topic is changed", "topic", topic=OTHER)
    yield updating("a subscription is updated without a mask", "")
    yield updating("a subscription's unknown field is updated", "colour")
    push = {"subscription": SUB, "pushConfig": {"pushEndpoint": "no"}}
    yield Step("a push endpoint is changed to no URL", "Subscriber/ModifyPushConfig", push)
    yield Step("a subscription stays pull", "Subscriber/ModifyPushConfig", {"subscription": SUB, "pushConfig": {}})
    nobody: dict[str, Any] = {"subscription": f"{P}/subscriptions/missing", "pushConfig": {}}
    yield Step("a missing subscription's push is changed", "Subscriber/ModifyPushConfig", nobody)


def pull(name: str, sub: str = SUB, *, expects: int = 0, most: int = 10, **saves: str) -> Step:
    return Step(
        name,
        "Subscriber/Pull",
        {"subscription": sub, "maxMessages": most, "returnImmediately": True},
        saves,
        expects,
    )


def _publish(name: str, *texts: str, topic: str = TOPIC, **settings: Any) -> Step:
    return Step(name, "Publisher/Publish", {"topic": topic, "messages": [{"data": each, **settings} for each in texts]})


def _modack(name: str, ack_ids: Any, seconds: int, sub: str = SUB) -> Step:
    request = {"subscription": sub, "ackIds": ack_ids, "ackDeadlineSeconds": seconds}
    return Step(name, "Subscriber/ModifyAckDeadline", request)


def _ack(name: str, ack_ids: Any, sub: str = SUB) -> Step:
    return Step(name, "Subscriber/Acknowledge", {"subscription": sub, "ackIds": ack_ids})


def _pulling() -> Iterator[Step]:
    yield pull("nothing is there to pull")
    yield _publish("a message is published", "YQ==", attributes={"k": "v"})
    yield pull("a message is pulled", expects=1, a="receivedMessages.0.ackId")
    yield pull("a leased message is not pulled again")
    yield _modack("a lease is prolonged", ["$a"], 60)
    yield _modack("a message is nacked", ["$a"], 0)
    yield pull("a nacked message comes again", expects=1, b="receivedMessages.0.ackId")
    yield _ack("a message is acknowledged", ["$b"])
    yield _ack("a message is acknowledged twice", ["$b"])
    yield pull("an acknowledged message does not come again")
    yield _ack("nothing is acknowledged", [])
    yield _ack("an ack id is made up", ["not-an-ack-id"])
    yield _modack("a lease is prolonged beyond 600 s", ["$b"], 601)
    yield _modack("a lease is prolonged by less than nothing", ["$b"], -1)
    yield _modack("a made-up lease is prolonged", ["not-an-ack-id"], 10)
    yield _ack("a missing subscription is acknowledged", ["$b"], f"{P}/subscriptions/missing")
    yield pull("a missing subscription is pulled", f"{P}/subscriptions/missing")
    yield pull("no messages are asked for", most=0)
    yield pull("less than no messages are asked for", most=-1)


def _filtering() -> Iterator[Step]:
    sub = f"{P}/subscriptions/filtered"
    create = "Subscriber/CreateSubscription"
    yield Step("a filter is given", create, {"name": sub, "topic": TOPIC, "filter": 'attributes.k = "v"'})
    bad = {"name": f"{P}/subscriptions/filtered2", "topic": TOPIC, "filter": "k = v"}
    yield Step("a filter is no filter", create, bad)
    long = {"name": f"{P}/subscriptions/filtered3", "topic": TOPIC, "filter": "attributes:" + "x" * 250}
    yield Step("a filter is longer than 256 bytes", create, long)
    yield _publish("a message without the attribute is published", "Tg==")
    yield _publish("a message with the attribute is published", "WQ==", attributes={"k": "v"})
    yield pull("what the filter lets through is pulled", sub, expects=1)


def _ordering() -> Iterator[Step]:
    sub, topic = f"{P}/subscriptions/ordered", f"{P}/topics/ordered"
    yield Step("a topic for ordering is created", "Publisher/CreateTopic", {"name": topic})
    settings = {"name": sub, "topic": topic, "enableMessageOrdering": True}
    yield Step("an ordered subscription is created", "Subscriber/CreateSubscription", settings)
    yield _publish("ordered messages are published", "MQ==", "Mg==", "Mw==", topic=topic, orderingKey="k")
    yield pull(
        "ordered messages are pulled", sub, expects=3, o="receivedMessages.*.ackId", o1="receivedMessages.0.ackId"
    )
    yield _publish("a later message of the key is published", "NA==", topic=topic, orderingKey="k")
    yield pull("a later message of an outstanding key is held back", sub)
    yield _modack("the first of a key is nacked", ["$o1"], 0, sub)
    yield pull("the key is delivered again from the nacked message on", sub, expects=4, p="receivedMessages.*.ackId")
    yield _ack("a whole key is acknowledged", "$p", sub)
    change = {"subscription": {"name": sub, "enableMessageOrdering": False}, "updateMask": "enableMessageOrdering"}
    yield Step("ordering is changed", "Subscriber/UpdateSubscription", change)


def _exactly_once() -> Iterator[Step]:
    sub, topic = f"{P}/subscriptions/once", f"{P}/topics/once"
    yield Step("a topic for exactly-once is created", "Publisher/CreateTopic", {"name": topic})
    settings = {"name": sub, "topic": topic, "enableExactlyOnceDelivery": True}
    yield Step("an exactly-once subscription is created", "Subscriber/CreateSubscription", settings)
    yield _publish("a message for exactly-once is published", "YQ==", topic=topic)
    yield pull("a message is pulled exactly once", sub, expects=1, e="receivedMessages.0.ackId")
    yield _modack("an exactly-once message is nacked", ["$e"], 0, sub)
    yield pull("an exactly-once message comes again", sub, expects=1, f="receivedMessages.0.ackId")
    yield _ack("a superseded ack id acknowledges", ["$e"], sub)
    yield _ack("the latest ack id acknowledges", ["$f"], sub)
    push = {"name": f"{P}/subscriptions/once2", "topic": topic, "enableExactlyOnceDelivery": True}
    endpoint = {"pushConfig": {"pushEndpoint": "http://127.0.0.1:9/"}}
    yield Step("exactly-once is asked of a push subscription", "Subscriber/CreateSubscription", push | endpoint)


def _dead_letters() -> Iterator[Step]:
    sub, topic, grave = f"{P}/subscriptions/mortal", f"{P}/topics/mortal", f"{P}/topics/grave"
    yield Step("a mortal topic is created", "Publisher/CreateTopic", {"name": topic})
    yield Step("a dead-letter topic is created", "Publisher/CreateTopic", {"name": grave})
    create = "Subscriber/CreateSubscription"
    policy = {"deadLetterTopic": grave, "maxDeliveryAttempts": 5}
    yield Step("a mortal subscription is created", create, {"name": sub, "topic": topic, "deadLetterPolicy": policy})
    yield Step("the dead are subscribed to", create, {"name": f"{P}/subscriptions/dead-ones", "topic": grave})
    yield _publish("a mortal message is published", "YQ==", topic=topic, attributes={"k": "v"})
    for attempt in range(1, 6):
        yield pull(f"delivery attempt {attempt}", sub, expects=1, d="receivedMessages.0.ackId")
        yield _modack(f"delivery attempt {attempt} fails", ["$d"], 0, sub)
    yield pull("the dead message is gone", sub)
    yield pull("the dead message is pulled", f"{P}/subscriptions/dead-ones", expects=1)


def _snapshots() -> Iterator[Step]:
    sub, topic, snap = f"{P}/subscriptions/seeker", f"{P}/topics/sought", f"{P}/snapshots/snap"
    create, seek = "Subscriber/CreateSnapshot", "Subscriber/Seek"
    yield Step("a topic to seek in is created", "Publisher/CreateTopic", {"name": topic})
    settings = {"name": sub, "topic": topic, "retainAckedMessages": True}
    yield Step("a subscription that retains is created", "Subscriber/CreateSubscription", settings)
    yield _publish("a message before the snapshot is published", "YQ==", topic=topic)
    yield Step("a snapshot is created", create, {"name": snap, "subscription": sub})
    yield Step("a snapshot exists already", create, {"name": snap, "subscription": sub})
    gone = {"name": f"{P}/snapshots/snap2", "subscription": f"{P}/subscriptions/missing"}
    yield Step("a snapshot of a missing subscription is created", create, gone)
    labels = {"name": f"{P}/snapshots/labelled", "subscription": sub, "labels": {"a": "b"}}
    yield Step("a snapshot has labels", create, labels)
    yield Step("a snapshot is read", "Subscriber/GetSnapshot", {"snapshot": snap})
    yield Step("a missing snapshot is read", "Subscriber/GetSnapshot", {"snapshot": f"{P}/snapshots/missing"})
    yield Step("snapshots are listed", "Subscriber/ListSnapshots", {"project": P})
    yield Step("snapshots of a topic are listed", "Publisher/ListTopicSnapshots", {"topic": topic})
    update = {"snapshot": {"name": snap, "labels": {"c": "d"}}, "updateMask": "labels"}
    yield Step("a snapshot's labels are changed", "Subscriber/UpdateSnapshot", update)
    yield pull("a message before the snapshot is pulled", sub, expects=1, s="receivedMessages.0.ackId")
    yield _ack("a message before the snapshot is acknowledged", ["$s"], sub)
    yield Step("a subscription seeks to a snapshot", seek, {"subscription": sub, "snapshot": snap})
    yield pull("what the snapshot holds is pulled again", sub, expects=1, s="receivedMessages.0.ackId")
    yield _ack("what the snapshot holds is acknowledged again", ["$s"], sub)
    past, future = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
    yield Step("a subscription seeks to the past", seek, {"subscription": sub, "time": past})
    yield pull("acknowledged messages are replayed", sub, expects=1)
    yield Step("a subscription seeks to the future", seek, {"subscription": sub, "time": future})
    yield pull("the future has no messages", sub)
    yield _publish("a message after the seek is published", "Yg==", topic=topic)
    yield pull("a message after the seek is pulled", sub, expects=1)
    yield Step(
        "a subscription seeks to a missing snapshot", seek, {"subscription": sub, "snapshot": f"{P}/snapshots/no1"}
    )
    yield Step("a subscription seeks nowhere", seek, {"subscription": sub})
    yield Step("a missing subscription seeks", seek, {"subscription": f"{P}/subscriptions/missing", "time": past})
    yield Step("a subscription of another topic seeks", seek, {"subscription": SUB, "snapshot": snap})
    ordered = f"{P}/subscriptions/ordered"
    yield Step("an ordered subscription seeks to the past", seek, {"subscription": ordered, "time": past})
    yield Step("a snapshot is deleted", "Subscriber/DeleteSnapshot", {"snapshot": snap})
    yield Step("a missing snapshot is deleted", "Subscriber/DeleteSnapshot", {"snapshot": snap})


def _schemas() -> Iterator[Step]:
    name, service = f"{P}/schemas/point", "SchemaService"
    create, get = f"{service}/CreateSchema", f"{service}/GetSchema"
    avro, proto = {"type": "AVRO", "definition": AVRO}, {"type": "PROTOCOL_BUFFER", "definition": PROTO}
    yield Step("a schema is created", create, {"parent": P, "schemaId": "point", "schema": avro}, {"r1": "revisionId"})
    yield Step("a schema exists already", create, {"parent": P, "schemaId": "point", "schema": avro})
    broken = {"type": "AVRO", "definition": "{"}
    yield Step("a schema cannot be read", create, {"parent": P, "schemaId": "broken", "schema": broken})
    yield Step("a schema's name is too short", create, {"parent": P, "schemaId": "ab", "schema": avro})
    yield Step("a schema is read", get, {"name": name})
    yield Step("a schema is read without its definition", get, {"name": name, "view": "BASIC"})
    yield Step("a missing schema is read", get, {"name": f"{P}/schemas/missing"})
    commit, wider = f"{service}/CommitSchema", {"name": name, "type": "AVRO", "definition": WIDER}
    yield Step("a revision is committed", commit, {"name": name, "schema": wider}, {"r2": "revisionId"})
    yield Step("revisions are listed", f"{service}/ListSchemaRevisions", {"name": name, "view": "FULL"})
    yield Step("revisions are listed without a view", f"{service}/ListSchemaRevisions", {"name": name})
    yield Step("schemas are listed", f"{service}/ListSchemas", {"parent": P, "view": "FULL"})
    yield Step("a schema is of Protocol Buffers", create, {"parent": P, "schemaId": "proto", "schema": proto})
    rollback = {"name": name, "revisionId": "$r1"}
    yield Step("a schema is rolled back", f"{service}/RollbackSchema", rollback, {"r3": "revisionId"})
    rollback = {"name": name, "revisionId": "00000000"}
    yield Step("a schema is rolled back to nothing", f"{service}/RollbackSchema", rollback)
    yield Step("a valid schema is validated", f"{service}/ValidateSchema", {"parent": P, "schema": avro})
    yield Step("an invalid schema is validated", f"{service}/ValidateSchema", {"parent": P, "schema": broken})
    message = {"parent": P, "name": name, "message": "eyJ4IjogMX0=", "encoding": "JSON"}  # {"x": 1}
    validate = f"{service}/ValidateMessage"
    yield Step("a valid message is validated", validate, message)
    yield Step("an invalid message is validated", validate, message | {"message": "eyJ4IjogImEifQ=="})  # {"x": "a"}
    yield Step("a binary message is validated", validate, message | {"message": "Ag==", "encoding": "BINARY"})
    trailing = {"message": "AgI=", "encoding": "BINARY", "name": "", "schema": avro}
    trailing = {key: value for key, value in (message | trailing).items() if key != "name"}
    yield Step("a binary message with bytes to spare is validated", validate, trailing)
    topic, sub = f"{P}/topics/points", f"{P}/subscriptions/points"
    settings = {"schemaSettings": {"schema": name, "encoding": "JSON"}}
    yield Step("a topic has a schema", "Publisher/CreateTopic", {"name": topic, **settings})
    gone = {"schemaSettings": {"schema": f"{P}/schemas/missing", "encoding": "JSON"}}
    yield Step("a topic's schema is missing", "Publisher/CreateTopic", {"name": f"{P}/topics/points2", **gone})
    yield Step("points are subscribed to", "Subscriber/CreateSubscription", {"name": sub, "topic": topic})
    yield _publish("a message that fits is published", "eyJ4IjogMX0=", topic=topic)
    yield _publish("a message that does not fit is published", "eyJ4IjogImEifQ==", topic=topic)
    yield pull("a message with its schema is pulled", sub, expects=1)
    delete = f"{service}/DeleteSchemaRevision"
    yield Step("a missing revision is deleted", delete, {"name": f"{name}@00000000"})
    narrower = {"name": name, "type": "AVRO", "definition": NARROWER}
    yield Step("an incompatible revision is committed", commit, {"name": name, "schema": narrower})
    yield Step("a schema is deleted", f"{service}/DeleteSchema", {"name": name})
    yield Step("a missing schema is deleted", f"{service}/DeleteSchema", {"name": name})
    yield Step("a topic's schema was deleted", "Publisher/GetTopic", {"topic": topic})
    yield _publish("a message is published for a deleted schema", "eyJ4IjogMX0=", topic=topic)


def _detaching() -> Iterator[Step]:
    sub, detach = f"{P}/subscriptions/loose", "Publisher/DetachSubscription"
    yield Step("a subscription to detach is created", "Subscriber/CreateSubscription", {"name": sub, "topic": OTHER})
    yield Step("a subscription is detached", detach, {"subscription": sub})
    yield pull("a detached subscription is pulled", sub)
    yield Step("a missing subscription is detached", detach, {"subscription": f"{P}/subscriptions/missing"})
    push = {"name": f"{P}/subscriptions/pushed", "topic": OTHER, "pushConfig": {"pushEndpoint": "http://127.0.0.1:9/"}}
    yield Step("a push subscription is created", "Subscriber/CreateSubscription", push)
    yield pull("a push subscription is pulled", f"{P}/subscriptions/pushed")


def _policies() -> Iterator[Step]:
    yield Step("a policy is read", "IAMPolicy/GetIamPolicy", {"resource": TOPIC})
    policy = {"bindings": [{"role": "roles/pubsub.viewer", "members": ["allUsers"]}]}
    yield Step("a policy is set", "IAMPolicy/SetIamPolicy", {"resource": TOPIC, "policy": policy})
    asked = {"resource": TOPIC, "permissions": ["pubsub.topics.get"]}
    yield Step("permissions are tested", "IAMPolicy/TestIamPermissions", asked)


def _endings() -> Iterator[Step]:
    orphan = {"subscription": f"{P}/subscriptions/orphan"}
    create = {"name": f"{P}/subscriptions/orphan", "topic": TOPIC}
    yield Step("a subscription to be orphaned is created", "Subscriber/CreateSubscription", create)
    yield _publish("a last message is published", "Wg==")
    yield Step("a topic is deleted", "Publisher/DeleteTopic", {"topic": TOPIC})
    yield Step("a missing topic is deleted", "Publisher/DeleteTopic", {"topic": TOPIC})
    yield Step("a subscription outlives its topic", "Subscriber/GetSubscription", orphan)
    yield pull("a subscription outlives its topic with its messages", orphan["subscription"], expects=1)
    yield Step("a topic's name is used again", "Publisher/CreateTopic", {"name": TOPIC})
    yield Step("a subscription stays with its deleted topic", "Subscriber/GetSubscription", orphan)
    yield Step("a subscription is deleted", "Subscriber/DeleteSubscription", {"subscription": SUB})
    yield Step("a missing subscription is deleted", "Subscriber/DeleteSubscription", {"subscription": SUB})


STEPS = tuple(_steps())

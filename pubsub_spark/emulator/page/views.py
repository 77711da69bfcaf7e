"""The contents of each view: plain values, gathered under the engine's lock, and decoded after it.

A view takes the parts of the emulator and what the address says, and returns the name of its template and the values
for it. A resource that does not exist is NOT_FOUND, with the sentence of the API.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from google.protobuf import json_format

from pubsub_spark.emulator.api.errors import NUMBERS, not_found
from pubsub_spark.emulator.handlers.publisher import find_topic
from pubsub_spark.emulator.handlers.subscriber import find
from pubsub_spark.emulator.page import forms, payloads, rows
from pubsub_spark.emulator.page.live import Live
from pubsub_spark.emulator.resources import integrations, limits, resource_validation
from pubsub_spark.emulator.rpc.dispatcher import Dispatcher
from pubsub_spark.emulator.rpc.recent_calls import RecentCalls
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import EVERY, Faults
from pubsub_spark.emulator.state import inspection
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import UNLIMITED, Consumer
from pubsub_spark.emulator.state.inspection import MessageState, Place
from pubsub_spark.emulator.state.schema_store import Schema
from pubsub_spark.emulator.state.subscription import Subscription
from pubsub_spark.schema import compiled_protobuf
from pubsub_spark.schema.schema_types import ENCODINGS_BY_NUMBER

_ROWS = 25  # resources on a page
_MESSAGES = 20  # on a page; each is decoded
_CALLS = 100

Query = Mapping[str, str]


class Parts(NamedTuple):
    """The parts of the emulator that the page looks at."""

    engine: Engine
    dispatcher: Dispatcher
    faults: Faults
    recent_calls: RecentCalls
    live: Live


class View(NamedTuple):
    """A template with its values, and the topics and subscriptions that are live on it."""

    template: str
    values: dict[str, Any]
    live: list[str]


def find_view(parts: Parts, path: str, query: Query) -> View:
    """The view of a path; RpcError NOT_FOUND when there is none."""
    if path == "/":
        return _overview(parts, query)
    if path in _PLAIN_VIEWS:
        return _PLAIN_VIEWS[path](parts, query)
    name = path.removeprefix("/page/")
    fields = name.split("/")
    if not path.startswith("/page/") or len(fields) != 4 or fields[2] not in _RESOURCE_VIEWS:
        raise not_found(path)
    return _RESOURCE_VIEWS[fields[2]](parts, name, query)


def _overview(parts: Parts, query: Query) -> View:
    project, text = query.get("project", ""), query.get("find", "")

    def listed(kind: str, names: Any) -> rows.Page:
        mine = (each for each in names if (not project or each.startswith(f"projects/{project}/")) and text in each)
        return rows.page(mine, _number(query.get(kind)), _ROWS)

    with parts.engine.open() as (broker, now):
        schemas = parts.engine.state.schemas
        collections = (broker.topics, broker.subscriptions, schemas, broker.snapshots)
        projects = {name.split("/")[1] for each in collections for name in each}
        tables = {
            "topics": listed("topics", broker.topics).map(lambda name: _topic_row(broker, name)),
            "subscriptions": listed("subscriptions", broker.subscriptions).map(
                lambda name: _subscription_row(parts.live, broker, name, now)
            ),
            "schemas": listed("schemas", schemas).map(lambda name: _schema_row(schemas.get(name))),
            "snapshots": listed("snapshots", broker.snapshots).map(
                lambda name: (
                    {"name": name, "topic": broker.snapshots[name].resource.topic}
                    | {"expires": rows.moment(broker.snapshots[name].expires)}
                )
            ),
        }
    values = {
        "tables": tables,
        "projects": sorted(projects),
        "chosen_project": project,
        "project": project or (min(projects) if projects else "my-project"),
        "find": text,
        "pager": {kind: partial(_address, "/", query, kind) for kind in tables},
    }
    return View("overview.html", values, [row["name"] for row in tables["subscriptions"].rows])


def _topic_row(broker: Broker, name: str) -> dict[str, Any]:
    topic = broker.topics[name]
    return {
        "name": name,
        "schema": topic.resource.schema_settings.schema,
        "subscriptions": len(topic.subscriptions),
        "labels": dict(topic.resource.labels),
    }


def _subscription_row(live: Live, broker: Broker, name: str, now: float) -> dict[str, Any]:
    subscription = broker.subscriptions[name]
    resource = subscription.resource
    return {
        "name": name,
        "topic": resource.topic,
        "kind": "detached" if resource.detached else resource_validation.kind(resource),
        "fields": live.fields(name, broker, now),
    }


def _schema_row(schema: Schema | None) -> dict[str, Any]:
    assert schema is not None
    return {"name": schema.name, "type": schema.latest.definition.type, "revisions": len(schema.revisions)}


def _topic(parts: Parts, name: str, query: Query) -> View:
    with parts.engine.open() as (broker, now):
        topic = find_topic(broker, name)
        settings = topic.resource.schema_settings
        schema = parts.engine.state.schemas.get(settings.schema)
        listed = rows.page(topic.subscriptions, _number(query.get("subscriptions")), _ROWS)
        values = {
            "name": name,
            "settings": _settings(topic.resource),
            "fields": parts.live.fields(name, broker, now),
            "subscriptions": listed.map(lambda each: _subscription_row(parts.live, broker, each, now)),
            "snapshots": sorted(topic.snapshots),
            "schema": settings.schema,
            "pager": partial(_address, rows.address(name), query, "subscriptions"),
        }
    encoding = ENCODINGS_BY_NUMBER.get(settings.encoding, "JSON")
    revision = None
    if schema is not None:
        revision = next(schema.allowed(settings.first_revision_id, settings.last_revision_id), None)
    values |= {
        "encoding": encoding,
        "form_fields": forms.fields_of(revision.definition) if revision is not None else None,
        "revision": revision.id if revision is not None else "",
    }
    return View("topic.html", values, [name, *(row["name"] for row in values["subscriptions"].rows)])


def _subscription(parts: Parts, name: str, query: Query) -> View:
    streams = parts.dispatcher.stream_consumers()
    with parts.engine.open() as (broker, now):
        subscription = find(broker, name)
        listed = inspection.total(subscription)
        number, pages = rows.place(_number(query.get("messages")), _MESSAGES, listed)
        found = inspection.messages(subscription, (number - 1) * _MESSAGES, _MESSAGES)
        schemas = [payloads.schema_of(each.message.attributes, parts.engine.state.schemas) for each in found]
        topic = broker.topic_of(name)
        snapshots = topic.snapshots if topic is not None else ()
        kind = resource_validation.kind(subscription.resource)
        values = {
            "name": name,
            "topic": subscription.resource.topic,
            "filter": subscription.resource.filter,
            "settings": _settings(subscription.resource),
            "fields": parts.live.fields(name, broker, now),
            "consumers": [_consumer(each, streams, kind == "push") for each in subscription.consumers.connected],
            "snapshots": sorted(snapshots),
            "can_pull": kind == "pull" and not subscription.resource.detached,
            "now": rows.moment(now),
            "pager": partial(_address, rows.address(name), query, "messages"),
        }
        ready = _why_ready(subscription)
        unacked = subscription.backlog
    values["messages"] = rows.Page(
        [_message(each, schema, ready, now) for each, schema in zip(found, schemas, strict=True)],
        number,
        pages,
        unacked,
    )
    return View("subscription.html", values, [name])


def _message(each: MessageState, schema: payloads.SchemaOfMessage | None, ready: str, now: float) -> dict[str, Any]:
    message = each.message
    return {
        "id": message.id,
        "published": rows.moment(message.published),
        "age": rows.duration(max(0.0, now - message.published)),
        "key": message.key,
        # The schema is said beside the payload.
        "attributes": {name: value for name, value in message.attributes.items() if name not in payloads.SCHEMA_NAMES},
        "payload": payloads.shown(message.data, schema),
        "size": rows.amount(len(message.data)),
        "deliveries": each.deliveries,
        "failures": each.failures,
        "lease": each.lease,
        "why": _why(each, ready, now),
    }


def _why(each: MessageState, ready: str, now: float) -> str:
    """Where a message is, or why it waits, as a sentence without its stop."""
    if each.until is not None:
        rest = f"{rows.moment(each.until)}, in {rows.duration(max(0.0, each.until - now))}"
        return {
            Place.LEASED: f"leased until {rest}",
            Place.BACKING_OFF: f"backs off until {rest}",
            Place.KEY_BACKING_OFF: f"its ordering key backs off until {rest}",
        }[each.place]
    return {
        Place.RETURNED: f"to be delivered again: {ready}",
        Place.ACKED_BEHIND_GAP: "acked, but an earlier message of its ordering key is not",
        Place.KEY_BUSY: "behind its ordering key: an earlier message of it is leased",
        Place.KEY_READY: f"in the queue of its ordering key: {ready}",
    }.get(each.place, ready)


def _why_ready(subscription: Subscription) -> str:
    """Why messages that could be delivered now are not."""
    consumers = subscription.consumers.connected
    if subscription.resource.push_config.push_endpoint:
        return "waits to be pushed"
    if export := integrations.export_of(subscription.resource):
        state = json_format.MessageToDict(getattr(subscription.resource, export))["state"]
        return f"waits to be exported, the state is {state}"
    if not consumers:
        return "no consumer is connected"
    if not any(each.has_room for each in consumers):
        return "flow control: every consumer has as much as it takes"
    return "next to be delivered"


def _consumer(consumer: Consumer, streams: set[Consumer], is_push: bool) -> dict[str, str]:
    kind = "StreamingPull" if consumer in streams else "push" if is_push else "Pull"
    return {
        "kind": kind,
        "messages": _of(consumer.messages, consumer.max_messages),
        "bytes": _of(consumer.size, consumer.max_size),
        "deadline": f"{consumer.ack_deadline:g} s" if consumer.ack_deadline else "the subscription's",
        "state": "flow-controlled" if not consumer.has_room else "takes messages",
    }


def _of(used: int, limit: int) -> str:
    return f"{rows.amount(used)} of {'any number' if limit >= UNLIMITED else rows.amount(limit)}"


def _schema(parts: Parts, name: str, _: Query) -> View:
    with parts.engine.open() as (broker, _now):
        schema = parts.engine.state.schemas.get(limits.check_name(name, "schemas"))
        if schema is None:
            raise not_found(name)
        users = sorted(each for each, topic in broker.topics.items() if topic.resource.schema_settings.schema == name)
    texts = [_lines(compiled_protobuf.readable(revision.definition.text)) for revision in schema.revisions]
    revisions = [
        {
            "id": revision.id,
            "created": rows.moment(revision.created),
            "text": "\n".join(text),
            "diff": list(difflib.unified_diff(before, text, lineterm="", n=3))[2:] if before is not None else [],
        }
        for revision, text, before in zip(schema.revisions, texts, [None, *texts[:-1]], strict=True)
    ]
    values = {
        "name": name,
        "type": schema.latest.definition.type,
        "definition": schema.latest.definition.text,
        "is_compiled": compiled_protobuf.of_text(schema.latest.definition.text) is not None,
        "revisions": revisions[::-1],
        "topics": users,
    }
    return View("schema.html", values, [])


def _lines(definition: str) -> list[str]:
    """A definition line by line; one that is JSON is indented, so that two of them can be compared."""
    try:
        return json.dumps(json.loads(definition), indent=2, ensure_ascii=False).splitlines()
    except (ValueError, RecursionError):
        return definition.splitlines()


def _snapshot(parts: Parts, name: str, _: Query) -> View:
    with parts.engine.open() as (broker, now):
        snapshot = broker.snapshots.get(limits.check_name(name, "snapshots"))
        if snapshot is None:
            raise not_found(name)
        values = {
            "name": name,
            "topic": snapshot.resource.topic,
            "settings": _settings(snapshot.resource),
            "unacked": rows.amount(sum(map(len, snapshot.unacked))),
            "expires": f"{rows.moment(snapshot.expires)}, in {rows.duration(snapshot.expires - now)}",
            "subscriptions": sorted(snapshot.topic.subscriptions),
        }
    return View("snapshot.html", values, [])


def _calls(parts: Parts, query: Query) -> View:
    text = query.get("rpc", "")
    newest = [each for each in reversed(list(parts.recent_calls.calls)) if text in each.rpc][:_CALLS]
    calls = [
        {
            "rpc": each.rpc,
            "peer": each.peer,
            "resource": each.resource if each.resource.startswith("projects/") else "",
            "began": rows.moment(each.began),
            "milliseconds": f"{each.seconds * 1000:,.2f}" if each.status else "",
            "status": each.status or "under way",
            "sentence": each.sentence,
        }
        for each in newest
    ]
    return View("calls.html", {"calls": calls, "rpc": text, "most": _CALLS}, [])


def _controls(parts: Parts, _: Query) -> View:
    with parts.engine.open() as (broker, now):
        values = {
            "now": rows.moment(now),
            "seed": broker.chaos_seed,
            "faults": parts.faults.pending(),
            "rpcs": [EVERY, *sorted(parts.dispatcher.names)],
            "codes": list(NUMBERS),
            "streams": len(parts.dispatcher.stream_consumers()),
        }
    return View("controls.html", values, [])


_PLAIN_VIEWS: dict[str, Callable[[Parts, Query], View]] = {"/page/calls": _calls, "/page/controls": _controls}
_RESOURCE_VIEWS: dict[str, Callable[[Parts, str, Query], View]] = {
    "topics": _topic,
    "subscriptions": _subscription,
    "schemas": _schema,
    "snapshots": _snapshot,
}


def _settings(resource: Any) -> list[tuple[str, str]]:
    """The fields of a resource, as the JSON API names them."""
    fields = json_format.MessageToDict(resource)
    fields.pop("name", None)
    return [
        (name, value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
        for name, value in fields.items()
    ]


def _address(path: str, query: Query, kind: str, number: int) -> str:
    """The address of another page of a list; the rest of the view stays as it is."""
    return path + rows.query(
        [*((name, value) for name, value in query.items() if name not in (kind, "done")), (kind, number)]
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 1

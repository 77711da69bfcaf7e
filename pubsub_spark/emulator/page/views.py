"""The contents of each view: plain values, gathered under the engine's lock, and decoded after it.

A resource that does not exist is NOT_FOUND, with the API's error message.
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
from pubsub_spark.emulator.page import forms, messages, rows
from pubsub_spark.emulator.page.live import EVERYTHING, Live, Sample, charts, texts
from pubsub_spark.emulator.resources import integrations, limits, resource_validation
from pubsub_spark.emulator.rpc.dispatcher import Dispatcher
from pubsub_spark.emulator.rpc.recent_calls import RecentCall, RecentCalls
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import EVERY, Faults
from pubsub_spark.emulator.state import history, inspection
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.delivery import UNLIMITED, Consumer
from pubsub_spark.emulator.state.history import History
from pubsub_spark.emulator.state.schema_store import Schema
from pubsub_spark.emulator.state.subscription import Subscription
from pubsub_spark.schema import compiled_protobuf
from pubsub_spark.schema.schema_types import ENCODINGS_BY_NUMBER

_ROWS = 25  # resources on a page
_MESSAGES = 20  # on a page, each of them decoded
_CALLS = 50
_UNDER_WAY = "under way"
_SEARCHED = 10_000  # messages that a search reads

Query = Mapping[str, str]


class Parts(NamedTuple):
    engine: Engine
    dispatcher: Dispatcher
    faults: Faults
    recent_calls: RecentCalls
    history: History
    live: Live


class View(NamedTuple):
    """`live` are the topics and subscriptions that are live on the view."""

    template: str
    values: dict[str, Any]
    live: list[str]


def find_view(parts: Parts, path: str, query: Query) -> View:
    """Raise RpcError NOT_FOUND if the path has no view."""
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
        mine = (name for name in names if (not project or name.startswith(f"projects/{project}/")) and text in name)
        return rows.page(mine, _number(query.get(kind)), _ROWS)

    with parts.engine.open() as (broker, now):
        schemas = parts.engine.state.schemas
        collections = (broker.topics, broker.subscriptions, schemas, broker.snapshots)
        projects = {name.split("/")[1] for names in collections for name in names}
        tables = {
            "topics": listed("topics", broker.topics).map(lambda name: _topic_row(broker, name)),
            "subscriptions": listed("subscriptions", broker.subscriptions).map(
                lambda name: _subscription_row(parts.live, broker, name, now)
            ),
            "schemas": listed("schemas", schemas).map(lambda name: _schema_row(schemas.get(name))),
            "snapshots": listed("snapshots", broker.snapshots).map(
                lambda name: (
                    _named(name)
                    | {"topic": broker.snapshots[name].resource.topic, "expires": broker.snapshots[name].expires}
                )
            ),
        }
        samples = parts.live.samples(EVERYTHING, broker, now)
    values = {
        "tables": tables,
        "projects": sorted(projects),
        "chosen_project": project,
        "project": project or (min(projects) if projects else "my-project"),
        "find": text,
        "topics": bool(broker.topics),
        "charted": EVERYTHING,
        "charts": charts(EVERYTHING, samples),
        "pager": {kind: partial(_address, "/", query, kind) for kind in tables},
    }
    return View("overview.html", values, [EVERYTHING, *(row["name"] for row in tables["subscriptions"].rows)])


def _named(name: str) -> dict[str, Any]:
    return {"name": name, "project": name.split("/")[1]}


def _topic_row(broker: Broker, name: str) -> dict[str, Any]:
    topic = broker.topics[name]
    return _named(name) | {
        "schema": topic.resource.schema_settings.schema,
        "subscriptions": len(topic.subscriptions),
        "labels": dict(topic.resource.labels),
    }


def _subscription_row(live: Live, broker: Broker, name: str, now: float) -> dict[str, Any]:
    subscription = broker.subscriptions[name]
    resource = subscription.resource
    return _named(name) | {
        "topic": resource.topic,
        "kind": "detached" if resource.detached else resource_validation.kind(resource),
        "fields": texts(live.samples(name, broker, now)[-1]),
    }


def _schema_row(schema: Schema | None) -> dict[str, Any]:
    assert schema is not None
    return _named(schema.name) | {"type": schema.latest.definition.type, "revisions": len(schema.revisions)}


def _topic(parts: Parts, name: str, query: Query) -> View:
    with parts.engine.open() as (broker, now):
        topic = find_topic(broker, name)
        settings = topic.resource.schema_settings
        schema = parts.engine.state.schemas.get(settings.schema)
        listed = rows.page(topic.subscriptions, _number(query.get("subscriptions")), _ROWS)
        values = {
            "name": name,
            "settings": _settings(topic.resource),
            "samples": parts.live.samples(name, broker, now),
            "subscriptions": listed.map(lambda subscription: _subscription_row(parts.live, broker, subscription, now)),
            "snapshots": sorted(topic.snapshots),
            "schema": settings.schema,
            "pager": partial(_address, rows.address(name), query, "subscriptions"),
        }
        latest = parts.history.latest(name)[:_MESSAGES]
    encoding = ENCODINGS_BY_NUMBER.get(settings.encoding, "JSON")
    revision = None
    if schema is not None:
        revision = next(schema.allowed(settings.first_revision_id, settings.last_revision_id), None)
    values |= _charted(name, values.pop("samples")) | {
        "encoding": encoding,
        "latest": [messages.content(message, parts.engine.state.schemas) for message in latest],
        "form_fields": forms.fields_of(revision.definition) if revision is not None else None,
        "revision": revision.id if revision is not None else "",
    }
    return View("topic.html", values, [name, *(row["name"] for row in values["subscriptions"].rows)])


def _subscription(parts: Parts, name: str, query: Query) -> View:
    show_done, text = query.get("show") == "done", query.get("find", "")
    with parts.engine.open() as (broker, now):
        subscription = find(broker, name)
        resource = subscription.resource
        topic = broker.topic_of(name)
        policy = resource.dead_letter_policy
        values = {
            "name": name,
            "topic": resource.topic,
            "filter": resource.filter,
            "kind": "detached" if resource.detached else resource_validation.kind(resource),
            "dead_letter_topic": policy.dead_letter_topic,
            "attempts": policy.max_delivery_attempts,
            "settings": _settings(resource),
            "samples": parts.live.samples(name, broker, now),
            "consumers": [_consumer(consumer) for consumer in subscription.consumers.connected],
            "snapshots": sorted(topic.snapshots if topic is not None else ()),
            "no_pull": _no_pull(resource),
            "unacked": subscription.backlog,
            "leased": subscription.outstanding,
            "now": now,
            "show": "done" if show_done else "",
            "find": text,
            "pager": partial(_address, rows.address(name), query, "messages"),
            "tabs": {tab: rows.address(name) + rows.query([("show", tab), ("find", text)]) for tab in ("", "done")},
        }
        total = inspection.total(subscription)
        number, pages = rows.nearest_page(_number(query.get("messages")), _MESSAGES, total)
        first, most = (0, _SEARCHED) if text else ((number - 1) * _MESSAGES, _MESSAGES)
        states = [] if show_done else inspection.messages(subscription, first, most)
        latest = {message.number: message for message in parts.history.latest(resource.topic)} if show_done else {}
        entries = parts.history.entries(name)
        schemas = parts.engine.state.schemas
        ready = _why_ready(subscription)
    if show_done:
        done = history.done(entries, _MESSAGES)
        every = history.lives(entries, done)
        listed = [messages.done(number, latest.get(number), every[number], schemas) for number in done]
        listed = [row for row in listed if text in row["searched"]]
        values["messages"] = rows.Page(listed, 1, 1, len(listed))
        return View("subscription.html", values | _charted(name, values["samples"]), [name])
    if text:
        values["searched"] = f"{len(states):,} of {total:,}" if len(states) < total else ""
        states = [state for state in states if messages.matches(state.message, text, schemas)]
        number, pages = rows.nearest_page(_number(query.get("messages")), _MESSAGES, total := len(states))
        states = states[(number - 1) * _MESSAGES : number * _MESSAGES]
    every = history.lives(entries, {state.message.number: state.message.published for state in states})
    listed = [messages.row(state, every[state.message.number], schemas, ready, now) for state in states]
    values["messages"] = rows.Page(listed, number, pages, total)
    return View("subscription.html", values | _charted(name, values["samples"]), [name])


def _charted(name: str, samples: list[Sample]) -> dict[str, Any]:
    return {"charted": name, "fields": texts(samples[-1]), "charts": charts(name, samples)}


def _no_pull(resource: Any) -> str:
    if resource.detached:
        return "The subscription is detached from its topic."
    kind = resource_validation.kind(resource)
    return "" if kind == "pull" else f"Messages of this subscription are delivered by {kind}."


def _why_ready(subscription: Subscription) -> str:
    consumers = subscription.consumers.connected
    if subscription.resource.push_config.push_endpoint:
        return "waits to be pushed"
    if export := integrations.export_of(subscription.resource):
        state = json_format.MessageToDict(getattr(subscription.resource, export))["state"]
        return f"waits to be exported, the state is {state}"
    if not consumers:
        return "no consumer is connected"
    if not any(consumer.has_room for consumer in consumers):
        return "flow control: every consumer has as much as it takes"
    return "next to be delivered"


def _consumer(consumer: Consumer) -> dict[str, str]:
    return {
        "name": rows.client(consumer.name),
        "messages": _of(consumer.messages, consumer.max_messages),
        "bytes": _of(consumer.size, consumer.max_size),
        "deadline": f"{consumer.ack_deadline:g} s" if consumer.ack_deadline else "the subscription's",
        "state": "flow-controlled" if not consumer.has_room else "accepts messages",
    }


def _of(used: int, limit: int) -> str:
    return f"{rows.amount(used)} of {'any number' if limit >= UNLIMITED else rows.amount(limit)}"


def _schema(parts: Parts, name: str, _: Query) -> View:
    with parts.engine.open() as (broker, _now):
        schema = parts.engine.state.schemas.get(limits.check_name(name, "schemas"))
        if schema is None:
            raise not_found(name)
        users = sorted(user for user, topic in broker.topics.items() if topic.resource.schema_settings.schema == name)
    texts = [_lines(compiled_protobuf.readable(revision.definition.text)) for revision in schema.revisions]
    revisions = [
        {
            "id": revision.id,
            "created": revision.created,
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
    """JSON is indented, so that two definitions can be compared."""
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
            "expires": snapshot.expires,
            "expires_in": rows.duration(snapshot.expires - now),
            "subscriptions": sorted(snapshot.topic.subscriptions),
        }
    return View("snapshot.html", values, [])


def _calls(parts: Parts, query: Query) -> View:
    known = list(parts.recent_calls.calls)[::-1]
    wanted = {name: query.get(name, "") for name in ("rpc", "status", "resource", "text")}
    matching = [call for call in known if _is_wanted(call, wanted)]
    number, pages = rows.nearest_page(_number(query.get("calls")), _CALLS, len(matching))
    calls = [
        {
            "rpc": call.rpc,
            "peer": rows.client(call.peer),
            "resource": _resource(call),
            "began": call.began,
            "milliseconds": f"{call.seconds * 1000:,.2f}" if call.status else "",
            "status": call.status or _UNDER_WAY,
            "sentence": call.sentence,
        }
        for call in matching[(number - 1) * _CALLS : number * _CALLS]
    ]
    values = {
        "calls": rows.Page(calls, number, pages, len(matching)),
        "known": len(known),
        "wanted": wanted,
        "rpcs": sorted({call.rpc for call in known}),
        "statuses": sorted({call.status or _UNDER_WAY for call in known}),
        "pager": partial(_address, "/page/calls", query, "calls"),
    }
    return View("calls.html", values, [])


def _resource(call: RecentCall) -> str:
    return call.resource if call.resource.startswith("projects/") else ""


def _is_wanted(call: RecentCall, wanted: Mapping[str, str]) -> bool:
    status = call.status or _UNDER_WAY
    return (
        wanted["rpc"] in ("", call.rpc)
        and wanted["status"] in ("", status)
        and wanted["resource"] in _resource(call)
        and wanted["text"] in " ".join((call.rpc, status, _resource(call), rows.client(call.peer), call.sentence))
    )


def _controls(parts: Parts, _: Query) -> View:
    with parts.engine.open() as (broker, now):
        values = {
            "now": now,
            "seed": broker.chaos_seed,
            "faults": parts.faults.pending(),
            "rpcs": [EVERY, *sorted(parts.dispatcher.names)],
            "codes": list(NUMBERS),
            "streams": parts.dispatcher.streams(),
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
    fields = json_format.MessageToDict(resource)
    fields.pop("name", None)
    return [
        (name, value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False))
        for name, value in fields.items()
    ]


def _address(path: str, query: Query, kind: str, number: int) -> str:
    return path + rows.query(
        [*((name, value) for name, value in query.items() if name not in (kind, "done")), (kind, number)]
    )


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else 1

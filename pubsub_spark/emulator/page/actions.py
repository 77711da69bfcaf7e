"""The forms of the page: the RPC or method of the emulator behind each, and the page that follows. Pure.

An error in the form itself (a time, a number, JSON) is INVALID_ARGUMENT with a message that names the field.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from google.protobuf import json_format

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import invalid, not_found
from pubsub_spark.emulator.page import forms
from pubsub_spark.emulator.page.rows import address
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.state import State
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.schema_types import ENCODING_NUMBERS, SCHEMA_TYPE_NUMBERS

_MAX_DIGITS = 19  # of a 64-bit number
_VIEW = re.compile(r"/|/page/[\w/.~%+-]+")
_FIELD = "field."  # before the names of the fields that a schema has


class Form:
    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = pairs
        self._values = dict(pairs)

    def __getitem__(self, name: str) -> str:
        """Return the value of a field without surrounding space, or an empty text if it was not filled in."""
        return self._values.get(name, "").strip()

    def raw(self, name: str) -> str:
        return self._values.get(name, "").replace("\r\n", "\n")

    def every(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def below(self, prefix: str) -> dict[str, str]:
        return {name.removeprefix(prefix): value for name, value in self._pairs if name.startswith(prefix)}


class Call(NamedTuple):
    rpc: str
    request: Any


class VerbCall(NamedTuple):
    """The name is that in `/_emulator/NAME`."""

    verb: str
    fields: dict[str, Any]


class Action(NamedTuple):
    """A form: its call, its own page, the page that follows, and the message of success.

    `numbers` are those of the message `done`, from the response of the call.
    """

    call: Callable[[Form, State], Call | VerbCall]
    page: Callable[[Form], str]
    leads_to: Callable[[Form], str]
    done: Callable[..., str] | str
    numbers: Callable[[Form, bytes, State], Sequence[int]] = lambda _form, _response, _state: ()


def _home(_: Form) -> str:
    return "/"


def _controls(_: Form) -> str:
    return "/page/controls"


def _here(form: Form) -> str:
    return form["on"] if _VIEW.fullmatch(form["on"]) else "/page/controls"


def _of(field: str) -> Callable[[Form], str]:
    return lambda form: address(form[field])


def _made(collection: str) -> Callable[[Form], str]:
    return lambda form: address(_new_name(form, collection))


def _new_name(form: Form, collection: str) -> str:
    return f"projects/{form['project']}/{collection}/{form['id']}"


def _create_topic(form: Form, _: State) -> Call:
    resource = _settings(form, protos.Topic())
    resource.name = _new_name(form, "topics")
    if form["schema"]:
        resource.schema_settings.schema = form["schema"]
        resource.schema_settings.encoding = ENCODING_NUMBERS.get(form["encoding"], 0)
    return Call("CreateTopic", resource)


def _create_subscription(form: Form, _: State) -> Call:
    resource = _settings(form, protos.Subscription())
    resource.name = _new_name(form, "subscriptions")
    resource.topic = form["topic"]
    if form["ack_deadline_seconds"]:
        resource.ack_deadline_seconds = _whole(form, "ack_deadline_seconds")
    if form["filter"]:
        resource.filter = form["filter"]
    if form["push_endpoint"]:
        resource.push_config.push_endpoint = form["push_endpoint"]
    resource.enable_message_ordering |= bool(form["enable_message_ordering"])
    resource.enable_exactly_once_delivery |= bool(form["enable_exactly_once_delivery"])
    return Call("CreateSubscription", resource)


def _create_snapshot(form: Form, _: State) -> Call:
    name = f"{form['subscription'].partition('/subscriptions/')[0]}/snapshots/{form['id']}"
    return Call("CreateSnapshot", protos.CreateSnapshotRequest(name=name, subscription=form["subscription"]))


def _create_schema(form: Form, _: State) -> Call:
    parent = f"projects/{form['project']}"
    return Call("CreateSchema", protos.CreateSchemaRequest(parent=parent, schema_id=form["id"], schema=_revision(form)))


def _commit_schema(form: Form, _: State) -> Call:
    return Call("CommitSchema", protos.CommitSchemaRequest(name=form["name"], schema=_revision(form)))


def _revision(form: Form) -> Any:
    return protos.Schema(type_=SCHEMA_TYPE_NUMBERS.get(form["type"], 0), definition=form.raw("definition"))


def _rollback_schema(form: Form, _: State) -> Call:
    return Call("RollbackSchema", protos.RollbackSchemaRequest(name=form["name"], revision_id=form["revision"]))


def _delete_revision(form: Form, _: State) -> Call:
    name = f"{form['name']}@{form['revision']}"
    return Call("DeleteSchemaRevision", protos.DeleteSchemaRevisionRequest(name=name))


# By the collection of the resource: the RPC, and the field of its request that names it.
_DELETES = {
    "topics": ("DeleteTopic", "topic"),
    "subscriptions": ("DeleteSubscription", "subscription"),
    "schemas": ("DeleteSchema", "name"),
    "snapshots": ("DeleteSnapshot", "snapshot"),
}


def _delete(form: Form, _: State) -> Call:
    kind = form["name"].split("/")[2:3]
    if not kind or kind[0] not in _DELETES:
        raise not_found(form["name"])
    rpc, field = _DELETES[kind[0]]
    return Call(rpc, getattr(protos, f"{rpc}Request")(**{field: form["name"]}))


def _publish(form: Form, state: State) -> Call:
    message = protos.PubsubMessage(data=_data(form, state), ordering_key=form["ordering_key"])
    for line in form.raw("attributes").splitlines():
        if line.strip():
            name, equals, value = line.partition("=")
            if not equals:
                raise invalid(f"`attributes` must be lines of `name=value`, got `{line.strip()}`.")
            message.attributes[name.strip()] = value
    return Call("Publish", protos.PublishRequest(topic=form["topic"], messages=[message]))


def _data(form: Form, state: State) -> bytes:
    if form["revision"]:
        topic = state.broker.topics.get(form["topic"])
        schema = topic and state.schemas.get(topic.resource.schema_settings.schema)
        revision = schema and schema.find(form["revision"])
        if not topic or not revision:
            raise not_found(f"{form['topic']}@{form['revision']}")
        encoding: Encoding = "JSON" if topic.resource.schema_settings.encoding == ENCODING_NUMBERS["JSON"] else "BINARY"
        try:
            return forms.payload(revision.definition, encoding, form.below(_FIELD))
        except InvalidMessage as problem:
            raise invalid(f"The message does not fit the schema: {problem}.") from None
    if not form["is_base64"]:
        return form.raw("data").encode()
    try:
        return base64.b64decode("".join(form["data"].split()), validate=True)
    except (binascii.Error, ValueError):
        raise invalid("`data` is not base64, as the form says it is.") from None


def _pull(form: Form, _: State) -> Call:
    request = protos.PullRequest(subscription=form["subscription"], max_messages=_whole(form, "max_messages"))
    request.return_immediately = True
    return Call("Pull", request)


def _pulled(form: Form, response: bytes, state: State) -> tuple[int, int]:
    """Return the number of pulled messages, and the seconds of their lease."""
    subscription = state.broker.subscriptions.get(form["subscription"])
    seconds = int(subscription.settings.ack_deadline) if subscription is not None else 0
    return len(protos.PullResponse.FromString(response).received_messages), seconds


def _say_pulled(messages: int, seconds: int) -> str:
    if not messages:
        return "No message was pulled: none could be delivered."
    return f"{messages:,} message{'s' * (messages != 1)} pulled, leased for {seconds} s."


def _published(_: Form, response: bytes, __: State) -> list[int]:
    return [int(message_id) for message_id in protos.PublishResponse.FromString(response).message_ids]


def _acknowledge(form: Form, _: State) -> Call:
    return Call("Acknowledge", protos.AcknowledgeRequest(subscription=form["subscription"], ack_ids=_ack_ids(form)))


def _nack(form: Form, _: State) -> Call:
    request = protos.ModifyAckDeadlineRequest(subscription=form["subscription"], ack_ids=_ack_ids(form))
    return Call("ModifyAckDeadline", request)


def _ack_ids(form: Form) -> list[str]:
    chosen = form.every("lease")
    if not chosen:
        raise invalid("No message is chosen. Pull first: only leased messages can be acked or nacked.")
    text = wire_format.ack_ids_of(form["subscription"]).text
    return [text(_number(lease, "lease")) for lease in chosen]


def _seek(form: Form, _: State) -> Call:
    request = protos.SeekRequest(subscription=form["subscription"])
    if form["snapshot"]:
        request.snapshot = form["snapshot"]
    elif form["time"]:
        try:
            time = datetime.fromisoformat(form["time"])
            request.time.FromDatetime(time if time.tzinfo else time.replace(tzinfo=UTC))
        except (ValueError, OverflowError):
            raise invalid(f"`time` must be a time as 2030-01-31T12:00:00, got `{form['time']}`.") from None
    return Call("Seek", request)


def _purge(form: Form, _: State) -> Call:
    """Seek to the end of time, as the service's consoles purge."""
    request = protos.SeekRequest(subscription=form["subscription"])
    request.time.FromDatetime(datetime.max)
    return Call("Seek", request)


def _reset(_: Form, __: State) -> VerbCall:
    return VerbCall("reset", {})


def _advance(form: Form, _: State) -> VerbCall:
    return VerbCall("advance", {"seconds": _plain(form["seconds"])})


def _fail(form: Form, _: State) -> VerbCall:
    fields = {"rpc": form["rpc"], "code": form["code"] or None, "message": form["message"]}
    return VerbCall("fail", fields | {name: _plain(form[name]) for name in ("count", "delay") if form[name]})


def _chaos(form: Form, _: State) -> VerbCall:
    return VerbCall("chaos", {"seed": _plain(form["seed"]) if form["seed"] else None})


def _close_streams(form: Form, _: State) -> VerbCall:
    return VerbCall("closeStreams", {"code": form["code"]} if form["code"] else {})


_SUBSCRIPTION = _of("subscription")

ACTIONS: Mapping[str, Action] = {
    "create-topic": Action(_create_topic, _home, _made("topics"), "The topic is created."),
    "create-subscription": Action(_create_subscription, _home, _made("subscriptions"), "The subscription is created."),
    "create-schema": Action(_create_schema, _home, _made("schemas"), "The schema is created."),
    "create-snapshot": Action(_create_snapshot, _SUBSCRIPTION, _SUBSCRIPTION, "The snapshot is created."),
    "commit-schema": Action(_commit_schema, _of("name"), _of("name"), "The revision is committed."),
    "rollback-schema": Action(_rollback_schema, _of("name"), _of("name"), "The older revision is the newest again."),
    "delete-revision": Action(_delete_revision, _of("name"), _of("name"), "The revision is deleted."),
    "delete": Action(_delete, _of("name"), _home, "It is deleted."),
    "publish": Action(_publish, _of("topic"), _of("topic"), "Message {} is published.", _published),
    "pull": Action(_pull, _SUBSCRIPTION, _SUBSCRIPTION, _say_pulled, _pulled),
    "ack": Action(_acknowledge, _SUBSCRIPTION, _SUBSCRIPTION, "Acknowledged."),
    "nack": Action(_nack, _SUBSCRIPTION, _SUBSCRIPTION, "Nacked: to be delivered again."),
    "seek": Action(_seek, _SUBSCRIPTION, _SUBSCRIPTION, "Sought."),
    "purge": Action(_purge, _SUBSCRIPTION, _SUBSCRIPTION, "Purged: every message published so far is acked."),
    "advance": Action(_advance, _here, _here, "The clock is advanced."),
    "fail": Action(_fail, _controls, _controls, "The fault is injected."),
    "chaos": Action(_chaos, _controls, _controls, "Chaos mode is set."),
    "close-streams": Action(_close_streams, _controls, _controls, "The streams are closed."),
    "reset": Action(_reset, _controls, _home, "Everything is deleted, and the clock is the machine's again."),
}


def _settings(form: Form, resource: Any) -> Any:
    if form["settings"]:
        try:
            json_format.Parse(form["settings"], resource)
        except json_format.ParseError as problem:
            raise invalid(f"`settings` must be JSON as in the API: {protos.complaint(problem)}") from None
    return resource


def _whole(form: Form, name: str) -> int:
    return _number(form[name], name)


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise invalid(f"`{name}` must be a whole number, got `{text}`.")
    return int(text)


def _plain(text: str) -> Any:
    """Return the number if the text is one, or else the text, which the method refuses."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, int | float) else text

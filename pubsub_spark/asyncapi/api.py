"""An AsyncAPI document as Pub/Sub's resources: schemas, topics, subscriptions, and the messages that it describes.

    channel with a googlepubsub binding     a topic. Its id is the channel's `address` (3.x), or its name
    operation that receives                 a subscription of its channel's topic, named as the operation
    message, its binding's `schema.name`    a schema. A payload in Avro or Protocol Buffers is its definition

An application receives other applications' messages. That is `action: receive` in 3.x. In 2.x it is `publish`, because
2.x names the action of the other side. Names are ids of the project, or full names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from .. import names
from ..codec.registry import codec_of
from ..errors import AsyncApiError, SchemaError
from ..schema.definition import Encoding
from ..schema.schema_types import SchemaType, parse
from .bindings import PROTOCOL, ChannelBinding, MessageBinding, channel_binding, check_empty, message_binding, traits
from .document import Value, load

# The beginning of a payload's `schemaFormat`, and the schema type of Pub/Sub.
_FORMATS: dict[str, SchemaType] = {
    "application/vnd.apache.avro": "AVRO",
    "application/vnd.google.protobuf": "PROTOCOL_BUFFER",
}
_TYPE_WORDS: dict[str, SchemaType] = {"avro": "AVRO", "protobuf": "PROTOCOL_BUFFER"}
_ORDERING = "x-enable-message-ordering"  # of an operation, if no message has an `orderingKey`


@dataclass(frozen=True)
class Schema:
    """A schema. definition: None if the document only names it, and it must exist."""

    name: str
    type: SchemaType | None = None
    definition: str | None = None


@dataclass(frozen=True)
class Topic:
    name: str
    binding: ChannelBinding

    @property
    def encoding(self) -> Encoding | None:
        return "JSON" if self.binding.encoding == "JSON" else "BINARY" if self.binding.schema else None


@dataclass(frozen=True)
class Subscription:
    """A subscription of a topic. ordering: whether messages of one ordering key come in order."""

    name: str
    topic: str
    ordering: bool = False


@dataclass(frozen=True)
class Message:
    name: str
    topic: str
    binding: MessageBinding
    fields: frozenset[str] | None = None  # of the payload on the first level, or None if they are not known


@dataclass(frozen=True)
class Api:
    """The resources of a document by full names, and its messages by their names in the document."""

    schemas: dict[str, Schema] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    messages: dict[str, list[Message]] = field(default_factory=dict)


def read(path: str | Path, project: str | None) -> Api:
    """Raises AsyncApiError with every problem.

    project: of names that are ids.
    """
    document = load(path)
    api = _Reader(document, project).read()
    if document.documents.problems:
        raise AsyncApiError(str(path), document.documents.problems)
    return api


@dataclass
class _Reader:
    document: Value
    project: str | None
    api: Api = field(default_factory=Api)

    def read(self) -> Api:
        is_ours = False
        for _, server in self.document.get("servers").entries():
            check_empty(server, "server")
            is_ours |= server.text("protocol") == PROTOCOL
        topics: dict[tuple[str, str], str] = {}  # by the position of the channel
        for key, channel in self.document.get("channels").entries():
            if not _is_mapping(channel):
                continue
            topic = self._topic(key, channel, is_ours)
            if topic is not None:
                target = channel.followed()
                topics[str(target.file), ".".join(map(str, target.keys))] = topic.name
            for name, message in self._channel_messages(channel):
                if not _is_mapping(message):
                    continue
                if topic is not None:
                    self._add_message(name, message, topic)
                else:
                    message_binding(message)  # its complaints, in addition to those about the channel
        channels = self.document.get("channels")
        if channels.value and not self.api.topics and not self.document.documents.problems:
            channels.complain(
                f"no channel is one of Pub/Sub: add a `{PROTOCOL}` binding (`{{}}` is enough), or a server the "
                f"protocol `{PROTOCOL}`"
            )
        for name, operation, channel, action in self._operations():
            check_empty(operation, "operation")
            target = channel.followed()
            on = topics.get((str(target.file), ".".join(map(str, target.keys))))
            if action == "receive" and on is not None:
                self._add_subscription(name, operation, on)
        return self.api

    def _topic(self, key: str, channel: Value, is_ours: bool) -> Topic | None:
        binding = channel_binding(channel)
        if binding is None:
            if not is_ours or channel.get("bindings").value:
                return None  # a wrong binding, or a channel of another protocol
            binding = ChannelBinding()
        address = binding.topic or (key if self.document.documents.is_version_2 else channel.text("address")) or key
        name = self._full(channel, address, "topics")
        if name is None:
            return None
        if name in self.api.topics:
            channel.complain(f"Topic `{name}` is described by another channel, too")
            return None
        if binding.schema is not None:
            schema = self._full(channel.get("bindings", PROTOCOL, "schemaSettings", "name"), binding.schema, "schemas")
            if schema is None:
                return None
            self.api.schemas.setdefault(schema, Schema(schema))
            binding = replace(binding, schema=schema)
        topic = self.api.topics[name] = Topic(name, binding)
        return topic

    def _channel_messages(self, channel: Value) -> Iterator[tuple[str, Value]]:
        if not self.document.documents.is_version_2:
            yield from channel.get("messages").entries()
            return
        for verb in ("publish", "subscribe"):
            message = channel.get(verb, "message")
            alternatives = message.get("oneOf")
            for _, alternative in alternatives.entries() if alternatives else [("", message)] if message else []:
                named = alternative.followed()
                yield named.text("name") or named.text("messageId") or str(named.keys[-1]), alternative

    def _operations(self) -> Iterator[tuple[str, Value, Value, str]]:
        if not self.document.documents.is_version_2:
            for name, operation in self.document.get("operations").entries():
                if not _is_mapping(operation):
                    continue
                action = operation.text("action")
                if action not in ("send", "receive"):
                    operation.complain(f"`action` must be send or receive, got `{action or ''}`")
                channel = operation.followed().value.get("channel")
                if not isinstance(channel, dict) or "$ref" not in channel:
                    operation.complain("`channel` must be a `$ref` to one of the channels")
                yield name, operation, operation.get("channel"), action or ""
            return
        for _, channel in self.document.get("channels").entries():
            for verb, action in (("publish", "receive"), ("subscribe", "send")):
                operation = channel.get(verb)
                if operation:
                    id_ = operation.text("operationId")
                    if id_ is None and action == "receive":
                        operation.complain("`operationId` is required: it is the id of the subscription")
                        continue
                    yield id_ or "", operation, channel, action

    def _add_message(self, name: str, message: Value, topic: Topic) -> None:
        binding = message_binding(message) or MessageBinding()
        kind, payload = self._payload(message)
        if binding.schema_type is not None and kind is not None and _TYPE_WORDS.get(binding.schema_type) != kind:
            message.complain(
                f"the binding's schema type is `{binding.schema_type}`, and the payload's format is {kind}"
            )
        if binding.schema is not None:
            schema_name = message.get("bindings", PROTOCOL, "schema", "name")
            schema = self._full(schema_name, binding.schema, "schemas")
            if schema is None:
                return
            binding = replace(binding, schema=schema)
            if topic.binding.schema not in (None, schema):
                schema_name.complain(f"the topic's schema is `{topic.binding.schema}`, and the message's is `{schema}`")
            self._add_schema(schema_name, Schema(schema, kind, payload))
        elif topic.binding.schema is not None:
            binding = replace(binding, schema=topic.binding.schema)
            self._add_schema(message, Schema(topic.binding.schema, kind, payload))
        fields = _fields(message, kind, payload)
        self.api.messages.setdefault(name, []).append(Message(name, topic.name, binding, fields))

    def _add_schema(self, value: Value, schema: Schema) -> None:
        known = self.api.schemas.get(schema.name)
        if known is None or known.definition is None:
            self.api.schemas[schema.name] = schema
        elif schema.definition not in (None, known.definition):
            value.complain(f"Schema `{schema.name}` has another definition elsewhere in the document")

    def _payload(self, message: Value) -> tuple[SchemaType | None, str | None]:
        payload = message.get("payload")
        if self.document.documents.is_version_2:
            formats = [owner.text("schemaFormat") for owner in (message, *traits(message))]
            stated, definition = next((text for text in reversed(formats) if text), None), payload
        else:
            stated, definition = payload.text("schemaFormat"), payload.get("schema")
        kind = next((kind for start, kind in _FORMATS.items() if (stated or "").startswith(start)), None)
        if kind is None or not definition:
            return None, None
        if isinstance(definition.value, str):
            return kind, definition.value
        if kind == "PROTOCOL_BUFFER":
            definition.complain("a Protocol Buffers payload must be the text of a `.proto`, or a `$ref` to one")
            return kind, None
        return kind, json.dumps(_plain(definition), separators=(", ", ": "))

    def _add_subscription(self, name: str, operation: Value, topic: str) -> None:
        full = self._full(operation, name, "subscriptions")
        if full is None:
            return
        keyed = any(
            message.binding.ordering_key is not None and message.topic == topic
            for messages in self.api.messages.values()
            for message in messages
        )
        ordering = operation.get(_ORDERING)
        if ordering and not isinstance(ordering.value, bool):
            ordering.complain(f"this must be true or false, got `{ordering.value}`")
        if full in self.api.subscriptions:
            operation.complain(f"Subscription `{full}` is another operation's, too")
        self.api.subscriptions[full] = Subscription(full, topic, bool(ordering.value) if ordering else keyed)

    def _full(self, value: Value, name: str, collection: names.Collection) -> str | None:
        """Return None and add a complaint if the name is wrong."""
        try:
            return names.full(name, self.project, collection)
        except ValueError as error:
            value.complain(str(error).replace("`projectId`", "a project (`--project`, `projectId`)"))
            return None


def _is_mapping(value: Value) -> bool:
    """A value of another type is a complaint."""
    target = value.followed()
    if target and not isinstance(target.value, dict):
        value.complain(f"this must be a mapping, got {type(target.value).__name__}")
    return isinstance(target.value, dict)


def _plain(value: Value, above: frozenset[tuple[Path, tuple[str | int, ...]]] = frozenset()) -> object:
    """Follow all references in a value. A circle is a complaint.

    above: the values around it.
    """
    target = value.followed()
    if (target.file, target.keys) in above:
        value.complain("this `$ref` leads back to its own value. Refer to an Avro type by its `name`")
        return None
    above |= {(target.file, target.keys)}
    if isinstance(target.value, dict):
        return {name: _plain(item, above) for name, item in target.entries()}
    if isinstance(target.value, list):
        return [_plain(item, above) for _, item in target.entries()]
    return target.value


def _fields(message: Value, kind: SchemaType | None, definition: str | None) -> frozenset[str] | None:
    if kind is not None and definition is not None:
        try:
            return frozenset(field.name for field in codec_of(kind).value_type(parse(kind, definition)))
        except (ValueError, SchemaError):  # the plan names the problem of the definition
            return None
    properties = message.get("payload", "schema", "properties") or message.get("payload", "properties")
    return frozenset(properties.value) if isinstance(properties.value, dict) else None

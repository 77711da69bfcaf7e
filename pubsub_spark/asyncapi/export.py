"""The AsyncAPI document of a project's resources: channels for topics, operations for subscriptions. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from .bindings import DEFAULT_VERSION, PROTOCOL

_FORMATS = {
    "AVRO": "application/vnd.apache.avro+json;version=1.9.0",
    "PROTOCOL_BUFFER": "application/vnd.google.protobuf;version=3",
}


def document(
    project: str,
    schemas: Mapping[str, Any],
    topics: Iterable[Any],
    subscriptions: Iterable[Any],
    as_json: bool = False,
) -> str:
    """Return the document of AsyncAPI 3.0.0, as YAML or as JSON.

    schemas: by full name, with definitions. Subscriptions of deleted topics are left out: nothing sends to them.
    """
    channels = {_id(topic.name): _channel(topic, schemas) for topic in topics}
    operations = {
        _id(subscription.name): _operation(subscription)
        for subscription in subscriptions
        if _id(subscription.topic) in channels and "/" in subscription.topic
    }
    content = {
        "asyncapi": "3.0.0",
        "info": {"title": f"Topics of {project}", "version": "1.0.0"},
        "channels": channels,
        "operations": operations,
    }
    if as_json:
        return f"{json.dumps(content, indent=2, ensure_ascii=False)}\n"
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


def _channel(topic: Any, schemas: Mapping[str, Any]) -> dict[str, Any]:
    binding: dict[str, Any] = {"bindingVersion": DEFAULT_VERSION}
    if topic.labels:
        binding["labels"] = dict(topic.labels)
    if topic.message_retention_duration:
        binding["messageRetentionDuration"] = f"{topic.message_retention_duration.total_seconds():g}s"
    if topic.message_storage_policy.allowed_persistence_regions:
        regions = list(topic.message_storage_policy.allowed_persistence_regions)
        binding["messageStoragePolicy"] = {"allowedPersistenceRegions": regions}
    settings = topic.schema_settings
    channel: dict[str, Any] = {"address": topic.name}
    schema = schemas.get(settings.schema)
    if schema is not None:
        binding["schemaSettings"] = {"name": settings.schema, "encoding": settings.encoding.name}
        if settings.first_revision_id:
            binding["schemaSettings"]["firstRevisionId"] = settings.first_revision_id
        if settings.last_revision_id:
            binding["schemaSettings"]["lastRevisionId"] = settings.last_revision_id
        channel["messages"] = {_id(settings.schema): _message(schema)}
    channel["bindings"] = {PROTOCOL: binding}
    return channel


def _message(schema: Any) -> dict[str, Any]:
    kind = schema.type_.name
    message = {"bindings": {PROTOCOL: {"bindingVersion": DEFAULT_VERSION, "schema": {"name": schema.name}}}}
    if not schema.definition:
        return {"description": "The schema is compiled, so that its definition is no text.", **message}
    definition = json.loads(schema.definition) if kind == "AVRO" else schema.definition
    return {"payload": {"schemaFormat": _FORMATS[kind], "schema": definition}, **message}


def _operation(subscription: Any) -> dict[str, Any]:
    channel = _id(subscription.topic).replace("~", "~0").replace("%", "%25")  # both mean something in a `$ref`
    operation: dict[str, Any] = {"action": "receive", "channel": {"$ref": f"#/channels/{channel}"}}
    if subscription.enable_message_ordering:
        operation["x-enable-message-ordering"] = True
    return operation


def _id(name: str) -> str:
    return name.rpartition("/")[2]


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    def ignore_aliases(self, _: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)

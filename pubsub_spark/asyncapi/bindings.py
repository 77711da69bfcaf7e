"""The googlepubsub bindings of AsyncAPI: their properties, by version.

The rules are JSON Schemas of our own. Names that begin with `x-` are extensions and ignored. Sources:
https://github.com/asyncapi/bindings/tree/master/googlepubsub (0.2.0), and its version 0.1.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from jsonschema import Draft7Validator
from jsonschema.exceptions import ValidationError

from .document import Value

PROTOCOL = "googlepubsub"
DEFAULT_VERSION = "0.2.0"
Kind = Literal["channel", "message", "operation", "server"]

_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_DURATION = re.compile(r"(\d{1,12})(\.\d{1,9})?s")
_CHANNEL = {
    "bindingVersion": {"type": "string"},
    "labels": _TEXTS,
    "messageRetentionDuration": {"type": "string", "pattern": f"^{_DURATION.pattern}$"},
    "messageStoragePolicy": {
        "type": "object",
        "properties": {"allowedPersistenceRegions": {"type": "array", "items": {"type": "string"}}},
    },
    "schemaSettings": {
        "type": "object",
        "properties": {
            "encoding": {"type": "string", "pattern": "^(?i:json|binary)$"},
            "firstRevisionId": {"type": "string"},
            "lastRevisionId": {"type": "string"},
            "name": {"type": "string"},
        },
        "required": ["encoding", "name"],
    },
}
_MESSAGE = {
    "bindingVersion": {"type": "string"},
    "attributes": _TEXTS,
    "orderingKey": {"type": "string"},
    "schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}
_TYPED = {"type": "object", "properties": {"name": {"type": "string"}, "type": {"enum": ["avro", "protobuf"]}}}
_RULES: dict[tuple[Kind, str], dict[str, Any]] = {
    ("channel", "0.1.0"): {"properties": {**_CHANNEL, "topic": {"type": "string"}}, "required": ["topic"]},
    ("channel", "0.2.0"): {"properties": _CHANNEL},
    ("message", "0.1.0"): {"properties": {**_MESSAGE, "schema": {**_TYPED, "required": ["name", "type"]}}},
    ("message", "0.2.0"): {"properties": _MESSAGE},
    ("operation", "0.1.0"): {"properties": {"bindingVersion": {"type": "string"}}},
    ("operation", "0.2.0"): {"properties": {"bindingVersion": {"type": "string"}}},
    ("server", "0.1.0"): {"properties": {"bindingVersion": {"type": "string"}}},
    ("server", "0.2.0"): {"properties": {"bindingVersion": {"type": "string"}}},
}


@dataclass(frozen=True)
class ChannelBinding:
    """The googlepubsub binding of a channel. topic: of version 0.1.0. None means that the binding does not set it."""

    topic: str | None = None
    labels: dict[str, str] | None = None
    retention_seconds: float | None = None
    regions: tuple[str, ...] | None = None
    schema: str | None = None
    encoding: str | None = None
    first_revision: str = ""
    last_revision: str = ""


@dataclass(frozen=True)
class MessageBinding:
    attributes: dict[str, str] = field(default_factory=dict)
    ordering_key: str | None = None
    schema: str | None = None
    schema_type: str | None = None  # of version 0.1.0


def channel_binding(owner: Value) -> ChannelBinding | None:
    """Return the binding of a channel, or None if it has none of ours. A wrong one is also None, and a complaint."""
    binding = _checked(owner, "channel")
    if binding is None:
        return None
    settings, duration = binding.get("schemaSettings", {}), binding.get("messageRetentionDuration")
    policy = binding.get("messageStoragePolicy")
    return ChannelBinding(
        topic=binding.get("topic"),
        labels=binding.get("labels"),
        retention_seconds=None if duration is None else float(duration.removesuffix("s")),
        regions=None if policy is None else tuple(policy.get("allowedPersistenceRegions", ())),
        schema=settings.get("name"),
        encoding=settings["encoding"].upper() if settings else None,
        first_revision=settings.get("firstRevisionId", ""),
        last_revision=settings.get("lastRevisionId", ""),
    )


def message_binding(owner: Value) -> MessageBinding | None:
    """See `channel_binding`."""
    binding = _checked(owner, "message")
    if binding is None:
        return None
    attributes, schema = binding.get("attributes", {}), binding.get("schema", {})
    return MessageBinding(attributes, binding.get("orderingKey"), schema.get("name"), schema.get("type"))


def check_empty(owner: Value, kind: Kind) -> None:
    """Complain about properties of the binding of an operation or a server. It has none."""
    _checked(owner, kind)


def traits(owner: Value) -> list[Value]:
    """Return the traits of a message or an operation, in their order."""
    stated = owner.get("traits")
    if stated and not isinstance(stated.value, list):
        stated.complain(f"this must be a list, got `{stated.value}`")
        return []
    return [trait for _, trait in stated.entries()]


def _checked(owner: Value, kind: Kind) -> dict[str, Any] | None:
    """Merge the binding of an object and its traits: in 3.x the object's own properties win, in 2.x those of its
    traits.
    """
    merged: dict[str, Any] | None = None
    for source in [owner, *traits(owner)] if owner.documents.is_version_2 else [*traits(owner), owner]:
        stated = _stated(source, kind)
        if stated is not None:
            merged = _merged(merged or {}, stated)
    return merged


def _stated(owner: Value, kind: Kind) -> dict[str, Any] | None:
    bindings = owner.get("bindings")
    if bindings and not isinstance(bindings.value, dict):
        bindings.complain(f"this must be a mapping, got `{bindings.value}`")
    if not isinstance(bindings.value, dict) or PROTOCOL not in bindings.value:
        return None
    binding = bindings.get(PROTOCOL)
    if not isinstance(binding.value, dict):
        if binding or bindings.value[PROTOCOL] is None:  # a `$ref` that leads nowhere is already a complaint
            got = f"got `{binding.value}`" if binding else "and is empty: write `{}`"
            binding.complain(f"this must be a mapping, {got}")
        return None
    version = str(binding.value.get("bindingVersion", DEFAULT_VERSION))
    rules = _RULES.get((kind, DEFAULT_VERSION if version == "latest" else version))
    if rules is None:
        versions = " or ".join(version for rule_kind, version in _RULES if rule_kind == kind)
        binding.get("bindingVersion").complain(f"`bindingVersion` must be {versions}, got `{version}`")
        return None
    errors = list(Draft7Validator(_closed({"type": "object", **rules})).iter_errors(binding.value))
    for error in errors:
        Value(None, binding.documents, binding.file, (*binding.keys, *error.absolute_path)).complain(_sentence(error))
    return None if errors else binding.value


def _merged(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a JSON Merge Patch (RFC 7396) of valid bindings, which have no null."""
    merged = dict(target)
    for name, value in patch.items():
        known = merged.get(name)
        merged[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    if "properties" not in schema:
        return schema
    closed = {name: _closed(subschema) for name, subschema in schema["properties"].items()}
    return {**schema, "properties": closed, "patternProperties": {"^x-": {}}, "additionalProperties": False}


def _sentence(error: ValidationError) -> str:
    match error.validator:
        case "additionalProperties":
            known = ", ".join(sorted(error.schema["properties"]))
            unknown = sorted(set(error.instance) - set(error.schema["properties"]) - _extensions(error.instance))
            return f"`{unknown[0]}` is not a property of this binding. It has {known or 'none'}"
        case "required":
            missing = next(name for name in error.validator_value if name not in error.instance)
            return f"`{missing}` is required"
        case "type":
            return f"this must be of type {error.validator_value}, got `{error.instance}`"
        case "enum":
            return f"this must be {' or '.join(error.validator_value)}, got `{error.instance}`"
        case "pattern" if "json" in str(error.validator_value):
            return f"`encoding` must be JSON or BINARY, got `{error.instance}`"
        case "pattern":
            return f"this must be a duration in seconds, e.g. `86400s`, got `{error.instance}`"
    return str(error.message)


def _extensions(value: dict[str, Any]) -> set[str]:
    return {name for name in value if name.startswith("x-")}

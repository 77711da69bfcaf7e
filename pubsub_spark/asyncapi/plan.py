"""The plan that makes a project match a document: the resources to create and update, and the conflicts.

Pure: the existing resources are an argument. Only settings in the document are compared. Settings that cannot be
changed are conflicts: the type of a schema, a definition that may not follow its newest revision, the topic or ordering
of a subscription.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..schema import schema_types
from ..schema.compiled_protobuf import definition_of
from ..schema.definition import IncompatibleSchema
from .api import Api, Schema, Subscription, Topic

Action = Literal["create", "update", "none"]


@dataclass(frozen=True)
class Step:
    """One resource of a plan. paths: the fields to update, or the new parts of a schema. details: in words."""

    action: Action
    resource: Schema | Topic | Subscription
    paths: tuple[str, ...] = ()
    details: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return type(self.resource).__name__


@dataclass(frozen=True)
class Existing:
    """The resources of a project by full names, as protobuf messages. Schemas have their newest definition."""

    schemas: Mapping[str, Any] = field(default_factory=dict)
    topics: Mapping[str, Any] = field(default_factory=dict)
    subscriptions: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The steps in the order of their execution, and the conflicts, which stop it."""

    steps: list[Step]
    conflicts: list[str]

    @property
    def changes(self) -> list[Step]:
        return [step for step in self.steps if step.action != "none"]


def plan(api: Api, existing: Existing) -> Plan:
    """Return the plan: schemas first, then topics, then subscriptions."""
    conflicts: list[str] = []
    steps = [_schema(schema, existing.schemas.get(schema.name), conflicts) for schema in api.schemas.values()]
    steps += [_topic(topic, existing.topics.get(topic.name)) for topic in api.topics.values()]
    steps += [
        _subscription(subscription, existing.subscriptions.get(subscription.name), conflicts)
        for subscription in api.subscriptions.values()
    ]
    return Plan(steps, conflicts)


def _schema(wanted: Schema, existing: Any, conflicts: list[str]) -> Step:
    parsed = None
    if wanted.definition is not None:
        try:
            parsed = schema_types.parse(wanted.type or "AVRO", wanted.definition)
        except ValueError as error:
            conflicts.append(f"Schema `{wanted.name}` has no valid definition in the document: {error}")
    if existing is None:
        if wanted.definition is None:
            conflicts.append(
                f"Schema `{wanted.name}` does not exist, and the document has no payload in Avro or Protocol Buffers "
                "to create it from. Create it, or add such a payload to a message of the channel."
            )
            return Step("none", wanted)
        return Step("create", wanted, details=(wanted.type or "",))
    if wanted.definition is None:
        return Step("none", wanted)
    if existing.type_.name != wanted.type:
        conflicts.append(
            f"Schema `{wanted.name}` is of type {existing.type_.name}, which cannot be changed to {wanted.type}. "
            f"Rename the document's schema."
        )
        return Step("none", wanted)
    if _canonical(str(wanted.type), definition_of(existing)) == _canonical(str(wanted.type), wanted.definition):
        return Step("none", wanted)
    if parsed is not None:
        try:
            schema_types.check_compatible(schema_types.parse(wanted.type or "AVRO", definition_of(existing)), parsed)
        except IncompatibleSchema as error:
            conflicts.append(
                f"Schema `{wanted.name}` cannot have the document's definition as its next revision: {error}. Change "
                "the definition, or rename the document's schema."
            )
        except ValueError:
            pass  # a revision that only the service can parse: it decides itself which definitions may follow
    return Step("update", wanted, ("definition",), ("a new revision",))


def _canonical(kind: str, definition: str) -> Any:
    """Return a definition without the parts that do not affect equality: white space in JSON."""
    if kind == "AVRO":
        try:
            return json.loads(definition)
        except ValueError:
            return definition
    return definition.strip()


def _topic(wanted: Topic, existing: Any) -> Step:
    binding = wanted.binding
    fields: dict[str, tuple[Any, Any]] = {}  # path -> wanted and existing value of the binding's settings
    if binding.labels is not None:
        fields["labels"] = binding.labels, {} if existing is None else dict(existing.labels)
    if binding.retention_seconds is not None:
        duration = None if existing is None else existing.message_retention_duration
        fields["message_retention_duration"] = binding.retention_seconds, duration and duration.total_seconds()
    if binding.regions is not None:
        regions = () if existing is None else existing.message_storage_policy.allowed_persistence_regions
        fields["message_storage_policy"] = binding.regions, tuple(regions)
    if binding.schema is not None:
        settings = None if existing is None else existing.schema_settings
        current = settings and (
            settings.schema,
            settings.encoding.name,
            settings.first_revision_id,
            settings.last_revision_id,
        )
        fields["schema_settings"] = (
            (binding.schema, wanted.encoding, binding.first_revision, binding.last_revision),
            current,
        )
    changed = {path: said for path, (said, current) in fields.items() if said != current}
    details = tuple(f"{path} {_words(said)}" for path, said in changed.items())
    if existing is None:
        return Step("create", wanted, tuple(changed), details)
    return Step("update", wanted, tuple(changed), details) if changed else Step("none", wanted)


def _subscription(wanted: Subscription, existing: Any, conflicts: list[str]) -> Step:
    details = (f"of {wanted.topic}", *(["in the order of keys"] if wanted.ordering else []))
    if existing is None:
        return Step("create", wanted, details=details)
    if existing.topic != wanted.topic:
        conflicts.append(
            f"Subscription `{wanted.name}` is of Topic `{existing.topic}`, which cannot be changed to "
            f"`{wanted.topic}`. Delete it, or rename the operation."
        )
    elif existing.enable_message_ordering != wanted.ordering:
        have = "delivers" if existing.enable_message_ordering else "does not deliver"
        conflicts.append(
            f"Subscription `{wanted.name}` {have} messages in the order of their keys, which cannot be changed. Delete "
            "it, or rename the operation."
        )
    return Step("none", wanted)


def _words(said: Any) -> str:
    if isinstance(said, dict):
        return ", ".join(f"{key}={value}" for key, value in said.items()) or "none"
    if isinstance(said, tuple):
        return " ".join(str(part) for part in said if part)
    return f"{said:g} s" if isinstance(said, float) else str(said)

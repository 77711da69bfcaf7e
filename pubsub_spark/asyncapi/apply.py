"""The resources of a project, and the execution of a plan on them, by the calls of `backend.admin`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from google.pubsub_v1 import types

from ..errors import MissingError
from .api import Api, Schema, Subscription, Topic
from .plan import Existing, Step

if TYPE_CHECKING:
    from ..backend.admin import Admin


def existing(admin: Admin, api: Api) -> Existing:
    return Existing(
        _found(lambda name: admin.get("schemas", name), api.schemas),
        _found(lambda name: admin.get("topics", name), api.topics),
        _found(lambda name: admin.get("subscriptions", name), api.subscriptions),
    )


def _found(get: Callable[[str], Any], names: Iterable[str]) -> dict[str, Any]:
    resources = {}
    for name in names:
        try:
            resources[name] = get(name)
        except MissingError:
            continue
    return resources


def carry_out(admin: Admin, step: Step) -> None:
    """Raises PubSubError."""
    match step.resource:
        case Schema():
            _schema(admin, step, step.resource)
        case Topic():
            topic = _topic(step.resource)
            if step.action == "create":
                admin.create("topics", topic, topic.name)
            else:
                admin.update("topics", topic, step.paths)
        case Subscription(name, of, ordering):
            wanted = types.Subscription(name=name, topic=of, enable_message_ordering=ordering)
            admin.create("subscriptions", wanted, name)


def _schema(admin: Admin, step: Step, wanted: Schema) -> None:
    schema = types.Schema(
        name=wanted.name, type_=getattr(types.Schema.Type, str(wanted.type)), definition=wanted.definition
    )
    if step.action == "create":
        parent, _, id_ = wanted.name.partition("/schemas/")
        schema.name = ""
        admin.create("schemas", {"parent": parent, "schema": schema, "schema_id": id_}, wanted.name)
    else:
        admin.commit_schema(wanted.name, schema)


def _topic(wanted: Topic) -> types.Topic:
    binding = wanted.binding
    topic = types.Topic(name=wanted.name, labels=binding.labels or {})
    if binding.retention_seconds is not None:
        topic.message_retention_duration = datetime.timedelta(seconds=binding.retention_seconds)
    if binding.regions:
        topic.message_storage_policy = types.MessageStoragePolicy(allowed_persistence_regions=binding.regions)
    if binding.schema is not None:
        topic.schema_settings = types.SchemaSettings(
            schema=binding.schema,
            encoding=getattr(types.Encoding, str(wanted.encoding)),
            first_revision_id=binding.first_revision,
            last_revision_id=binding.last_revision,
        )
    return topic

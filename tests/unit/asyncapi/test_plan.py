"""The plan: resources that are created, updated or unchanged, and conflicts. Pure."""

from __future__ import annotations

import datetime
from dataclasses import replace

from google.pubsub_v1 import types

from pubsub_spark.asyncapi.api import Api, Schema, Subscription, Topic
from pubsub_spark.asyncapi.bindings import ChannelBinding
from pubsub_spark.asyncapi.plan import Existing, plan

AVRO = '{"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}]}'
SCHEMA = Schema("projects/p/schemas/s-1", "AVRO", AVRO)
TOPIC = Topic("projects/p/topics/t-1", ChannelBinding(labels={"a": "b"}, retention_seconds=600.0, schema=SCHEMA.name))
SUBSCRIPTION = Subscription("projects/p/subscriptions/s-1", TOPIC.name)
API = Api({SCHEMA.name: SCHEMA}, {TOPIC.name: TOPIC}, {SUBSCRIPTION.name: SUBSCRIPTION})


def made() -> Existing:
    """Return the resources that exist after the plan was carried out in an empty project."""
    settings = types.SchemaSettings(schema=SCHEMA.name, encoding=types.Encoding.BINARY)
    topic = types.Topic(name=TOPIC.name, labels={"a": "b"}, schema_settings=settings)
    topic.message_retention_duration = datetime.timedelta(seconds=600)
    schema = types.Schema(name=SCHEMA.name, type_=types.Schema.Type.AVRO, definition=AVRO.replace(" ", ""))
    subscription = types.Subscription(name=SUBSCRIPTION.name, topic=TOPIC.name)
    return Existing({SCHEMA.name: schema}, {TOPIC.name: topic}, {SUBSCRIPTION.name: subscription})


def test_everything_is_created_in_order():
    """In an empty project schemas come first, then topics, then subscriptions."""
    planned = plan(API, Existing())

    expected = [("create", "Schema"), ("create", "Topic"), ("create", "Subscription")]
    assert expected == [(step.action, step.kind) for step in planned.steps]
    assert [] == planned.conflicts


def test_second_plan_has_nothing_to_do():
    """A resource that matches the document is not changed. White space in a definition is not a difference."""
    assert [] == plan(API, made()).changes


def test_only_what_differs_is_updated():
    """The fields to update are the differing fields that the document sets."""
    other = replace(TOPIC, binding=replace(TOPIC.binding, labels={"a": "c"}, retention_seconds=None))

    [step] = plan(replace(API, topics={TOPIC.name: other}), made()).changes

    assert ("update", ("labels",)) == (step.action, step.paths)


def test_other_definition_is_a_new_revision():
    """A definition that differs is committed as a revision."""
    more = ', {"name": "b", "type": "int", "default": 0}]'
    wider = replace(SCHEMA, definition=AVRO.replace("]", more))

    [step] = plan(replace(API, schemas={SCHEMA.name: wider}), made()).changes

    assert ("update", "Schema", ("a new revision",)) == (step.action, step.kind, step.details)


def test_what_cannot_be_changed_is_a_conflict():
    """A subscription's topic and ordering, a schema's type, and a definition that cannot follow its revision are
    conflicts, each with an error message.
    """
    for api, sentence in (
        (replace(API, subscriptions={SUBSCRIPTION.name: replace(SUBSCRIPTION, topic="other")}), "is of Topic"),
        (replace(API, subscriptions={SUBSCRIPTION.name: replace(SUBSCRIPTION, ordering=True)}), "does not deliver"),
        (
            replace(API, schemas={SCHEMA.name: replace(SCHEMA, type="PROTOCOL_BUFFER", definition="x")}),
            "is of type AVRO",
        ),
        (replace(API, schemas={SCHEMA.name: replace(SCHEMA, definition="{}")}), "no valid definition"),
        (
            replace(API, schemas={SCHEMA.name: replace(SCHEMA, definition=AVRO.replace('"int"', '"string"'))}),
            "cannot have the document's definition as its next revision: The new revision cannot read",
        ),
    ):
        assert any(sentence in conflict for conflict in plan(api, made()).conflicts), sentence


def test_schema_without_a_definition_must_exist():
    """A schema that the document only names is not created."""
    named = replace(API, schemas={SCHEMA.name: Schema(SCHEMA.name)})

    assert [] == plan(named, made()).conflicts
    without = plan(named, Existing())
    [conflict] = without.conflicts
    assert "does not exist" in conflict
    assert [] == [step for step in without.changes if step.kind == "Schema"]

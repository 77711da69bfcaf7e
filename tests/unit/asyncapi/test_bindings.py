"""The googlepubsub bindings: every property, both versions, and the error message of each refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pubsub_spark.asyncapi.bindings import (
    ChannelBinding,
    MessageBinding,
    channel_binding,
    check_empty,
    message_binding,
)
from pubsub_spark.asyncapi.document import Value, load


def owner(folder: Path, binding: object) -> Value:
    """Return a channel, message or operation with this googlepubsub binding."""
    path = folder / "api.yaml"
    path.write_text(yaml.safe_dump({"asyncapi": "3.0.0", "it": {"bindings": {"googlepubsub": binding}}}))
    return load(path).get("it")


def test_every_property_of_a_channel(tmp_path: Path):
    """Each property of the channel binding is read."""
    binding = {
        "bindingVersion": "0.2.0",
        "labels": {"a": "b"},
        "messageRetentionDuration": "86400.5s",
        "messageStoragePolicy": {"allowedPersistenceRegions": ["us-east1"]},
        "schemaSettings": {"name": "s-1", "encoding": "json", "firstRevisionId": "a", "lastRevisionId": "b"},
        "x-note": "ignored",
    }

    expected = ChannelBinding(None, {"a": "b"}, 86400.5, ("us-east1",), "s-1", "JSON", "a", "b")
    assert expected == channel_binding(owner(tmp_path, binding))


def test_every_property_of_a_message(tmp_path: Path):
    """Each property of the message binding is read. The version defaults to 0.2.0."""
    binding = {"attributes": {"a": "b"}, "orderingKey": "userId", "schema": {"name": "s-1"}}

    assert MessageBinding({"a": "b"}, "userId", "s-1") == message_binding(owner(tmp_path, binding))


def test_version_0_1_0_has_topic_and_type(tmp_path: Path):
    """The older version names the topic in the channel and the schema's type in the message."""
    channel = channel_binding(owner(tmp_path, {"bindingVersion": "0.1.0", "topic": "t-1"}))
    schema = {"name": "s-1", "type": "avro"}
    message = message_binding(owner(tmp_path, {"bindingVersion": "0.1.0", "schema": schema}))

    assert "t-1" == (channel and channel.topic)
    assert "avro" == (message and message.schema_type)


@pytest.mark.parametrize(
    ("version", "key", "attributes"),
    [
        ("3.0.0", "own", {"a": "own", "b": "second", "c": "first"}),
        ("2.6.0", "second", {"a": "first", "b": "second", "c": "first"}),
    ],
)
def test_bindings_of_traits_are_merged(tmp_path: Path, version: str, key: str, attributes: dict[str, str]):
    """In 3.x the message's own properties win, in 2.x those of its traits. The later of two traits wins."""
    path = tmp_path / "api.yaml"
    path.write_text(f"""
asyncapi: {version}
traits:
  first: {{bindings: {{googlepubsub: {{orderingKey: first, attributes: {{a: first, b: first, c: first}}}}}}}}
it:
  bindings: {{googlepubsub: {{orderingKey: own, attributes: {{a: own}}}}}}
  traits:
  - $ref: '#/traits/first'
  - bindings: {{googlepubsub: {{orderingKey: second, attributes: {{b: second}}}}, kafka: {{key: x}}}}
""")

    assert MessageBinding(attributes, key) == message_binding(load(path).get("it"))


@pytest.mark.parametrize(
    ("kind", "binding", "sentence"),
    [
        ("channel", {"topics": 1}, "`topics` is not a property of this binding. It has bindingVersion, labels,"),
        ("channel", {"topic": "t-1"}, "`topic` is not a property of this binding"),
        ("channel", {"bindingVersion": "0.3.0"}, "`bindingVersion` must be 0.1.0 or 0.2.0, got `0.3.0`"),
        ("channel", {"bindingVersion": "0.1.0"}, "`topic` is required"),
        ("channel", {"schemaSettings": {"name": "s"}}, "`encoding` is required"),
        (
            "channel",
            {"schemaSettings": {"name": "s", "encoding": "xml"}},
            "`encoding` must be JSON or BINARY, got `xml`",
        ),
        ("channel", {"messageRetentionDuration": "1 day"}, "this must be a duration in seconds, e.g. `86400s`"),
        ("channel", {"labels": {"a": 1}}, "this must be of type string, got `1`"),
        ("message", {"attributes": ["a"]}, "this must be of type object, got `['a']`"),
        ("message", {"schema": {"name": "s", "type": "avro"}}, "`type` is not a property of this binding"),
        ("message", {"schema": {}}, "`name` is required"),
        ("message", "text", "this must be a mapping, got `text`"),
        ("channel", None, "this must be a mapping, and is empty: write `{}`"),
        (
            "message",
            {"bindingVersion": "0.1.0", "schema": {"name": "s", "type": "thrift"}},
            "this must be avro or protobuf, got `thrift`",
        ),
        ("operation", {"ack": True}, "`ack` is not a property of this binding. It has bindingVersion"),
    ],
)
def test_wrong_binding_is_told_with_its_place(tmp_path: Path, kind: str, binding: object, sentence: str):
    """Unknown versions or properties, and missing or malformed values each have an error message with line and path."""
    it = owner(tmp_path, binding)
    read = {
        "channel": channel_binding,
        "message": message_binding,
        "operation": lambda it: check_empty(it, "operation"),
    }

    assert read[kind](it) is None
    assert any(sentence in problem for problem in it.documents.problems), it.documents.problems
    assert all("`it.bindings.googlepubsub" in problem for problem in it.documents.problems)

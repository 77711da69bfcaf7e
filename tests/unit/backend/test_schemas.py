"""Schemas of newer kinds than this release knows: an error, never a guess."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from google.pubsub_v1 import types

from pubsub_spark.backend import schemas
from pubsub_spark.errors import SchemaError

TOPIC, SCHEMA = "projects/p/topics/news", "projects/p/schemas/article"


pytestmark = pytest.mark.filterwarnings("ignore:Unrecognized .* enum value")


@dataclass
class FakeAdmin:
    """The two resources that a topic's schema is read from."""

    encoding: int = 2
    type: int = 2

    def topic(self, name: str) -> types.Topic:
        return types.Topic(name=name, schema_settings={"schema": SCHEMA, "encoding": self.encoding})

    def schema(self, name: str) -> types.Schema:
        return types.Schema(name=name, type_=self.type, definition="{}", revision_id="1")


def of_topic(**fields: int) -> Any:
    return schemas.of_topic(FakeAdmin(**fields), TOPIC)  # type: ignore[arg-type]


def test_known_schema():
    """Encoding and type are those of the topic and its schema."""
    found = of_topic()

    assert ("BINARY", "AVRO") == (found.encoding, found.reader.type)


def test_unknown_encoding_is_an_error():
    """An encoding that this release does not know is not taken for BINARY."""
    with pytest.raises(SchemaError, match=f"`{TOPIC}` have the encoding 7"):
        of_topic(encoding=7)


def test_unknown_schema_type_is_an_error():
    """A schema type that this release does not know is not taken for PROTOCOL_BUFFER."""
    with pytest.raises(SchemaError, match=f"`{SCHEMA}` has the type 7"):
        of_topic(type=7)

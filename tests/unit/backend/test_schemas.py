"""The schema of a topic: what a newer service may say, which this release cannot read."""

from types import SimpleNamespace
from typing import Any

import pytest

from pubsub_spark.backend import schemas
from pubsub_spark.errors import SchemaError

TOPIC, SCHEMA = "projects/p/topics/t", "projects/p/schemas/s"


def admin(encoding: int = 2, type_: int = 2) -> Any:
    """An admin that knows one topic, and its schema."""
    settings = SimpleNamespace(schema=SCHEMA, encoding=encoding, last_revision_id="")
    schema = SimpleNamespace(name=SCHEMA, revision_id="1", type_=type_, definition='"int"')
    return SimpleNamespace(topic=lambda _: SimpleNamespace(schema_settings=settings), schema=lambda _: schema)


@pytest.mark.parametrize("encoding", [0, 3])
def test_unknown_encoding_is_an_error(encoding: int):
    """Payloads of an encoding that is not known are not taken for BINARY, by which each would be malformed."""
    with pytest.raises(SchemaError, match=rf"Topic `{TOPIC}` encodes its messages .*\(encoding {encoding}; it knows"):
        schemas.of_topic(admin(encoding=encoding), TOPIC)


@pytest.mark.parametrize("number", [0, 3])
def test_unknown_schema_type_is_an_error(number: int):
    """A definition of a type that is not known is not taken for Protocol Buffers."""
    with pytest.raises(SchemaError, match=rf"Schema `{SCHEMA}` is of a type .*\(type {number}; it knows"):
        schemas.of_topic(admin(type_=number), TOPIC)

"""Documents of both versions as what Pub/Sub has, and every complaint about them at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pubsub_spark.asyncapi.api import read
from pubsub_spark.asyncapi.document import AsyncApiError

EXAMPLE = Path(__file__).parent.parent.parent.parent / "examples" / "flights.asyncapi.yaml"
VERSION_2 = """
asyncapi: 2.6.0
channels:
  flights:
    bindings: {googlepubsub: {schemaSettings: {name: flight, encoding: binary}}}
    publish:
      operationId: flights-to-table
      message:
        oneOf:
        - name: departed
          schemaFormat: application/vnd.apache.avro;version=1.9.0
          payload: {type: record, name: F, fields: [{name: a, type: int}]}
          bindings: {googlepubsub: {orderingKey: a, schema: {name: flight}}}
    subscribe:
      operationId: sendFlights
      message: {name: departed}
  other:
    bindings: {kafka: {}}
"""


def test_example_is_read():
    """The example's schema, topics, subscription and message are those that it describes."""
    api = read(EXAMPLE, "p")

    assert ["projects/p/topics/flight-departures", "projects/p/topics/flight-departures-unreadable"] == list(api.topics)
    [subscription] = api.subscriptions.values()
    assert ("projects/p/topics/flight-departures", True) == (subscription.topic, subscription.ordering)
    [schema] = api.schemas.values()
    assert "Flight" == json.loads(schema.definition or "")["name"]
    [message] = api.messages["flightDeparted"]
    assert ("tailnum", {"source": "nyc"}) == (message.binding.ordering_key, message.binding.attributes)
    assert "tailnum" in (message.fields or ())


def test_version_2_is_seen_from_the_other_side(tmp_path: Path):
    """In 2.x `publish` is what the application receives; channels of other protocols are ignored."""
    path = tmp_path / "api.yaml"
    path.write_text(VERSION_2)
    api = read(path, "p")

    assert ["projects/p/topics/flights"] == list(api.topics)
    assert {"projects/p/subscriptions/flights-to-table"} == set(api.subscriptions)
    assert ["AVRO"] == [schema.type for schema in api.schemas.values()]
    assert ["projects/p/schemas/flight"] * 2 == [each.binding.schema for each in api.messages["departed"]]


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path):
    """One error has every complaint: names, actions, schemas that contradict each other."""
    path = tmp_path / "api.yaml"
    path.write_text("""
asyncapi: 3.0.0
channels:
  a: {address: no id, bindings: {googlepubsub: {}}}
  b:
    bindings: {googlepubsub: {schemaSettings: {name: one, encoding: JSON}}}
    messages:
      m: {bindings: {googlepubsub: {schema: {name: two}}}}
operations:
  c: {action: read, channel: {$ref: '#/channels/b'}}
""")
    with pytest.raises(AsyncApiError) as refused:
        read(path, "p")

    assert 3 == len(refused.value.problems), refused.value
    for sentence in (
        "line 4, `channels.a`: `no id` is not an id",
        "`channels.b`: `b` is not an id",
        "`action` must be send or receive, got `read`",
    ):
        assert sentence in str(refused.value)


def test_ids_need_a_project(tmp_path: Path):
    """A document with ids says which project is missing."""
    with pytest.raises(AsyncApiError, match="needs a project"):
        read(EXAMPLE, None)


def test_schema_that_is_not_the_topics_is_told(tmp_path: Path):
    """A message's schema must be that of its channel."""
    path = tmp_path / "api.yaml"
    path.write_text("""
asyncapi: 3.0.0
channels:
  flights:
    bindings: {googlepubsub: {schemaSettings: {name: one, encoding: JSON}}}
    messages:
      m: {bindings: {googlepubsub: {schema: {name: two}}}}
""")
    with pytest.raises(AsyncApiError, match="the topic's schema is `projects/p/schemas/one`, and the message's is"):
        read(path, "p")

"""Documents of both versions read as Pub/Sub resources, with all errors of a document at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pubsub_spark.asyncapi.api import read
from pubsub_spark.errors import AsyncApiError

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
    """In 2.x the application receives the messages of `publish`. Channels of other protocols are ignored."""
    path = tmp_path / "api.yaml"
    path.write_text(VERSION_2)
    api = read(path, "p")

    assert ["projects/p/topics/flights"] == list(api.topics)
    assert {"projects/p/subscriptions/flights-to-table"} == set(api.subscriptions)
    assert ["AVRO"] == [schema.type for schema in api.schemas.values()]
    assert ["projects/p/schemas/flight"] * 2 == [each.binding.schema for each in api.messages["departed"]]


def test_format_of_a_payload_may_stand_in_a_trait(tmp_path: Path):
    """In 2.x a trait may set the format of the payloads of several messages."""
    path = tmp_path / "api.yaml"
    path.write_text("""
asyncapi: 2.6.0
channels:
  flights:
    bindings: {googlepubsub: {schemaSettings: {name: flight, encoding: BINARY}}}
    publish:
      operationId: to-lake
      message:
        name: m
        traits: [{schemaFormat: application/vnd.apache.avro;version=1.9.0}]
        payload: {type: record, name: Flight, fields: []}
""")

    assert "AVRO" == read(path, "p").schemas["projects/p/schemas/flight"].type


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path):
    """One error lists every complaint: names, actions, schemas that contradict each other."""
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
    """The error for ids without a project names the missing project."""
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


def test_payload_that_refers_to_itself_ends(tmp_path: Path):
    """A `$ref` from within a payload to that payload is a complaint at its place. It does not loop."""
    path = tmp_path / "api.yaml"
    path.write_text("""
asyncapi: 3.0.0
channels:
  flights:
    bindings: {googlepubsub: {schemaSettings: {name: node, encoding: JSON}}}
    messages:
      m: {payload: {schemaFormat: application/vnd.apache.avro, schema: {$ref: '#/components/schemas/node'}}}
components:
  schemas:
    node: {type: record, name: Node, fields: [{name: next, type: {$ref: '#/components/schemas/node'}}]}
""")
    with pytest.raises(
        AsyncApiError, match=r"line 10, `components.schemas.node.fields.0.type`: this `\$ref` leads back"
    ):
        read(path, "p")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("  topic-b: 5", "line 6, `channels.topic-b`: this must be a mapping, got int."),
        ("  topic-b: {$ref: 7}", "line 6, `channels.topic-b`: `$ref` must be a text."),
        ("  topic-b: {bindings: 3}", "line 6, `channels.topic-b.bindings`: this must be a mapping, got `3`."),
        (
            "  topic-b: {bindings: {googlepubsub: {}}, messages: {m: []}}",
            "messages.m`: this must be a mapping, got list.",
        ),
        ("    messages: {m: {traits: 5}}", "messages.m.traits`: this must be a list, got `5`."),
        (
            "    messages: {m: {traits: [{bindings: {googlepubsub: {orderingKey: 1}}}]}}",
            "messages.m.traits.0.bindings.googlepubsub.orderingKey`: this must be of type string, got `1`.",
        ),
        (
            "operations: {oo-o: {action: receive, channel: {$ref: '#/channels/topic-a'}, "
            "x-enable-message-ordering: no!}}",
            "x-enable-message-ordering`: this must be true or false, got `no!`.",
        ),
        ("operations: {o: 5}", "line 6, `operations.o`: this must be a mapping, got int."),
        (
            "operations: {o: {action: receive}}",
            "line 6, `operations.o`: `channel` must be a `$ref` to one of the channels.",
        ),
        ("operations: {o: {action: receive, channel: topic-a}}", "`channel` must be a `$ref` to one of the channels."),
    ],
)
def test_what_would_be_left_out_in_silence_is_told(tmp_path: Path, lines: str, sentence: str):
    """An invalid channel, message or operation has its error message."""
    path = tmp_path / "api.yaml"
    path.write_text(f"asyncapi: 3.0.0\n\nchannels:\n  topic-a:\n    bindings: {{googlepubsub: {{}}}}\n{lines}\n")

    with pytest.raises(AsyncApiError) as refused:
        read(path, "p")
    assert sentence in str(refused.value)


def test_document_of_another_protocol_is_told(tmp_path: Path):
    """The error for a document without a Pub/Sub channel says how to make one. One without any channel is empty."""
    path = tmp_path / "api.yaml"
    path.write_text("asyncapi: 3.0.0\nchannels: {flights: {address: flights}}\n")
    with pytest.raises(AsyncApiError, match="no channel is one of Pub/Sub: add a `googlepubsub` binding"):
        read(path, "p")

    path.write_text("asyncapi: 3.0.0\nchannels: {}\n")
    assert {} == read(path, "p").topics
    path.write_text("asyncapi: 3.0.0\nservers: {s: {protocol: googlepubsub}}\nchannels: {flights: {bindings: {}}}\n")
    assert {"projects/p/topics/flights"} == set(read(path, "p").topics)


def test_fields_of_a_protobuf_payload_are_known(tmp_path: Path):
    """The fields of a Protocol Buffers payload are also known, so an ordering key can be one of them."""
    path = tmp_path / "api.yaml"
    path.write_text("""
asyncapi: 3.0.0
channels:
  flights:
    bindings: {googlepubsub: {schemaSettings: {name: flight, encoding: JSON}}}
    messages:
      m:
        payload:
          schemaFormat: application/vnd.google.protobuf;version=3
          schema: 'syntax = "proto3"; message F { string tail_number = 1; }'
""")
    [message] = read(path, "p").messages["m"]

    assert frozenset({"tail_number"}) == message.fields

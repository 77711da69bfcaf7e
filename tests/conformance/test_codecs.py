"""Payloads over Google's emulator: it accepts our encoded messages by its own validation, and we decode its messages.

It has no Protocol Buffers ("not implemented in emulator"). Those go over ours, which validates by Google's own parser.
"""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pubsub_spark.codec.registry import Decoder, SchemaRevision, TopicSchema
from pubsub_spark.emulator.api import protos
from pubsub_spark.schema.definition import Encoding
from pubsub_spark.schema.schema_types import SchemaType
from tests.rpc.conftest import Client, refused

P = "projects/codecs"
_ENCODINGS = {"JSON": 1, "BINARY": 2}
_TYPES = {"PROTOCOL_BUFFER": 1, "AVRO": 2}

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Everything",
        "fields": [
            {"name": "flag", "type": "boolean"},
            {"name": "small", "type": "int"},
            {"name": "large", "type": "long"},
            {"name": "single", "type": "float"},
            {"name": "double", "type": "double"},
            {"name": "raw", "type": "bytes"},
            {"name": "text", "type": "string"},
            {"name": "maybe", "type": ["null", "string"], "default": None},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["RED", "GREEN"]}},
            {"name": "numbers", "type": {"type": "array", "items": "long"}},
            {"name": "names", "type": {"type": "map", "values": "string"}},
            {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "moment", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}},
        ],
    }
)
AVRO_ROWS = [
    {
        "flag": True,
        "small": -7,
        "large": 2**40,
        "single": 0.5,
        "double": 1e100,
        "raw": b"\x00\xff",
        "text": "h\u00e9llo \U0001f680",
        "maybe": None,
        "kind": "GREEN",
        "numbers": [1, -2, 3],
        "names": [("a", "b")],
        "code": b"abc",
        "price": Decimal("1234.56"),
        "day": datetime.date(2013, 1, 31),
        "moment": datetime.datetime(2013, 1, 31, 12, 30, 0, 123456, tzinfo=datetime.UTC),
        "inner": {"x": 1},
    },
    {
        "flag": False,
        "small": 0,
        "large": -1,
        "single": -2.0,
        "double": 0.0,
        "raw": b"",
        "text": "",
        "maybe": "here",
        "kind": "RED",
        "numbers": [],
        "names": [],
        "code": b"\x00\x01\x02",
        "price": Decimal("-0.01"),
        "day": datetime.date(1969, 12, 31),
        "moment": datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=datetime.UTC),
        "inner": {"x": -1},
    },
]
PROTO = """
syntax = "proto3";
message Everything {
  bool flag = 1;
  sint32 small = 2;
  int64 large = 3;
  float single = 4;
  double double = 5;
  bytes raw = 6;
  string text = 7;
  optional string maybe = 8;
  Kind kind = 9;
  repeated int64 numbers = 10;
  map<string, string> names = 11;
  Inner inner = 12;
  fixed64 wide = 13;
  enum Kind { RED = 0; GREEN = 1; }
  message Inner { int32 x = 1; }
}
"""
PROTO_ROWS = [
    {name: row[name] for name in row if name not in ("code", "price", "day", "moment")} | {"wide": -5}
    for row in AVRO_ROWS
]


def topic(client: Client, name: str, kind: SchemaType, encoding: Encoding, definition: str) -> TopicSchema:
    """Return a topic `name` of such a schema with a subscription of the same name."""
    asked = protos.Schema(type_=_TYPES[kind], definition=definition)
    schema = client.ask("SchemaService/CreateSchema", parent=P, schema_id=name, schema=asked)
    settings = {"schema": schema.name, "encoding": _ENCODINGS[encoding]}
    client.ask("Publisher/CreateTopic", name=f"{P}/topics/{name}", schema_settings=settings)
    client.ask("Subscriber/CreateSubscription", name=f"{P}/subscriptions/{name}", topic=f"{P}/topics/{name}")
    return TopicSchema(encoding, SchemaRevision(schema.name, schema.revision_id, kind, definition))


def publish(client: Client, name: str, *payloads: bytes) -> None:
    messages = [protos.PubsubMessage(data=payload) for payload in payloads]
    client.ask("Publisher/Publish", topic=f"{P}/topics/{name}", messages=messages)


def pull(client: Client, name: str, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        answer = client.ask("Subscriber/Pull", subscription=f"{P}/subscriptions/{name}", max_messages=count)
        messages += [received.message for received in answer.received_messages]
    return messages


def client_for(kind: SchemaType, request: pytest.FixtureRequest) -> Client:
    """Return an emulator that knows schemas of this type."""
    if kind == "AVRO":
        return Client(request.getfixturevalue("google"))
    return Client(request.getfixturevalue("emulator").endpoint)


@pytest.mark.parametrize("encoding", ["BINARY", "JSON"])
@pytest.mark.parametrize(
    ("kind", "definition", "rows"), [("AVRO", AVRO, AVRO_ROWS), ("PROTOCOL_BUFFER", PROTO, PROTO_ROWS)]
)
def test_there_and_back(
    request: pytest.FixtureRequest, kind: SchemaType, definition: str, rows: list[Any], encoding: Encoding
):
    """Rows of every type are restored, decoded by the attributes that the emulator adds."""
    client, name = client_for(kind, request), f"there-and-back-{kind.lower()}-{encoding.lower()}"
    schema = topic(client, name, kind, encoding, definition)
    type_ = schema.arrow_type()
    sent = pa.array(rows, type_)

    publish(client, name, *schema.encoder(type_)(sent).to_pylist())
    messages = pull(client, name, len(rows))

    attributes = [message.attributes for message in messages]
    decoded = Decoder(schema, _unasked).decode(
        pa.array([message.data for message in messages], pa.binary()),
        pa.array([each.get("googclient_schemarevisionid") for each in attributes], pa.string()),
        pa.array([each.get("googclient_schemaencoding") for each in attributes], pa.string()),
    )
    assert [None, None] == decoded.error.to_pylist()
    assert {row["text"]: row for row in sent.to_pylist()} == {row["text"]: row for row in decoded.value.to_pylist()}


def _unasked(name: str) -> SchemaRevision:
    raise AssertionError(f"asked for {name}, and there is one revision")


@pytest.mark.parametrize(
    ("kind", "definition", "encoding", "wrong"),
    [
        ("AVRO", AVRO, "BINARY", b"\x02"),
        ("AVRO", AVRO, "JSON", b"{}"),
        ("PROTOCOL_BUFFER", PROTO, "BINARY", b"\x08"),
        ("PROTOCOL_BUFFER", PROTO, "JSON", b"[]"),
    ],
)
def test_it_does_refuse(
    request: pytest.FixtureRequest, kind: SchemaType, definition: str, encoding: Encoding, wrong: bytes
):
    """A request that does not fit is refused, so the ones accepted above did fit."""
    client, name = client_for(kind, request), f"refused-{kind.lower()}-{encoding.lower()}"
    topic(client, name, kind, encoding, definition)
    with refused("INVALID_ARGUMENT"):
        publish(client, name, wrong)

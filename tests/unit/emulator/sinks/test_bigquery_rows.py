"""Rows of BigQuery subscriptions, and tables that do not fit them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.sinks.bigquery_rows import reader
from pubsub_spark.emulator.sinks.destination import DestinationError, TopicSchema
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.message import Message
from pubsub_spark.schema import schema_types

SUB = "projects/p/subscriptions/rows"
AVRO = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "tags", "type": {"type": "map", "values": "int"}},
            {"name": "kind", "type": ["null", {"type": "enum", "name": "E", "symbols": ["X", "Y"]}]},
        ],
    }
)
AVRO_COLUMNS = {"a": "INTEGER", "day": "DATE", "tags": "REPEATED", "kind": "INTEGER"}
AVRO_JSON = b'{"a": 7, "day": 2, "tags": {"k": 1}, "kind": {"E": "Y"}}'
AVRO_ROW = {"a": 7, "day": date(1970, 1, 3), "tags": [{"key": "k", "value": 1}], "kind": 1}
PROTO = """syntax = "proto3"; message M {
  enum E { X = 0; Y = 1; } message N { int32 b = 1; }
  int64 a = 1; bytes raw = 2; repeated N n = 3; optional string s = 4; map<string, int32> m = 5; E e = 6; }"""
PROTO_COLUMNS = {"a": "INTEGER", "raw": "BYTES", "n": "REPEATED", "s": "STRING", "m": "REPEATED", "e": "STRING"}
PROTO_JSON = b'{"a": "7", "raw": "/w==", "n": [{"b": 1}], "m": {"k": 2}, "e": "Y"}'
PROTO_ROW = {"a": 7, "raw": b"\xff", "n": [{"b": 1}], "s": None, "m": [{"key": "k", "value": 2}], "e": "Y"}
METADATA = {"subscription_name": "STRING", "message_id": "STRING", "publish_time": "TIMESTAMP", "attributes": "JSON"}


def row(data: bytes, columns: dict[str, str], schema: TopicSchema | None = None, **fields: Any) -> dict[str, Any]:
    body = protos.PubsubMessage(data=data, attributes={"x": "y"}, ordering_key="k").SerializeToString()
    [frame] = wire_format.message_frames([body], 10**16, wire_format.publish_time_field(1.5))
    message = Message(10**16, 1.5, "k", frame)
    return reader(protos.BigQueryConfig(table="p.d.t", **fields), columns, schema)(message, SUB)


def topic_schema(kind: Any, text: str) -> TopicSchema:
    return TopicSchema({}, schema_types.parse(kind, text), "JSON")


@pytest.mark.parametrize(("column", "value"), [("BYTES", b"{}"), ("STRING", "{}"), ("JSON", "{}")])
def test_without_a_schema_there_is_data(column, value):
    """The data go into the column `data`, as text if that is not BYTES."""
    assert {"data": value} == row(b"{}", {"data": column})


def test_metadata_have_columns():
    """The ordering key is an attribute. Attributes are JSON."""
    found = row(b"a", {"data": "BYTES", **METADATA}, write_metadata=True)

    assert (SUB, "10000000000000000") == (found["subscription_name"], found["message_id"])
    assert datetime.fromtimestamp(1.5, UTC) == found["publish_time"]
    assert {"x": "y", "ordering_key": "k"} == json.loads(found["attributes"])


@pytest.mark.parametrize(
    ("kind", "text", "data", "columns", "expected"),
    [
        ("AVRO", AVRO, AVRO_JSON, AVRO_COLUMNS, AVRO_ROW),
        ("PROTOCOL_BUFFER", PROTO, PROTO_JSON, PROTO_COLUMNS, PROTO_ROW),
    ],
    ids=["Avro", "Protobuf"],
)
def test_topic_schema_makes_the_columns(kind, text, data, columns, expected):
    """A field is written to the column of its name, as BigQuery has it. A map is a list of keys and values."""
    schema = topic_schema(kind, text)

    assert expected == row(data, columns, schema, use_topic_schema=True)
    fewer = {"a": columns["a"]}
    assert {"a": 7} == row(data, fewer, schema, use_topic_schema=True, drop_unknown_fields=True)
    with pytest.raises(DestinationError, match="The table has no column") as error:
        row(data, fewer, schema, use_topic_schema=True)
    assert "SCHEMA_MISMATCH" == error.value.state


@pytest.mark.parametrize(
    ("columns", "fields", "sentence"),
    [
        ({}, {}, "The table has no column `data`. Add one of BYTES or JSON or STRING."),
        ({"data": "INTEGER"}, {}, "The column `data` is INTEGER, and must be BYTES or JSON or STRING."),
        ({"data": "BYTES"}, {"write_metadata": True},
         "The table has no column `subscription_name`. Add one of STRING."),
        ({**AVRO_COLUMNS, "a": "STRING"}, {"use_topic_schema": True},
         "The column `a` is STRING, and must be BIGNUMERIC or INTEGER or NUMERIC."),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit(columns, fields, sentence):
    """A missing column, or one of another type, is a mismatch of the whole subscription."""
    with pytest.raises(DestinationError) as error:
        row(b"{}", columns, topic_schema("AVRO", AVRO), **fields)

    assert ("SCHEMA_MISMATCH", sentence) == (error.value.state, str(error.value))


def test_table_schema_takes_json_objects():
    """With useTableSchema the data are a JSON object of columns. Other fields are dropped, or prevent the row."""
    columns = {"a": "INTEGER", "j": "JSON"}

    assert {"a": 1, "j": '{"x": [1]}'} == row(b'{"a": 1, "j": {"x": [1]}}', columns, use_table_schema=True)
    assert {"a": 1} == row(b'{"a": 1, "b": 2}', columns, use_table_schema=True, drop_unknown_fields=True)
    for data in (b'{"b": 2}', b"[]", b"no"):
        with pytest.raises(ValueError, match=r"no column|not a JSON object|Expecting value"):
            row(data, columns, use_table_schema=True)


def test_types_by_their_names_and_symbols_of_any_script():
    """A type that is defined elsewhere is resolved, and schemas that fastavro's parser refuses are read."""
    symbols = {"type": "enum", "name": "E", "symbols": ["x", "ä"]}
    price = {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 12}  # ignored
    fields = [("e", symbols), ("named", ["E", "null"]), ("price", price)]
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields]})
    columns = {"e": "STRING", "named": "INTEGER", "price": "BYTES"}

    found = row(
        '{"e": "ä", "named": {"E": "ä"}, "price": "x"}'.encode(),
        columns,
        topic_schema("AVRO", text),
        use_topic_schema=True,
    )

    assert {"e": "ä", "named": 1, "price": b"x"} == found


def test_message_that_is_none_of_the_schema_makes_no_row():
    """A message that does not fit the schema is a ValueError of that message alone."""
    with pytest.raises(ValueError, match="a"):
        row(b'{"a": "x"}', AVRO_COLUMNS, topic_schema("AVRO", AVRO), use_topic_schema=True)


def test_day_that_no_calendar_has_makes_no_row():
    """A date that Avro allows and Python does not is an error of that message alone."""
    data = AVRO_JSON.replace(b'"day": 2', b'"day": 2147483647')
    with pytest.raises(OverflowError, match="greater than maximum"):
        row(data, AVRO_COLUMNS, topic_schema("AVRO", AVRO), use_topic_schema=True)

"""Messages from rows: each field of a message, made of an Arrow batch by its column mapping."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from pubsub_spark.codec.envelope import DATABRICKS, MESSAGES, databricks
from pubsub_spark.codec.spark_types import struct_type
from pubsub_spark.errors import RowError
from pubsub_spark.options import WriteOptions
from pubsub_spark.write.column_mapping import ColumnMapping
from pubsub_spark.write.messages import to_messages

ATTRIBUTES = pa.map_(pa.string(), pa.string())
SPARK_ATTRIBUTES = spark.MapType(spark.StringType(), spark.StringType())
BINARY, STRING, LONG = spark.BinaryType(), spark.StringType(), spark.LongType()


def schema(**columns: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in columns.items()])


def mapping(of: spark.StructType, **options: str) -> ColumnMapping:
    return ColumnMapping.of(of, WriteOptions.parse({"topicId": "projects/p/topics/ttt"} | options, {}))


def no_encoding(rows: pa.StructArray) -> pa.Array:
    raise AssertionError("these rows have bytes already")


def sent(batch: pa.RecordBatch, of: spark.StructType, **options: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = to_messages(batch, mapping(of, **options), no_encoding).to_pylist()
    return found


def test_data_as_bytes_and_as_text():
    """A string is sent as UTF-8. A null is empty."""
    text = pa.RecordBatch.from_pydict({"data": pa.array(["ä", None])})
    large = pa.RecordBatch.from_pydict({"data": pa.array([b"a", None], pa.large_binary())})

    assert [{"data": "ä".encode()}, {"data": b""}] == sent(text, schema(data=STRING))
    assert [{"data": b"a"}, {"data": b""}] == sent(large, schema(data=BINARY))


def test_columns_are_found_whatever_their_case():
    """Columns are found in any case, as Spark's resolver finds them."""
    batch = pa.RecordBatch.from_pydict({"DATA": pa.array([b"a"]), "Ordering_Key": pa.array(["k"])})

    assert [{"data": b"a", "ordering_key": "k"}] == sent(batch, schema(DATA=BINARY, Ordering_Key=STRING))


def test_null_attributes_are_absent():
    """A null map has no attributes, a null value is no attribute."""
    maps = pa.array([[("a", "1"), ("b", None)], None, [], [("c", None)], [("d", "")]], ATTRIBUTES)
    batch = pa.RecordBatch.from_pydict({"data": pa.array([b"x"] * 5), "attributes": maps})

    found = [row["attributes"] for row in sent(batch, schema(data=BINARY, attributes=SPARK_ATTRIBUTES))]
    assert [[("a", "1")], [], [], [], [("d", "")]] == found


@pytest.mark.parametrize("columns", ["native", "databricks"])
def test_attributes_of_a_message_that_was_read(columns: str):
    """Pub/Sub adds the schema's attributes to each message and refuses them in a publish. Those of tracing stay."""
    added = dict.fromkeys(("googclient_schemaname", "googclient_schemarevisionid", "googclient_schemaencoding"), "x")
    own = {"k": "v", "googclient_traceparent": "00-1"}
    if columns == "native":
        of = schema(data=BINARY, attributes=SPARK_ATTRIBUTES)
        maps = pa.array([[*added.items(), *own.items()], [*added.items()], None], ATTRIBUTES)
        batch = pa.RecordBatch.from_pydict({"data": pa.array([b"x"] * 3), "attributes": maps})
        found = sent(batch, of)
    else:
        of = schema(payload=BINARY, attributes=STRING)
        texts = pa.array([json.dumps(added | own), json.dumps(added), None], pa.string())
        batch = pa.RecordBatch.from_pydict({"payload": pa.array([b"x"] * 3), "attributes": texts})
        found = sent(batch, of, columns="databricks")

    assert [[*own.items()], [], []] == [row["attributes"] for row in found]


def test_attribute_columns_come_after_the_map():
    """Integers, booleans and dates as text. A null is absent. Of one name the column takes the place of the entry."""
    batch = pa.RecordBatch.from_pydict(
        {
            "data": pa.array([b"x"] * 4),
            "attributes": pa.array([[("n", "old"), ("a", "1")], [], None, [("n", "kept")]], ATTRIBUTES),
            "n": pa.array([7, None, 9, None], pa.int64()),
            "d": pa.array([datetime.date(2026, 1, 31), None, None, None]),
            "yes": pa.array([True, False, None, None]),
        }
    )
    of = schema(data=BINARY, attributes=SPARK_ATTRIBUTES, n=LONG, d=spark.DateType(), yes=spark.BooleanType())

    assert [
        [("a", "1"), ("n", "7"), ("d", "2026-01-31"), ("yes", "true")],
        [("yes", "false")],
        [("n", "9")],
        [("n", "kept")],
    ] == [row["attributes"] for row in sent(batch, of, attributeColumns="n, d,yes")]


def test_slices_send_their_own_rows():
    """An Arrow batch may be a slice of a larger one."""
    batch = pa.RecordBatch.from_pydict(
        {
            "data": pa.array([b"0", b"1", b"2", b"3"]),
            "attributes": pa.array([[("a", "0")], [("a", "1")], None, [("a", "3"), ("b", "3")]], ATTRIBUTES),
            "n": pa.array([0, 1, 2, 3]),
        }
    ).slice(1, 3)
    of = schema(data=BINARY, attributes=SPARK_ATTRIBUTES, n=LONG)

    assert [
        {"data": b"1", "attributes": [("a", "1"), ("n", "1")]},
        {"data": b"2", "attributes": [("n", "2")]},
        {"data": b"3", "attributes": [("a", "3"), ("b", "3"), ("n", "3")]},
    ] == sent(batch, of, attributeColumns="n")


def test_ordering_key_from_any_column():
    """`orderingKey` names a column, which may be a number. A null orders nothing."""
    batch = pa.RecordBatch.from_pydict({"data": pa.array([b"x"] * 2), "device": pa.array([7, None])})

    assert ["7", ""] == [
        row["ordering_key"] for row in sent(batch, schema(data=BINARY, device=LONG), orderingKey="DEVICE")
    ]


@pytest.mark.parametrize("path", [("user", "id"), ("value", "user", "id")], ids=".".join)
def test_ordering_key_from_a_field_of_the_payload(path: tuple[str, ...]):
    """An AsyncAPI message's `orderingKey` may be the path of a field, whether the payload is the row or a `value`."""
    user = pa.array([{"id": 7}, {"id": None}, None], pa.struct([("id", pa.int64())]))
    payload = pa.StructArray.from_arrays([user], ["user"]) if path[0] == "value" else user
    batch = pa.RecordBatch.from_arrays([payload], [path[0]])
    options = WriteOptions.parse({"topicId": "projects/p/topics/ttt"}, {})
    found = ColumnMapping.of(struct_type(pa.struct(batch.schema)), replace(options, ordering_field=("user", "id")))

    made = to_messages(batch, found, lambda rows: pa.array([b"x"] * len(rows)))

    assert ["7", "", ""] == made["ordering_key"].to_pylist()


def test_a_topic_for_each_row():
    """Without `topicId` the column decides. With it the column is not looked at."""
    of = schema(data=BINARY, topic=STRING)
    batch = pa.RecordBatch.from_pydict({"data": pa.array([b"x"]), "topic": pa.array(["mine"])})

    by_column = ColumnMapping.of(of, WriteOptions.parse({"projectId": "p"}, {}))
    assert [{"data": b"x", "topic": "mine"}] == to_messages(batch, by_column, no_encoding).to_pylist()
    assert [{"data": b"x"}] == sent(batch, of)


def test_the_whole_row_is_the_message():
    """Without `data` and `value` all columns are encoded except those sent next to the data."""
    of = schema(id=LONG, attributes=SPARK_ATTRIBUTES, name=STRING, ordering_key=STRING)
    batch = pa.RecordBatch.from_pydict(
        {
            "id": pa.array([1]),
            "attributes": pa.array([[("a", "b")]], ATTRIBUTES),
            "name": pa.array(["x"]),
            "ordering_key": pa.array(["k"]),
        }
    )
    encoded = to_messages(batch, mapping(of), lambda rows: pa.array([str(row) for row in rows.to_pylist()]))

    assert [{"data": b"{'id': 1, 'name': 'x'}", "attributes": [("a", "b")], "ordering_key": "k"}] == encoded.to_pylist()


def test_databricks_columns_round_trip():
    """A message that was read with `columns=databricks` is published with the payload and attributes that it had."""
    rows = {
        "message_id": ["1", "2"],
        "data": [b"a\xff", b""],
        "attributes": [[("k", "v"), ("quoted", 'a "b" \\ ä')], []],
        "publish_time": [0, 0],
        "ordering_key": ["", ""],
        "delivery_attempt": [0, 0],
    }
    read = databricks(
        pa.RecordBatch.from_arrays([pa.array(rows[field.name], field.type) for field in MESSAGES], schema=MESSAGES)
    )
    of = struct_type(pa.struct(list(DATABRICKS)))

    assert [
        {"data": b"a\xff", "attributes": [("k", "v"), ("quoted", 'a "b" \\ ä')]},
        {"data": b"", "attributes": []},
    ] == sent(read, of, columns="databricks")


@pytest.mark.parametrize(
    "text", ["[1]", '{"a": 1}', "nonsense", "null", '{"a": "\\ud800"}', '{"\\udfff": "a"}', "[" * 100_000]
)
def test_attributes_that_are_no_json_object_name_their_row(text: str):
    """A text that is no JSON object of strings is an error of its row. A null text has no attributes."""
    batch = pa.RecordBatch.from_pydict(
        {"payload": pa.array([b"a", b"b"]), "attributes": pa.array([None, text], pa.string())}
    )
    with pytest.raises(RowError, match="`attributes` is not a JSON object") as caught:
        sent(batch, schema(payload=BINARY, attributes=STRING), columns="databricks")
    assert 1 == caught.value.row

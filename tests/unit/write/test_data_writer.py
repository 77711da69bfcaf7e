"""The data writer of a task: rows become confirmed messages, each Arrow batch checked before any of it is published."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from pubsub_spark.backend import EmulatorBackend
from pubsub_spark.codec.registry import SchemaRevision, TopicSchema
from pubsub_spark.errors import DataError
from pubsub_spark.options import WriteOptions
from pubsub_spark.publish import limits, requests
from pubsub_spark.publish.dead_letters import ERROR_ATTRIBUTE, INCOMPLETE_ATTRIBUTE, SIZE_ATTRIBUTE
from pubsub_spark.write import data_writer
from pubsub_spark.write.column_mapping import ColumnMapping
from pubsub_spark.write.data_writer import PartitionId, write_partition
from pubsub_spark.write.metrics import WriteMetrics
from pubsub_spark.write.plan import WritePlan

ATTRIBUTES = pa.map_(pa.string(), pa.string())
TOPIC = "projects/p/topics/ttt"
DEAD = "projects/p/topics/dead"
PARTITION = PartitionId(3, "query/7/3")
TYPES = {
    "data": spark.BinaryType(),
    "attributes": spark.MapType(spark.StringType(), spark.StringType()),
    "ordering_key": spark.StringType(),
    "topic": spark.StringType(),
    "n": spark.LongType(),
    "text": spark.StringType(),
    "tags": spark.ArrayType(spark.StringType()),
    "value": spark.StructType(),
}


def rows(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def run(pubsub, batches, topic_schema=None, **options):
    """Run a task over these Arrow batches."""
    names = batches[0].schema.names
    parsed = WriteOptions.parse({"topicId": TOPIC} | options if "topic" not in names else options, {})
    mapping = ColumnMapping.of(spark.StructType([spark.StructField(name, TYPES[name]) for name in names]), parsed)
    return write_partition(WritePlan(parsed, pubsub, mapping, topic_schema), iter(batches), PARTITION)


def attributes(pubsub):
    return [dict(message.attributes) for request in pubsub.requests for message in request.messages]


def test_no_rows_are_a_success(pubsub):
    """An empty task publishes nothing and reports it."""
    assert WriteMetrics() == run(pubsub, [rows(data=pa.array([], pa.binary()))])
    assert [] == pubsub.requests


def test_batches_are_published(pubsub):
    """Every row of every Arrow batch has an id in the end."""
    metrics = run(pubsub, [rows(data=pa.array([b"a", b"b"])), rows(data=pa.array([b"c"]))])

    assert (3, 2) == (metrics.messages, metrics.requests)
    assert [b"a", b"b", b"c"] == sorted(pubsub.data)


def test_an_id_for_each_row_is_the_same_in_every_try(pubsub):
    """The id of a row is query, batch, partition and row number, which continues from Arrow batch to Arrow batch."""
    batches = [rows(data=pa.array([b"a", b"b"])), rows(data=pa.array([b"c"]))]
    run(pubsub, batches, idAttribute="id", maxOutstandingRequests="1")
    first = attributes(pubsub)
    run(pubsub, batches, idAttribute="id", maxOutstandingRequests="1")

    assert [{"id": "query/7/3/0"}, {"id": "query/7/3/1"}, {"id": "query/7/3/2"}] == first
    assert first == attributes(pubsub)[3:]


def test_an_id_beside_other_attributes(pubsub):
    """The id is added to a row's own attributes, and rows without attributes also get it."""
    batch = rows(data=pa.array([b"a", b"b"]), attributes=pa.array([[("x", "1")], None], ATTRIBUTES))
    run(pubsub, [batch], idAttribute="id")

    assert [{"x": "1", "id": "query/7/3/0"}, {"id": "query/7/3/1"}] == attributes(pubsub)


def test_an_id_takes_the_place_of_an_attribute(pubsub):
    """An attribute that the id replaces counts for no limit: neither the hundredth entry nor a value that is too
    long."""
    most = [(f"k{i}", "v") for i in range(99)]
    batch = rows(data=pa.array([b"a"]), attributes=pa.array([[("id", "v" * 1025), *most]], ATTRIBUTES))
    run(pubsub, [batch], idAttribute="id")

    assert [{**dict(most), "id": "query/7/3/0"}] == attributes(pubsub)


def test_a_bad_row_stops_its_arrow_batch_before_anything_is_sent(pubsub):
    """The error names row and column, and the messages sent before. Rows are counted over the whole partition."""
    fine = rows(data=pa.array([b"a", b"b"]), attributes=pa.array([None, None], ATTRIBUTES))
    bad = rows(
        data=pa.array([b"c", b"d", b"e"]), attributes=pa.array([None, [("googx", "1")], [("googy", "")]], ATTRIBUTES)
    )

    with pytest.raises(DataError) as caught:
        run(pubsub, [fine, bad])

    assert (
        "Row 3 of partition 3: `attributes` has the key `googx`, but names that begin with `goog` are Google's own. "
        "Change it, or set `onOversize` to `drop` or `deadletter`. 1 more rows of its Arrow batch are also refused. "
        "Before that, 2 messages of this task were confirmed, the first of them `0`, `1`." == str(caught.value)
    )
    assert [b"a", b"b"] == pubsub.data


def test_a_bad_row_behind_buffered_ones(pubsub):
    """Rows with ordering keys before a bad row may be buffered and unpublished, and the error reports it."""
    fine = rows(data=pa.array([b"a"]), ordering_key=pa.array(["k"]))
    bad = rows(data=pa.array([b"b"]), ordering_key=pa.array(["k" * 1025]))

    with pytest.raises(
        DataError, match=r"Row 1 of partition 3: `ordering_key` has 1025 bytes.*No message of this task"
    ):
        run(pubsub, [fine, bad])


@pytest.mark.parametrize("policy", ["error", "drop", "deadletter"])
def test_an_empty_message_is_an_error_always(pubsub, policy):
    """A null without attributes is no oversize: nothing could be kept of it."""
    with pytest.raises(DataError, match=r"Row 1 of partition 3: `data` is null or empty, and there are no attributes"):
        run(pubsub, [rows(data=pa.array([b"a", None]))], onOversize=policy, deadLetterTopic=DEAD, idAttribute="id")

    assert [] == pubsub.data


def test_oversize_rows_are_dropped_when_asked(pubsub):
    """The others are sent, the dropped are counted, and ids keep to the rows."""
    batch = rows(data=pa.array([b"a", b"b", b"c"]), attributes=pa.array([None, [("k", "v" * 1025)], None], ATTRIBUTES))
    metrics = run(pubsub, [batch], onOversize="drop", idAttribute="id")

    assert (2, 1, 0) == (metrics.messages, metrics.dropped, metrics.dead_lettered)
    assert [b"a", b"c"] == pubsub.data
    assert ["query/7/3/0", "query/7/3/2"] == [found["id"] for found in attributes(pubsub)]


def test_oversize_rows_go_to_the_dead_letter_topic(pubsub):
    """Oversize rows go to the dead-letter topic, shortened, with the reason, the size, and the attributes that fit."""
    batch = rows(
        data=pa.array([b"a", b"x" * 10_000_000]),
        attributes=pa.array([None, [("fine", "1"), ("long", "v" * 1025), ("Google", "2"), ("", "3")]], ATTRIBUTES),
    )
    metrics = run(pubsub, [batch], onOversize="deadletter", deadLetterTopic=DEAD, maxOutstandingRequests="1")

    assert (1, 0, 1) == (metrics.messages, metrics.dropped, metrics.dead_lettered)
    [letter] = [request for request in pubsub.requests if request.topic == DEAD]
    [message] = letter.messages
    assert b"x" * 9_000_000 == message.data
    assert {"fine", ERROR_ATTRIBUTE, SIZE_ATTRIBUTE, INCOMPLETE_ATTRIBUTE} == set(message.attributes)
    assert "data,attributes" == message.attributes[INCOMPLETE_ATTRIBUTE]
    assert message.attributes[ERROR_ATTRIBUTE].startswith(
        "Row 1 of partition 3: `attributes` has a value of 1025 bytes"
    )
    assert "10000000" == message.attributes[SIZE_ATTRIBUTE]


def test_a_dead_letter_keeps_the_id_of_its_row(pubsub):
    """Of more attributes than a message may have, that of `idAttribute` is among those that a dead letter keeps."""
    many = [(f"k{i}", "v") for i in range(200)]
    batch = rows(data=pa.array([b"a"]), attributes=pa.array([many], ATTRIBUTES))
    run(pubsub, [batch], onOversize="deadletter", deadLetterTopic=DEAD, idAttribute="id")

    [letter] = attributes(pubsub)
    assert (100, "query/7/3/0") == (len(letter), letter["id"])


def test_each_row_to_its_topic(pubsub):
    """Each row goes to its own topic, by id or full name. Each request is for one topic."""
    batch = rows(data=pa.array([b"a", b"b", b"c"]), topic=pa.array(["one", "projects/q/topics/two", "one"]))
    run(pubsub, [batch], projectId="p")

    sent = {request.topic: [message.data for message in request.messages] for request in pubsub.requests}
    assert {"projects/p/topics/one": [b"a", b"c"], "projects/q/topics/two": [b"b"]} == sent


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [(None, "`topic` is null, but must name a topic"), ("no/topic", "`topic` names no topic: `no/topic` is not")],
)
def test_a_row_without_a_topic_is_named(pubsub, topic, complaint):
    """The error about a row without a topic names the row and its column."""
    with pytest.raises(DataError, match=f"Row 1 of partition 3: {complaint}"):
        run(pubsub, [rows(data=pa.array([b"a", b"b"]), topic=pa.array(["one", topic]))], projectId="p")


def test_keys_share_requests_across_arrow_batches(pubsub):
    """Rows of a key are buffered, so that a thousand keys do not make a thousand small requests a batch."""
    batches = [rows(data=pa.array([b"%d" % i] * 2), ordering_key=pa.array(["a", "b"])) for i in range(10)]
    metrics = run(pubsub, batches)

    assert 2 == metrics.requests
    assert [b"%d" % i for i in range(10)] == pubsub.data_of_key("a") == pubsub.data_of_key("b")


def test_buffered_messages_are_bounded(pubsub, monkeypatch):
    """However many rows there are, a limited number of bytes of messages is buffered before they are published."""
    monkeypatch.setattr(data_writer, "MAX_BUFFERED_BYTES", 1000)
    buffered = []
    encoded_requests = requests.encoded_requests

    def noted(messages, sizes, *args):
        buffered.append(int(np.sum(sizes)))
        return encoded_requests(messages, sizes, *args)

    monkeypatch.setattr(data_writer, "encoded_requests", noted)
    batch = rows(data=pa.array([b"x" * 96]), ordering_key=pa.array(["k"]))
    one = int(limits.message_sizes(batch)[0])
    run(pubsub, [batch] * 100)

    assert max(buffered) < 1000 + one
    assert 100 == len(pubsub.data)


def test_a_row_becomes_json(pubsub):
    """A row becomes JSON where the topic has no schema."""
    run(pubsub, [rows(n=pa.array([1, None]))])

    assert [b'{"n":1}', b"{}"] == pubsub.data


def test_a_row_is_encoded_by_the_schema(pubsub):
    """A row is encoded by the topic's schema if the topic has one, here in Avro's binary."""
    definition = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
    schema = TopicSchema("BINARY", SchemaRevision("projects/p/schemas/sss", "r1", "AVRO", definition))
    run(pubsub, [rows(n=pa.array([1, -1]))], topic_schema=schema)

    assert [b"\x02", b"\x01"] == pubsub.data


def test_a_row_that_the_schema_refuses_is_named(pubsub):
    """The codec counts the rows of an Arrow batch. The sentence counts those of the partition."""
    definition = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
    schema = TopicSchema("BINARY", SchemaRevision("projects/p/schemas/sss", "r1", "AVRO", definition))

    with pytest.raises(
        DataError, match=r"^Row 3 of partition 3: column `n` is null, the schema wants a value\. Before"
    ):
        run(pubsub, [rows(n=pa.array([1, 2])), rows(n=pa.array([3, None]))], topic_schema=schema)


def test_a_row_after_rows_without_a_value_is_named(pubsub):
    """The error's row number also counts null rows, which are not encoded."""
    definition = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
    schema = TopicSchema("BINARY", SchemaRevision("projects/p/schemas/sss", "r1", "AVRO", definition))
    batch = rows(
        value=pa.array([None, {"n": 1}, None, {"n": None}], pa.struct([("n", pa.int64())])),
        attributes=pa.array([[("a", "b")]] * 4, ATTRIBUTES),
    )

    with pytest.raises(DataError, match=r"^Row 3 of partition 3: column `n` is null"):
        run(pubsub, [batch], topic_schema=schema)


def test_a_row_may_have_no_column_in_its_payload(pubsub):
    """If all columns are attributes and every field of the schema has a default, there is a message for each row."""
    definition = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long", "default": 7}]}'
    schema = TopicSchema("BINARY", SchemaRevision("projects/p/schemas/sss", "r1", "AVRO", definition))
    options = WriteOptions.parse({"topicId": TOPIC, "attributeColumns": "text"}, {})
    columns = spark.StructType([spark.StructField("text", spark.StringType())])
    mapping = ColumnMapping.of(columns, options).for_schema(["n"])

    write_partition(WritePlan(options, pubsub, mapping, schema), [rows(text=pa.array(["a", "b"]))], PARTITION)

    assert [b"\x0e", b"\x0e"] == pubsub.data
    assert [{"text": "a"}, {"text": "b"}] == attributes(pubsub)


VALUE_OR_NULL = rows(
    value=pa.array([{"n": 1}, None], pa.struct([("n", pa.int64())])),
    attributes=pa.array([[("a", "b")]] * 2, ATTRIBUTES),
)


def test_a_null_value_that_the_schema_refuses_is_named(pubsub):
    """A null `value` with attributes is a message without data. The service would refuse its whole request."""
    definition = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
    schema = TopicSchema("BINARY", SchemaRevision("projects/p/schemas/sss", "r1", "AVRO", definition))

    with pytest.raises(
        DataError,
        match=r"^Row 1 of partition 3: `value` is null, and the schema `projects/p/schemas/sss@r1` has no message "
        r"without data\. No message of this task was confirmed\.$",
    ):
        run(pubsub, [VALUE_OR_NULL], topic_schema=schema)


def test_a_null_value_may_be_a_message_of_attributes(pubsub):
    """If the topic has no schema, or no data is a message of it, a null `value` with attributes is published."""
    definition = 'syntax = "proto3"; message R { int64 n = 1; }'
    schema = TopicSchema("BINARY", SchemaRevision("projects/p/schemas/sss", "r1", "PROTOCOL_BUFFER", definition))
    run(pubsub, [VALUE_OR_NULL], topic_schema=schema)
    run(pubsub, [VALUE_OR_NULL])

    assert [b"\x08\x01", b"", b'{"n":1}', b""] == pubsub.data


BAD_TEXT = pa.array([b"fine", b"\xc3\x28"]).view(pa.string())  # as Spark's CAST(X'C328' AS STRING)
PLAIN = pa.array(["a", "b"])


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"text": BAD_TEXT}, "text"),
        ({"n": pa.array([1, 2]), "tags": pa.ListArray.from_arrays([0, 1, 2], BAD_TEXT)}, "tags"),
        ({"value": pa.StructArray.from_arrays([PLAIN, BAD_TEXT], ["a", "b"])}, "value.b"),
        ({"data": PLAIN, "ordering_key": BAD_TEXT}, "ordering_key"),
        ({"data": PLAIN, "topic": BAD_TEXT}, "topic"),
        ({"data": PLAIN, "attributes": pa.MapArray.from_arrays([0, 1, 2], PLAIN, BAD_TEXT)}, "attributes"),
        ({"data": PLAIN, "attributes": pa.MapArray.from_arrays([0, 1, 2], BAD_TEXT, PLAIN)}, "attributes"),
    ],
)
def test_a_string_that_is_not_utf8_is_named(pubsub, columns, named):
    """Spark takes any bytes for a string. JSON, schemas, attributes and keys do not."""
    fine = rows(**{name: column.take([0, 0]) for name, column in columns.items()})
    with pytest.raises(
        DataError, match=f"^Row 3 of partition 3: `{named}` holds a string that is not UTF-8. Repair it"
    ):
        run(pubsub, [fine, rows(**columns)], projectId="p")


def test_data_may_be_any_bytes(pubsub):
    """`data` may be any bytes, also of a string column, which nothing has to read."""
    run(pubsub, [rows(data=BAD_TEXT)])

    assert [b"fine", b"\xc3\x28"] == pubsub.data


def test_a_plan_is_pickled():
    """A plan is plain values, equal after it was pickled to a task."""
    options = WriteOptions.parse({"topicId": TOPIC}, {})
    mapping = ColumnMapping.of(spark.StructType([spark.StructField("data", spark.BinaryType())]), options)
    plan = WritePlan(options, EmulatorBackend("nowhere:1"), mapping, None)

    assert plan == pickle.loads(pickle.dumps(plan))

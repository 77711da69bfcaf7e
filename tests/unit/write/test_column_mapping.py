"""The column mapping: which column is which field of a message, and every complaint about columns."""

from __future__ import annotations

import pytest
from pyspark.sql import types as spark

from pubsub_spark.errors import SchemaError
from pubsub_spark.options import WriteOptions
from pubsub_spark.write.column_mapping import ColumnMapping

SPARK_ATTRIBUTES = spark.MapType(spark.StringType(), spark.StringType())
BINARY, STRING, LONG = spark.BinaryType(), spark.StringType(), spark.LongType()


def schema(**columns: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in columns.items()])


def mapping(of: spark.StructType, **options: str) -> ColumnMapping:
    return ColumnMapping.of(of, WriteOptions.parse({"topicId": "projects/p/topics/ttt"} | options, {}))


def complaint(of: spark.StructType, **options: str) -> str:
    with pytest.raises(SchemaError) as caught:
        mapping(of, **options)
    return str(caught.value)


def test_of_two_columns_the_exact_name_wins():
    """A case-sensitive session may have both. If neither is exact the name is ambiguous."""
    assert (1,) == mapping(schema(Data=LONG, data=BINARY), ignoreExtraColumns="true").payload
    assert "`Data` and `DATA` are both `data`" in complaint(schema(Data=BINARY, DATA=BINARY))


def test_a_struct_named_value_is_the_message():
    """A `value` that is no struct is a column like any other."""
    found = mapping(schema(message_id=STRING, value=schema(a=LONG)))
    assert ("value", (1,)) == (found.payload_kind, found.payload)
    plain = mapping(schema(id=LONG, value=spark.DoubleType()))
    assert ("row", (0, 1)) == (plain.payload_kind, plain.payload)


def test_copies_stay_in_the_payload_where_the_schema_has_them():
    """A column sent as attribute or key is also encoded, if the topic's schema has such a field."""
    found = mapping(schema(id=LONG, Kind=STRING, key=STRING), attributeColumns="kind", orderingKey="key")

    assert (0, 1, 2) == found.payload
    assert (0, 1) == found.for_schema(["id", "kind"]).payload


def test_what_is_sent_beside_the_row_is_in_it_where_the_schema_has_it():
    """A field may have the name of a part of a message: the column is both, and nothing of it is lost."""
    found = mapping(schema(id=LONG, attributes=SPARK_ATTRIBUTES, Ordering_Key=STRING))

    assert (0,) == found.payload == found.for_schema(["id"]).payload
    both = found.for_schema(["id", "attributes", "ordering_key"])
    assert ((0, 1, 2), 1, 2) == (both.payload, both.attributes, both.ordering_key)


def test_what_an_option_says_instead_is_a_column_of_the_row():
    """`topic` with `topicId`, `ordering_key` with `orderingKey`: such a column has no other meaning, so it is sent."""
    of = schema(id=LONG, topic=STRING, ordering_key=STRING)
    found = mapping(of, orderingKey="id")

    assert ((0, 1, 2), None, 0) == (found.payload, found.topic, found.ordering_key)
    assert (1, 2) == found.for_schema(["topic"]).payload
    by_row = ColumnMapping.of(of, WriteOptions.parse({"projectId": "p"}, {}))
    assert ((0,), 1, 2) == (by_row.payload, by_row.topic, by_row.ordering_key)


def test_a_column_topic_that_is_the_ordering_key_stays_in_the_row():
    """With `topicId`, `orderingKey=topic` is a column like any other. It is also left out if it names the topic."""
    of = schema(id=LONG, topic=STRING)
    found = mapping(of, orderingKey="topic")

    assert ((0, 1), None, 1) == (found.payload, found.topic, found.ordering_key)
    by_row = ColumnMapping.of(of, WriteOptions.parse({"projectId": "p", "orderingKey": "topic"}, {}))
    assert ((0,), 1, 1) == (by_row.payload, by_row.topic, by_row.ordering_key)


@pytest.mark.parametrize(
    "of", [schema(id=LONG, ordering_key=LONG), schema(attributes=STRING), schema(attributes=spark.MapType(LONG, LONG))]
)
def test_a_field_that_cannot_be_what_its_name_says(of):
    """The way out is reported if the caller may have meant a field. With `data` there is no way out."""
    way_out = "if it is a field of the message, send the message as a struct `value`"

    assert way_out in complaint(of)
    assert way_out not in complaint(spark.StructType([*of.fields, spark.StructField("data", BINARY)]))


def test_what_our_reader_adds_is_left_out():
    """A stream that is read and passed on needs no `drop`."""
    of = schema(message_id=STRING, data=BINARY, publish_time=spark.TimestampType(), delivery_attempt=LONG)

    assert ("data", (1,)) == (mapping(of).payload_kind, mapping(of).payload)


def test_encode_topic_takes_data_as_a_column():
    """`encode=topic` wants a row encoded, also one with a column that is named `data`."""
    found = mapping(schema(id=LONG, data=BINARY), encode="topic")

    assert ("row", (0, 1)) == (found.payload_kind, found.payload)


@pytest.mark.parametrize(
    ("of", "options", "expected"),
    [
        (schema(data=LONG), {}, "`data` is `bigint`, but must be binary or string"),
        (
            schema(data=BINARY, attributes=spark.MapType(STRING, BINARY)),
            {},
            "`attributes` is `map<string,binary>`, but attributes are text: cast it to `map<string,string>`",
        ),
        (schema(data=BINARY, attributes=STRING), {}, "`attributes` is `string`, but must be `map<string,string>`"),
        (schema(data=BINARY, ordering_key=LONG), {}, "`ordering_key` is `bigint`, but must be a string"),
        (schema(data=BINARY, x=LONG), {}, "`x` is no part of a message: drop it"),
        (schema(data=BINARY, atributes=SPARK_ATTRIBUTES), {}, "message (did you mean `attributes`?): drop it, name"),
        (schema(data=BINARY), {"orderingKey": "key"}, "`orderingKey` names `key`, but the columns are `data`"),
        (schema(data=BINARY), {"attributeColumns": "a"}, "`attributeColumns` names `a`, but the columns are `data`"),
        (
            schema(data=BINARY, a=spark.DoubleType()),
            {"attributeColumns": "a"},
            "`a` is `double`, but must be a string, an integer, a boolean or a date",
        ),
        (schema(data=BINARY, value=schema(a=LONG)), {}, "`data` and `value` are both a message. Drop one"),
        (schema(attributes=SPARK_ATTRIBUTES), {}, "no column `data`, `value` or any other to make a message of"),
    ],
)
def test_columns_that_do_not_fit(of, options, expected):
    """Each column that does not fit is refused in one sentence with its name."""
    assert expected in complaint(of, **options)


def test_all_complaints_come_together():
    """One error names every column that does not fit."""
    text = complaint(schema(data=LONG, ordering_key=LONG, attributes=STRING))

    assert text.startswith("These columns cannot be published: `data`")
    assert 2 == text.count(";")


def test_no_topic_at_all_is_said():
    """A write with neither `topicId` nor a column `topic` is refused."""
    with pytest.raises(SchemaError, match="there is neither the option `topicId` nor a column `topic`"):
        ColumnMapping.of(schema(data=BINARY), WriteOptions.parse({}, {}))


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        ({"payload": BINARY}, "rename it to `data`"),
        ({"messageId": STRING, "Payload": BINARY, "attributes": SPARK_ATTRIBUTES}, "rename it to `data`"),
        ({"value": BINARY}, "rename `value` to `data`,"),
        ({"key": STRING, "value": STRING}, "rename `value` to `data`, `key` to `ordering_key`,"),
        ({"value": BINARY, "ordering_key": STRING, "attributes": SPARK_ATTRIBUTES}, "rename `value` to `data`,"),
        (
            {"key": BINARY, "value": BINARY, "topic": STRING, "partition": LONG, "offset": LONG, "headers": STRING},
            "`headers` to `attributes`",
        ),
    ],
)
def test_columns_of_other_sources_are_refused(columns: dict[str, spark.DataType], hint: str):
    """Kafka's and Databricks' columns are no fields of a JSON object. The error names ours."""
    assert hint in complaint(schema(**columns))


def test_columns_of_such_names_may_be_fields():
    """Columns named `key` and `value` are fields if `value` is a struct, with `encode=topic`, or next to columns
    that Kafka does not have."""
    assert "value" == mapping(schema(value=schema(payload=BINARY, key=STRING))).payload_kind
    assert "row" == mapping(schema(payload=BINARY), encode="topic").payload_kind
    assert "row" == mapping(schema(key=STRING, value=STRING), encode="topic").payload_kind
    assert "row" == mapping(schema(id=LONG, key=STRING, value=STRING)).payload_kind
    assert "row" == mapping(schema(payload=STRING, id=LONG)).payload_kind


def test_databricks_columns():
    """The columns of Databricks' reader are a message with `columns=databricks`: nothing is left over, nothing is
    renamed."""
    read = schema(messageId=STRING, payload=BINARY, attributes=STRING, publishTimestampInMillis=LONG)
    found = mapping(read, columns="databricks")

    assert ("data", (1,), 2) == (found.payload_kind, found.payload, found.attributes)
    assert "there is no column `payload`" in complaint(schema(data=BINARY), columns="databricks")
    assert "must be a string, a JSON object" in complaint(
        schema(payload=BINARY, attributes=SPARK_ATTRIBUTES), columns="databricks"
    )

"""The forms of SQL that docs/sql.md names, each on the emulator."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pubsub_spark.emulator import Emulator
from pubsub_spark.table_function import register_function
from tests.conftest import ROOT, Names

_PAGE = (ROOT / "docs" / "sql.md").read_text()
_BLOCKS = re.findall(r"```sql\n(.*?)```", _PAGE, re.DOTALL)
[PYTHON] = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)
STATEMENTS = [each.strip() for block in _BLOCKS for each in block.split(";") if each.strip()]
TABLES = [each for each in STATEMENTS if each.startswith("CREATE TABLE")]


@pytest.fixture
def catalog(spark: SparkSession, emulator: Emulator) -> Iterator[Names]:
    """Yield the resources that the page names, on an emulator that Spark's Python processes know."""
    names = Names("my-project", "departures", "flights-to-lake", "none")
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    register_function(spark)  # as `register` does
    yield names
    for view in ("latest", "decoded"):
        spark.sql(f"DROP VIEW IF EXISTS {view}")
    for table in ("flights", "departures", "saved"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def here(statement: str, emulator: Emulator) -> str:
    """Return the statement, or the Python, with the address of this emulator among its options."""
    statement = statement.replace(
        '.option("projectId"', f'.option("endpoint", "{emulator.endpoint}").option("projectId"'
    )
    statement = statement.replace("projectId => '", f"endpoint => '{emulator.endpoint}', projectId => '")
    statement = statement.replace("projectId '", f"endpoint '{emulator.endpoint}', projectId '")
    return statement.replace("projectId = '", f"endpoint = '{emulator.endpoint}', projectId = '")


def test_statements_of_the_page_run(spark: SparkSession, emulator: Emulator, catalog: Names):
    """Each statement of the page runs. The SELECTs show the messages that the INSERT publishes."""
    emulator.publish(catalog.topic, {"data": b"first", "attributes": {"carrier": "UA"}})
    shown = [spark.sql(here(statement, emulator)).collect() for statement in STATEMENTS]

    [view, latest, parsed, json_view, decoded, function, table, other, selected, inserted] = shown
    assert [] == view == json_view == table == other == inserted
    assert (1, 1) == (len(parsed), len(decoded))  # `test_json_payloads` has payloads in JSON
    assert [("first", "UA")] == [tuple(row) for row in latest] == [tuple(row) for row in function]
    assert [b"first"] == [bytes(row.data) for row in selected]
    assert [b"first", b"EWR 1545"] == [record.data for record in emulator.messages(catalog.subscription)]


@pytest.mark.long
def test_statements_run_in_the_shell_of_sql(emulator: Emulator, tmp_path: Path):
    """`spark-sql`, a driver without Python, takes the statements of the page, but not the table function."""
    topic, subscription = "projects/my-project/topics/departures", "projects/my-project/subscriptions/flights-to-lake"
    emulator.create_topic(topic)
    emulator.create_subscription(subscription, topic)
    emulator.publish(topic, {"data": b'{"carrier": "UA"}', "attributes": {"carrier": "UA"}})
    statements = [here(each, emulator) for each in STATEMENTS if "read_pubsub" not in each]
    (tmp_path / "page.sql").write_text(";\n".join(statements) + ";\n")
    shell = Path(pyspark.__file__).parent / "bin" / "spark-sql"
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    command = [str(shell), "--master", "local[1]", "--conf", "spark.ui.enabled=false", "-S", "-f", "page.sql"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)

    assert 0 == ended.returncode, ended.stderr[-3000:]
    assert ['{"carrier": "UA"}\tUA', '{"carrier":"UA","delay":null}', "UA\tNULL\tNULL"] == ended.stdout.splitlines()[:3]
    assert [b'{"carrier": "UA"}', b"EWR 1545"] == [record.data for record in emulator.messages(subscription)]


def test_json_payloads(spark: SparkSession, emulator: Emulator, catalog: Names):
    """`from_json` and `decode=json` return the same values. Only the latter has the reason of a malformed payload."""
    emulator.publish(catalog.topic, b'{"carrier": "UA", "delay": 11, "more": 1}', b'{"delay": "late"}', b"no JSON")
    shown = [spark.sql(here(statement, emulator)).collect() for statement in STATEMENTS[:5]]
    parsed, decoded = shown[2], shown[4]

    assert ("UA", 11) == tuple(parsed[0].flight)
    assert [("UA", 11), (None, None), (None, None)] == [(row.carrier, row.delay) for row in decoded]
    assert [None, "`delay` must be an integer of 32 bits"] == [
        (row.decode_error or "").partition(", is")[0] or None for row in decoded[:2]
    ]
    assert "is not JSON" in decoded[2].decode_error


def test_definition_in_place_of_a_schema(spark: SparkSession, emulator: Emulator, catalog: Names):
    """`schema` may be a definition itself, Avro or Protobuf, if no schema resource is available."""
    emulator.publish(catalog.topic, '{"a": 7}')
    given = {"endpoint": emulator.endpoint, "subscriptionId": catalog.subscription, "decode": "topic"}
    avro = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    proto = 'syntax = "proto3"; message R { int32 a = 1; }'
    for definition in (avro, proto):
        read = spark.read.format("pubsub").options(**given, schema=definition, schemaEncoding="JSON").load()

        [row] = read.collect()
        assert (7, "inline", None) == (row.value.a, row.schema_revision, row.decode_error)


def test_table_without_options_says_how_to_give_them(spark: SparkSession, emulator: Emulator, catalog: Names):
    """Spark drops a table's options for Python sources: the error names the forms that work."""
    spark.sql(here(TABLES[0], emulator))
    spark.sql(TABLES[1])

    with pytest.raises(Exception, match=r"read and write with `WITH \(...\)` behind the table's name"):
        spark.sql("SELECT * FROM flights").collect()
    with pytest.raises(Exception, match="INSERT INTO t WITH"):
        spark.sql("INSERT INTO departures VALUES ('x')")


def test_table_with_other_columns_says_why(spark: SparkSession, emulator: Emulator, catalog: Names):
    """A table keeps the columns of its CREATE TABLE: options that make others are refused with what to do."""
    spark.sql(here(TABLES[0], emulator))
    given = f"subscriptionId = '{catalog.subscription}', endpoint = '{emulator.endpoint}', decode = 'json'"

    with pytest.raises(AnalysisException, match=r"use the same options in `WITH \(...\)`, or create it again"):
        spark.sql(f"SELECT * FROM flights WITH ({given}, schema = 'a INT')").collect()


def test_stream_of_a_table(spark: SparkSession, emulator: Emulator, catalog: Names):
    """`readStream.table` with options, as the page has it, is a stream of the subscription."""
    spark.sql(here(TABLES[0], emulator))
    names: dict[str, Any] = {"spark": spark}
    exec(here(PYTHON.partition("same = ")[0], emulator), names)

    assert names["flights"].isStreaming


@pytest.mark.skipif(pyspark.__version__.startswith("4.0"), reason="Spark 4.0 does not accept `WITH` after `STREAM t`")
def test_stream_of_a_table_in_sql(spark: SparkSession, emulator: Emulator, catalog: Names):
    """`STREAM t WITH (...)`, as the page has it, is a stream of the subscription."""
    spark.sql(here(TABLES[0], emulator))
    names: dict[str, Any] = {"spark": spark}
    exec(here(PYTHON, emulator), names)

    assert names["same"].isStreaming


def test_save_as_table_publishes(spark: SparkSession, emulator: Emulator, catalog: Names):
    """`saveAsTable` publishes the rows."""
    rows = spark.createDataFrame([("a",), ("b",)], "data string")
    writer = rows.write.format("pubsub").mode("append").option("topicId", catalog.topic)
    writer.option("endpoint", emulator.endpoint).saveAsTable("saved")

    assert {b"a", b"b"} == {record.data for record in emulator.messages(catalog.subscription)}


def test_table_function_decodes(spark: SparkSession, emulator: Emulator, catalog: Names):
    """`read_pubsub` has the columns that its options ask for, decoded values and Databricks' columns among them."""
    kinds = '{"name": "a", "type": "int"}, {"name": "b", "type": {"type": "map", "values": "string"}}'
    definition = f'{{"type": "record", "name": "R", "fields": [{kinds}]}}'
    schema = "projects/my-project/schemas/record"
    emulator.create_schema(schema, "AVRO", definition)
    emulator.create_topic("projects/my-project/topics/typed", schema=schema, encoding="JSON")
    emulator.create_subscription("projects/my-project/subscriptions/typed", "projects/my-project/topics/typed")
    emulator.publish("projects/my-project/topics/typed", '{"a": 1, "b": {"k": "v"}}')
    given = f"endpoint => '{emulator.endpoint}', projectId => 'my-project', subscriptionId => 'typed'"

    [row] = spark.sql(f"SELECT value.* FROM read_pubsub({given}, decode => 'topic')").collect()
    databricks = spark.sql(f"SELECT * FROM read_pubsub({given}, columns => 'databricks')")

    assert (1, {"k": "v"}) == tuple(row)
    assert ["messageId", "payload", "attributes", "publishTimestampInMillis"] == databricks.columns
    assert not databricks.isStreaming


def test_table_function_refuses_in_a_sentence(spark: SparkSession, emulator: Emulator, catalog: Names):
    """Options that cannot work are named, and so is an argument that differs from row to row."""
    with pytest.raises(Exception, match="`maxMessage` is not an option; did you mean `maxMessages`"):
        spark.sql("SELECT * FROM read_pubsub(subscriptionId => 'projects/p/subscriptions/s-1', maxMessage => 1)")
    with pytest.raises(Exception, match="`subscriptionId` must be a constant in `read_pubsub`, not a column"):
        spark.sql("SELECT * FROM VALUES ('s-1') AS t(s), LATERAL read_pubsub(subscriptionId => s)")
    gone = "projects/p/subscriptions/gone"
    with pytest.raises(AnalysisException, match=f"Subscription `{gone}` does not exist at .* correct its name"):
        spark.sql(f"SELECT * FROM read_pubsub(endpoint => '{emulator.endpoint}', subscriptionId => '{gone}')")


def test_missing_subscription_is_found_before_a_task_starts(spark: SparkSession, emulator: Emulator):
    """A batch read of one fails while Spark plans it, once, instead of in each attempt of a task."""
    read = spark.read.format("pubsub").option("endpoint", emulator.endpoint)
    rows = read.option("subscriptionId", "projects/p/subscriptions/gone").load()

    with pytest.raises(Exception, match="Subscription `projects/p/subscriptions/gone` does not exist") as raised:
        rows.collect()
    assert isinstance(raised.value, AnalysisException)

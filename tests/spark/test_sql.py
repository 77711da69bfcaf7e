"""The forms of SQL that docs/sql.md names, each on the emulator."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pubsub_spark.emulator import Emulator
from tests.conftest import ROOT, Names

_BLOCKS = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "sql.md").read_text(), re.DOTALL)
STATEMENTS = [each.strip() for block in _BLOCKS for each in block.split(";") if each.strip()]


@pytest.fixture
def catalog(spark: SparkSession, emulator: Emulator) -> Iterator[Names]:
    """The resources that the page names, on an emulator that Spark's Python processes are told of."""
    names = Names("my-project", "departures", "flights-to-lake", "none")
    emulator.create_topic(names.topic)
    emulator.create_subscription(names.subscription, names.topic)
    yield names
    spark.sql("DROP VIEW IF EXISTS latest")
    for table in ("flights", "departures", "saved"):
        spark.sql(f"DROP TABLE IF EXISTS {table}")


def here(statement: str, emulator: Emulator) -> str:
    """The statement with the address of this emulator among its options."""
    statement = statement.replace("projectId '", f"endpoint '{emulator.endpoint}', projectId '")
    return statement.replace("projectId = '", f"endpoint = '{emulator.endpoint}', projectId = '")


def test_statements_of_the_page_run(spark: SparkSession, emulator: Emulator, catalog: Names):
    """Each statement of the page runs; what the INSERT publishes is what the SELECTs show."""
    emulator.publish(catalog.topic, {"data": b"first", "attributes": {"carrier": "UA"}})
    shown = [spark.sql(here(statement, emulator)).collect() for statement in STATEMENTS]

    [view, latest, table, other, selected, inserted] = shown
    assert [] == view == table == other == inserted
    assert [("first", "UA")] == [tuple(row) for row in latest]
    assert [b"first"] == [bytes(row.data) for row in selected]
    assert [b"first", b"EWR 1545"] == [record.data for record in emulator.messages(catalog.subscription)]


def test_table_without_options_says_how_to_give_them(spark: SparkSession, emulator: Emulator, catalog: Names):
    """Spark drops a table's options for Python sources: the error names the forms that work."""
    spark.sql(here(STATEMENTS[2], emulator))
    spark.sql(STATEMENTS[3])

    with pytest.raises(Exception, match=r"read and write with `WITH \(...\)` behind the table's name"):
        spark.sql("SELECT * FROM flights").collect()
    with pytest.raises(Exception, match="INSERT INTO t WITH"):
        spark.sql("INSERT INTO departures VALUES ('x')")


def test_streams_of_a_table(spark: SparkSession, emulator: Emulator, catalog: Names):
    """`readStream.table` and `STREAM t WITH (...)` are streams of the subscription."""
    spark.sql(here(STATEMENTS[2], emulator))
    options = {"subscriptionId": catalog.subscription, "endpoint": emulator.endpoint}
    table = spark.readStream.options(**options).table("flights")
    given = ", ".join(f"{name} = '{value}'" for name, value in options.items())

    assert table.isStreaming
    assert spark.sql(f"SELECT * FROM STREAM flights WITH ({given})").isStreaming


def test_save_as_table_publishes(spark: SparkSession, emulator: Emulator, catalog: Names):
    """`saveAsTable` publishes the rows."""
    rows = spark.createDataFrame([("a",), ("b",)], "data string")
    writer = rows.write.format("pubsub").mode("append").option("topicId", catalog.topic)
    writer.option("endpoint", emulator.endpoint).saveAsTable("saved")

    assert {b"a", b"b"} == {record.data for record in emulator.messages(catalog.subscription)}

"""docs/asyncapi.md runs: a document that was applied, a write and a read by one of its messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pubsub_spark.asyncapi import api, apply, plan
from pubsub_spark.backend import EmulatorBackend
from pubsub_spark.emulator import Emulator

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "flights.asyncapi.yaml"
TOPIC = "projects/p/topics/flight-departures"
SUBSCRIPTION = "projects/p/subscriptions/flight-departures-to-table"


@pytest.fixture
def options(emulator: Emulator) -> dict[str, str]:
    """Return the options of the page, on an emulator on which the document was applied."""
    described = api.read(EXAMPLE, "p")
    with EmulatorBackend(emulator.endpoint).connect() as connection:
        for step in plan.plan(described, plan.Existing()).steps:
            apply.carry_out(connection.admin, step)
    return {"asyncapi": str(EXAMPLE), "message": "flightDeparted", "projectId": "p", "endpoint": emulator.endpoint}


def test_rows_go_out_and_come_back(spark: SparkSession, emulator: Emulator, options: dict[str, str]):
    """Rows are encoded by the message's schema, with its attributes and ordering key. They are decoded by it."""
    rows = spark.createDataFrame(
        [("UA", 1, "N1", 2.0), ("AA", 2, None, None)], "carrier string, flight int, tailnum string, dep_delay double"
    )
    rows.write.format("pubsub").mode("append").options(**options).save()

    published = emulator.messages(SUBSCRIPTION)
    assert {"N1", ""} == {each.ordering_key for each in published}
    assert {"nyc"} == {each.attributes["source"] for each in published}
    read = spark.read.format("pubsub").options(**options).load().select("value.*").collect()
    assert sorted(map(tuple, rows.collect())) == sorted(map(tuple, read))


def test_message_whose_attributes_contradict_is_malformed(
    spark: SparkSession, emulator: Emulator, options: dict[str, str]
):
    """A message without the binding's attribute, or with another value, has a null value and the reason."""
    for attributes in ({"source": "nyc"}, {"source": "sfo"}, {}):
        emulator.publish(TOPIC, {"data": b"\x04UA\x02\x00\x00", "attributes": attributes})

    read = spark.read.format("pubsub").options(**options, mode="PERMISSIVE").load().collect()

    errors = sorted(row.decode_error or "" for row in read)
    assert ["", "attribute `source` is `sfo`, not `nyc`", "attribute `source` is missing, not `nyc`"] == errors
    assert [None, None, "UA"] == sorted((row.value and row.value.carrier for row in read), key=str)


def test_topic_without_the_schema_is_a_sentence(spark: SparkSession, emulator: Emulator, options: dict[str, str]):
    """A topic that the document was not applied to is refused before any task."""
    emulator.create_topic("projects/p/topics/plain")
    rows = spark.createDataFrame([("UA", 1, "N1")], "carrier string, flight int, tailnum string")

    with pytest.raises(Exception, match=r"has no schema, but `message` in .* has `projects/p/schemas/flight`"):
        rows.write.format("pubsub").mode("append").options(**options, topicId="plain").save()

"""Messages that were read are written: a batch read and a write task against the emulator, without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import InputPartition

from pubsub_spark.backend import from_options
from pubsub_spark.emulator import Emulator
from pubsub_spark.options import WriteOptions
from pubsub_spark.source import PubSubDataSource
from pubsub_spark.write.column_mapping import ColumnMapping
from pubsub_spark.write.data_writer import PartitionId, write_partition
from pubsub_spark.write.plan import WritePlan
from tests.conftest import Names

AVRO = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'


@pytest.mark.parametrize("columns", ["pubsub", "databricks"])
def test_what_was_read_can_be_written(emulator: Emulator, names: Names, columns: str):
    """A message of a topic with a schema and of a client that traces is published again as its publisher made it."""
    own = {"k": "v", "googclient_traceparent": "00-1"}
    emulator.create_schema(names.schema, "AVRO", AVRO)
    emulator.create_topic(names.topic, schema=names.schema)
    emulator.create_subscription(names.subscription, names.topic)
    emulator.publish(names.topic, {"data": b"\x02", "attributes": own})
    options = {"endpoint": emulator.endpoint, "columns": columns}
    reading = PubSubDataSource({**options, "subscriptionId": names.subscription, "maxMessages": "1"})
    schema = reading.schema()
    batches = reading.reader(schema).read(InputPartition(0))

    parsed = WriteOptions.parse({**options, "topicId": names.topic}, {})
    plan = WritePlan(parsed, from_options(parsed), ColumnMapping.of(schema, parsed), None)
    metrics = write_partition(plan, batches, PartitionId(0, "id"))

    first, second = emulator.messages(names.subscription)
    assert 1 == metrics.messages
    assert {"googclient_schemaname": names.schema}.items() < first.attributes.items()
    assert own.items() < first.attributes.items()
    assert (first.data, first.attributes) == (second.data, second.attributes)

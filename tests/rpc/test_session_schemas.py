"""Decoded rows are the same at each evaluation of a batch, whatever happens to schema revisions meanwhile."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pubsub_spark.backend import schemas
from pubsub_spark.emulator.api import protos
from pubsub_spark.options import ReadOptions
from pubsub_spark.read.offset import Offset
from pubsub_spark.read.rows import Rows
from pubsub_spark.read.staging import schemas as staged_schemas
from pubsub_spark.read.stream_reader import PubSubStreamReader
from pubsub_spark.schema.schema_types import ENCODING_NUMBERS
from tests.conftest import Names
from tests.engine import Engine, until
from tests.rpc.conftest import Client


def avro(**fields: Any) -> str:
    """Return a record with fields of these types. One of a union with null has the default null."""
    default = {"default": None}
    described = [{"name": n, "type": t} | (default if isinstance(t, list) else {}) for n, t in fields.items()]
    return json.dumps({"type": "record", "name": "R", "fields": described})


ONE, TWO = avro(x="int"), avro(x="int", y=["null", "int"])


class Topic:
    """A query of a topic with a schema: its revisions, one batch, and the evaluations of that."""

    def __init__(self, query: Engine, names: Names, client: Client, options: ReadOptions) -> None:
        self.query, self.names, self.client = query, names, client
        self.topic, subscription = f"{names.topic}-schema", f"{names.subscription}-schema"
        query.emulator.create_schema(names.schema, "AVRO", ONE)
        query.emulator.create_topic(self.topic, schema=names.schema, encoding="JSON")
        query.emulator.create_subscription(subscription, self.topic)
        query.options = replace(options, subscription_id=subscription, decode="topic")
        self.offsets: tuple[Offset, Offset] | None = None

    def publish(self, *values: dict[str, Any]) -> None:
        self.query.emulator.publish(self.topic, *map(json.dumps, values))

    def newest(self) -> str:
        """Return the id of the newest revision."""
        return str(self.client.ask("SchemaService/GetSchema", name=self.names.schema).revision_id)

    def commit(self, definition: str) -> None:
        schema = protos.Schema(name=self.names.schema, type_=protos.Schema.Type.AVRO, definition=definition)
        self.client.ask("SchemaService/CommitSchema", name=self.names.schema, schema=schema)

    def commit_other(self, definition: str) -> None:
        """Set another schema of the topic."""
        name = f"{self.names.schema}-other"
        self.query.emulator.create_schema(name, "AVRO", definition)
        settings = protos.SchemaSettings(schema=name, encoding=ENCODING_NUMBERS["JSON"])
        topic = protos.Topic(name=self.topic, schema_settings=settings)
        self.client.ask("Publisher/UpdateTopic", topic=topic, update_mask={"paths": ["schema_settings"]})

    def delete(self, revision: str) -> None:
        self.client.ask("SchemaService/DeleteSchemaRevision", name=f"{self.names.schema}@{revision}")

    def start(self, **options: Any) -> None:
        """Start a run, which reads with the newest revision."""
        query = self.query
        query.options = replace(query.options, **options)
        with query.backend.connect() as connection:
            query.reader = schemas.for_reading(connection.admin, query.options)
        query.start()

    def restart(self) -> None:
        self.query.crash()
        self.start()

    def plan(self) -> None:
        """Plan the batch of the messages that were published."""
        session = self.query.session
        assert session is not None
        start, ends = session.initial_offset(), []

        def planned() -> bool:
            ends.append(session.latest_offset(start, self.query.budget))
            return bool(ends[-1] != start and self.query.opened.stream.message_count)

        until(planned, "a batch")
        self.offsets = start, ends[-1]

    def evaluate(self) -> list[dict[str, Any]]:
        """Return the rows of the batch, each partition read in a task of another process."""
        query, rows = self.query, []
        assert query.session is not None
        assert self.offsets is not None
        reader = PubSubStreamReader(query.options, query.backend, Rows(query.options, query.backend, query.reader))
        for partition in query.session.partitions(*self.offsets):
            staged_schemas.cached_answers.clear()
            for batch in reader.read(pickle.loads(pickle.dumps(partition))):
                rows += batch.drop_columns(["attributes", "publish_time"]).to_pylist()
        return rows

    def values(self) -> list[Any]:
        return [row["value"] for row in self.evaluate()]


@pytest.fixture
def topic(query: Engine, names: Names, client: Client, options: ReadOptions) -> Topic:
    return Topic(query, names, client, options)


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "PERMISSIVE"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["second action", "replay"])
def test_deleted_revision_changes_no_row(topic: Topic, mode: str, is_restarted: bool):
    """A revision is deleted after the first evaluation: the second finds it in the staging area."""
    written = topic.newest()
    topic.publish({"x": 1}, {"x": 2})
    topic.commit(TWO)
    topic.start(mode=mode)
    topic.plan()

    first = topic.evaluate()
    topic.delete(written)
    if is_restarted:
        topic.restart()

    assert [{"x": 1, "y": None}, {"x": 2, "y": None}] == [row["value"] for row in first]
    assert first == topic.evaluate()


def test_missing_revision_stays_missing_for_its_batch(topic: Topic):
    """A revision is deleted before the first evaluation: its rows are malformed, at each one for the same reason."""
    written = topic.newest()
    topic.publish({"x": 1})
    topic.commit(TWO)
    topic.delete(written)
    topic.start()
    topic.plan()

    first = topic.evaluate()
    topic.restart()

    assert [None] == [row["value"] for row in first]
    assert f"@{written}" in first[0]["decode_error"]
    assert first == topic.evaluate()


def test_committed_revision_changes_no_replay(topic: Topic):
    """A revision with a new field is committed between crash and restart: the replay has null there."""
    topic.publish({"x": 1})
    topic.start()
    topic.plan()
    first = topic.evaluate()
    topic.commit(avro(x="int", y=["int", "null"]).replace('"default": null', '"default": 5'))
    topic.restart()

    second = topic.evaluate()
    assert [{"x": 1}] == [row.pop("value") for row in first]
    assert [{"x": 1, "y": None}] == [row.pop("value") for row in second]
    assert first == second  # also `schema_revision`, of a message that names none


def test_replay_leaves_out_a_field_that_is_gone(topic: Topic):
    """The newest revision lacks a field: so does the replay."""
    topic.commit(TWO)
    topic.publish({"x": 1, "y": {"int": 2}})
    topic.start()
    topic.plan()
    assert [{"x": 1, "y": 2}] == topic.values()

    topic.commit(ONE)
    topic.restart()
    assert [{"x": 1}] == topic.values()


def test_replay_has_the_default_of_a_new_field_that_cannot_be_null(topic: Topic, caplog: pytest.LogCaptureFixture):
    """A revision with a required field is committed and the first deleted: the replay has the field's default."""
    written = topic.newest()
    topic.publish({"x": 1})
    topic.start()
    topic.plan()
    first = topic.evaluate()
    topic.commit(avro(x="int", z="int").replace('{"name": "z"', '{"default": 7, "name": "z"'))
    topic.delete(written)
    topic.restart()

    second = topic.evaluate()
    assert {"x": 1, "z": 7} == second[0].pop("value")
    assert {"x": 1} == first[0].pop("value")
    assert first == second
    assert "`value.z` is new and cannot be null" in caplog.text


def test_replay_with_another_type_has_the_malformed_rows_of_the_first(topic: Topic):
    """The definition in the options had an int and has a long: long values were malformed, and stay so."""
    topic.publish({"x": 1})
    topic.commit_other(avro(x="long"))
    topic.publish({"x": 2})
    topic.start(schema_encoding="JSON", schema=avro(x="int"))
    topic.plan()
    first = topic.evaluate()
    topic.query.crash()
    topic.start(schema=avro(x=["null", "long"]))
    second = topic.evaluate()

    assert [{"x": 1}, None] == [row["value"] for row in first]
    assert first == second


def test_replay_without_its_schema_is_decoded_with_the_current_one(topic: Topic, caplog: pytest.LogCaptureFixture):
    """A cleaner removed the staged schema: the rows are as the current schema has them, and a WARNING reports it."""
    topic.publish({"x": 1})
    topic.start()
    topic.plan()
    topic.evaluate()
    assert topic.query.opened.staging.delete("schemas/")
    topic.commit(TWO)
    topic.restart()

    assert [{"x": 1, "y": None}] == topic.values()
    assert "the schema that batch 1" in caplog.text


def test_run_without_uncommitted_batches_keeps_only_its_own_schema(topic: Topic):
    """Schemas of earlier runs are deleted when no batch can be evaluated again."""
    topic.publish({"x": 1})
    topic.start()
    topic.plan()
    topic.evaluate()
    assert topic.offsets is not None
    _, end = topic.offsets
    assert topic.query.session is not None
    topic.query.session.latest_offset(end, topic.query.budget)
    topic.query.stop()
    topic.commit(TWO)
    topic.start()
    assert topic.query.session is not None
    topic.query.session.latest_offset(end, topic.query.budget)

    assert 1 == len([*Path(topic.query.location).rglob("schemas/*")])

"""The plan of a write: the driver's decisions before any task runs, and when it asks the service."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.sql import types as spark

from pubsub_spark.backend import EmulatorBackend, schemas
from pubsub_spark.codec.registry import SchemaRevision, TopicSchema
from pubsub_spark.errors import SchemaError, ServiceError
from pubsub_spark.options import WriteOptions
from pubsub_spark.write import plan

TOPIC = "projects/p/topics/ttt"
BACKEND = EmulatorBackend("nowhere:1")
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
SCHEMA = TopicSchema("BINARY", SchemaRevision("projects/p/schemas/sss", "r1", "AVRO", AVRO))
NUMBERS = spark.StructType([spark.StructField("n", spark.LongType())])
BYTES = spark.StructType([spark.StructField("data", spark.BinaryType())])


class Service:
    """A stand-in for the request for a topic's schema: its answer, and the number of requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: TopicSchema | Exception | None = SCHEMA

    def __call__(self, admin, topic):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """Return the service of one test. Nothing is kept from the test before."""
    made = Service()
    monkeypatch.setattr(schemas, "of_topic", made)
    monkeypatch.setattr(plan, "schema_cache", {})
    return made


def options(**given: str) -> WriteOptions:
    return WriteOptions.parse({"topicId": TOPIC} | given, {})


def test_bytes_need_no_look_at_the_topic(service):
    """A write of bytes does not read the topic: a caller that may publish may lack that permission."""
    assert plan.plan_batch_write(options(), BACKEND, BYTES).topic_schema is None
    assert plan.plan_stream_write(options(), BACKEND, BYTES).topic_schema is None
    assert 0 == service.asked


def test_a_batch_write_always_asks(service):
    """A batch write asks for the newest schema each time."""
    assert SCHEMA == plan.plan_batch_write(options(), BACKEND, NUMBERS).topic_schema
    plan.plan_batch_write(options(), BACKEND, NUMBERS)

    assert 2 == service.asked


def test_a_stream_asks_once_in_ten_seconds(service, monkeypatch):
    """A stream asks for its schema once in ten seconds, not twice for each micro-batch."""
    now = [1000.0]
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: now[0]))
    service.answer = None
    for _ in range(5):
        assert plan.plan_stream_write(options(), BACKEND, NUMBERS).topic_schema is None
    assert 1 == service.asked

    service.answer = SCHEMA
    now[0] += 10.1
    assert SCHEMA == plan.plan_stream_write(options(), BACKEND, NUMBERS).topic_schema
    assert 2 == service.asked


def test_a_stream_goes_on_while_the_service_does_not_answer(service, monkeypatch):
    """A stream continues with its cached schema while the service does not answer. Without one it cannot begin."""
    now = [1000.0]
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: now[0]))
    plan.plan_stream_write(options(), BACKEND, NUMBERS)
    service.answer = ServiceError("it did not answer")
    now[0] += 10.1

    assert SCHEMA == plan.plan_stream_write(options(), BACKEND, NUMBERS).topic_schema
    with pytest.raises(ServiceError):
        plan.plan_stream_write(options(topicId="projects/p/topics/other"), BACKEND, NUMBERS)


def test_encode_none_is_json(service):
    """Rows with `encode=none` are JSON, and the topic is not asked for."""
    assert plan.plan_batch_write(options(encode="none"), BACKEND, NUMBERS).topic_schema is None
    assert 0 == service.asked


def test_encode_topic_needs_a_schema(service):
    """`encode=topic` needs a topic with a schema, also where a stream has asked before, and one topic for all rows."""
    service.answer = None
    plan.plan_stream_write(options(), BACKEND, NUMBERS)
    with pytest.raises(SchemaError, match="has no schema for `encode=topic`"):
        plan.plan_stream_write(options(encode="topic"), BACKEND, NUMBERS)

    rows = spark.StructType([*NUMBERS.fields, spark.StructField("topic", spark.StringType())])
    with pytest.raises(SchemaError, match="`encode=topic` needs one topic for all rows"):
        plan.plan_batch_write(WriteOptions.parse({"encode": "topic"}, {}), BACKEND, rows)


def test_a_column_that_the_schema_does_not_have(service):
    """A column that the schema lacks is refused, or left out if asked for. As an attribute it is not in the payload."""
    wide = spark.StructType([*NUMBERS.fields, spark.StructField("kind", spark.StringType())])

    with pytest.raises(SchemaError, match="`kind`"):
        plan.plan_batch_write(options(), BACKEND, wide)
    assert (0, 1) == plan.plan_batch_write(options(ignoreExtraColumns="true"), BACKEND, wide).mapping.payload
    assert (0,) == plan.plan_batch_write(options(attributeColumns="kind"), BACKEND, wide).mapping.payload


def test_what_has_no_json_is_told_on_the_driver(service):
    """A column without a JSON form is refused before any task runs."""
    service.answer = None
    rows = spark.StructType([spark.StructField("took", spark.DayTimeIntervalType())])

    with pytest.raises(SchemaError, match="These columns cannot be published: `took` is `interval day to second`"):
        plan.plan_batch_write(options(), BACKEND, rows)

"""The plan of a write: made on the driver, pickled to the tasks.

The service is asked for the topic and its schema only if rows are encoded, because a publisher need not be allowed to
get the topic.

Spark makes a stream's writer twice a micro-batch, in two Python processes on the driver. So a process caches a stream's
schema, for ten seconds only: Spark uses the process again for the next query, when the topic may have another schema. A
batch write always asks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from ..backend import Backend
from ..codec.registry import TopicSchema
from ..errors import SchemaError, ServiceError
from ..options import WriteOptions
from .column_mapping import ColumnMapping
from .json import unsupported

GetTopicSchema = Callable[[Backend, str], TopicSchema | None]

_SCHEMA_CACHE_SECONDS = 10.0
schema_cache: dict[tuple[Backend, str], tuple[float, TopicSchema | None]] = {}


@dataclass(frozen=True)
class WritePlan:
    options: WriteOptions
    backend: Backend
    mapping: ColumnMapping
    topic_schema: TopicSchema | None


def plan_batch_write(options: WriteOptions, backend: Backend, schema: StructType) -> WritePlan:
    """Raises SchemaError for columns that cannot be published."""
    return _plan(options, backend, schema, _get_topic_schema)


def plan_stream_write(options: WriteOptions, backend: Backend, schema: StructType) -> WritePlan:
    """Raises as `plan_batch_write`."""
    return _plan(options, backend, schema, _get_cached_topic_schema)


def _plan(options: WriteOptions, backend: Backend, schema: StructType, get_schema: GetTopicSchema) -> WritePlan:
    mapping = ColumnMapping.of(schema, options)
    if mapping.payload_kind == "data":
        return WritePlan(options, backend, mapping, None)
    topic_schema = None
    if options.encode != "none" and options.topic is not None:
        topic_schema = get_schema(backend, options.topic)
        if options.described_schema is not None:
            _check_described(options, topic_schema)
    if topic_schema is not None:
        mapping = mapping.for_schema([field.name for field in topic_schema.arrow_type()])
        topic_schema.encoder(mapping.payload_type(_to_arrow(schema)), options.ignore_extra_columns)  # to check them
    elif options.encode != "topic":
        _check_json(mapping, schema)
    elif options.topic is None:
        raise SchemaError("`encode=topic` needs one topic for all rows: set `topicId`, or encode into `data`.")
    else:
        raise SchemaError(f"Topic `{options.topic}` has no schema for `encode=topic`. Leave it out to send JSON.")
    return WritePlan(options, backend, mapping, topic_schema)


def _check_json(mapping: ColumnMapping, schema: StructType) -> None:
    fields = [schema.fields[position] for position in mapping.payload]
    problems = [problem for field in fields for problem in unsupported(field.name, field.dataType)]
    if problems:
        raise SchemaError("These columns cannot be published: " + "; ".join(problems) + ".")


def _check_described(options: WriteOptions, topic_schema: TopicSchema | None) -> None:
    """Raise SchemaError unless the topic's schema is that of the AsyncAPI document."""
    name = None if topic_schema is None else topic_schema.reader.name.partition("@")[0]
    if name != options.described_schema:
        raise SchemaError(
            f"Topic `{options.topic}` has {'no schema' if name is None else f'the schema `{name}`'}, but `message` in "
            f"`{options.asyncapi}` has `{options.described_schema}`. Run `pubsub-spark apply {options.asyncapi}`."
        )


def _get_topic_schema(backend: Backend, topic: str) -> TopicSchema | None:
    from ..backend import schemas

    with backend.connect() as connection:
        return schemas.of_topic(connection.admin, topic)


def _get_cached_topic_schema(backend: Backend, topic: str) -> TopicSchema | None:
    """Return a schema that is at most ten seconds old, unless the service does not answer."""
    now = time.monotonic()
    cached_at, cached = schema_cache.get((backend, topic), (None, None))
    if cached_at is None or now - cached_at > _SCHEMA_CACHE_SECONDS:
        try:
            cached = _get_topic_schema(backend, topic)
        except ServiceError:
            if cached_at is None:
                raise  # else the stream keeps its schema, and asks again for the next micro-batch
        else:
            schema_cache[backend, topic] = now, cached
    return cached


def _to_arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # 4.0 has no such parameter, and UTC is its default
        return to_arrow_schema(schema)

"""What the driver decides before any task runs: the layout of the columns and the schema that encodes them.

Everything that can be wrong with the columns is said here, once, and not by a thousand tasks. The service is asked for
the topic and its schema only where rows are encoded: who may publish need not be allowed to look at the topic.

Spark makes a stream's writer twice a micro-batch, in two processes of the driver. So that each does not ask the service
each time, a stream's schema is kept in the process for ten seconds; a batch write always asks. Not for longer: Spark
uses the process again for the next query, and who gives a topic another schema and starts again wants that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.types import StructType

from ..backend import Backend
from ..codec.registry import Encoder, TopicSchema
from ..errors import SchemaError, ServiceError
from ..options import WriteOptions
from .json import unsupported
from .rows import Layout
from .task import Job

LookUp = Callable[[Backend, str], TopicSchema | None]

_KEPT_SECONDS = 10.0
_kept: dict[tuple[Backend, str], tuple[float, TopicSchema | None]] = {}


def batch_write(options: WriteOptions, backend: Backend, schema: StructType) -> Job:
    """The job of `df.write`. Raises SchemaError for columns that cannot be published."""
    return _job(options, backend, schema, _look_up)


def stream_write(options: WriteOptions, backend: Backend, schema: StructType) -> Job:
    """The job of a micro-batch of `df.writeStream`, likewise."""
    return _job(options, backend, schema, _kept_or_look_up)


def _job(options: WriteOptions, backend: Backend, schema: StructType, look_up: LookUp) -> Job:
    layout = Layout.of(schema, options)
    topic_schema = None
    if layout.kind != "data" and options.encode != "none" and options.topic is not None:
        topic_schema = look_up(backend, options.topic)
    if options.encode == "topic" and topic_schema is None:
        if options.topic is None:
            raise SchemaError("`encode=topic` needs one topic for all rows: give `topicId`, or encode into `data`.")
        raise SchemaError(f"Topic `{options.topic}` has no schema for `encode=topic`. Leave it out to send JSON.")
    return _fitted(Job(options, backend, layout, topic_schema), schema)


def _look_up(backend: Backend, topic: str) -> TopicSchema | None:
    """The schema of a topic, None where it has none."""
    from ..backend import schemas

    with backend.connect() as connection:
        return schemas.of_topic(connection.admin, topic)


def _kept_or_look_up(backend: Backend, topic: str) -> TopicSchema | None:
    now = time.monotonic()
    since, kept = _kept.get((backend, topic), (None, None))
    if since is None or now - since > _KEPT_SECONDS:
        try:
            kept = _look_up(backend, topic)
        except ServiceError:
            if since is None:
                raise  # else the stream goes on with what it has, and asks again for the next micro-batch
        else:
            _kept[backend, topic] = now, kept
    return kept


def _fitted(job: Job, schema: StructType) -> Job:
    """The same job, sure that the columns can be encoded."""
    layout = job.layout
    if layout.kind == "data":
        return job
    if job.topic_schema is None:
        problems = [
            problem
            for position in layout.payload
            for problem in unsupported(schema.fields[position].name, schema.fields[position].dataType)
        ]
        if problems:
            raise SchemaError("These columns cannot be published: " + "; ".join(problems) + ".")
        return job
    topic_schema = job.topic_schema
    layout = layout.for_schema([field.name for field in topic_schema.arrow_type()])
    job = Job(job.options, job.backend, layout, topic_schema)
    Encoder(topic_schema, layout.payload_type(_arrow(schema)), job.options.ignore_extra_columns)
    return job


def _arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # 4.0 has no such parameter; UTC is its default
        return to_arrow_schema(schema)

"""The schema of a topic's messages: SchemaSettings to a `TopicSchema`.

The revision is the newest that the topic allows (or that of an option), chosen once on the driver, so that all tasks of
a query agree. SchemaSettings: https://cloud.google.com/pubsub/docs/reference/rpc/google.pubsub.v1#schemasettings
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .. import names
from ..codec.registry import SchemaRevision, TopicSchema
from ..errors import InvalidError, MissingError, SchemaError
from ..options import ReadOptions
from ..schema.compiled_protobuf import definition_of
from ..schema.definition import Encoding
from ..schema.schema_types import ENCODINGS_BY_NUMBER, SCHEMA_TYPES_BY_NUMBER
from . import Backend

if TYPE_CHECKING:
    from .admin import Admin

_INLINE = "inline"  # the revision id of a definition in an option


def of_topic(admin: Admin, topic: str, revision: str | None = None) -> TopicSchema | None:
    """Return the schema of a topic, or None if it has none. Raises SchemaError if it cannot be used.

    revision: its id, instead of the newest allowed one.
    """
    settings = admin.topic(topic).schema_settings
    if not settings.schema:
        return None
    if settings.schema == names.DELETED_SCHEMA:
        raise SchemaError(
            f"The schema of topic `{topic}` was deleted. Set another schema or none. A reader can leave out `decode`."
        )
    encoding = ENCODINGS_BY_NUMBER.get(settings.encoding)
    if encoding is None:
        raise SchemaError(
            f"The messages of topic `{topic}` have the encoding {int(settings.encoding)}, which this release does not "
            "know. Install a newer pubsub-spark, or read without `decode`."
        )
    if revision is not None:
        return TopicSchema(encoding, named(admin, f"{settings.schema}@{revision}"))
    if not settings.last_revision_id:
        return TopicSchema(encoding, named(admin, settings.schema))
    return TopicSchema(encoding, named(admin, f"{settings.schema}@{settings.last_revision_id}"))


def for_reading(admin: Admin, options: ReadOptions) -> TopicSchema:
    """Return the schema for `decode=topic`: of `schema`, of `topicId`, or of the subscription's topic."""
    encoding: Encoding = "JSON" if options.schema_encoding == "JSON" else "BINARY"
    if options.schema is not None and options.schema_definition is not None:
        return TopicSchema(encoding, SchemaRevision("schema", _INLINE, options.schema_definition, options.schema))
    if options.schema is not None:
        name = names.full(options.schema, options.project, "schemas")
        revision = named(admin, f"{name}@{options.schema_revision}" if options.schema_revision else name)
        return TopicSchema(encoding, revision)
    topic = options.topic or admin.subscription(options.subscription).topic
    if topic == names.DELETED_TOPIC:
        raise SchemaError(
            f"The topic of subscription `{options.subscription}` was deleted, and its schema settings with it. Name "
            "the schema with `schema`, or read without `decode`."
        )
    topic_schema = of_topic(admin, topic, options.schema_revision)
    if topic_schema is None:
        raise SchemaError(f"Topic `{topic}` has no schema. Name one with `schema`, or read without `decode`.")
    return topic_schema


def named(admin: Admin, name: str) -> SchemaRevision:
    """Return a schema revision by its full name, the newest unless it ends in `@revision`."""
    schema = admin.schema(name)
    kind = SCHEMA_TYPES_BY_NUMBER.get(schema.type_)
    if kind is None:
        raise SchemaError(
            f"The schema `{name}` has the type {int(schema.type_)}, which this release does not know. Install a newer "
            "pubsub-spark, or read without `decode`."
        )
    return SchemaRevision(schema.name.partition("@")[0], schema.revision_id, kind, definition_of(schema))


def fetcher(backend: Backend) -> Callable[[str], SchemaRevision]:
    """Return a function from a name to its schema revision, for decoders. It raises LookupError if there is or can be
    none.

    The publisher of a message writes the name, and must not stop the query: an invalid name has no revision. A refused
    right, or a service that does not answer, fails the task.
    """

    def fetch(name: str) -> SchemaRevision:
        try:
            names.parse(name.partition("@")[0], "schemas")
            with backend.connect() as connection:
                return named(connection.admin, name)
        except (ValueError, MissingError, InvalidError) as error:
            raise LookupError(str(error)) from None

    return fetch

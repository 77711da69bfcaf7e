"""The schema of a topic's messages: SchemaSettings to a `TopicSchema`, with the revision that readers and writers use.

The revision is the newest that the topic allows (or a given one), chosen once on the driver, so that all tasks of a
query agree. SchemaSettings: https://cloud.google.com/pubsub/docs/reference/rpc/google.pubsub.v1#schemasettings
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .. import names
from ..codec.registry import SchemaRevision, TopicSchema
from ..codec.schema_types import ENCODINGS_BY_NUMBER, SCHEMA_TYPES_BY_NUMBER
from ..errors import MissingError, SchemaError
from ..options import ReadOptions
from . import Backend
from .admin import Admin

_REVISION_NAME = re.compile(r"projects/[^/@\s]+/schemas/[^/@\s]+@[A-Za-z0-9-]+")


def of_topic(admin: Admin, topic: str, revision: str | None = None) -> TopicSchema | None:
    """The schema of a topic (a full name), None when it has none; SchemaError when it cannot be used.

    revision: the id of the revision to use in place of the newest allowed one.
    """
    settings = admin.topic(topic).schema_settings
    if not settings.schema:
        return None
    if settings.schema == names.DELETED_SCHEMA:
        raise SchemaError(
            f"The schema of topic `{topic}` was deleted. Give the topic another, or read without `decode`."
        )
    encoding = ENCODINGS_BY_NUMBER.get(settings.encoding)
    if encoding is None:
        raise SchemaError(
            f"Topic `{topic}` encodes its messages in a way that this release of pubsub_spark does not know (encoding "
            f"{int(settings.encoding)}; it knows BINARY and JSON). Use a newer release, or read without `decode`."
        )
    if revision is not None:
        return TopicSchema(encoding, named(admin, f"{settings.schema}@{revision}"))
    if not settings.last_revision_id:
        return TopicSchema(encoding, named(admin, settings.schema))
    return TopicSchema(encoding, named(admin, f"{settings.schema}@{settings.last_revision_id}"))


def for_reading(admin: Admin, options: ReadOptions) -> TopicSchema:
    """The schema for `decode=topic`: of `schema`, else that of `topicId`, else that of the subscription's topic."""
    if options.schema is not None:
        name = names.full(options.schema, options.project, "schemas")
        revision = named(admin, f"{name}@{options.schema_revision}" if options.schema_revision else name)
        return TopicSchema("JSON" if options.schema_encoding == "JSON" else "BINARY", revision)
    topic = options.topic or admin.subscription(options.subscription).topic
    if topic == names.DELETED_TOPIC:
        raise SchemaError(
            f"The topic of subscription `{options.subscription}` was deleted, and its schema settings with it. Name "
            "the schema with `schema`, or read without `decode`."
        )
    found = of_topic(admin, topic, options.schema_revision)
    if found is None:
        raise SchemaError(f"Topic `{topic}` has no schema. Name one with `schema`, or read without `decode`.")
    return found


def named(admin: Admin, name: str) -> SchemaRevision:
    """A schema revision by its full name, the newest unless it ends in `@revision`."""
    schema = admin.schema(name)
    kind = SCHEMA_TYPES_BY_NUMBER.get(schema.type_)
    if kind is None:
        raise SchemaError(
            f"Schema `{name}` is of a type that this release of pubsub_spark does not know (type {int(schema.type_)}; "
            "it knows AVRO and PROTOCOL_BUFFER). Use a newer release, or read without `decode`."
        )
    return SchemaRevision(schema.name.partition("@")[0], schema.revision_id, kind, schema.definition)


def fetcher(backend: Backend) -> Callable[[str], SchemaRevision]:
    """A function from a name to its schema revision, for decoders; it raises LookupError when there is none.

    A service that refuses or does not answer says nothing about the message: the error fails the task.
    """

    def fetch(name: str) -> SchemaRevision:
        if not _REVISION_NAME.fullmatch(name):  # an attribute that anyone may have set; the service refuses to look
            raise LookupError(f"`{name}` is not the name of a schema revision")
        try:
            with backend.connect() as connection:
                return named(connection.admin, name)
        except MissingError as error:
            raise LookupError(str(error)) from None

    return fetch

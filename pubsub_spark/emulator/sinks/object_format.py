"""The objects that Cloud Storage subscriptions write: their names, and text or Avro in them. Pure.

name   prefix, datetime, `_` (or the delimiter at the end of the datetime's format), id and suffix
text   the data of each message and a newline
Avro   a file of records with `data`, or with the fields of the topic's Avro schema. With metadata also subscription,
       message id, publish time and attributes. The ordering key is one of the attributes.

https://cloud.google.com/pubsub/docs/create-cloudstorage-subscription#file_names
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import fastavro

from pubsub_spark.emulator.sinks.destination import DestinationError, TopicSchema
from pubsub_spark.emulator.state.message import Message
from pubsub_spark.schema.definition import Encoding, InvalidMessage

DEFAULT_DATETIME = "YYYY-MM-DDThh:mm:ss+00:00"

_ELEMENTS = {"YYYY": "%Y", "YY": "%y", "MM": "%m", "DD": "%d", "hh": "%H", "mm": "%M", "ss": "%S"}
_ELEMENT = re.compile("|".join(_ELEMENTS))
_DELIMITERS = ("-", "_", ":", "/")
_METADATA_FIELDS: list[dict[str, Any]] = [
    {"name": "subscription_name", "type": "string"},
    {"name": "message_id", "type": "string"},
    {"name": "publish_time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "attributes", "type": {"type": "map", "values": "string"}},
]
_DATA_FIELD = {"name": "data", "type": "bytes"}
_CACHED_SCHEMAS = 64
_REVISION = "googclient_schemarevisionid"


class Encoded(NamedTuple):
    """The content of an object, and the indexes of the messages that it cannot contain."""

    content: bytes
    misfits: Sequence[int]


Encode = Callable[[Sequence[Message], str, TopicSchema | None], Encoded]


def object_name(config: Any, opened: float, unique: str) -> str:
    moment = datetime.fromtimestamp(opened, UTC)
    form = config.filename_datetime_format or DEFAULT_DATETIME
    shown = _ELEMENT.sub(lambda match: moment.strftime(_ELEMENTS[match[0]]), form)
    delimiter = "" if form.endswith(_DELIMITERS) else "_"
    return f"{config.filename_prefix}{shown}{delimiter}{unique}{config.filename_suffix}"


def encoder(config: Any) -> Encode:
    if config.WhichOneof("output_format") != "avro_config":
        return _text
    avro = config.avro_config
    uses_topic_schema = getattr(avro, "use_topic_schema", False)  # older client libraries lack it

    def encode(messages: Sequence[Message], subscription: str, schema: TopicSchema | None) -> Encoded:
        if uses_topic_schema and schema is not None:
            return _records(messages, subscription, schema, avro.write_metadata)
        rows = [{"data": message.data} for message in messages]
        name = "PubsubMessageWithMetadata" if avro.write_metadata else "PubsubMessage"
        fields = [*_METADATA_FIELDS, _DATA_FIELD] if avro.write_metadata else [_DATA_FIELD]
        if avro.write_metadata:
            rows = [_metadata(message, subscription) | row for message, row in zip(messages, rows, strict=True)]
        return Encoded(
            _file({"type": "record", "namespace": "com.google.pubsub", "name": name, "fields": fields}, rows), ()
        )

    return encode


def _text(messages: Sequence[Message], _: str, __: TopicSchema | None) -> Encoded:
    return Encoded(b"".join(part for message in messages for part in (message.data, b"\n")), ())


def _records(messages: Sequence[Message], subscription: str, schema: TopicSchema, with_metadata: bool) -> Encoded:
    target = _target(schema, with_metadata)
    rows, misfits = [], []
    for index, message in enumerate(messages):
        definition = schema.revisions.get(message.attributes.get(_REVISION, ""), schema.latest)
        try:
            row = _datum(definition, message.data, schema.encoding, schema.latest)
        except Exception:  # any error of a decoder: the message is not a record
            misfits.append(index)
            continue
        rows.append(row | _metadata(message, subscription) if with_metadata else row)
    return Encoded(_file(target, rows) if rows else b"", misfits)


def _target(schema: TopicSchema, with_metadata: bool) -> dict[str, Any]:
    """Raise DestinationError if the topic's schema cannot be the file's."""
    definition: Any = schema.latest
    if definition.type != "AVRO":
        raise DestinationError("SCHEMA_MISMATCH", "The topic's schema is not Avro. Unset useTopicSchema.")
    if definition.root.kind != "record":
        raise DestinationError("SCHEMA_MISMATCH", "The topic's schema is not of records. Unset useTopicSchema.")
    target: dict[str, Any] = definition.fastavro_schema()
    if not with_metadata:
        return target
    names = {field["name"] for field in target["fields"]}
    if taken := sorted(names & {field["name"] for field in _METADATA_FIELDS}):
        raise DestinationError("SCHEMA_MISMATCH", f"The topic's schema has a field `{taken[0]}`, as the metadata have.")
    target["fields"] += _METADATA_FIELDS
    return target


@lru_cache(_CACHED_SCHEMAS)
def _as_written(definition: Any) -> Any:
    """Remove logical types, so that values are written as they were read."""
    return definition.fastavro_schema(logical=False, is_reader=True)


def _datum(definition: Any, data: bytes, encoding: Encoding, latest: Any) -> dict[str, Any]:
    """Read a message by the revision that it was published with. Raise InvalidMessage."""
    definition.validate(data, encoding)
    if encoding == "JSON":
        data = definition.datum.write(definition.read_json(data))
    writer, reader = _as_written(definition), _as_written(latest)
    datum: Any = fastavro.schemaless_reader(BytesIO(data), writer, reader, return_record_name=True)
    if not isinstance(datum, dict):
        raise InvalidMessage("The message is not a record")
    return datum


def _metadata(message: Message, subscription: str) -> dict[str, Any]:
    attributes = dict(message.attributes)
    if message.key:
        attributes["ordering_key"] = message.key
    return {
        "subscription_name": subscription,
        "message_id": message.id,
        "publish_time": round(message.published * 1_000_000),
        "attributes": attributes,
    }


def _file(schema: dict[str, Any], rows: Sequence[dict[str, Any]]) -> bytes:
    content = BytesIO()
    fastavro.writer(content, schema, rows)
    return content.getvalue()

"""The rows of BigQuery subscriptions: columns by the topic's schema, by the table's schema, or `data`. Pure.

If the topic's schema does not fit the table, the whole subscription is a mismatch, and everything stays in the backlog.
If a single message does not make a row, that is a ValueError, and the message can become a dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from io import BytesIO
from typing import Any

import fastavro
from google.protobuf.descriptor import FieldDescriptor

from pubsub_spark.emulator.sinks.destination import DestinationError, TopicSchema
from pubsub_spark.emulator.state.message import Message

Columns = Mapping[str, str]  # BigQuery's types by name: STRING, INTEGER, ..., RECORD, or REPEATED for those that are
Row = dict[str, Any]
ReadRow = Callable[[Message, str], Row]

_NUMBERS = {"NUMERIC", "BIGNUMERIC"}
# The columns that accept a type of a schema.
_COLUMNS: dict[str, set[str]] = {
    "boolean": {"BOOLEAN"},
    "integer": {"INTEGER", *_NUMBERS},
    "float": {"FLOAT", *_NUMBERS},
    "bytes": {"BYTES", *_NUMBERS},
    "string": {"STRING", "JSON", "TIMESTAMP", "DATETIME", "DATE", "TIME", *_NUMBERS},
    "enum": {"INTEGER", "STRING"},
    "record": {"RECORD"},
    "repeated": {"REPEATED"},
    "timestamp": {"TIMESTAMP"},
    "date": {"DATE"},
    "time": {"TIME"},
    "decimal": _NUMBERS,
    "union": set(),
}
_METADATA = {
    "subscription_name": {"STRING"},
    "message_id": {"STRING"},
    "publish_time": {"TIMESTAMP"},
    "attributes": {"JSON", "STRING"},
}
_DATA = {"BYTES", "STRING", "JSON"}
_AVRO = {
    "boolean": "boolean",
    "int": "integer",
    "long": "integer",
    "float": "float",
    "double": "float",
    "bytes": "bytes",
    "fixed": "bytes",
    "string": "string",
    "enum": "enum",
    "record": "record",
    "array": "repeated",
    "map": "repeated",
}
_AVRO_LOGICAL = {
    "timestamp-micros": "timestamp",
    "timestamp-millis": "timestamp",
    "date": "date",
    "time-micros": "time",
    "time-millis": "time",
    "decimal": "decimal",
    "uuid": "string",
}
_PROTOBUF = {
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
    FieldDescriptor.CPPTYPE_DOUBLE: "float",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_ENUM: "enum",
    FieldDescriptor.CPPTYPE_MESSAGE: "record",
    **dict.fromkeys(
        (
            FieldDescriptor.CPPTYPE_INT32,
            FieldDescriptor.CPPTYPE_INT64,
            FieldDescriptor.CPPTYPE_UINT32,
            FieldDescriptor.CPPTYPE_UINT64,
        ),
        "integer",
    ),
}
_CACHED_SCHEMAS = 64
_REVISION = "googclient_schemarevisionid"


def reader(config: Any, columns: Columns, schema: TopicSchema | None) -> ReadRow:
    """Raise DestinationError if the table does not fit the BigQueryConfig."""
    if config.use_topic_schema and schema is not None:
        read = _topic_reader(schema, columns, config.drop_unknown_fields)
    elif getattr(config, "use_table_schema", False):  # older client libraries lack it
        read = _table_reader(columns, config.drop_unknown_fields)
    else:
        _check("data", columns, _DATA)
        read = _data_reader(columns["data"])
    if not config.write_metadata:
        return lambda message, _: read(message)
    for name, types in _METADATA.items():
        _check(name, columns, types)
    return lambda message, subscription: read(message) | _metadata(message, subscription)


def _check(name: str, columns: Columns, types: set[str]) -> None:
    wanted = " or ".join(sorted(types)) or "no type"
    if name not in columns:
        raise DestinationError("SCHEMA_MISMATCH", f"The table has no column `{name}`. Add one of {wanted}.")
    if columns[name] not in types:
        raise DestinationError("SCHEMA_MISMATCH", f"The column `{name}` is {columns[name]}, and must be {wanted}.")


def _metadata(message: Message, subscription: str) -> Row:
    attributes = dict(message.attributes)
    if message.key:
        attributes["ordering_key"] = message.key
    return {
        "subscription_name": subscription,
        "message_id": message.id,
        "publish_time": datetime.fromtimestamp(message.published, UTC),
        "attributes": json.dumps(attributes),
    }


def _data_reader(column: str) -> Callable[[Message], Row]:
    if column == "BYTES":
        return lambda message: {"data": message.data}
    return lambda message: {"data": message.data.decode()}


def _table_reader(columns: Columns, drops_unknown: bool) -> Callable[[Message], Row]:
    def read(message: Message) -> Row:
        row = json.loads(message.data)
        if not isinstance(row, dict):
            raise ValueError("The message is not a JSON object.")
        if unknown := [name for name in row if name not in columns]:
            if not drops_unknown:
                raise ValueError(f"The table has no column `{unknown[0]}`.")
            row = {name: value for name, value in row.items() if name in columns}
        return {name: json.dumps(value) if columns[name] == "JSON" else value for name, value in row.items()}

    return read


def _topic_reader(schema: TopicSchema, columns: Columns, drops_unknown: bool) -> Callable[[Message], Row]:
    definition: Any = schema.latest
    kinds = _avro_kinds(definition) if definition.type == "AVRO" else _protobuf_kinds(definition)
    for name, kind in kinds.items():
        if name in columns or not drops_unknown:
            _check(name, columns, _COLUMNS[kind])
    read = _avro_row if definition.type == "AVRO" else _protobuf_row

    def read_row(message: Message) -> Row:
        revision: Any = schema.revisions.get(message.attributes.get(_REVISION, ""), definition)
        revision.validate(message.data, schema.encoding)
        row = read(revision, definition, message.data, schema.encoding, columns)
        return {name: value for name, value in row.items() if name in columns}

    return read_row


def _avro_kinds(definition: Any) -> dict[str, str]:
    if definition.root.kind != "record":
        raise DestinationError("SCHEMA_MISMATCH", "The topic's schema is not of records. Unset useTopicSchema.")
    return {field.name: _avro_kind(field.node) for field in definition.root.fields}


def _avro_kind(node: Any) -> str:
    node = _not_null(node)
    logical = getattr(node, "logical", None)
    return _AVRO_LOGICAL.get(logical.name if logical else "") or _AVRO.get(node.kind, "union")


def _not_null(node: Any) -> Any:
    branches = [branch for branch in node.branches if branch.kind != "null"] if node.kind == "union" else [node]
    return branches[0] if len(branches) == 1 else node


def _avro_row(revision: Any, latest: Any, data: bytes, encoding: str, columns: Columns) -> Row:
    if encoding == "JSON":
        data = revision.datum.write(revision.read_json(data))
    writer, reader = _fastavro_schema(revision), _fastavro_schema(latest)
    row: Any = fastavro.schemaless_reader(BytesIO(data), writer, reader)
    for field in latest.root.fields:
        name, node = field.name, _not_null(field.node)
        if row[name] is not None and node.kind == "map":
            row[name] = [{"key": key, "value": value} for key, value in row[name].items()]
        elif row[name] is not None and node.kind == "enum" and columns.get(name) == "INTEGER":
            row[name] = node.symbols.index(row[name])
    return dict(row)


@lru_cache(_CACHED_SCHEMAS)
def _fastavro_schema(definition: Any) -> Any:
    return definition.fastavro_schema(is_reader=True)


def _protobuf_kinds(definition: Any) -> dict[str, str]:
    return {field.name: _protobuf_kind(field) for field in definition.message.fields}


def _protobuf_kind(field: Any) -> str:
    if _is_repeated(field):
        return "repeated"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "bytes" if field.type == FieldDescriptor.TYPE_BYTES else "string"
    return _PROTOBUF[field.cpp_type]


def _protobuf_row(revision: Any, _: Any, data: bytes, encoding: str, columns: Columns) -> Row:
    row = _protobuf_value(revision.read(data, encoding))
    for field in revision.message.fields:
        if columns.get(field.name) == "STRING" and field.enum_type is not None and row.get(field.name) is not None:
            known = field.enum_type.values_by_number.get(row[field.name])
            row[field.name] = known.name if known is not None else str(row[field.name])
    return row


def _protobuf_value(message: Any) -> Row:
    """An unset field is NULL, or its default if proto3 does not track its presence."""
    row: Row = {}
    for field in type(message).DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_repeated(field):
            row[field.name] = _repeated(field, value)
        elif field.has_presence and not type(message).HasField(message, field.name):
            row[field.name] = None
        else:
            row[field.name] = _protobuf_value(value) if field.message_type is not None else value
    return row


def _repeated(field: Any, values: Any) -> list[Any]:
    if field.message_type is None:
        return list(values)
    if field.message_type.GetOptions().map_entry:
        is_message = field.message_type.fields_by_name["value"].message_type is not None
        return [{"key": key, "value": _protobuf_value(values[key]) if is_message else values[key]} for key in values]
    return [_protobuf_value(value) for value in values]


def _is_repeated(field: Any) -> bool:
    # Newer versions of protobuf remove `label` and have this instead.
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)

"""The column mapping: which column of a DataFrame is which field of a message.

Decided once, on the driver, from the schema and the options alone; every problem is found before one is raised. Columns
are named as the fields of `PubsubMessage` and found as Spark's resolver finds them: whatever their case, unless two
differ in nothing else.

The payload of a message (with `encode=topic` there is no first case):

    a column `data`                   those bytes (a string as UTF-8)
    else a column `value`, a struct   encoded: by the topic's schema, or as JSON where the topic has none
    else                              the whole row, encoded in the same way

A row is encoded without the columns that become other fields of the message: `attributes`, `ordering_key`, and `topic`
where no option names the topic. Where the topic's schema has a field of such a name, the column is both.

With `columns=databricks` the payload is `payload` and `attributes` is a JSON object. Without it, columns that are named
as in Databricks' source or in Kafka's are refused: they would become fields of a JSON object that nobody wants.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
from pyspark.sql import types as spark

from ..errors import SchemaError
from ..options import WriteOptions

# Columns that our own reader adds and a publisher cannot set; ignored, so that a stream can be published as read.
_DELIVERY_COLUMNS = frozenset({"message_id", "publish_time", "delivery_attempt", "schema_revision", "decode_error"})
_DATABRICKS_DELIVERY_COLUMNS = frozenset({"messageid", "publishtimestampinmillis"})
# Columns of Spark's Kafka source and sink. A payload of Kafka's is a `value` that is text or binary.
_KAFKA_COLUMNS = frozenset({"key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestamptype"})
_METADATA_COLUMNS = frozenset({"attributes", "ordering_key", "topic"})
_TEXT_TYPES = (
    spark.StringType,
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.BooleanType,
    spark.DateType,
)
_TEXT_TYPES_PHRASE = "a string, an integer, a boolean or a date"
# Where the whole row is encoded, a column of such a name may be meant as a field of the payload, of any type.
_FIELD_HINT = "; if it is a field of the message, send the message as a struct `value`"


@dataclass(frozen=True)
class ColumnMapping:
    """The positions of the columns that make a message; None where the DataFrame has no such column."""

    payload_kind: Literal["data", "value", "row"]
    payload: tuple[int, ...]
    attributes: int | None
    attribute_columns: tuple[tuple[str, int], ...]
    ordering_key: int | None
    topic: int | None
    names: tuple[str, ...]
    ordering_path: tuple[str, ...] = ()  # of the ordering key within its column, a struct
    ordering_text: str | None = None  # the ordering key of every message
    fixed_attributes: tuple[tuple[str, str], ...] = ()  # of every message

    @classmethod
    def of(cls, schema: spark.StructType, options: WriteOptions) -> ColumnMapping:
        """The mapping of a DataFrame's columns. Raises SchemaError with everything that is wrong with them."""
        problems: list[str] = []
        mapping = _mapping(_ColumnResolver(schema, problems), options, problems)
        if problems:
            raise SchemaError("These columns cannot be published: " + "; ".join(problems) + ".")
        return mapping

    def for_schema(self, fields: Iterable[str]) -> ColumnMapping:
        """The mapping for a topic schema with these fields.

        A column that is sent as an attribute or as the ordering key is part of the payload, too, if there is a field of
        its name, and not if there is none.
        """
        if self.payload_kind != "row":
            return self
        known = {field.lower() for field in fields}
        metadata = {self.attributes, self.ordering_key, *(position for _, position in self.attribute_columns)}
        kept = tuple(at for at, name in enumerate(self.names) if at not in metadata or name.lower() in known)
        return replace(self, payload=kept)

    def payload_type(self, schema: pa.Schema) -> pa.StructType:
        """The type of the rows that are encoded, for a DataFrame of this Arrow schema."""
        if self.payload_kind == "row":
            return pa.struct([schema.field(at) for at in self.payload])
        return schema.field(self.payload[0]).type

    def column_of(self, field: str) -> str:
        """The column of the DataFrame that a field of the message comes from, for error messages."""
        if field == "data":
            return "the row" if self.payload_kind == "row" else f"`{self.names[self.payload[0]]}`"
        position = {"attributes": self.attributes, "ordering_key": self.ordering_key, "topic": self.topic}[field]
        return f"`{field}`" if position is None else f"`{self.names[position]}`"


class _ColumnResolver:
    """The columns of a DataFrame by name, as Spark's resolver finds them; collects the problems."""

    def __init__(self, schema: spark.StructType, problems: list[str]) -> None:
        self.fields = schema.fields
        self._problems = problems

    def find(self, name: str) -> int | None:
        exact = [i for i, field in enumerate(self.fields) if field.name == name]
        found = exact or [i for i, field in enumerate(self.fields) if field.name.lower() == name.lower()]
        if len(found) > 1:
            self._problems.append(f"{' and '.join(f'`{self.fields[i].name}`' for i in found)} are both `{name}`")
        return found[0] if found else None

    def require(self, option: str, name: str, types: tuple[type[spark.DataType], ...], phrase: str) -> int | None:
        position = self.find(name)
        if position is None:
            known = ", ".join(f"`{field.name}`" for field in self.fields)
            self._problems.append(f"`{option}` names `{name}`, but the columns are {known}")
        else:
            self.check(position, types, phrase)
        return position

    def check(self, position: int, types: tuple[type[spark.DataType], ...], phrase: str) -> None:
        field = self.fields[position]
        if not isinstance(field.dataType, types):
            self._problems.append(f"`{field.name}` is `{field.dataType.simpleString()}`, but must be {phrase}")


def _mapping(columns: _ColumnResolver, options: WriteOptions, problems: list[str]) -> ColumnMapping:
    databricks = options.columns == "databricks"
    payload_name = "payload" if databricks else "data"
    data, attributes, ordering_key, topic = map(columns.find, (payload_name, "attributes", "ordering_key", "topic"))
    value = columns.find("value")
    if value is not None and not isinstance(columns.fields[value].dataType, spark.StructType):
        value = None  # a column of the row like any other
    if options.encode == "topic":
        data = None  # a column of the row like any other
    names = tuple(field.name for field in columns.fields)
    field_hint = _FIELD_HINT if data is None and value is None else ""

    if data is not None:
        columns.check(data, (spark.BinaryType, spark.StringType), "binary or string")
    elif databricks:
        problems.append("there is no column `payload`, which `columns=databricks` needs")
    elif value is None and options.encode != "topic":
        problems.extend(_foreign_payload(columns.fields))
    if attributes is not None and databricks:
        columns.check(attributes, (spark.StringType,), "a string, a JSON object")
    elif attributes is not None:
        problems.extend(f"{problem}{field_hint}" for problem in _not_attributes(columns.fields[attributes]))
    attribute_columns = tuple(
        (name, position)
        for name in options.attribute_columns
        if (position := columns.require("attributeColumns", name, _TEXT_TYPES, _TEXT_TYPES_PHRASE)) is not None
    )
    path: tuple[str, ...] = ()
    if options.ordering_field is not None:
        ordering_key, path = _find_field(columns, value, options.ordering_field, problems)
    elif options.ordering_key is not None:
        ordering_key = columns.require("orderingKey", options.ordering_key, _TEXT_TYPES, _TEXT_TYPES_PHRASE)
    elif ordering_key is not None:
        columns.check(ordering_key, (spark.StringType,), f"a string{field_hint}")
    if options.topic_id is not None:
        topic = None
    elif topic is None:
        problems.append(
            "there is neither the option `topicId` nor a column `topic` (Spark passes no option of a catalog's table: "
            "`INSERT INTO t WITH (topicId = '...')` gives it)"
        )
    else:
        columns.check(topic, (spark.StringType,), f"a string{field_hint}")

    kind: Literal["data", "value", "row"] = "row"
    if data is not None and value is not None:
        problems.append(f"`{names[data]}` and `{names[value]}` are both a message; drop one")
    if data is not None or value is not None:
        kind = "value" if data is None else "data"
        payload = tuple(position for position in (data, value) if position is not None)[:1]
        if not options.ignore_extra_columns:
            used = {data, value, attributes, ordering_key, topic, *(position for _, position in attribute_columns)}
            problems.extend(_unused(names, used, _DATABRICKS_DELIVERY_COLUMNS if databricks else frozenset()))
    else:
        # A column of any other name that an option makes the ordering key, `topic` among them, stays in the row.
        key_only = ordering_key is not None and names[ordering_key].lower() == "ordering_key"
        metadata = {attributes, topic, ordering_key if key_only else None}
        payload = tuple(i for i in range(len(names)) if i not in metadata)
        if not payload:
            problems.append("there is no column `data`, `value` or any other to make a message of")
    if options.ordering_text is not None:
        ordering_key = None
    fixed = options.ordering_text, options.described_attributes
    return ColumnMapping(kind, payload, attributes, attribute_columns, ordering_key, topic, names, path, *fixed)


def _find_field(
    columns: _ColumnResolver, value: int | None, field: tuple[str, ...], problems: list[str]
) -> tuple[int | None, tuple[str, ...]]:
    """The column of a field of the payload, and the path within it; a problem when there is none of text."""
    position, path = (columns.find(field[0]), field[1:]) if value is None else (value, field)
    kind: spark.DataType | None = None if position is None else columns.fields[position].dataType
    for name in path:
        kind = kind[name].dataType if isinstance(kind, spark.StructType) and name in kind.fieldNames() else None
    if not isinstance(kind, _TEXT_TYPES):
        found = "is not there" if kind is None else f"is `{kind.simpleString()}`"
        problems.append(
            f"the ordering key of the AsyncAPI message is its field `{'.'.join(field)}`, which {found}, but must be "
            f"{_TEXT_TYPES_PHRASE}"
        )
    return position, path


def _not_attributes(field: spark.StructField) -> Iterator[str]:
    kind, text = field.dataType, spark.StringType
    if isinstance(kind, spark.MapType):
        if not (isinstance(kind.keyType, text) and isinstance(kind.valueType, text)):
            yield f"`{field.name}` is `{kind.simpleString()}`, but attributes are text: cast it to `map<string,string>`"
    else:
        yield f"`{field.name}` is `{kind.simpleString()}`, but must be `map<string,string>`"


def _foreign_payload(fields: Sequence[spark.StructField]) -> Iterator[str]:
    """The problem of a DataFrame whose columns are named as in Kafka's or Databricks' source, if they are."""
    types = {field.name.lower(): field.dataType for field in fields}
    bytes_or_text = (spark.BinaryType, spark.StringType)
    if isinstance(types.get("payload"), spark.BinaryType):
        yield (
            "`payload` is Databricks' name for the bytes of a message: rename it to `data`, or set "
            "`columns=databricks`, or, if it is a field of the message, send the message as a struct `value`"
        )
    elif types.keys() <= _KAFKA_COLUMNS | _METADATA_COLUMNS and isinstance(types.get("value"), bytes_or_text):
        names = {"value": "data", "key": "ordering_key", "headers": "attributes"}
        renamed = ", ".join(f"`{old}` to `{new}`" for old, new in names.items() if old in types)
        yield (
            f"these are Kafka's names: rename {renamed}, or, if they are fields of the message, send the message as a "
            "struct `value`"
        )


def _unused(names: tuple[str, ...], used: set[int | None], ignored: frozenset[str]) -> Iterator[str]:
    for position, name in enumerate(names):
        if position in used or name.lower() in _DELIVERY_COLUMNS | _METADATA_COLUMNS | ignored:
            continue
        near = difflib.get_close_matches(name.lower(), sorted(_METADATA_COLUMNS), n=1, cutoff=0.7)
        hint = f" (did you mean `{near[0]}`?)" if near else ""
        yield (
            f"`{name}` is no part of a message{hint}: drop it, name it in `attributeColumns`, or set "
            "`ignoreExtraColumns=true`"
        )

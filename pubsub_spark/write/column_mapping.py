"""The column mapping: which column of a DataFrame is which field of a message.

Decided on the driver, from the schema and the options alone. Columns are named as the fields of `PubsubMessage` and
found as Spark's resolver finds them: whatever their case, unless two differ in nothing else.

The payload of a message (with `encode=topic` there is no first case):

    a column `data`                   those bytes (a string as UTF-8)
    else a column `value`, a struct   encoded: by the topic's schema, or as JSON where the topic has none
    else                              the whole row, encoded in the same way

A row is encoded without the columns `attributes`, `ordering_key`, and `topic` if no option names the topic. If the
topic's schema has a field of such a name, the column is both.

With `columns=databricks` the payload is `payload` and `attributes` is a JSON object. Without it, columns that are named
as in Databricks' source or in Kafka's are refused: they would become fields of a JSON object by mistake.
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

# Columns that our own reader adds and a publisher cannot set. They are ignored, so that a stream can be published as
# read.
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
# If the whole row is encoded, a column of such a name may be meant as a field of the payload, of any type.
_FIELD_HINT = " (if it is a field of the message, send the message as a struct `value`)"


@dataclass(frozen=True)
class ColumnMapping:
    """The positions of the columns that make a message, or None if the DataFrame has no such column."""

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
        """Raises SchemaError with every problem."""
        mapper = _Mapper(schema, options)
        mapping = mapper.mapping()
        if mapper.problems:
            raise SchemaError("These columns cannot be published: " + "; ".join(mapper.problems) + ".")
        return mapping

    def for_schema(self, fields: Iterable[str]) -> ColumnMapping:
        if self.payload_kind != "row":
            return self
        known = {field.lower() for field in fields}
        metadata = {self.attributes, self.ordering_key, *(position for _, position in self.attribute_columns)}
        kept = tuple(at for at, name in enumerate(self.names) if at not in metadata or name.lower() in known)
        return replace(self, payload=kept)

    def payload_type(self, schema: pa.Schema) -> pa.StructType:
        if self.payload_kind == "row":
            return pa.struct([schema.field(at) for at in self.payload])
        return schema.field(self.payload[0]).type

    def column_of(self, field: str) -> str:
        if field == "data":
            return "the row" if self.payload_kind == "row" else f"`{self.names[self.payload[0]]}`"
        position = {"attributes": self.attributes, "ordering_key": self.ordering_key, "topic": self.topic}[field]
        return f"`{field}`" if position is None else f"`{self.names[position]}`"


class _Mapper:
    def __init__(self, schema: spark.StructType, options: WriteOptions) -> None:
        self.problems: list[str] = []
        self._fields = schema.fields
        self._names = tuple(field.name for field in schema.fields)
        self._options = options
        self._is_databricks = options.columns == "databricks"
        payload_name = "payload" if self._is_databricks else "data"
        names = (payload_name, "attributes", "ordering_key", "topic", "value")
        self._data, self._attributes, self._ordering_key, self._topic, self._value = map(self._find, names)
        if self._value is not None and not isinstance(self._fields[self._value].dataType, spark.StructType):
            self._value = None  # a column of the row like any other
        if options.encode == "topic":
            self._data = None  # a column of the row like any other
        self._field_hint = _FIELD_HINT if self._data is None and self._value is None else ""

    def mapping(self) -> ColumnMapping:
        self._check_payload()
        self._check_attributes()
        attribute_columns = self._attribute_columns()
        ordering_key, path = self._ordering()
        topic = self._topic_column()
        kind, payload = self._payload(ordering_key, topic, {at for _, at in attribute_columns})
        return ColumnMapping(
            kind,
            payload,
            self._attributes,
            attribute_columns,
            None if self._options.ordering_text is not None else ordering_key,
            topic,
            self._names,
            path,
            self._options.ordering_text,
            self._options.described_attributes,
        )

    def _check_payload(self) -> None:
        if self._data is not None:
            self._check(self._data, (spark.BinaryType, spark.StringType), "binary or string")
        elif self._is_databricks:
            self.problems.append("there is no column `payload`, which `columns=databricks` needs")
        elif self._value is None and self._options.encode != "topic":
            self.problems.extend(_foreign_payload(self._fields))

    def _check_attributes(self) -> None:
        if self._attributes is None:
            return
        if self._is_databricks:
            self._check(self._attributes, (spark.StringType,), "a string, a JSON object")
        else:
            problems = _not_attributes(self._fields[self._attributes])
            self.problems.extend(f"{problem}{self._field_hint}" for problem in problems)

    def _attribute_columns(self) -> tuple[tuple[str, int], ...]:
        positions = ((name, self._require("attributeColumns", name)) for name in self._options.attribute_columns)
        return tuple((name, position) for name, position in positions if position is not None)

    def _ordering(self) -> tuple[int | None, tuple[str, ...]]:
        if self._options.ordering_field is not None:
            return self._ordering_field(self._options.ordering_field)
        if self._options.ordering_key is not None:
            return self._require("orderingKey", self._options.ordering_key), ()
        if self._ordering_key is not None:
            self._check(self._ordering_key, (spark.StringType,), f"a string{self._field_hint}")
        return self._ordering_key, ()

    def _ordering_field(self, field: tuple[str, ...]) -> tuple[int | None, tuple[str, ...]]:
        """Return the column of a field of the payload and the path within it. A missing field is a problem."""
        in_row = self._value is None
        position, path = (self._find(field[0]), field[1:]) if in_row else (self._value, field)
        kind: spark.DataType | None = None if position is None else self._fields[position].dataType
        for name in path:
            kind = kind[name].dataType if isinstance(kind, spark.StructType) and name in kind.fieldNames() else None
        if not isinstance(kind, _TEXT_TYPES):
            problem = "is not there" if kind is None else f"is `{kind.simpleString()}`"
            self.problems.append(
                f"the ordering key of the AsyncAPI message is its field `{'.'.join(field)}`, which {problem}, but must "
                f"be {_TEXT_TYPES_PHRASE}"
            )
        return position, path

    def _topic_column(self) -> int | None:
        if self._options.topic_id is not None:
            return None
        if self._topic is None:
            self.problems.append(
                "there is neither the option `topicId` nor a column `topic` (Spark passes no option of a catalog's "
                "table: use `INSERT INTO t WITH (topicId = '...')`)"
            )
        else:
            self._check(self._topic, (spark.StringType,), f"a string{self._field_hint}")
        return self._topic

    def _payload(
        self, ordering_key: int | None, topic: int | None, attribute_columns: set[int]
    ) -> tuple[Literal["data", "value", "row"], tuple[int, ...]]:
        """The arguments are the columns of other fields of the message."""
        names, data, value = self._names, self._data, self._value
        if data is not None and value is not None:
            self.problems.append(f"`{names[data]}` and `{names[value]}` are both a message. Drop one")
        chosen = value if data is None else data
        if chosen is not None:
            if not self._options.ignore_extra_columns:
                ignored = _DATABRICKS_DELIVERY_COLUMNS if self._is_databricks else frozenset()
                used = {data, value, self._attributes, ordering_key, topic, *attribute_columns}
                self.problems.extend(_unused(names, used, ignored))
            return "value" if data is None else "data", (chosen,)
        # A column of any other name that an option makes the ordering key, `topic` among them, stays in the row.
        key_only = ordering_key is not None and names[ordering_key].lower() == "ordering_key"
        metadata = {self._attributes, topic, ordering_key if key_only else None}
        payload = tuple(at for at in range(len(names)) if at not in metadata)
        if not payload:
            self.problems.append("there is no column `data`, `value` or any other to make a message of")
        return "row", payload

    def _find(self, name: str) -> int | None:
        exact = [at for at, column in enumerate(self._names) if column == name]
        positions = exact or [at for at, column in enumerate(self._names) if column.lower() == name.lower()]
        if len(positions) > 1:
            self.problems.append(f"{' and '.join(f'`{self._names[at]}`' for at in positions)} are both `{name}`")
        return positions[0] if positions else None

    def _require(self, option: str, name: str) -> int | None:
        position = self._find(name)
        if position is None:
            known = ", ".join(f"`{column}`" for column in self._names)
            self.problems.append(f"`{option}` names `{name}`, but the columns are {known}")
        else:
            self._check(position, _TEXT_TYPES, _TEXT_TYPES_PHRASE)
        return position

    def _check(self, position: int, types: tuple[type[spark.DataType], ...], phrase: str) -> None:
        field = self._fields[position]
        if not isinstance(field.dataType, types):
            self.problems.append(f"`{field.name}` is `{field.dataType.simpleString()}`, but must be {phrase}")


def _not_attributes(field: spark.StructField) -> Iterator[str]:
    kind, text = field.dataType, spark.StringType
    if isinstance(kind, spark.MapType):
        if not (isinstance(kind.keyType, text) and isinstance(kind.valueType, text)):
            yield f"`{field.name}` is `{kind.simpleString()}`, but attributes are text: cast it to `map<string,string>`"
    else:
        yield f"`{field.name}` is `{kind.simpleString()}`, but must be `map<string,string>`"


def _foreign_payload(fields: Sequence[spark.StructField]) -> Iterator[str]:
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

"""Rows to messages: which column of a DataFrame is which part of a message, and an Arrow batch's messages as columns.

`Layout.of` decides once, on the driver, from the schema and the options alone, and finds every problem before it
raises. `messages` runs in the task, for each Arrow batch, without a Python object per row. The names are those of
`PubsubMessage`, found as Spark's resolver finds columns: whatever their case, unless two differ in nothing else.

What the message itself is (with `encode=topic` there is no first case):

    a column `data`                 those bytes (a string as UTF-8)
    else a column `value`, a struct encoded: by the topic's schema, or as JSON where the topic has none
    else                            the row, encoded likewise

A row is encoded without the columns that say something beside it: `attributes`, `ordering_key`, and `topic` where no
option names the topic. Where the topic's schema has a field of such a name the column is both.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from ..errors import RowError, SchemaError
from ..options import WriteOptions
from .limits import Entries, Ints

Payload = Callable[[pa.StructArray], pa.Array]
"""Encodes rows: a binary for each, null for a null row. Raises RowError for one that cannot be."""

# What our own reader adds to a message; of no use to a publisher, so a stream that is passed on need not drop them.
_DELIVERY = frozenset({"message_id", "publish_time", "delivery_attempt", "schema_revision", "decode_error"})
_METADATA = frozenset({"attributes", "ordering_key", "topic"})
_AS_TEXT = (
    spark.StringType,
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.BooleanType,
    spark.DateType,
)
_TEXT_WORDS = "a string, an integer, a boolean or a date"
# In a row that is encoded such a name may be a field's, of any type.
_OR_A_FIELD = "; if it is a field of the message, send the message as a struct `value`"
_ATTRIBUTES = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True)
class Layout:
    """Positions of the columns that make a message; None where the DataFrame has no such column."""

    kind: Literal["data", "value", "row"]
    payload: tuple[int, ...]
    attributes: int | None
    attribute_columns: tuple[tuple[str, int], ...]
    ordering_key: int | None
    topic: int | None
    names: tuple[str, ...]

    @classmethod
    def of(cls, schema: spark.StructType, options: WriteOptions) -> Layout:
        """The layout of a DataFrame; SchemaError says everything that is wrong with its columns."""
        problems: list[str] = []
        layout = _layout(_Columns(schema, problems), options, problems)
        if problems:
            raise SchemaError("These columns cannot be published: " + "; ".join(problems) + ".")
        return layout

    def for_schema(self, fields: Iterable[str]) -> Layout:
        """The layout for a schema with these fields: a column sent as attribute or ordering key is in a row's payload
        if the schema has it, and only then."""
        if self.kind != "row":
            return self
        known = {field.lower() for field in fields}
        beside = {self.attributes, self.ordering_key, *(position for _, position in self.attribute_columns)}
        kept = tuple(at for at, name in enumerate(self.names) if at not in beside or name.lower() in known)
        return replace(self, payload=kept)

    def payload_type(self, schema: pa.Schema) -> pa.StructType:
        """The type of the rows that are encoded, for a DataFrame of this Arrow schema."""
        if self.kind == "row":
            return pa.struct([schema.field(at) for at in self.payload])
        return schema.field(self.payload[0]).type

    def shown(self, part: str) -> str:
        """The column of the DataFrame that a part of the message comes from, for error messages."""
        if part == "data":
            return "the row" if self.kind == "row" else f"`{self.names[self.payload[0]]}`"
        position = {"attributes": self.attributes, "ordering_key": self.ordering_key, "topic": self.topic}[part]
        return f"`{part}`" if position is None else f"`{self.names[position]}`"


class _Columns:
    """The columns by name, as Spark's resolver would find them."""

    def __init__(self, schema: spark.StructType, problems: list[str]) -> None:
        self.fields = schema.fields
        self._problems = problems

    def find(self, name: str) -> int | None:
        exact = [i for i, field in enumerate(self.fields) if field.name == name]
        found = exact or [i for i, field in enumerate(self.fields) if field.name.lower() == name.lower()]
        if len(found) > 1:
            self._problems.append(f"{' and '.join(f'`{self.fields[i].name}`' for i in found)} are both `{name}`")
        return found[0] if found else None

    def asked_for(self, option: str, name: str, types: tuple[type[spark.DataType], ...], words: str) -> int | None:
        position = self.find(name)
        if position is None:
            known = ", ".join(f"`{field.name}`" for field in self.fields)
            self._problems.append(f"`{option}` names `{name}`, but the columns are {known}")
        else:
            self.check(position, types, words)
        return position

    def check(self, position: int, types: tuple[type[spark.DataType], ...], words: str) -> None:
        field = self.fields[position]
        if not isinstance(field.dataType, types):
            self._problems.append(f"`{field.name}` is `{field.dataType.simpleString()}`, but must be {words}")


def _layout(columns: _Columns, options: WriteOptions, problems: list[str]) -> Layout:
    data, attributes, ordering_key, topic = map(columns.find, ("data", "attributes", "ordering_key", "topic"))
    value = columns.find("value")
    if value is not None and not isinstance(columns.fields[value].dataType, spark.StructType):
        value = None  # a column of the row like any other
    if options.encode == "topic":
        data = None  # a column of the row like any other
    names = tuple(field.name for field in columns.fields)
    or_a_field = _OR_A_FIELD if data is None and value is None else ""

    if data is not None:
        columns.check(data, (spark.BinaryType, spark.StringType), "binary or string")
    if attributes is not None:
        problems.extend(f"{problem}{or_a_field}" for problem in _not_attributes(columns.fields[attributes]))
    attribute_columns = tuple(
        (name, position)
        for name in options.attribute_columns
        if (position := columns.asked_for("attributeColumns", name, _AS_TEXT, _TEXT_WORDS)) is not None
    )
    if options.ordering_key is not None:
        ordering_key = columns.asked_for("orderingKey", options.ordering_key, _AS_TEXT, _TEXT_WORDS)
    elif ordering_key is not None:
        columns.check(ordering_key, (spark.StringType,), f"a string{or_a_field}")
    if options.topic_id is not None:
        topic = None
    elif topic is None:
        problems.append("there is neither the option `topicId` nor a column `topic`")
    else:
        columns.check(topic, (spark.StringType,), f"a string{or_a_field}")

    kind: Literal["data", "value", "row"] = "row"
    if data is not None and value is not None:
        problems.append(f"`{names[data]}` and `{names[value]}` are both a message; drop one")
    if data is not None or value is not None:
        kind = "value" if data is None else "data"
        payload = tuple(position for position in (data, value) if position is not None)[:1]
        if not options.ignore_extra_columns:
            used = {data, value, attributes, ordering_key, topic, *(position for _, position in attribute_columns)}
            problems.extend(_unused(names, used))
    else:
        beside = {attributes, ordering_key, topic}
        payload = tuple(i for i, name in enumerate(names) if i not in beside or name.lower() not in _METADATA)
        if not payload:
            problems.append("there is no column `data`, `value` or any other to make a message of")
    return Layout(kind, payload, attributes, attribute_columns, ordering_key, topic, names)


def _not_attributes(field: spark.StructField) -> Iterator[str]:
    kind, text = field.dataType, spark.StringType
    if isinstance(kind, spark.MapType):
        if not (isinstance(kind.keyType, text) and isinstance(kind.valueType, text)):
            yield f"`{field.name}` is `{kind.simpleString()}`, but attributes are text: cast it to `map<string,string>`"
    else:
        yield f"`{field.name}` is `{kind.simpleString()}`, but must be `map<string,string>`"


def _unused(names: tuple[str, ...], used: set[int | None]) -> Iterator[str]:
    for position, name in enumerate(names):
        if position in used or name.lower() in _DELIVERY | _METADATA:
            continue
        near = difflib.get_close_matches(name.lower(), sorted(_METADATA), n=1, cutoff=0.7)
        hint = f" (did you mean `{near[0]}`?)" if near else ""
        yield (
            f"`{name}` is no part of a message{hint}: drop it, name it in `attributeColumns`, or set "
            "`ignoreExtraColumns=true`"
        )


def messages(batch: pa.RecordBatch, layout: Layout, encode: Payload) -> pa.RecordBatch:
    """The messages of an Arrow batch: `data`, and `attributes`, `ordering_key` and `topic` where there are any.

    Nothing is null but `topic`, which the caller checks. Raises RowError for a row that cannot be a message.
    """
    _check_text(batch, layout)
    columns = {"data": _data(batch, layout, encode)}
    if layout.attributes is not None:
        columns["attributes"] = _no_null_entries(batch.column(layout.attributes))
    if layout.attribute_columns:
        columns["attributes"] = with_attributes(
            columns.get("attributes"), [(name, _text(batch.column(at))) for name, at in layout.attribute_columns]
        )
    if layout.ordering_key is not None:
        columns["ordering_key"] = _text(batch.column(layout.ordering_key)).fill_null("")
    if layout.topic is not None:
        columns["topic"] = _text(batch.column(layout.topic))
    return pa.RecordBatch.from_pydict(columns)


def _check_text(batch: pa.RecordBatch, layout: Layout) -> None:
    """Spark takes any bytes for a string; what is made of strings here must be UTF-8, but for `data` itself."""
    beside = {layout.attributes, layout.ordering_key, layout.topic, *(at for _, at in layout.attribute_columns)}
    for at, name in enumerate(batch.schema.names):
        column = batch.column(at)
        if (at in beside or (at in layout.payload and layout.kind != "data")) and not _is_text(column):
            for row in range(len(column)):
                value = column.take([row])
                if not _is_text(value):
                    what = "holds a string that is not UTF-8; repair it with `make_valid_utf8`, or send it as binary"
                    raise RowError(row, f"`{_text_path(name, value)}` {what}")


def _is_text(column: pa.Array) -> bool:
    try:
        column.validate(full=True)  # of what Spark writes only its strings can be wrong
    except pa.ArrowInvalid:
        return False
    return True


def _text_path(path: str, value: pa.Array) -> str:
    """The path of what is wrong in a column of one row."""
    if pa.types.is_struct(value.type):
        for field, member in zip(value.type, value.flatten(), strict=True):
            if not _is_text(member):
                return _text_path(f"{path}.{field.name}", member)
    return path


def _data(batch: pa.RecordBatch, layout: Layout, encode: Payload) -> pa.BinaryArray:
    if layout.kind == "row":
        rows = pa.StructArray.from_arrays(
            [batch.column(at) for at in layout.payload],
            fields=[batch.schema.field(at) for at in layout.payload],
        )
        encoded = encode(rows)
    elif layout.kind == "value":
        encoded = encode(batch.column(layout.payload[0]))
    else:
        encoded = batch.column(layout.payload[0])
    return encoded.cast(pa.binary()).fill_null(b"")


def _text(column: pa.Array) -> pa.StringArray:
    return column.cast(pa.string())


def _no_null_entries(maps: pa.MapArray) -> pa.MapArray:
    """The same maps, none null, without the entries whose value is null: there is no null attribute."""
    if maps.type != _ATTRIBUTES:
        maps = maps.cast(_ATTRIBUTES)  # Spark writes large strings where it is told to
    absent = np.asarray(maps.is_null().to_numpy(zero_copy_only=False))
    if maps.null_count:
        maps = maps.take(pa.array(np.arange(len(maps))))  # a null may hide entries; a taken one does not
    entries = Entries.of(maps)
    if not (absent.any() or entries.values.null_count):
        return maps
    if entries.values.null_count:
        entries = entries.where(np.asarray(entries.values.is_valid().to_numpy(zero_copy_only=False)))
    return pa.MapArray.from_arrays(pa.array(entries.offsets, pa.int32()), entries.keys, entries.values)


def with_attributes(maps: pa.MapArray | None, extra: list[tuple[str, pa.StringArray]]) -> pa.MapArray:
    """The maps with further entries after those they have, of the rows where the value is not null; there it takes
    the place of an entry of that name."""
    rows = len(extra[0][1])
    present = [np.asarray(values.is_valid().to_numpy(zero_copy_only=False)) for _, values in extra]
    if maps is None:
        old = Entries(pa.array([], pa.string()), pa.array([], pa.string()), np.zeros(rows + 1, dtype=np.int64))
    else:
        old = Entries.of(maps)
        for (name, _), here in zip(extra, present, strict=True):
            same = np.asarray(pc.equal(old.keys, name).to_numpy(zero_copy_only=False))
            if same.any():
                old = old.where(~(same & np.repeat(here, old.counts)))
    offsets = np.concatenate([[0], np.cumsum(old.counts + np.sum(present, axis=0))]).astype(np.int64)
    # Where each entry goes: the old ones to the front of their row, then one extra after the other.
    goes_to: list[Ints] = [np.arange(len(old.keys)) + np.repeat(offsets[:-1] - old.offsets[:-1], old.counts)]
    following = offsets[:-1] + old.counts
    keys, values = [old.keys], [old.values]
    for (name, column), here in zip(extra, present, strict=True):
        goes_to.append(following[here])
        following = following + here
        keys.append(pa.array([name], pa.string()).take(pa.array(np.zeros(int(here.sum()), dtype=np.int64))))
        values.append(column.drop_null())
    comes_from = np.empty(int(offsets[-1]), dtype=np.int64)
    comes_from[np.concatenate(goes_to)] = np.arange(len(comes_from))
    order = pa.array(comes_from)
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.concat_arrays(keys).take(order), pa.concat_arrays(values).take(order)
    )


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """The batch with another column, in place of the one of that name or after the others."""
    return pa.RecordBatch.from_pydict(dict(zip(batch.schema.names, batch.columns, strict=True)) | {name: column})


def concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of batches of one shape; at least one."""
    if len(batches) == 1:
        return batches[0]
    names = batches[0].schema.names
    return pa.RecordBatch.from_pydict(
        {name: pa.concat_arrays([each.column(name) for each in batches]) for name in names}
    )

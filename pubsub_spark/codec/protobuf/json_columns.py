"""The proto3 JSON mapping, many messages at a time: JSON values to the columns that `ptars` writes.

The columns are those of `ptars_schema.payload_writer`, so JSON messages become binary ones without a Python object for
each message, and are then decoded as those are. Compiled once per schema: what each field does with the values of all
messages is decided then.

`json` says what is right; here is only the common form of each field. A value in any other form, right or wrong, raises
one of UNCOMMON, and its message is then read by `json`, alone. Batches without such a value and schemas without maps
are read by `json_batches`, twice as fast. `json_texts` is the way back.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from types import NoneType
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pubsub_spark.codec.protobuf import json_arrays, json_batches, ptars_schema
from pubsub_spark.codec.protobuf.column_tree import Array, Enum, Map, Node, Scalar, Struct, build_column_tree
from pubsub_spark.codec.protobuf.json_values import Values, most_names, parse_strictly, parse_together
from pubsub_spark.codec.protobuf.types import SCALARS, UNSIGNED
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.protobuf.json_mapping import (
    NULL_TYPES,
    UNCOMMON,
    WELL_KNOWN,
    WRAPPERS,
    duration,
)

# The column of some values. The numbers of names of all objects among them are appended to the list.
ReadValues = Callable[[Values, list[int]], pa.Array]

_CHUNK_ROWS: Final = 1024  # messages parsed and read at once; of 256 each one takes a fifth more time
_BATCH_ROWS: Final = 4096  # messages that Arrow's JSON reader is given at once; of 1024 each takes a fifth more time
_MIN_ROWS: Final = 64  # fewer messages are not worth their columns
_WRITTEN_ROWS: Final = 16_384  # as many are made binary at once
_SPLIT_PARTS: Final = 4  # the values of a field with an uncommon one are read in so many parts, again and again

_INTEGER: Final = "-?(?:0|[1-9][0-9]{0,19})"
_INTEGERS: Final = re.compile(f"{_INTEGER}(?:,{_INTEGER})*")


class JsonColumnReader:
    """The reader of JSON messages of one schema."""

    def __init__(self, struct: Struct, message: Descriptor) -> None:
        self._read = _ObjectReader(struct, message)
        self._batches = json_batches.compile_reader(struct, message)
        self._handler = ptars_schema.payload_writer(struct)

    def binary(self, texts: pa.BinaryArray) -> tuple[list[int], pa.BinaryArray]:
        """The binary form of those messages that have the common form, and their rows; no text is null."""
        rows: list[int] = []
        payloads = [pa.array([], pa.binary())]
        if len(texts) < _MIN_ROWS:
            return rows, payloads[0]
        for start in range(0, len(texts), _WRITTEN_ROWS):
            columns = []
            for read, column in self._chunks(start, texts.slice(start, _WRITTEN_ROWS)):
                rows += read
                columns.append(column)
            if columns:
                batch = pa.RecordBatch.from_struct_array(pa.concat_arrays(columns))
                payloads.append(ptars_schema.call(self._handler.record_batch_to_array, batch))
        return rows, pa.concat_arrays(payloads)

    def _chunks(self, start: int, texts: pa.BinaryArray) -> Iterator[tuple[list[int], pa.StructArray]]:
        """The rows that have the common form, and their columns, chunk by chunk."""
        first = 0
        while self._batches and first < len(texts):
            batch = texts.slice(first, _BATCH_ROWS)
            try:
                column = self._batches.read(batch)
            except UNCOMMON:  # of some message: the others of `texts` most likely have it, too
                break
            yield list(range(start + first, start + first + len(batch))), column
            first += len(batch)
        for at in range(first, len(texts), _CHUNK_ROWS):
            rows, some = self._chunk(start + at, texts.slice(at, _CHUNK_ROWS).to_pylist())
            if some is not None:
                yield rows, some

    def _chunk(self, start: int, texts: list[bytes]) -> tuple[list[int], pa.StructArray | None]:
        """The rows of the chunk that have the common form, and their columns."""
        for parse in (parse_together, parse_strictly):
            places, values = parse(texts)
            names: list[int] = []
            try:
                try:
                    column = self._read(values, names)
                except UNCOMMON:
                    uncommon = self._read.uncommon(values)
                    places = [place for row, place in enumerate(places) if row not in uncommon]
                    values = [value for row, value in enumerate(values) if row not in uncommon]
                    names.clear()
                    column = self._read(values, names)
            except UNCOMMON:
                break
            if parse is parse_strictly or sum(names) == most_names([texts[place] for place in places]):
                return [start + place for place in places], column
        return [], None


def compile_reader(message: Descriptor) -> JsonColumnReader | None:
    """The reader of a schema's JSON messages; None if it has no columns."""
    try:
        struct = build_column_tree(message)
    except SchemaError:
        return None
    fields = message.fields_by_number
    readable = any(_field_reader(column.node, fields[column.number]) for column in struct.columns)
    return JsonColumnReader(struct, message) if readable else None


class _ObjectReader:
    """The reader of objects, none of them null."""

    def __init__(self, struct: Struct, message: Descriptor) -> None:
        spelled = {field.name: field.number for field in message.fields}
        spelled |= {field.json_name: field.number for field in message.fields}  # take precedence over original names
        self._fields: list[tuple[list[str], ReadValues]] = []
        self._names: list[str] = []
        for column in struct.columns:
            read_field = _field_reader(column.node, message.fields_by_number[column.number])
            if read_field is not None:
                self._fields.append(([name for name in spelled if spelled[name] == column.number], read_field))
                self._names.append(ptars_schema.field_name(column))
        self._oneofs = json_arrays.oneofs(struct, self._names)
        spellings = [frozenset(names) for names, _ in self._fields]
        self._known = frozenset().union(*spellings)
        self._exclusive = [names for names in spellings if len(names) > 1]
        self._exclusive += [frozenset().union(*(spellings[place] for place in places)) for places in self._oneofs]

    def __call__(self, values: Values, names: list[int]) -> pa.StructArray:
        """The column of the objects."""
        json_arrays.require({dict}.issuperset(map(type, values)))
        names.append(sum(map(len, values)))
        found = set(chain.from_iterable(values))
        arrays = []
        for spellings, read_field in self._fields:
            used = [name for name in spellings if name in found]
            json_arrays.require(len(used) <= 1)
            found.difference_update(used)
            items = list(map(dict.get, values, repeat(used[0]))) if used else [None] * len(values)
            arrays.append(read_field(items, names))
        json_arrays.require(not found)
        for members in self._oneofs:
            json_arrays.check_oneof([arrays[place] for place in members])
        return json_arrays.structs(self._names, arrays, len(values))

    def uncommon(self, values: Values) -> set[int]:
        """The rows of which a field has an uncommon form, or no column."""
        uncommon = {row for row, value in enumerate(values) if not self._has_known_names(value)}
        for name, read_field in ((name, read_field) for spellings, read_field in self._fields for name in spellings):
            items = [None if row in uncommon else value.get(name) for row, value in enumerate(values)]
            uncommon.update(_unread(read_field, items, 0))
        return uncommon

    def _has_known_names(self, value: Any) -> bool:
        """Whether a value is an object with names of fields that may be given together."""
        return (
            type(value) is dict
            and self._known.issuperset(value)
            and all(len(names & value.keys()) < 2 for names in self._exclusive)
        )


def _unread(read_field: ReadValues, items: Values, first: int) -> Iterator[int]:
    """The rows of a field's values, of which `first` is the first, that are not read."""
    try:
        read_field(items, [])
    except UNCOMMON:
        if len(items) == 1:
            yield first
            return
        size = -(-len(items) // _SPLIT_PARTS)
        for at in range(0, len(items), size):
            yield from _unread(read_field, items[at : at + size], first + at)


def _field_reader(node: Node, field: FieldDescriptor) -> ReadValues | None:
    """The reader of a field's values; None if its form is not read here."""
    if isinstance(node, Map):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        read_items = _element_reader(node.value, value)
        return read_items and _map_reader(_key_reader(node.key, key), read_items)
    if isinstance(node, Array):
        read_items = _element_reader(node.element, field)
        return read_items and _list_reader(read_items)
    if _is_object(field):
        read_items = _element_reader(node, field)
        return read_items and _nullable(read_items)
    return _scalar_reader(node, field)


def _is_object(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.full_name not in WELL_KNOWN


def _element_reader(node: Node, field: FieldDescriptor) -> ReadValues | None:
    """The reader of values of which none is null."""
    if _is_object(field):
        if not isinstance(node, Struct):  # a message that has only the shape of a time
            return None
        if field.message_type.full_name not in WRAPPERS:
            return _ObjectReader(node, field.message_type)
        inner = _element_reader(node.columns[0].node, field.message_type.fields_by_name["value"])
        assert inner is not None
        name = ptars_schema.field_name(node.columns[0])
        return lambda values, names: json_arrays.structs([name], [inner(values, names)], len(values))
    read = _scalar_reader(node, field)
    if read is None:
        return None

    def read_given(values: Values, names: list[int]) -> pa.Array:
        column = read(values, names)
        json_arrays.require(not column.null_count)
        return column

    return read_given


def _nullable(read: ReadValues) -> ReadValues:
    """The reader of values of which some may be absent."""

    def read_given(values: Values, names: list[int]) -> pa.Array:
        given = np.array([value is not None for value in values], np.bool_)
        if given.all():
            return read(values, names)
        column = read([value for value in values if value is not None], names)
        return column.take(pa.array(np.cumsum(given) - 1, mask=~given))

    return read_given


def _lists(items: pa.Array, lengths: list[int]) -> pa.ListArray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), items)


def _list_reader(read_items: ReadValues) -> ReadValues:
    def read(values: Values, names: list[int]) -> pa.Array:
        json_arrays.require({list, NoneType}.issuperset(map(type, values)))
        values = [value or () for value in values]
        return _lists(read_items(list(chain.from_iterable(values)), names), list(map(len, values)))

    return read


def _map_reader(read_keys: ReadValues, read_items: ReadValues) -> ReadValues:
    def read(values: Values, names: list[int]) -> pa.Array:
        json_arrays.require({dict, NoneType}.issuperset(map(type, values)))
        values = [value or {} for value in values]
        lengths = list(map(len, values))
        keys = read_keys(list(chain.from_iterable(values)), names)
        items = read_items(list(chain.from_iterable(map(dict.values, values))), names)
        names.append(len(keys))
        return _lists(json_arrays.structs(["key", "value"], [keys, items], len(keys)), lengths)

    return read


def _key_reader(node: Node, field: FieldDescriptor) -> ReadValues:
    """The reader of a map's keys, which JSON has as strings."""
    if field.type == FieldDescriptor.TYPE_BOOL:
        known = {"true": True, "false": False}
        return lambda values, _: pa.array(list(map(known.__getitem__, values)), pa.bool_())
    read = _scalar_reader(node, field)
    assert read is not None
    return read


def _scalar_reader(node: Node, field: FieldDescriptor) -> ReadValues | None:
    """The reader of values that are no objects, None where absent; None if their form is not read here."""
    if field.message_type is not None:
        return _READ_TIMES.get(field.message_type.full_name)
    if isinstance(node, Enum):
        return None if field.enum_type.full_name in NULL_TYPES else _enum_reader(field)
    assert isinstance(node, Scalar)
    type_ = UNSIGNED.get(node.kind) or SCALARS[node.kind]
    if pa.types.is_integer(type_):
        return lambda values, _: _integers(values, type_)
    if pa.types.is_floating(type_):
        return lambda values, _: _floats(values, type_)
    if node.kind == "bytes":
        return _bytes
    allowed = frozenset((str if node.kind == "string" else bool, NoneType))

    def read(values: Values, _: list[int]) -> pa.Array:
        json_arrays.require(allowed.issuperset(map(type, values)))
        return pa.array(values, type_)

    return read


def _integers(values: Values, type_: pa.DataType) -> pa.Array:
    found = set(map(type, values))
    if str in found:
        found.remove(str)
        json_arrays.require(
            _INTEGERS.fullmatch(",".join([value for value in values if type(value) is str])) is not None
        )
        values = [int(value) if type(value) is str else value for value in values]
    json_arrays.require(found <= {int, NoneType})
    return pa.array(values, type_)


def _floats(values: Values, type_: pa.DataType) -> pa.Array:
    found = set(map(type, values))
    json_arrays.require(found <= {float, int, NoneType})
    if int in found:
        values = [None if value is None else float(value) for value in values]
    return json_arrays.floats(pa.array(values, pa.float64()), type_)


def _bytes(values: Values, _: list[int]) -> pa.Array:
    json_arrays.require({str, NoneType}.issuperset(map(type, values)))
    return pa.array(
        [None if value is None else binascii.a2b_base64(value, strict_mode=True) for value in values], pa.binary()
    )


def _enum_reader(field: FieldDescriptor) -> ReadValues:
    numbers: dict[Any, int | None] = {value.number: value.number for value in field.enum_type.values}
    numbers |= {value.name: value.number for value in field.enum_type.values} | {None: None}

    def read(values: Values, _: list[int]) -> pa.Array:
        json_arrays.require({str, int, NoneType}.issuperset(map(type, values)))
        return pa.array(list(map(numbers.__getitem__, values)), pa.int32())

    return read


def _durations(values: Values, _: list[int]) -> pa.Array:
    return pa.array([None if value is None else duration(value) for value in values], json_arrays.TIME)


def _timestamps(values: Values, _: list[int]) -> pa.Array:
    return json_arrays.timestamps(pa.array(values, pa.string()))


_READ_TIMES: Final[dict[str, ReadValues]] = {
    "google.protobuf.Timestamp": _timestamps,
    "google.protobuf.Duration": _durations,
}

"""The proto3 JSON mapping, many messages at a time: JSON values to the columns that `ptars` writes.

The columns are those of `ptars_schema.payload_writer`, so JSON messages become binary ones without a Python object for
each message, and are then decoded as those are. Compiled once per schema: what each field does with the values of all
messages is decided then.

`json` says what is right; here is only the common form of each field. A value in any other form, right or wrong, raises
one of UNCOMMON, and its message is then read by `json`, alone. `json_texts` is the way back.
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
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pubsub_spark.codec.protobuf import ptars_schema
from pubsub_spark.codec.protobuf.column_tree import Array, Enum, Map, Node, Scalar, Struct, build_column_tree
from pubsub_spark.codec.protobuf.json import (
    FLOAT_LIMIT,
    LEAST_SECONDS,
    NULL_TYPES,
    UNCOMMON,
    WELL_KNOWN,
    WRAPPERS,
    duration,
)
from pubsub_spark.codec.protobuf.json_values import Values, most_names, parse_strictly, parse_together
from pubsub_spark.codec.protobuf.types import SCALARS, UNSIGNED
from pubsub_spark.errors import SchemaError

# The column of some values. The numbers of names of all objects among them are appended to the list.
ReadValues = Callable[[Values, list[int]], pa.Array]

_CHUNK_ROWS: Final = 1024  # messages parsed and read at once; of 256 each one takes a fifth more time
_MIN_ROWS: Final = 64  # fewer messages are not worth their columns
_WRITTEN_ROWS: Final = 16_384  # as many are made binary at once
_SPLIT_PARTS: Final = 4  # the values of a field with an uncommon one are read in so many parts, again and again

_INTEGER: Final = "-?(?:0|[1-9][0-9]{0,19})"
_INTEGERS: Final = re.compile(f"{_INTEGER}(?:,{_INTEGER})*")
# The bytes of a timestamp to the end of its seconds: each is a digit, or as it is here. Behind are up to nine digits.
_EPOCH_TEXT: Final = "1970-01-01T00:00:00Z"
_LEAST_DIGITS: Final = np.frombuffer(b"0000-00-00T00:00:00", np.uint8)
_MOST_DIGITS: Final = np.frombuffer(b"9999-99-99T99:99:99", np.uint8)
_SECOND_BYTES: Final = len(_LEAST_DIGITS)
_MOST_BYTES: Final = _SECOND_BYTES + len(".123456789Z")
_NANOS: Final = 10 ** np.arange(8, -1, -1, dtype=np.int32)
_TIME: Final = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
_POINT, _ZERO, _Z = b".0Z"


class JsonColumnReader:
    """The reader of JSON messages of one schema."""

    def __init__(self, struct: Struct, message: Descriptor) -> None:
        self._read = _ObjectReader(struct, message)
        self._handler = ptars_schema.payload_writer(struct)

    def binary(self, texts: list[bytes]) -> tuple[list[int], pa.BinaryArray]:
        """The binary form of those messages that have the common form, and their rows."""
        rows: list[int] = []
        payloads = [pa.array([], pa.binary())]
        if len(texts) < _MIN_ROWS:
            return rows, payloads[0]
        for start in range(0, len(texts), _WRITTEN_ROWS):
            columns = []
            end = min(start + _WRITTEN_ROWS, len(texts))
            for first in range(start, end, _CHUNK_ROWS):
                read, column = self._chunk(first, texts[first : min(first + _CHUNK_ROWS, end)])
                if column is not None:
                    rows += read
                    columns.append(column)
            if columns:
                batch = pa.RecordBatch.from_struct_array(pa.concat_arrays(columns))
                payloads.append(ptars_schema.call(self._handler.record_batch_to_array, batch))
        return rows, pa.concat_arrays(payloads)

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


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError


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
        self._oneofs = _oneofs(struct, self._names)
        spellings = [frozenset(names) for names, _ in self._fields]
        self._known = frozenset().union(*spellings)
        self._exclusive = [names for names in spellings if len(names) > 1]
        self._exclusive += [frozenset().union(*(spellings[place] for place in places)) for places in self._oneofs]

    def __call__(self, values: Values, names: list[int]) -> pa.StructArray:
        """The column of the objects."""
        _require({dict}.issuperset(map(type, values)))
        names.append(sum(map(len, values)))
        found = set(chain.from_iterable(values))
        arrays = []
        for spellings, read_field in self._fields:
            used = [name for name in spellings if name in found]
            _require(len(used) <= 1)
            found.difference_update(used)
            items = list(map(dict.get, values, repeat(used[0]))) if used else [None] * len(values)
            arrays.append(read_field(items, names))
        _require(not found)
        for members in self._oneofs:
            _check_oneof([arrays[place] for place in members])
        return _structs(self._names, arrays, len(values))

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


def _oneofs(struct: Struct, kept: list[str]) -> list[list[int]]:
    """The places of the members of each oneof among the columns that are kept."""
    groups: dict[str, list[int]] = {}
    for column in struct.columns:
        if column.oneof and ptars_schema.field_name(column) in kept:
            groups.setdefault(column.oneof, []).append(kept.index(ptars_schema.field_name(column)))
    return [places for places in groups.values() if len(places) > 1]


def _check_oneof(members: list[pa.Array]) -> None:
    given = [array.is_valid().to_numpy(zero_copy_only=False) for array in members if array.null_count < len(array)]
    _require(len(given) < 2 or int(np.sum(given, axis=0).max()) < 2)


def _structs(names: list[str], arrays: list[pa.Array], length: int, valid: pa.Buffer | None = None) -> pa.StructArray:
    type_ = pa.struct([pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)])
    return pa.Array.from_buffers(type_, length, [valid], children=arrays)


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
        return lambda values, names: _structs([name], [inner(values, names)], len(values))
    read = _scalar_reader(node, field)
    if read is None:
        return None

    def read_given(values: Values, names: list[int]) -> pa.Array:
        column = read(values, names)
        _require(not column.null_count)
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
        _require({list, NoneType}.issuperset(map(type, values)))
        values = [value or () for value in values]
        return _lists(read_items(list(chain.from_iterable(values)), names), list(map(len, values)))

    return read


def _map_reader(read_keys: ReadValues, read_items: ReadValues) -> ReadValues:
    def read(values: Values, names: list[int]) -> pa.Array:
        _require({dict, NoneType}.issuperset(map(type, values)))
        values = [value or {} for value in values]
        lengths = list(map(len, values))
        keys = read_keys(list(chain.from_iterable(values)), names)
        items = read_items(list(chain.from_iterable(map(dict.values, values))), names)
        names.append(len(keys))
        return _lists(_structs(["key", "value"], [keys, items], len(keys)), lengths)

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
        _require(allowed.issuperset(map(type, values)))
        return pa.array(values, type_)

    return read


def _integers(values: Values, type_: pa.DataType) -> pa.Array:
    found = set(map(type, values))
    if str in found:
        found.remove(str)
        _require(_INTEGERS.fullmatch(",".join([value for value in values if type(value) is str])) is not None)
        values = [int(value) if type(value) is str else value for value in values]
    _require(found <= {int, NoneType})
    return pa.array(values, type_)


def _floats(values: Values, type_: pa.DataType) -> pa.Array:
    found = set(map(type, values))
    _require(found <= {float, int, NoneType})
    if int in found:
        values = [None if value is None else float(value) for value in values]
    numbers = pa.array(values, pa.float64())
    bound = np.inf if type_ == numbers.type else FLOAT_LIMIT
    _require(bool((np.abs(numbers.drop_null().to_numpy()) < bound).all()))
    return numbers.cast(type_, safe=False)  # rounded as one number after another would be


def _bytes(values: Values, _: list[int]) -> pa.Array:
    _require({str, NoneType}.issuperset(map(type, values)))
    return pa.array(
        [None if value is None else binascii.a2b_base64(value, strict_mode=True) for value in values], pa.binary()
    )


def _enum_reader(field: FieldDescriptor) -> ReadValues:
    numbers: dict[Any, int | None] = {value.number: value.number for value in field.enum_type.values}
    numbers |= {value.name: value.number for value in field.enum_type.values} | {None: None}

    def read(values: Values, _: list[int]) -> pa.Array:
        _require({str, int, NoneType}.issuperset(map(type, values)))
        return pa.array(list(map(numbers.__getitem__, values)), pa.int32())

    return read


def _timestamps(values: Values, _: list[int]) -> pa.Array:
    given = [value is not None for value in values]
    if not any(given):
        return pa.nulls(len(values), _TIME)
    texts = pa.array([_EPOCH_TEXT if value is None else value for value in values], pa.string())
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1)
    data, length = np.frombuffer(texts.buffers()[2], np.uint8, offsets[-1]), np.diff(offsets)
    whole = length == _SECOND_BYTES + 1
    _require(bool((whole | ((length > _SECOND_BYTES + 2) & (length <= _MOST_BYTES))).all()))
    characters = data[np.minimum(offsets[:-1, None] + np.arange(_MOST_BYTES), len(data) - 1)]
    second, behind = characters[:, :_SECOND_BYTES], characters[:, _SECOND_BYTES]
    _require(bool(((second >= _LEAST_DIGITS) & (second <= _MOST_DIGITS)).all()))
    _require(bool((data[offsets[1:] - 1] == _Z).all() and ((behind == _POINT) | whole).all()))
    digits = characters[:, _SECOND_BYTES + 1 : -1] - _ZERO
    digits[np.arange(_SECOND_BYTES + 1, _MOST_BYTES - 1) >= length[:, None] - 1] = 0
    _require(bool((digits <= 9).all()))
    starts = np.arange(0, second.size + 1, _SECOND_BYTES, dtype=np.int32)
    seconds = pa.StringArray.from_buffers(len(texts), pa.py_buffer(starts), pa.py_buffer(second.tobytes()))
    seconds = seconds.cast(pa.timestamp("s")).cast(pa.int64())
    _require(pc.min(seconds).as_py() >= LEAST_SECONDS)
    nanos = pa.array(digits @ _NANOS, pa.int32())
    return _structs(["seconds", "nanos"], [seconds, nanos], len(texts), _validity(given))


def _validity(given: list[bool]) -> pa.Buffer | None:
    return None if all(given) else pa.array(given).buffers()[1]


def _durations(values: Values, _: list[int]) -> pa.Array:
    return pa.array([None if value is None else duration(value) for value in values], _TIME)


_READ_TIMES: Final[dict[str, ReadValues]] = {
    "google.protobuf.Timestamp": _timestamps,
    "google.protobuf.Duration": _durations,
}

"""Avro's JSON encoding, a batch at a time: JSON values to raw columns, and raw columns to JSON texts.

Raw columns are those of a schema whose logical types are left out (`nodes.without_logical`). `encode` makes binary
messages of them and `columns` reads those, so that JSON and binary messages have one way from there on. Compiled once
per schema: what each kind of node does with a list of values is decided then, and Python's own loops do the rest.

`json_encoding` says what is right; here is only the common form. A value in any other form, right or wrong, raises one
of UNCOMMON, and its message is then read by `json_encoding`, alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from json.encoder import encode_basestring
from json.scanner import make_scanner
from operator import itemgetter
from types import NoneType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from pubsub_spark.codec.avro.columns import ColumnReader, batches, compile_columns
from pubsub_spark.codec.avro.cursor_arrays import offsets_of
from pubsub_spark.codec.avro.encode import compile_rows
from pubsub_spark.codec.avro.types import column_of, value_type, variants, widened
from pubsub_spark.codec.json_scan import scan_each
from pubsub_spark.errors import RowError, SchemaError
from pubsub_spark.schema.avro.json_encoding import NOT_NUMBERS, no_constant
from pubsub_spark.schema.avro.schema_tree import Array, Enum, Fixed, Map, Node, Primitive, Record, Union, type_name
from pubsub_spark.schema.avro.schema_tree import without_logical as raw_schema

Values = list[Any]  # JSON values, of one field of all messages
ReadValues = Callable[[Values], pa.Array]
WriteTexts = Callable[[pa.Array], list[str]]

# What an uncommon value makes these functions, Python and Arrow raise.
UNCOMMON: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, StopIteration, RecursionError)
# Messages parsed and read at once: so few that their values are gone before Python looks for garbage among them, which
# takes three times as long as parsing. Of a chunk with an uncommon value, so few are read at once to find it.
_CHUNK_ROWS: Final = 256
_UNCOMMON_CHUNK_ROWS: Final = 16

_scan: Final = make_scanner(json.JSONDecoder(parse_constant=no_constant))  # type: ignore[arg-type]
_NAMES: Final = {str(value): f'"{name}"' for name, value in NOT_NUMBERS.items()}


class JsonReader(NamedTuple):
    """The reader of a schema's JSON messages."""

    read: ReadValues
    to_binary: Callable[[pa.StructArray], pa.BinaryArray]
    type: pa.StructType
    wrapped: bool

    def binary(self, texts: list[bytes]) -> tuple[list[int], pa.BinaryArray]:
        """The binary form of those messages that have the common form, and their rows."""
        rows: list[int] = []
        columns = [pa.array([], self.type)]
        for start in range(0, len(texts), _CHUNK_ROWS):
            for read, column in self._chunk(start, texts[start : start + _CHUNK_ROWS]):
                rows += read
                columns.append(column)
        try:
            return rows, self.to_binary(pa.concat_arrays(columns))
        except RowError:  # not known to happen: the columns were checked
            return [], pa.array([], pa.binary())

    def _chunk(self, start: int, texts: list[bytes]) -> Iterator[tuple[list[int], pa.StructArray]]:
        """The rows of the chunk that have the common form, and their columns."""
        places, values = scan_each(_scan, texts)
        rows = [start + place for place in places]
        for size in (_CHUNK_ROWS, _UNCOMMON_CHUNK_ROWS):
            done = True
            for first in range(0, len(values), size):
                try:
                    column = self.read(values[first : first + size])
                except UNCOMMON:
                    done = False
                    continue
                if self.wrapped:
                    column = pa.Array.from_buffers(self.type, len(column), [None], children=[column])
                yield rows[first : first + size], column
            if done:
                return


class JsonWriter(NamedTuple):
    """The writer of JSON messages from a schema's binary ones."""

    columns: ColumnReader
    write: WriteTexts

    def texts(self, messages: pa.BinaryArray, one: Callable[[bytes], bytes]) -> pa.BinaryArray:
        """The JSON messages; `one` writes those that the columns cannot hold (a map with one key twice)."""
        made: list[str | bytes] = []
        for start, end in batches(messages):
            part = messages.slice(start, end - start)
            column, batch = self.columns.decode(part)
            made += map(one, part.to_pylist()) if batch.any_fell_back else self.write(column)
        return pa.array(made, pa.binary())


def compile_reader(root: Node) -> JsonReader | None:
    """The reader of a schema's JSON messages; None if its values have no raw columns."""
    raw = _raw(root)
    if raw is None:
        return None
    type_ = value_type(raw)
    return JsonReader(_reader(raw), compile_rows(raw, type_), type_, not pa.types.is_struct(column_of(raw).type))


def compile_writer(root: Node) -> JsonWriter | None:
    """The writer of a schema's JSON messages; None if its values have no raw columns."""
    raw = _raw(root)
    return None if raw is None else JsonWriter(compile_columns(root, raw), _writer(raw))


def _raw(root: Node) -> Node | None:
    """The schema of the raw columns; None if it contains itself, or a column would not tell a union's branch."""
    raw = raw_schema(root)
    try:
        value_type(raw)
    except SchemaError:
        return None
    return None if _has_widened(raw) else raw


def _has_widened(node: Node) -> bool:
    match node:
        case Record(fields=fields):
            return any(_has_widened(field.node) for field in fields)
        case Array(inner) | Map(inner):
            return _has_widened(inner)
        case Union(branches):
            return widened(node) is not None or any(map(_has_widened, branches))
    return False


# ---------------------------------------------------------------------------------------------------------- reading


def _require(fits: bool) -> None:
    if not fits:
        raise ValueError


def _reader(node: Node) -> ReadValues:
    type_ = column_of(node).type
    match node:
        case Primitive() | Fixed() | Enum():
            return _scalar_reader(node, type_, frozenset())
        case Record():
            return _record_reader(node, type_)
        case Array(items):
            return _array_reader(_reader(items), type_)
        case Map(values):
            return _map_reader(_reader(values), type_)
        case Union():
            return _union_reader(node, type_)


def _scalar_reader(node: Primitive | Fixed | Enum, type_: pa.DataType, null: frozenset[type]) -> ReadValues:
    """The reader of values of a kind without parts; `null` has the type of None where it may be among them."""
    if node.kind in ("float", "double"):
        return lambda values: _floats(values, type_, {float, int} | null)
    if isinstance(node, Fixed) or node.kind == "bytes":
        sizes = {node.size} if isinstance(node, Fixed) else None
        return lambda values: _bytes(values, sizes)
    if isinstance(node, Enum):
        known = frozenset([*node.symbols, None] if null else node.symbols)

        def symbols(values: Values) -> pa.Array:
            _require(known.issuperset(values))
            return pa.array(values, type_)

        return symbols
    allowed = {_TYPES[node.kind]} | null

    def read(values: Values) -> pa.Array:
        _require(allowed.issuperset(map(type, values)))
        return pa.array(values, type_)

    return read


_TYPES: Final[dict[str, type]] = {"null": NoneType, "boolean": bool, "int": int, "long": int, "string": str}


def _floats(values: Values, type_: pa.DataType, allowed: Iterable[type]) -> pa.Array:
    found = set(map(type, values))
    _require(found.issubset(allowed))
    if int in found:
        values = [None if value is None else float(value) for value in values]
    numbers = pa.array(values, pa.float64())
    if type_ != numbers.type:  # rounded as one number after another would be
        numbers = numbers.cast(type_, safe=False)
    finite = numbers.drop_null().to_numpy()
    _require(bool(np.isfinite(finite).all()))
    return numbers


def _bytes(values: Values, sizes: set[int] | None) -> pa.Array:
    data = [None if value is None else value.encode("iso-8859-1") for value in values]
    _require(sizes is None or {len(item) for item in data if item is not None} <= sizes)
    return pa.array(data, pa.binary())


def _structs(type_: pa.DataType, length: int, children: list[pa.Array], given: pa.BooleanArray | None = None) -> Any:
    valid = None if given is None else given.buffers()[1]
    return pa.Array.from_buffers(type_, length, [valid], children=children)


def _record_reader(node: Record, type_: pa.DataType) -> ReadValues:
    fields = [(itemgetter(field.name), _reader(field.node)) for field in node.fields]
    sizes = {len(fields)}

    def read(values: Values) -> pa.Array:
        _require({dict}.issuperset(map(type, values)) and sizes.issuperset(map(len, values)))
        return _structs(type_, len(values), [column(list(map(get, values))) for get, column in fields])

    return read


def _offsets(values: Values) -> pa.Array:
    lengths = np.fromiter(map(len, values), np.int32, len(values))
    return pa.array(np.concatenate([np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)]))


def _array_reader(read_items: ReadValues, type_: pa.DataType) -> ReadValues:
    def read(values: Values) -> pa.Array:
        _require({list}.issuperset(map(type, values)))
        items = read_items(list(chain.from_iterable(values)))
        buffers = [None, _offsets(values).buffers()[1]]
        return pa.Array.from_buffers(type_, len(values), buffers, children=[items])

    return read


def _map_reader(read_items: ReadValues, type_: pa.DataType) -> ReadValues:
    def read(values: Values) -> pa.Array:
        _require({dict}.issuperset(map(type, values)))
        keys = pa.array(list(chain.from_iterable(values)), pa.string())
        items = read_items(list(chain.from_iterable(map(dict.values, values))))
        entries = _structs(pa.struct([type_.key_field, type_.item_field]), len(keys), [keys, items])
        return pa.Array.from_buffers(type_, len(values), [None, _offsets(values).buffers()[1]], children=[entries])

    return read


def _union_reader(node: Union, type_: pa.DataType) -> ReadValues:
    """The reader of a union's values: each is null, or an object with the branch as its only name."""
    kinds = variants(node)
    null = len(kinds) < len(node.branches)
    if not kinds:
        return _scalar_reader(Primitive("null"), type_, frozenset())
    members = [_nullable_reader(branch) for branch in kinds]
    places = {type_name(branch): place for place, branch in enumerate(kinds)}

    def read(values: Values) -> pa.Array:
        columns: list[Values] = [[None] * len(values) for _ in kinds]
        given = []
        for row, value in enumerate(values):
            given.append(value is not None)
            if value is not None:
                ((tag, inner),) = value.items()
                _require(inner is not None)
                columns[places[tag]][row] = inner
        _require(null or all(given))
        made = [read_member(column) for read_member, column in zip(members, columns, strict=True)]
        return made[0] if len(kinds) == 1 else _structs(type_, len(values), made, pa.array(given))

    return read


def _nullable_reader(node: Node) -> ReadValues:
    """The reader of a union's branch: None where the value is of another one."""
    if isinstance(node, Primitive | Fixed | Enum):
        return _scalar_reader(node, column_of(node).type, frozenset({NoneType}))
    read_given = _reader(node)

    def read(values: Values) -> pa.Array:
        given = np.array([value is not None for value in values], np.bool_)
        column = read_given([value for value in values if value is not None])
        return column if given.all() else column.take(pa.array(np.cumsum(given) - 1, mask=~given))

    return read


# ---------------------------------------------------------------------------------------------------------- writing


def _writer(node: Node) -> WriteTexts:
    match node:
        case Record(fields=fields):
            return _record_writer([(_name(field.name), _writer(field.node)) for field in fields])
        case Array(items):
            return _array_writer(_writer(items))
        case Map(values):
            return _map_writer(_writer(values))
        case Union():
            return _union_writer(node)
        case _:
            return _WRITERS[node.kind]


def _objects(array: pa.Array) -> Values:
    """The values of an array without nulls; faster than `to_pylist`."""
    values: Values = array.to_numpy(zero_copy_only=False).tolist()
    return values


def _name(name: str) -> str:
    """A name as JSON, in a template."""
    return encode_basestring(name).replace("%", "%%")


def _float_texts(array: pa.Array) -> list[str]:
    numbers = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    texts = list(map(repr, numbers.tolist()))
    return texts if np.isfinite(numbers).all() else [_NAMES.get(text, text) for text in texts]


_WRITERS: Final[dict[str, WriteTexts]] = {
    "null": lambda array: ["null"] * len(array),
    "boolean": lambda array: ["true" if value else "false" for value in _objects(array)],
    **dict.fromkeys(("int", "long"), lambda array: list(map(str, _objects(array)))),
    **dict.fromkeys(("float", "double"), _float_texts),
    **dict.fromkeys(("string", "enum"), lambda array: list(map(encode_basestring, _objects(array)))),
    **dict.fromkeys(
        ("bytes", "fixed"),
        lambda array: [encode_basestring(value.decode("iso-8859-1")) for value in _objects(array)],
    ),
}


def _record_writer(fields: list[tuple[str, WriteTexts]]) -> WriteTexts:
    template = ",".join(f"{name}:%s" for name, _ in fields).join("{}")
    if not fields:
        return lambda array: [template] * len(array)

    def write(array: pa.StructArray) -> list[str]:
        columns = [texts(array.field(place)) for place, (_, texts) in enumerate(fields)]
        return list(map(template.__mod__, zip(*columns, strict=True)))

    return write


def _array_writer(write_items: WriteTexts) -> WriteTexts:
    def write(array: pa.ListArray) -> list[str]:
        items = write_items(array.values)
        return [f"[{','.join(items[first:last])}]" for first, last in pairwise(offsets_of(array).tolist())]

    return write


def _map_writer(write_items: WriteTexts) -> WriteTexts:
    def write(array: pa.MapArray) -> list[str]:
        keys, items = _WRITERS["string"](array.keys), write_items(array.items)
        entries = [f"{key}:{item}" for key, item in zip(keys, items, strict=True)]
        return [f"{{{','.join(entries[first:last])}}}" for first, last in pairwise(offsets_of(array).tolist())]

    return write


def _union_writer(node: Union) -> WriteTexts:
    kinds = variants(node)
    if not kinds:
        return _WRITERS["null"]
    members = [((_name(type_name(branch)) + ":%s").join("{}").__mod__, _writer(branch)) for branch in kinds]

    def write(array: pa.Array) -> list[str]:
        texts = ["null"] * len(array)
        columns = array.flatten() if len(members) > 1 else [array]
        for (tagged, write_member), member in zip(members, columns, strict=True):
            given = np.flatnonzero(member.is_valid().to_numpy(zero_copy_only=False))
            column = member if len(given) == len(array) else member.take(pa.array(given))
            for row, text in zip(given.tolist(), map(tagged, write_member(column)), strict=True):
                texts[row] = text
        return texts

    return write

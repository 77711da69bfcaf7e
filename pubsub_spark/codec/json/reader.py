"""The JSON reader: many JSON messages to Arrow columns, by a plan that a format makes of its schema.

A batch is read by Arrow's JSON reader. If that refuses it, Python's parser isolates the messages of an uncommon form,
which the format's exact reader reads one by one. A `Plan` covers the common form. It may refuse anything (by one of
UNCOMMON), but must not accept messages that the exact reader refuses or reads otherwise.

Arrow reads a stream of objects and does not report which text an object was in. So the texts are joined by newlines,
which no JSON string may have, and each must begin with `{` and end with `}`. A text that does not end its last object
makes an error with the `{` of the next. So if there are as many objects as texts, each text has one.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from json.scanner import make_scanner
from operator import is_not, itemgetter
from types import NoneType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from pubsub_spark.bound import Bound
from pubsub_spark.codec.arrays import at_rows, named_structs, offsets_of
from pubsub_spark.schema.definition import InvalidMessage

Values = list[Any]  # JSON values of one field of all messages, None if it is null or absent
Names = list[int]  # how many names the objects of each kind have that were read so far

# The errors that plans, Python and Arrow raise for an uncommon value.
UNCOMMON: Final = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    NotImplementedError,
    StopIteration,
    RecursionError,
)
_BATCH_ROWS: Final = 4096  # messages that Arrow's JSON reader reads at once: with 1024, each takes a fifth more time
_CHUNK_ROWS: Final = 512  # messages that Python reads at once: the values of more leave the processor's caches
MIN_ARROW_ROWS: Final = 128  # fewer messages are read sooner by Python
# Half a step above the largest float: from here on a number is rounded to infinity.
FLOAT_LIMIT: Final = 2.0**128 - 2.0**103
_NEGATIVE_ZERO: Final = np.float64(-0.0).view(np.int64)
_SPLIT: Final = 16  # the values of messages are read in so many parts if one of them is uncommon
_OPEN, _CLOSE, _COLON, _QUOTE, _SPACE = b'{}:" '
_IN_WORDS: Final = np.array([byte > 127 or chr(byte).isalnum() or chr(byte) == "_" for byte in range(256)])
_CONSTANT: Final = re.compile(r"[:\[,]\s*-?(?:NaN|Inf)")
_WHITESPACE: Final = " \t\n\r"
_TYPES: Final[dict[frozenset[type], pa.DataType]] = {
    frozenset({str}): pa.string(),
    frozenset({int}): pa.int64(),
    frozenset({float}): pa.float64(),
    frozenset({int, float}): pa.float64(),
    frozenset({bool}): pa.bool_(),
}


Convert = Callable[[pa.Array], pa.Array]
Build = Callable[[list[pa.Array], int], pa.Array]  # of the arrays of the fields of so many objects


class Plan(Protocol):
    """The way to read a value: its JSON as an Arrow type, and the conversions of its array, or of its parsed values.

    json_type: None if Arrow cannot read it (a map)
    """

    @property
    def json_type(self) -> pa.DataType | None: ...
    def convert(self, array: pa.Array, names: Names) -> pa.Array: ...
    def read(self, values: Values, names: Names) -> pa.Array: ...


class JsonReader(NamedTuple):
    """write: from the columns of some messages to the result of the reader, of `type`
    exact: the same of one message. Raises InvalidMessage if the text is not a message
    """

    plan: Plan | None
    type: pa.DataType
    write: Convert
    exact: Callable[[bytes], Any]
    unknown_names: bool = False  # are left out
    unique_names: bool = False  # in an object, else the last of a name's values counts
    min_rows: int = 24  # fewer messages are read exactly, one by one

    def read(self, texts: pa.BinaryArray) -> tuple[pa.Array, dict[int, str]]:
        """Return values, null if a text is not a message, and the reasons for those by row."""
        rows: list[int] = []
        columns: list[pa.Array] = []
        if self.plan and len(texts) >= self.min_rows:
            for start in range(0, len(texts), _BATCH_ROWS):
                for some, column in self._batch(texts.slice(start, _BATCH_ROWS), start):
                    rows += some
                    columns.append(column)
        results = [self.write(pa.concat_arrays(columns))] if columns else []
        if len(rows) == len(texts) and results:
            return results[0], {}
        values, reasons = [], {}
        others = sorted(set(range(len(texts))).difference(rows))
        for row, text in zip(others, texts.take(pa.array(others, pa.int64())).to_pylist(), strict=True):
            try:
                values.append(self.exact(text))
                rows.append(row)
            except InvalidMessage as error:
                reasons[row] = str(error)
        result = pa.concat_arrays([*results, pa.array(values, self.type)])
        return at_rows(result, np.array(rows, np.int64), len(texts)), reasons

    def _batch(self, texts: pa.BinaryArray, start: int) -> Iterator[tuple[Sequence[int], pa.Array]]:
        assert self.plan
        json_type = self.plan.json_type
        if json_type is not None and pa.types.is_struct(json_type) and len(texts) >= MIN_ARROW_ROWS:
            try:
                yield range(start, start + len(texts)), self.by_arrow(texts)
                return
            except UNCOMMON:
                pass
        for first in range(0, len(texts), _CHUNK_ROWS):
            yield from self._chunk(texts.slice(first, _CHUNK_ROWS).to_pylist(), start + first)

    def _chunk(self, texts: list[bytes], start: int) -> list[tuple[Sequence[int], pa.Array]]:
        """The garbage collector pauses while the values live: they have no cycles, and it would pass them often."""
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            rows, values = _parse(texts)
            return list(self._by_python([start + row for row in rows], values, [texts[row] for row in rows]))
        finally:
            if is_collecting:
                gc.enable()

    def by_arrow(self, texts: pa.BinaryArray) -> pa.Array:
        """All messages must have the common form."""
        assert self.plan
        require(pc.min(pc.binary_length(texts)).as_py() >= len("{}"))
        offsets = offsets_of(texts)
        data = np.frombuffer(texts.buffers()[2], np.uint8)
        require(bool((data[offsets[:-1]] == _OPEN).all() and (data[offsets[1:] - 1] == _CLOSE).all()))
        joined = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), b"\n")
        buffer = joined.buffers()[2]
        text = str(buffer, "utf-8")  # Arrow accepts any bytes as a string
        if self.unknown_names and ("NaN" in text or "Inf" in text):  # which Arrow reads as numbers, also of those
            require(_CONSTANT.search(text) is None)
        table = arrow_json.read_json(
            pa.BufferReader(buffer),
            arrow_json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
            arrow_json.ParseOptions(
                explicit_schema=pa.schema(list(self.plan.json_type or ())),
                unexpected_field_behavior="ignore" if self.unknown_names else "error",
            ),
        )
        require(table.num_rows == len(texts))
        names: Names = []
        column = self.plan.convert(table.combine_chunks().to_struct_array().combine_chunks(), names)
        # Arrow does not tell an absent field from null, so names are counted if each field must be there.
        require(not names or sum(names) == _least_names(np.frombuffer(buffer, np.uint8)))
        return column

    def _by_python(
        self, rows: list[int], values: Values, texts: list[bytes]
    ) -> Iterator[tuple[Sequence[int], pa.Array]]:
        assert self.plan
        names: Names = []
        try:
            column = self.plan.read(values, names)
            if self.unique_names and sum(names) != _most_names(np.frombuffer(b"".join(texts), np.uint8)):
                for text in texts:
                    json.loads(text, object_pairs_hook=_check_names)
            yield rows, column
        except UNCOMMON:
            if len(rows) < 2:
                return
            size = -(-len(rows) // _SPLIT)
            for at in range(0, len(rows), size):
                part = slice(at, at + size)
                yield from self._by_python(rows[part], values[part], texts[part])


# ------------------------------------------------------------------------------------------------------------- plans


@dataclass(frozen=True)
class Leaf:
    """A value without parts: `of` receives an array of strings, numbers or booleans."""

    json_type: pa.DataType
    of: Convert

    def convert(self, array: pa.Array, _: Names) -> pa.Array:
        return self.of(array)

    def read(self, values: Values, _: Names) -> pa.Array:
        kinds = frozenset(map(type, values)) - {NoneType}
        is_own = not kinds or (kinds == {int} and pa.types.is_integer(self.json_type))
        return self.of(pa.array(values, self.json_type if is_own else _TYPES[kinds]))


@dataclass(frozen=True)
class Then:
    """The values of a plan, converted further."""

    plan: Plan
    of: Convert

    @property
    def json_type(self) -> pa.DataType | None:
        return self.plan.json_type

    def convert(self, array: pa.Array, names: Names) -> pa.Array:
        return self.of(self.plan.convert(array, names))

    def read(self, values: Values, names: Names) -> pa.Array:
        return self.of(self.plan.read(values, names))


@dataclass(frozen=True)
class Objects:
    """`build` makes the array of the objects that are present from their fields' arrays.

    fields: each with the names it may have. Arrow reads only the first. size: the number of names in each object
    """

    fields: tuple[tuple[tuple[str, ...], Plan], ...]
    build: Build
    size: int | None = None
    unknown_names: bool = False

    @cached_property
    def json_type(self) -> pa.StructType | None:
        types = [plan.json_type for _, plan in self.fields]
        if not types or None in types:
            return None
        return pa.struct([(names[0], type_) for (names, _), type_ in zip(self.fields, types, strict=True)])

    @cached_property
    def _has_all_names(self) -> bool:
        return self.size == len(self.fields) and all(len(spellings) == 1 for spellings, _ in self.fields)

    def convert(self, array: pa.StructArray, names: Names) -> pa.Array:
        if array.null_count:
            return _expand(self.convert(array.drop_null(), names), array.is_valid().to_numpy(zero_copy_only=False))
        if self.size is not None:
            names.append(self.size * len(array))
        arrays = [plan.convert(array.field(at), names) for at, (_, plan) in enumerate(self.fields)]
        return self.build(arrays, len(array))

    def read(self, values: Values, names: Names) -> pa.Array:
        size, count = self.size, len(values)
        kinds = set(map(type, values))
        if NoneType in kinds:
            valid = np.fromiter(map(is_not, values, repeat(None)), np.bool_, count)
            return _expand(self.read([value for value in values if value is not None], names), valid)
        require(kinds <= {dict} and (size is None or {size}.issuperset(map(len, values))))
        names.append(sum(map(len, values)) if size is None else size * count)
        if self._has_all_names:  # or raises KeyError
            arrays = [plan.read(list(map(itemgetter(*name), values)), names) for name, plan in self.fields]
            return self.build(arrays, count)
        unread = set().union(*values)
        arrays = []
        for spellings, plan in self.fields:
            used = [name for name in spellings if name in unread]
            require(len(used) < 2)
            unread.difference_update(used)
            items = list(map(dict.get, values, repeat(used[0]))) if used else [None] * count
            arrays.append(plan.read(items, names))
        require(self.unknown_names or not unread)
        return self.build(arrays, count)


@dataclass(frozen=True)
class Lists:
    item: Plan

    @cached_property
    def json_type(self) -> pa.ListType | None:
        return self.item.json_type and pa.list_(self.item.json_type)

    def convert(self, array: pa.ListArray, names: Names) -> pa.Array:
        return _lists(self.item.convert(array.flatten(), names), pc.list_value_length(array))

    def read(self, values: Values, names: Names) -> pa.Array:
        lengths = _lengths(values, list)
        return _lists(self.item.read(list(chain.from_iterable(filter(None, values))), names), lengths)


@dataclass(frozen=True)
class Maps:
    """The objects may have any names. `as_lists`: lists of structs of a key and a value."""

    key: Plan
    item: Plan
    as_lists: bool = False
    json_type: None = None

    def convert(self, array: pa.Array, names: Names) -> pa.Array:
        raise NotImplementedError

    def read(self, values: Values, names: Names) -> pa.Array:
        lengths = _lengths(values, dict)
        present = list(filter(None, values))
        keys = self.key.read(list(chain.from_iterable(present)), names)
        items = self.item.read(list(chain.from_iterable(map(dict.values, present))), names)
        names.append(len(keys))
        type_ = pa.map_(keys.type, items.type)
        entry = pa.struct([type_.key_field, type_.item_field])
        entries = pa.Array.from_buffers(entry, len(keys), [None], children=[keys, items])
        return _lists(entries, lengths, None if self.as_lists else type_)


def required(plan: Plan) -> Then:
    return Then(plan, Bound(_without_nulls))


def wrapped(plan: Plan, name: str) -> Then:
    return Then(plan, Bound(_wrapped, name))


def _without_nulls(array: pa.Array) -> pa.Array:
    require(not array.null_count)
    return array


def _wrapped(name: str, array: pa.Array) -> pa.StructArray:
    return named_structs({name: array}, len(array), array)


def structs(names: Sequence[str], arrays: list[pa.Array], length: int) -> pa.StructArray:
    return named_structs(dict(zip(names, arrays, strict=True)), length)


# ------------------------------------------------------------------------------------------------------------ leaves


def exactly(type_: pa.DataType) -> Leaf:
    """Return the plan of strings or booleans."""
    return Leaf(type_, Bound(_exactly, type_))


def _exactly(type_: pa.DataType, array: pa.Array) -> pa.Array:
    require(array.type == type_)
    return array


def integers(type_: pa.DataType, as_text: bool | None) -> Leaf:
    """as_text: they are strings for Arrow (True), may be (False) or not (None)."""
    return Leaf(pa.string() if as_text else type_, Bound(_integers, type_, as_text is not None))


def _integers(type_: pa.DataType, may_be_text: bool, array: pa.Array) -> pa.Array:
    if may_be_text and pa.types.is_string(array.type):
        numbers = array.cast(type_)
        require(numbers.cast(pa.string()).equals(array))  # in the one form that writing them again makes
        return numbers
    require(pa.types.is_integer(array.type))
    return _cast(array, type_)


def floats(type_: pa.DataType) -> Leaf:
    """Return the plan of numbers that the type can hold, rounded to it."""
    return Leaf(pa.float64(), Bound(_floats, type_))


def _floats(type_: pa.DataType, array: pa.Array) -> pa.Array:
    require(pa.types.is_floating(array.type) or pa.types.is_integer(array.type))
    numbers = _cast(array, pa.float64())
    finite = (numbers.drop_null() if numbers.null_count else numbers).to_numpy()
    bound = FLOAT_LIMIT if pa.types.is_float32(type_) else np.inf
    # Python makes 0 of `-0`, and a negative zero of `-0.0`. Arrow does not distinguish them.
    require(bool((np.abs(finite) < bound).all()) and _NEGATIVE_ZERO not in finite.view(np.int64))
    return _cast(numbers, type_)


def texts(of: Convert) -> Leaf:
    return Leaf(pa.string(), Bound(_texts, of))


def _texts(of: Convert, array: pa.Array) -> pa.Array:
    require(pa.types.is_string(array.type))
    return of(array)


def each_text(convert: Callable[[str], Any], type_: pa.DataType) -> Leaf:
    """The strings are converted one by one."""
    return texts(Bound(_each_text, convert, type_))


def _each_text(convert: Callable[[str], Any], type_: pa.DataType, array: pa.StringArray) -> pa.Array:
    return pa.array([None if text is None else convert(text) for text in array.to_pylist()], type_)


# ----------------------------------------------------------------------------------------------------------- parsing


def refuse_constant(name: str) -> float:
    """Refuse `NaN` and the infinities, which Python's `json` reads."""
    raise ValueError(f"{name} is not a JSON number")


_SEPARATOR: Final = object()
_scan: Final = make_scanner(json.JSONDecoder(parse_constant=refuse_constant))  # type: ignore[arg-type]
_scan_all: Final = make_scanner(json.JSONDecoder(parse_constant={"NaN": _SEPARATOR}.__getitem__))  # type: ignore[arg-type]


def _parse(texts: list[bytes]) -> tuple[Sequence[int], Values]:
    """Return the rows of the texts that are JSON, and their values. The last value of a repeated name counts.

    They are parsed as one array with a `NaN` before each, so that equal names become one string. If the only `NaN` are
    those, with one value after each, each text is one value.
    """
    data = b"[NaN,%b]" % b",NaN,".join(texts)
    with suppress(*UNCOMMON):
        text = data.decode()
        values, end = _scan_all(text, 0)
        separators = values[::2].count(_SEPARATOR)
        if end == len(text) and data.count(b"NaN") == len(texts) == separators == len(values) / 2:
            return range(len(texts)), values[1::2]
    rows, values = [], []
    for row, data in enumerate(texts):
        try:
            text = data.decode().strip(_WHITESPACE)
            value, end = _scan(text, 0)
        except UNCOMMON:
            continue
        if end == len(text):
            rows.append(row)
            values.append(value)
    return rows, values


def _most_names(data: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """Return the most names that the objects in JSON texts can have.

    Behind each name is a colon after a quote or whitespace. A text's values have fewer names than that if an object has
    a name twice, or else if a string looks like a name.
    """
    before = data[np.flatnonzero(data == _COLON) - 1]
    return int(np.count_nonzero((before == _QUOTE) | (before <= _SPACE)))


def _least_names(data: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    """Return the fewest names that the objects in JSON texts have, if names are words.

    Behind each name is a quote and a colon. In a string a quote is behind a backslash, and one that begins a string is
    behind punctuation or whitespace.
    """
    colons = np.flatnonzero(data == _COLON)
    return int(np.count_nonzero((data[colons - 1] == _QUOTE) & _IN_WORDS[data[colons - 2]]))


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    require(len(dict(pairs)) == len(pairs))


# ------------------------------------------------------------------------------------------------------------ arrays


def require(fits: bool) -> None:
    if not fits:
        raise ValueError


def values_per_row(arrays: list[pa.Array]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return how many of the arrays have a value, row by row."""
    return np.asarray(np.sum([array.is_valid().to_numpy(zero_copy_only=False) for array in arrays], axis=0))


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return the array in another type of numbers, rounded to a float. Arrow takes 10 us even for the same type."""
    return array if array.type == type_ else array.cast(type_, safe=not pa.types.is_floating(type_))


def _expand(values: pa.Array, valid: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    return at_rows(values, np.flatnonzero(valid), len(valid))


def _lengths(values: Values, kind: type) -> pa.Int32Array:
    """Return the lengths of values of one type, null for None."""
    kinds = set(map(type, values))
    require(kinds <= {kind, NoneType})
    if NoneType in kinds:
        return pa.array([None if value is None else len(value) for value in values], pa.int32())
    return pa.array(np.fromiter(map(len, values), np.int32, len(values)))


def _lists(items: pa.Array, lengths: pa.Int32Array, type_: pa.DataType | None = None) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    valid = lengths.is_valid().buffers()[1] if lengths.null_count else None
    np.cumsum((lengths.fill_null(0) if valid else lengths).to_numpy(zero_copy_only=False), out=offsets[1:])
    return pa.Array.from_buffers(
        type_ or pa.list_(items.type), len(lengths), [valid, pa.py_buffer(offsets)], children=[items]
    )

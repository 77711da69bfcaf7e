"""JSON objects to values of declared columns.

A missing or null field is null, and a field without a column is left out, as by Spark's `from_json`. Unlike there, a
value of another type makes the whole payload undecodable. A string column accepts any value, as JSON text. A timestamp
is ISO 8601, in UTC if it has no zone. Binary is base64.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.bound import Bound
from pubsub_spark.codec.arrays import offsets_of, with_reasons
from pubsub_spark.codec.json import ddl, json_schema, reader
from pubsub_spark.codec.json.reader import JsonReader, Plan
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.definition import InvalidMessage

Convert = Callable[[Any, str], Any]

_EXACT: Final = Context(prec=100)  # more than the digits of any decimal of Spark
_SHOWN_CHARACTERS: Final = 60  # of a wrong value
_MAX_LEVELS: Final = 200  # Python's stack has room for about twice as many
_BRACE: Final = ord("[") ^ ord("{")  # the bit that makes a brace of a bracket
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


@dataclass(frozen=True)
class JsonSchema:
    """The columns of JSON payloads, as the text of a DDL or of a JSON schema. Picklable."""

    text: str

    def arrow_type(self) -> pa.StructType:
        """Raises SchemaError if the text is not a schema."""
        return _parsed(self.text)

    def decode(self, data: pa.BinaryArray) -> tuple[pa.StructArray, pa.StringArray]:
        """Return values and reasons. In each row one of the two is null."""
        data = data.fill_null(b"")
        deep = dict.fromkeys(
            _deep_rows(data), f"The payload is not JSON: it is nested more than {_MAX_LEVELS} levels deep"
        )
        if deep:
            data = pa.array([b"" if row in deep else text for row, text in enumerate(data.to_pylist())], pa.binary())
        values, reasons = _reader(self.text).read(data)
        return with_reasons(values, reasons | deep)


def _deep_rows(data: pa.BinaryArray) -> list[int]:
    """Return the rows that are nested too deeply. Otherwise Python's stack and the rows around them would decide it."""
    if not len(data) or pc.max(pc.binary_length(data)).as_py() <= 2 * _MAX_LEVELS:
        return []
    offsets = offsets_of(data)
    content = np.frombuffer(data.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    opened = np.flatnonzero((content | _BRACE) == ord("{"))
    rows = np.flatnonzero(np.diff(np.searchsorted(opened, offsets - offsets[0])) > _MAX_LEVELS).tolist()
    return [row for row in rows if _levels(data[row].as_py()) > _MAX_LEVELS]


def _levels(payload: bytes) -> int:
    characters = np.frombuffer(_STRING.sub(b"", payload), np.uint8) | _BRACE
    steps = (characters == ord("{")).astype(np.int64) - (characters == ord("}"))
    return int(steps.cumsum().max(initial=0))


@lru_cache(maxsize=16)
def _parsed(text: str) -> pa.StructType:
    try:
        return json_schema.parse(json.loads(text)) if text.lstrip().startswith("{") else ddl.parse(text)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SchemaError(
            f"The `schema` of `decode=json` cannot be used: {error}. Set a DDL such as `carrier STRING, delay INT`, "
            "or a JSON schema."
        ) from None


@lru_cache(maxsize=16)
def _reader(text: str) -> JsonReader:
    kind = _parsed(text)
    plan, convert = _forms(kind)

    # The reader's arrays name the elements of lists in their own way.
    cast, exact = Bound(_cast, kind), Bound(_exact, convert)
    return JsonReader(reader.required(plan), kind, cast, exact, unknown_names=True)


def _cast(kind: pa.StructType, column: pa.StructArray) -> pa.StructArray:
    return column.cast(kind)


def _exact(convert: Convert, payload: bytes) -> Any:
    try:
        value = json.loads(payload, parse_float=Decimal, parse_constant=reader.refuse_constant)
    except InvalidOperation:  # `Decimal` has exponents of 18 digits
        raise InvalidMessage("The payload has a number whose exponent is too large") from None
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"The payload is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidMessage("The payload is JSON, but no object")
    return convert(value, "")


def _forms(kind: pa.DataType) -> tuple[Plan, Convert]:
    """Return the plan of a type's values in their common form, and the conversion of a non-null one in any form."""
    if pa.types.is_struct(kind):
        forms = {field.name: _forms(field.type) for field in kind}
        plans = tuple(((name,), plan) for name, (plan, _) in forms.items())
        convert = Bound(_struct, {name: convert for name, (_, convert) in forms.items()})
        return reader.Objects(plans, Bound(reader.structs, tuple(forms)), unknown_names=True), convert
    if pa.types.is_list(kind):
        plan, item = _forms(kind.value_type)
        return reader.Lists(plan), Bound(_list, item)
    if pa.types.is_map(kind):
        plan, item = _forms(kind.item_type)
        return reader.Maps(reader.exactly(pa.string()), plan), Bound(_map, item)
    if kind in _TEXTS:
        parse, form = _TEXTS[kind]
        return reader.each_text(parse, kind), Bound(_scalar, parse, form)
    if pa.types.is_integer(kind):
        form = f"an integer of {kind.bit_width} bits"
        return reader.integers(kind, as_text=None), Bound(_scalar, Bound(_integer, kind.bit_width - 1), form)
    if pa.types.is_floating(kind):
        return reader.floats(kind), Bound(_scalar, _double, "a number")
    if pa.types.is_decimal(kind):
        form = f"a decimal of {kind.precision} digits, {kind.scale} of them after the point"
        return reader.exactly(kind), Bound(_scalar, Bound(_decimal, kind.precision, kind.scale), form)
    return reader.exactly(kind), Bound(_scalar, _boolean, "true or false") if kind == pa.bool_() else _string


def _wrong(path: str, kind: str, value: Any) -> NoReturn:
    shown = json.dumps(value, default=str, ensure_ascii=False)
    shown = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
    raise InvalidMessage(f"`{path.removeprefix('.')}` must be {kind}, is {shown}")


def _struct(fields: dict[str, Convert], value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        _wrong(path, "an object", value)
    return {name: _or_null(convert, value.get(name), f"{path}.{name}") for name, convert in fields.items()}


def _list(element: Convert, value: Any, path: str) -> Any:
    if not isinstance(value, list):
        _wrong(path, "an array", value)
    return [_or_null(element, item, f"{path}[{index}]") for index, item in enumerate(value)]


def _map(item: Convert, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        _wrong(path, "an object", value)
    return [(_utf8(key), _or_null(item, entry, f"{path}.{key}")) for key, entry in value.items()]


def _or_null(convert: Convert, value: Any, path: str) -> Any:
    return None if value is None else convert(value, path)


def _scalar(convert: Callable[[Any], Any], form: str, value: Any, path: str) -> Any:
    try:
        return convert(value)
    except (ValueError, TypeError, ArithmeticError):
        return _wrong(path, form, value)


def _integer(bits: int, value: Any) -> Any:
    if isinstance(value, Decimal) and value == value.to_integral_value() and value.adjusted() < 20:
        value = int(value)
    reader.require(type(value) is int and -(2**bits) <= value < 2**bits)
    return value


def _decimal(precision: int, scale: int, value: Any) -> Any:
    reader.require(type(value) in (int, Decimal, str))
    number = Decimal(value)
    reader.require(number.is_finite() and number.adjusted() < precision)
    rounded = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    reader.require(abs(rounded) < Decimal(10) ** (precision - scale))
    return rounded


def _double(value: Any) -> Any:
    reader.require(type(value) in (int, Decimal))
    return float(value)


def _boolean(value: Any) -> Any:
    reader.require(type(value) is bool)
    return value


def _string(value: Any, path: str) -> Any:  # noqa: ARG001
    return _utf8(value if isinstance(value, str) else _json_text(value))


def _json_text(value: Any) -> str:
    """`json.dumps` would round numbers to doubles, and write `Infinity` for the largest."""
    match value:
        case Decimal():
            return str(value)
        case dict():
            members = (f"{json.dumps(name, ensure_ascii=False)}: {_json_text(part)}" for name, part in value.items())
            return f"{{{', '.join(members)}}}"
        case list():
            return f"[{', '.join(map(_json_text, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _utf8(text: str) -> str:
    """Return the text with `?` for half of a surrogate pair, which UTF-8 lacks."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _timestamp(text: str) -> datetime.datetime:
    time = datetime.datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def _local_timestamp(text: str) -> datetime.datetime:
    return _timestamp(text).replace(tzinfo=None)


# Types whose values are strings: how one is parsed, and the form that it must have.
_TEXTS: Final[dict[pa.DataType, tuple[Callable[[str], Any], str]]] = {
    pa.binary(): (Bound(base64.b64decode, validate=True), "base64"),
    pa.date32(): (datetime.date.fromisoformat, "a date such as 2026-01-31"),
    pa.timestamp("us", tz="UTC"): (_timestamp, "a time such as 2026-01-31T12:00:00Z"),
    pa.timestamp("us"): (_local_timestamp, "a time such as 2026-01-31T12:00:00Z"),
}

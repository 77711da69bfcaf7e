"""The proto3 JSON mapping: JSON text to messages, as protobuf's own `json_format` reads it.

An unknown name, a repeated name, or a value of the wrong type is an error. Both spellings of a field's name
(`lowerCamel` and the original) are read.

`JsonReader` is compiled once per schema, for the common form of each field. `json_format` reads or refuses a message
with any other form. This module is for one message, `codec.protobuf` for many.
"""

from __future__ import annotations

import binascii
import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from json.scanner import make_scanner
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.protobuf.message import Error as MessageError
from google.protobuf.message_factory import GetMessageClass

from pubsub_spark.bound import Bound
from pubsub_spark.schema.definition import InvalidMessage
from pubsub_spark.schema.protobuf.descriptors import is_repeated, well_known_name

# Messages of any shape: each contains itself, and each is a JSON value by definition.
JSON_MESSAGES: Final = frozenset({"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue"})
_WHITESPACE: Final = " \t\n\r"  # around a value (Python's `strip` removes more)

# The errors that Python and json_format raise for a text. All of them are about that text.
UNCOMMON: Final = (
    json_format.Error,
    MessageError,  # the value of an Any
    ValueError,
    TypeError,
    RecursionError,
    ArithmeticError,
    LookupError,
    StopIteration,  # from the scanner, at text that is not a JSON value
)
MAX_REASON_CHARACTERS: Final = 300
_MAX_NESTING_LEVELS: Final = 100  # json_format's limit on messages within messages


def read(data: bytes, message: Any) -> None:
    """Fill `message` from a JSON text. Raises InvalidMessage if it does not fit."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidMessage("The message is not valid UTF-8, and JSON is") from None
    if type(message).DESCRIPTOR.full_name not in JSON_MESSAGES and not text.lstrip(_WHITESPACE).startswith("{"):
        raise InvalidMessage("The message is not a JSON object")  # json_format accepts `[]` as an empty one
    try:
        json_format.Parse(text, message, descriptor_pool=type(message).DESCRIPTOR.file.pool)
        _check_numbers(text)
        if "@type" in text or "\\u" in text:  # the name of an Any's type, maybe escaped
            _settle(message)
    except RecursionError:
        raise InvalidMessage("The message is nested too deeply") from None
    except UNCOMMON as error:
        raise InvalidMessage(f"The message does not fit: {_shortened(' '.join(str(error).split()))}") from None


def _settle(message: Any) -> None:
    """Serialize the value of each Any again. The order of its maps is that of this process, by `json_format`."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            parts = value.values() if field.message_type.fields_by_name["value"].message_type is not None else ()
        else:
            parts = value if is_repeated(field) else (value,)
        for part in parts:
            _settle(part)
    if message.DESCRIPTOR.full_name == "google.protobuf.Any" and message.type_url:
        pool = message.DESCRIPTOR.file.pool
        inner = GetMessageClass(pool.FindMessageTypeByName(message.type_url.rpartition("/")[2])).FromString(
            message.value
        )
        _settle(inner)
        message.value = inner.SerializePartialToString(deterministic=True)


def _shortened(reason: str) -> str:
    """Return the beginning of a long reason, which is the path, and its end, which is the cause."""
    half = MAX_REASON_CHARACTERS // 2
    return reason if len(reason) <= 2 * half else f"{reason[:half]} ... {reason[-half:]}"


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is not a finite number")
    return value


# json_format accepts NaN and 1e400 in a Value. JSON has no NaN, and a Value must be finite, as `struct.proto` says.
_check_numbers: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite).decode


class JsonReader:
    """`json_class`: the same message for `json_format`."""

    def __init__(self, message_class: type[Message], json_class: type[Message]) -> None:
        self._class: Any = message_class
        self._json_class = json_class
        compiler = _ReaderCompiler()
        self._fields = compiler.message(message_class.DESCRIPTOR)
        self._recursive = compiler.recursive

    def read(self, data: bytes) -> Message:
        """Raises InvalidMessage."""
        try:
            text = data.decode()
            if not self._recursive or text.count("{") <= _MAX_NESTING_LEVELS:
                text = text.strip(_WHITESPACE)
                value, end = scan_unique(text, 0)
                if end == len(text):
                    message: Message = self._class(**self._fields(value))
                    return message
        except UNCOMMON:
            pass
        exact = self._json_class()
        read(data, exact)
        try:
            message = self._class.FromString(self._json_class.SerializePartialToString(exact, deterministic=True))
        except DecodeError:  # a `Value` is two messages for each level of its JSON
            raise InvalidMessage("The message is nested too deeply") from None
        return message


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise _UncommonForm
    return members


class _UncommonForm(ValueError):  # noqa: N818 (not an error: json_format decides)
    """A value has another form than the common one."""


scan_unique: Final = make_scanner(json.JSONDecoder(object_pairs_hook=_unique_keys))  # type: ignore[arg-type]
_Convert = Callable[[Any], Any]

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
# Timestamp.FromJsonString takes ten times as long.
_TIMESTAMP: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z")
_EPOCH: Final = datetime(1970, 1, 1)
LEAST_SECONDS: Final = -62_135_596_800  # 0001-01-01
FLOAT_LIMIT: Final = 2.0**128 - 2.0**103  # half a step above the largest float: from here on it is infinite


def _of(kind: type, value: Any) -> Any:
    if type(value) is kind:
        return value
    raise _UncommonForm


_string, _list, _object = Bound(_of, str), Bound(_of, list), Bound(_of, dict)


def _integer(low: int, high: int, value: Any) -> int:
    if type(value) is str and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is int and low <= value <= high:
        return value
    raise _UncommonForm


def _floating(bound: float, value: Any) -> float:
    if type(value) is float or type(value) is int:
        number = float(value)
        if -bound < number < bound:
            return number
    raise _UncommonForm


def _bytes(value: Any) -> bytes:
    return binascii.a2b_base64(_string(value), strict_mode=True)


def _timestamp(value: Any) -> dict[str, int]:
    match = _TIMESTAMP.fullmatch(_string(value))
    if match is None:
        raise _UncommonForm
    since = datetime.fromisoformat(match[1]) - _EPOCH
    return {"seconds": since.days * 86_400 + since.seconds, "nanos": int((match[2] or "").ljust(9, "0"))}


def duration(value: Any) -> dict[str, int]:
    read = Duration()
    read.FromJsonString(_string(value))
    return {"seconds": read.seconds, "nanos": read.nanos}


def _uncommon(_: Any) -> Any:
    raise _UncommonForm


_SCALARS: Final[dict[int, _Convert]] = {
    FieldDescriptor.CPPTYPE_INT32: Bound(_integer, -(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: Bound(_integer, -(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: Bound(_integer, 0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: Bound(_integer, 0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: Bound(_floating, math.inf),
    FieldDescriptor.CPPTYPE_FLOAT: Bound(_floating, FLOAT_LIMIT),
    FieldDescriptor.CPPTYPE_BOOL: Bound(_of, bool),
}
WRAPPERS: Final = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
WELL_KNOWN: Final[dict[str, _Convert]] = {
    "google.protobuf.Timestamp": _timestamp,
    "google.protobuf.Duration": duration,
    "google.protobuf.FieldMask": _uncommon,
    "google.protobuf.Any": _uncommon,
    **dict.fromkeys(JSON_MESSAGES, _uncommon),
}
# The types that have null as a value. For all others it means absent.
NULL_TYPES: Final = ("google.protobuf.Value", "google.protobuf.NullValue")


class _ReaderCompiler:
    def __init__(self) -> None:
        self.messages: dict[str, _Convert] = {}
        self._open: set[str] = set()
        self.recursive = False

    def message(self, message: Descriptor) -> _Convert:
        if message.full_name in self.messages:
            return self.messages[message.full_name]
        if message.full_name in self._open:
            self.recursive = True
            return Bound(_nested, self, message.full_name)
        self._open.add(message.full_name)
        forms = {field.name: (field.name, self.field(field), _takes_null(field)) for field in message.fields}
        names = {field.json_name: forms[field.name] for field in message.fields}  # take precedence over original names
        oneofs = [frozenset(f.name for f in oneof.fields) for oneof in message.oneofs if len(oneof.fields) > 1]
        self.messages[message.full_name] = Bound(_fields, forms | names, oneofs)
        return self.messages[message.full_name]

    def field(self, field: FieldDescriptor) -> _Convert:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (self.single(field.message_type.fields_by_name[name]) for name in ("key", "value"))
            if field.message_type.fields_by_name["key"].type == FieldDescriptor.TYPE_BOOL:
                key = Bound(_one_of, {"true": True, "false": False})
            return Bound(_entries, key, value)
        return Bound(_items, self.single(field)) if is_repeated(field) else self.single(field)

    def single(self, field: FieldDescriptor) -> _Convert:
        if field.type == FieldDescriptor.TYPE_ENUM:
            names = {value.name: value.number for value in field.enum_type.values}
            return Bound(_one_of, {**names, **{number: number for number in names.values()}})
        if field.message_type is None:
            text: dict[int, _Convert] = {FieldDescriptor.TYPE_STRING: _string, FieldDescriptor.TYPE_BYTES: _bytes}
            return text.get(field.type) or _SCALARS[field.cpp_type]
        name = well_known_name(field.message_type)
        if not name and field.message_type.full_name in WELL_KNOWN:  # which a message's constructor would accept as one
            return _uncommon
        if name in WRAPPERS:
            return Bound(_wrapped, self.single(field.message_type.fields_by_name["value"]))
        return WELL_KNOWN.get(name) or self.message(field.message_type)


def _takes_null(field: FieldDescriptor) -> bool:
    type_ = field.message_type or field.enum_type
    return type_ is not None and well_known_name(type_) in NULL_TYPES


def _nested(compiler: _ReaderCompiler, name: str, value: Any) -> Any:
    return compiler.messages[name](value)


def _entries(key: _Convert, item: _Convert, value: Any) -> dict[Any, Any]:
    return {key(name): item(part) for name, part in _object(value).items()}


def _items(item: _Convert, value: Any) -> list[Any]:
    return [item(part) for part in _list(value)]


def _wrapped(convert: _Convert, value: Any) -> dict[str, Any]:
    return {"value": convert(value)}


def _one_of(values: dict[int | str, Any], value: Any) -> Any:
    return values[value if type(value) is int else _string(value)]


def _fields(fields: dict[str, tuple[str, _Convert, bool]], oneofs: list[frozenset[str]], value: Any) -> dict[str, Any]:
    """fields: by the names that they have in JSON, each with its own name, its form, and whether it takes null."""
    fields_read: dict[str, Any] = {}
    nulls = 0
    for key, item in _object(value).items():
        name, convert, takes_null = fields[key]
        if item is not None:
            fields_read[name] = convert(item)
        elif takes_null:
            raise _UncommonForm
        else:
            nulls += 1
    if len(fields_read) + nulls < len(value) or (nulls and len({fields[key][0] for key in value}) < len(value)):
        raise _UncommonForm  # a field in both its spellings
    for oneof in oneofs:
        if len(oneof & fields_read.keys()) > 1:
            raise _UncommonForm
    return fields_read

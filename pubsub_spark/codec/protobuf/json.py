"""The proto3 JSON mapping: JSON text to messages and back, as protobuf's own `json_format` does it.

Strict as the mapping is by default: a name that the message does not have, a name given twice, or a value of the wrong
type is an error. Both spellings of a field's name (`lowerCamel` and the original) are read; `lowerCamel` is written.

`json_format` decides field by field, for every message anew. `JsonReader` is compiled once per schema, for the common
form of each field; a message with any other form goes to `json_format`, which reads or refuses it. `JsonWriter` writes
what `json_format` would, well-known types by their own methods. Both are for one message; `json_columns` does the same
for many, and leaves to these what it does not do.
"""

from __future__ import annotations

import binascii
import json
import re
import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from json.encoder import encode_basestring_ascii
from json.scanner import make_scanner
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pubsub_spark.codec.definition import InvalidMessage
from pubsub_spark.codec.json_scan import WHITESPACE
from pubsub_spark.codec.protobuf.column_tree import JSON_MESSAGES
from pubsub_spark.codec.protobuf.descriptors import is_repeated

# The errors that a text can make Python and json_format raise; all of them are about that text.
UNCOMMON: Final = (
    json_format.Error,
    ValueError,
    TypeError,
    RecursionError,
    OverflowError,
    ArithmeticError,
    LookupError,
    StopIteration,  # from the scanner, at what is no JSON value
)
_MAX_REASON_CHARACTERS: Final = 300
_MAX_NESTING_LEVELS: Final = 100  # json_format's limit on messages within messages


def read(data: bytes, message: Any) -> None:
    """Fill `message` from the JSON text in `data`; InvalidMessage when it does not fit."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidMessage("The message is not valid UTF-8, and JSON is") from None
    if message.DESCRIPTOR.full_name not in JSON_MESSAGES and not text.lstrip(WHITESPACE).startswith("{"):
        raise InvalidMessage("The message is not a JSON object")  # json_format takes `[]` for an empty one
    try:
        json_format.Parse(text, message)
    except RecursionError:
        raise InvalidMessage("The message is nested too deeply") from None
    except UNCOMMON as error:
        reason = " ".join(str(error).split())
        raise InvalidMessage(f"The message does not fit: {reason[:_MAX_REASON_CHARACTERS]}") from None


class JsonReader:
    """The reader of JSON messages of one class."""

    def __init__(self, message_class: type[Message]) -> None:
        self._class: Any = message_class
        compiler = _ReaderCompiler()
        self._fields = compiler.message(message_class.DESCRIPTOR)
        self._recursive = compiler.recursive

    def read(self, data: bytes) -> Message:
        """The message in the JSON text `data`; InvalidMessage when it is not one."""
        try:
            text = data.decode()
            if not self._recursive or text.count("{") <= _MAX_NESTING_LEVELS:
                text = text.strip(WHITESPACE)
                value, end = scan_unique(text, 0)
                if end == len(text):
                    message: Message = self._class(**self._fields(value))
                    return message
        except UNCOMMON:
            pass
        message = self._class()
        read(data, message)
        return message


class JsonWriter:
    """The writer of JSON messages of one class: `lowerCamel` names, on one line, without absent fields."""

    def __init__(self, message_class: type[Message]) -> None:
        self._text = _WriterCompiler().message(message_class.DESCRIPTOR)

    def write(self, message: Any) -> bytes:
        """The JSON text of `message`; ValueError when a value has no JSON form (an Any of unknown type)."""
        try:
            return self._text(message).encode()
        except UNCOMMON as error:
            raise ValueError(" ".join(str(error).split())[:_MAX_REASON_CHARACTERS]) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of a JSON object, each given once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _UncommonForm
    return found


class _UncommonForm(ValueError):  # noqa: N818 (not an error: json_format decides)
    """A value in another form than the common one."""


scan_unique: Final = make_scanner(json.JSONDecoder(object_pairs_hook=_unique_keys))  # type: ignore[arg-type]
_Convert = Callable[[Any], Any]
_Write = Callable[[Any], str]

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_TIMESTAMP: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?Z")
_DURATION: Final = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,9}))?s")
_EPOCH: Final = datetime(1970, 1, 1)
_MAX_DURATION_SECONDS: Final = 315_576_000_000
FLOAT_LIMIT: Final = 2.0**128 - 2.0**103  # half a step above the largest float: from here on it is infinite


def _integer(low: int, high: int) -> _Convert:
    def form(value: Any) -> int:
        if type(value) is str and _INTEGER.fullmatch(value):
            value = int(value)
        if type(value) is int and low <= value <= high:
            return value
        raise _UncommonForm

    return form


def _floating(bound: float) -> _Convert:
    def form(value: Any) -> float:
        if type(value) is float or type(value) is int:
            number = float(value)
            if -bound < number < bound:
                return number
        raise _UncommonForm

    return form


def _boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise _UncommonForm


def _string(value: Any) -> str:
    if type(value) is str:
        return value
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
    match = _DURATION.fullmatch(_string(value))
    if match is None or int(match[2]) >= _MAX_DURATION_SECONDS:
        raise _UncommonForm
    sign = -1 if match[1] else 1
    return {"seconds": sign * int(match[2]), "nanos": sign * int((match[3] or "").ljust(9, "0"))}


def _uncommon(_: Any) -> Any:
    raise _UncommonForm


def _bits(bits: int, signed: bool) -> _Convert:
    return _integer(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else _integer(0, (1 << bits) - 1)


_SCALARS: Final[dict[int, _Convert]] = {
    FieldDescriptor.CPPTYPE_INT32: _bits(32, signed=True),
    FieldDescriptor.CPPTYPE_INT64: _bits(64, signed=True),
    FieldDescriptor.CPPTYPE_UINT32: _bits(32, signed=False),
    FieldDescriptor.CPPTYPE_UINT64: _bits(64, signed=False),
    FieldDescriptor.CPPTYPE_DOUBLE: _floating(float("inf")),
    FieldDescriptor.CPPTYPE_FLOAT: _floating(FLOAT_LIMIT),
    FieldDescriptor.CPPTYPE_BOOL: _boolean,
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
# The types of which null is a value; for all others it means absent.
NULL_TYPES: Final = ("google.protobuf.Value", "google.protobuf.NullValue")


class _ReaderCompiler:
    """The compiler of functions from JSON values in their common form to the values of a message's fields."""

    def __init__(self) -> None:
        self._messages: dict[str, _Convert] = {}
        self._open: set[str] = set()
        self.recursive = False

    def message(self, message: Descriptor) -> _Convert:
        if message.full_name in self._messages:
            return self._messages[message.full_name]
        if message.full_name in self._open:
            self.recursive = True
            return lambda value: self._messages[message.full_name](value)
        self._open.add(message.full_name)
        forms = {field.name: (field.name, self.field(field), _takes_null(field)) for field in message.fields}
        names = {field.json_name: forms[field.name] for field in message.fields}  # take precedence over original names
        oneofs = [frozenset(f.name for f in oneof.fields) for oneof in message.oneofs if len(oneof.fields) > 1]
        form = _compile_object(forms | names, oneofs)
        self._messages[message.full_name] = form
        return form

    def field(self, field: FieldDescriptor) -> _Convert:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (self.single(field.message_type.fields_by_name[name]) for name in ("key", "value"))
            if field.message_type.fields_by_name["key"].type == FieldDescriptor.TYPE_BOOL:
                key = {"true": True, "false": False}.__getitem__
            return lambda entries: {key(k): value(v) for k, v in _object(entries).items()}
        one = self.single(field)
        return (lambda values: [one(value) for value in _list(values)]) if is_repeated(field) else one

    def single(self, field: FieldDescriptor) -> _Convert:
        if field.type == FieldDescriptor.TYPE_ENUM:
            return _enum(field)
        if field.message_type is None:
            text = {FieldDescriptor.TYPE_STRING: _string, FieldDescriptor.TYPE_BYTES: _bytes}
            return text.get(field.type) or _SCALARS[field.cpp_type]
        name = field.message_type.full_name
        if name in WRAPPERS:
            inner = self.single(field.message_type.fields_by_name["value"])
            return lambda value: {"value": inner(value)}
        return WELL_KNOWN.get(name) or self.message(field.message_type)


def _takes_null(field: FieldDescriptor) -> bool:
    type_ = field.message_type or field.enum_type
    return type_ is not None and type_.full_name in NULL_TYPES


def _compile_object(fields: dict[str, tuple[str, _Convert, bool]], oneofs: list[frozenset[str]]) -> _Convert:
    def form(value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        nulls = 0
        for key, item in _object(value).items():
            name, convert, takes_null = fields[key]
            if item is not None:
                found[name] = convert(item)
            elif takes_null:
                raise _UncommonForm
            else:
                nulls += 1
        if len(found) + nulls < len(value) or (nulls and len({fields[key][0] for key in value}) < len(value)):
            raise _UncommonForm  # a field in both its spellings
        for oneof in oneofs:
            if len(oneof & found.keys()) > 1:
                raise _UncommonForm
        return found

    return form


def _enum(field: FieldDescriptor) -> _Convert:
    numbers = {value.name: value.number for value in field.enum_type.values}
    known = frozenset(numbers.values())

    def form(value: Any) -> int:
        number: int = value if type(value) is int and value in known else numbers[_string(value)]
        return number

    return form


def _object(value: Any) -> dict[str, Any]:
    if type(value) is dict:
        return value
    raise _UncommonForm


def _list(value: Any) -> list[Any]:
    if type(value) is list:
        return value
    raise _UncommonForm


class _WriterCompiler:
    """The compiler of functions from the values of a message's fields to JSON texts, as `json.dumps` writes them."""

    def __init__(self) -> None:
        self._messages: dict[str, _Write] = {}

    def message(self, message: Descriptor) -> _Write:
        if message.full_name in _WRITTEN:
            return _WRITTEN[message.full_name]
        if message.full_name not in self._messages:
            fields: list[tuple[str, str, _Write, bool, bool]] = []

            def write(value: Any) -> str:
                texts = []
                for name, label, text, presence, floating in fields:
                    if presence:
                        if value.HasField(name):
                            texts.append(label + text(getattr(value, name)))
                    elif (item := getattr(value, name)) or (floating and str(item) == "-0.0"):
                        texts.append(label + text(item))
                return ", ".join(texts).join("{}")

            self._messages[message.full_name] = write  # before its fields are compiled: one of them may be of this type
            for field in sorted(message.fields, key=lambda field: field.number):
                label = f"{encode_basestring_ascii(field.json_name)}: "
                floating = field.cpp_type in FLOATING and not is_repeated(field)
                fields.append((field.name, label, self.field(field), field.has_presence, floating))
        return self._messages[message.full_name]

    def field(self, field: FieldDescriptor) -> _Write:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            one = self.single(value)
            name = boolean_text if key.type == FieldDescriptor.TYPE_BOOL else str
            return lambda entries: ", ".join(
                [f"{encode_basestring_ascii(name(k))}: {one(entries[k])}" for k in entries]
            ).join("{}")
        one = self.single(field)
        return (lambda values: ", ".join(map(one, values)).join("[]")) if is_repeated(field) else one

    def single(self, field: FieldDescriptor) -> _Write:
        if field.type == FieldDescriptor.TYPE_ENUM:
            return enum_text(field)
        if field.message_type is not None:
            return self.message(field.message_type)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return base64_text
        return PLAIN_TEXTS[field.cpp_type]


def enum_text(field: FieldDescriptor) -> _Write:
    """The function that writes an enum's numbers."""
    names = {number: f'"{value.name}"' for number, value in field.enum_type.values_by_number.items()}
    if field.enum_type.full_name in NULL_TYPES:
        names = {0: "null"}
    return lambda number: names.get(number) or str(number)


def base64_text(value: bytes) -> str:
    return f'"{binascii.b2a_base64(value, newline=False).decode()}"'


def boolean_text(value: bool) -> str:
    return "true" if value else "false"


def _quoted_integer(value: int) -> str:
    return f'"{value}"'


def _double_text(value: float) -> str:
    if value - value == 0:
        return repr(value)
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'


def _float_text(value: float) -> str:
    return _double_text(_float(value))


def _timestamp_text(message: Any) -> str:
    """A Timestamp's text, as its own `ToJsonString` writes it: with 0, 3, 6 or 9 digits behind the second."""
    seconds, nanos = message.seconds, message.nanos
    if nanos < 0 or nanos > 999_999_999 or not LEAST_SECONDS <= seconds <= _MOST_SECONDS:
        return json.dumps(message.ToJsonString())  # which refuses it
    return f'"{(_EPOCH + timedelta(seconds=seconds)).isoformat()}{fraction_text(nanos)}Z"'


def fraction_text(nanos: int) -> str:
    """The fraction of a second, with as many digits as it needs: 0, 3, 6 or 9."""
    if not nanos:
        return ""
    digits = f".{nanos:09}"
    return digits[:4] if digits.endswith("000000") else digits[:7] if digits.endswith("000") else digits


def _float(value: float) -> float:
    """The shortest decimal number that is this float and, rounded up, is not beyond the largest float."""
    if value - value != 0:
        return value
    for digits in (6, 7, 8, 9):
        short = float(f"{value:.{digits}g}")
        if abs(short) <= _MAX_FLOAT and _FLOAT.unpack(_FLOAT.pack(short))[0] == value:
            return short
    return value


_FLOAT: Final = struct.Struct("<f")
_MAX_FLOAT: Final = 2.0**128 - 2.0**104
FLOATING: Final = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)
LEAST_SECONDS: Final = -62_135_596_800  # 0001-01-01
_MOST_SECONDS: Final = 253_402_300_799  # 9999-12-31
PLAIN_TEXTS: Final[dict[int, _Write]] = {
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32), str),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64), _quoted_integer),
    FieldDescriptor.CPPTYPE_DOUBLE: _double_text,
    FieldDescriptor.CPPTYPE_FLOAT: _float_text,
    FieldDescriptor.CPPTYPE_BOOL: boolean_text,
    FieldDescriptor.CPPTYPE_STRING: encode_basestring_ascii,
}
_WRITTEN: Final[dict[str, _Write]] = {
    **dict.fromkeys(
        ("google.protobuf.Any", *JSON_MESSAGES, *WRAPPERS),
        lambda message: json.dumps(json_format.MessageToDict(message), allow_nan=False),
    ),
    **dict.fromkeys(
        ("google.protobuf.Duration", "google.protobuf.FieldMask"), lambda message: json.dumps(message.ToJsonString())
    ),
    "google.protobuf.Timestamp": _timestamp_text,
}

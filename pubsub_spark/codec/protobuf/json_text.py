"""The proto3 JSON mapping: one message as JSON text, as protobuf's own `json_format` writes it.

Compiled once per schema; well-known types are written by their own methods.
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Callable
from datetime import timedelta
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pubsub_spark.schema.protobuf.descriptors import is_repeated
from pubsub_spark.schema.protobuf.json_mapping import (
    EPOCH,
    JSON_MESSAGES,
    MAX_REASON_CHARACTERS,
    NULL_TYPES,
    UNCOMMON,
    WRAPPERS,
)

_Write = Callable[[Any], str]


class JsonWriter:
    """The writer of JSON messages of one class: `lowerCamel` names, on one line, without absent fields."""

    def __init__(self, message_class: type[Message]) -> None:
        self._text = _WriterCompiler().message(message_class.DESCRIPTOR)

    def write(self, message: Any) -> bytes:
        """The JSON text of `message`; ValueError when a value has no JSON form (an Any of unknown type)."""
        try:
            return self._text(message).encode()
        except UNCOMMON as error:
            raise ValueError(" ".join(str(error).split())[:MAX_REASON_CHARACTERS]) from None


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
    return f'"{(EPOCH + timedelta(seconds=seconds)).isoformat()}{fraction_text(nanos)}Z"'


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

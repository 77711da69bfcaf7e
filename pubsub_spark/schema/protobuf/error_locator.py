"""The error locator: the byte, the field's path and the reason why a payload is not a message of its schema.

upb (protobuf's C core) decides whether bytes are a message; it does not say where the error is. For the few payloads
that upb refuses, this module walks over the bytes again, in Python, and says it. The walk keeps upb's rules (a tag of
32 bits, matching groups, 100 levels, UTF-8 in proto3 strings), so it finds an error in every payload that upb refuses.
It also names the first field that the schema does not have, which `validate` refuses and a decoder skips.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pubsub_spark.schema.protobuf.descriptors import is_closed, is_proto3, is_repeated

MAX_NESTING_LEVELS: Final = 100
# Numbers (tags, lengths, values) read before the walk gives up: tenths of a second; ten hostile megabytes took many.
MAX_NUMBERS: Final = 100_000
# Messages whose fields are kept by number: those of a few schemas.
_CACHED_MESSAGES: Final = 256

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)

_FIXED64 = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64)
_FIXED32 = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32)
_LENGTH = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
_WIDTH: Final = {FIXED64: 8, FIXED32: 4}
_NAMES: Final = {VARINT: "a varint", FIXED64: "8 bytes", BYTES: "a length", GROUP: "a group", FIXED32: "4 bytes"}


def locate_error(data: bytes, message: Descriptor, strict: bool = False) -> str | None:
    """A sentence about the first error in `data` as a `message`, or None.

    strict: a field, or a value of a closed enum, that the schema does not have is an error, too.
    """
    walk = _PayloadWalk(data, strict)
    try:
        walk.message(0, len(data), message, "", 1)
    except _Malformed as error:
        return str(error)
    except _NumbersExhausted:
        return f"The message is malformed, somewhere behind its first {MAX_NUMBERS:,} numbers"
    return None


class _Malformed(ValueError):  # noqa: N818 (a finding, not a failure)
    """The error in a payload, as a sentence."""


class _NumbersExhausted(Exception):  # noqa: N818 (an end, not a failure)
    """The walk has read MAX_NUMBERS numbers without an error."""


class _Field(NamedTuple):
    """The properties of a field that the walk needs: asking its descriptor takes longer than the walk."""

    descriptor: FieldDescriptor
    name: str
    wire: int
    is_message: bool
    is_text: bool


@lru_cache(_CACHED_MESSAGES)
def _fields(message: Descriptor) -> dict[int, _Field]:
    """The fields of a message by their numbers."""
    return {
        field.number: _Field(
            field, field.name, _wire_type(field), field.type == FieldDescriptor.TYPE_MESSAGE, _is_text(field)
        )
        for field in message.fields
    }


def _is_text(field: FieldDescriptor) -> bool:
    """Whether the bytes of `field` must be UTF-8: those of proto3's strings; proto2 lets any bytes through."""
    return field.type == FieldDescriptor.TYPE_STRING and is_proto3(field.containing_type.file)


class _PayloadWalk:
    """A walk over the bytes of one payload; every method takes the place where it reads and returns where it ended.

    `at` and `end` are offsets into the payload, `path` is the dotted path of the field or message being read.
    """

    def __init__(self, data: bytes, strict: bool) -> None:
        self.data = data
        self.strict = strict
        self.numbers_left = MAX_NUMBERS

    def message(self, at: int, end: int, message: Descriptor, path: str, depth: int) -> None:
        """All fields of a message."""
        if depth > MAX_NESTING_LEVELS:
            raise _Malformed(f"{_subject(path)} is nested deeper than {MAX_NESTING_LEVELS} levels")
        data, fields = self.data, _fields(message)
        while at < end:
            start = at
            tag = data[at]
            if 8 <= tag < 0x80 and self.numbers_left and tag & 7 <= FIXED32:  # a tag of one byte: nearly all are
                number, wire, at = tag >> 3, tag & 7, at + 1
                self.numbers_left -= 1
            else:
                number, wire, at = self.tag(at, end, path)
            if wire == END_GROUP:
                raise _Malformed(f"{_subject(path)} ends a group that never began, at byte {start}")
            known = fields.get(number)
            if known is None:
                if self.strict:
                    raise _Malformed(f"{_subject(path)} has field number {number}, which the schema does not know")
                at = self.skip(at, end, number, wire, path, depth)
            else:
                here = f"{path}.{known.name}" if path else known.name
                at = self.field(at, end, known, wire, here, depth)

    def field(self, at: int, end: int, known: _Field, wire: int, path: str, depth: int) -> int:
        """The value of a field that the schema has."""
        field, expected = known.descriptor, known.wire
        if wire == BYTES and expected != BYTES and is_repeated(field):
            return self.packed(at, end, field, expected, path)
        if wire != expected:
            if self.strict:
                raise _Malformed(f"Field `{path}` holds {_NAMES[wire]} where its type has {_NAMES[expected]}")
            return self.skip(at, end, field.number, wire, path, depth)
        if wire == VARINT:
            value, at = self.varint(at, end, path)
            if self.strict:
                self.check_enum_value(value, field, path)
            return at
        if wire in _WIDTH:
            return self.fixed(at, end, _WIDTH[wire], path)
        length, at = self.length(at, end, path)
        if known.is_message:
            self.message(at, at + length, field.message_type, path, depth + 1)
        elif known.is_text:
            try:
                self.data[at : at + length].decode()
            except UnicodeDecodeError:
                raise _Malformed(f"Field `{path}` is not valid UTF-8") from None
        return at + length

    def packed(self, at: int, end: int, field: FieldDescriptor, wire: int, path: str) -> int:
        """The packed values of a repeated field."""
        length, at = self.length(at, end, path)
        last = at + length
        if wire in _WIDTH and length % _WIDTH[wire]:
            raise _Malformed(f"Field `{path}` has {length} bytes of packed values, no multiple of {_WIDTH[wire]}")
        while wire == VARINT and at < last:
            value, at = self.varint(at, last, path)
            if self.strict:
                self.check_enum_value(value, field, path)
        return last

    def check_enum_value(self, value: int, field: FieldDescriptor, path: str) -> None:
        """Refuse a number that a closed enum does not have: upb puts it with the unknown fields."""
        if field.type == FieldDescriptor.TYPE_ENUM and is_closed(field.enum_type):
            number = (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)
            if number not in field.enum_type.values_by_number:
                raise _Malformed(f"Field `{path}` is {number}, which enum `{field.enum_type.name}` does not have")

    def skip(self, at: int, end: int, number: int, wire: int, path: str, depth: int) -> int:
        """The value of a field that the schema does not have."""
        if wire == VARINT:
            return self.varint(at, end, path)[1]
        if wire in _WIDTH:
            return self.fixed(at, end, _WIDTH[wire], path)
        if wire == BYTES:
            length, at = self.length(at, end, path)
            return at + length
        groups = [number]  # the numbers of the unknown group and of the open groups inside it
        while groups:
            if depth + len(groups) > MAX_NESTING_LEVELS:
                raise _Malformed(f"{_subject(path)} is nested deeper than {MAX_NESTING_LEVELS} levels")
            if at >= end:
                raise _Malformed(f"{_subject(path)} does not end the group that it began")
            start = at
            number, wire, at = self.tag(at, end, path)
            if wire == GROUP:
                groups.append(number)
            elif wire == END_GROUP:
                if groups.pop() != number:
                    raise _Malformed(f"{_subject(path)} ends another group than it began, at byte {start}")
            else:
                at = self.skip(at, end, number, wire, path, depth)
        return at

    def tag(self, at: int, end: int, path: str) -> tuple[int, int, int]:
        """A field number, a wire type, and where they end."""
        tag, after = self.varint(at, end, path)
        number, wire = tag >> 3, tag & 7
        if after - at > 5 or tag >= 1 << 32 or number == 0:
            raise _Malformed(f"{_subject(path)} has no valid field number at byte {at}")
        if wire > FIXED32:
            raise _Malformed(f"{_subject(path)} has the unknown wire type {wire} at byte {at}")
        return number, wire, after

    def varint(self, at: int, end: int, path: str) -> tuple[int, int]:
        """A varint, modulo 2^64, and where it ends."""
        self.numbers_left -= 1
        if self.numbers_left < 0:
            raise _NumbersExhausted
        if at < end and (byte := self.data[at]) < 0x80:
            return byte, at + 1
        value = 0
        for shift, index in enumerate(range(at, min(end, at + 10))):
            byte = self.data[index]
            value |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, index + 1
        if end - at < 10:
            raise _Malformed(f"{_subject(path)} breaks off in a number at byte {at}")
        raise _Malformed(f"{_subject(path)} has a number of more than 10 bytes at byte {at}")

    def fixed(self, at: int, end: int, width: int, path: str) -> int:
        """A value of `width` bytes."""
        if at + width > end:
            raise _Malformed(
                f"Field `{path}` breaks off: {end - at} of {width} bytes"
                if path
                else f"The message breaks off at byte {at}"
            )
        return at + width

    def length(self, at: int, end: int, path: str) -> tuple[int, int]:
        """A length in bytes, and where it ends."""
        length, after = self.varint(at, end, path)
        if length > end - after:
            raise _Malformed(f"{_subject(path)} breaks off: {length} bytes announced at byte {at}, {end - after} there")
        return length, after


def _wire_type(field: FieldDescriptor) -> int:
    """The wire type of one value of the field, outside a packed list."""
    if field.type in _LENGTH:
        return BYTES
    if field.type in _FIXED64:
        return FIXED64
    return FIXED32 if field.type in _FIXED32 else VARINT


def _subject(path: str) -> str:
    """The field at `path`, or the message itself, as the beginning of a sentence."""
    return f"Field `{path}`" if path else "The message"

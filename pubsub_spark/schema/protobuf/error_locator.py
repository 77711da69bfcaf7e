"""The error locator: the byte, the field's path and the reason why a payload is not a message of its schema.

upb (protobuf's C core) decides whether bytes are a message, but does not report where the error is. This module walks
over the bytes that upb refuses, in Python. The walk keeps upb's rules (a tag of 32 bits, matching groups, 100 levels,
UTF-8 in proto3 strings), so it finds an error in every payload that upb refuses. It also names the first field that the
schema does not have.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pubsub_spark.schema.definition import Mismatch
from pubsub_spark.schema.protobuf.descriptors import is_closed, is_proto3, is_repeated

MAX_NESTING_LEVELS: Final = 100
# Numbers (tags, lengths, values) read before the walk stops, after tenths of a second. Ten hostile megabytes took many.
MAX_NUMBERS: Final = 100_000
# Messages whose fields are kept by number: those of a few schemas.
_CACHED_MESSAGES: Final = 256

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)

# The wire type of one value by its field's type, outside a packed list. All other types are varints.
_WIRE_TYPES: Final = {
    **dict.fromkeys(
        (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64), FIXED64
    ),
    **dict.fromkeys((FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32), FIXED32),
    **dict.fromkeys((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE), BYTES),
}
_WIDTH: Final = {FIXED64: 8, FIXED32: 4}
_NAMES: Final = {VARINT: "a varint", FIXED64: "8 bytes", BYTES: "a length", GROUP: "a group", FIXED32: "4 bytes"}


def locate_error(data: bytes, message: Descriptor, strict: bool = False) -> str | None:
    """Return an error message about the first error in `data`, or None.

    strict: a field, or a value of a closed enum, that the schema does not have is also an error.
    """
    try:
        _PayloadWalk(data, strict).message(message, len(data), 1)
    except Mismatch as error:
        return str(error)
    except _NumbersExhausted:
        return f"The message is malformed, somewhere behind its first {MAX_NUMBERS:,} numbers"
    return None


class _NumbersExhausted(Exception):  # noqa: N818 (an end, not a failure)
    """The end of a walk that has read MAX_NUMBERS numbers without an error."""


class _Field(NamedTuple):
    """The properties of a field: reading them from its descriptor takes longer than the walk."""

    descriptor: FieldDescriptor
    wire: int
    is_message: bool
    is_text: bool


@lru_cache(_CACHED_MESSAGES)
def _fields(message: Descriptor) -> dict[int, _Field]:
    text = FieldDescriptor.TYPE_STRING if is_proto3(message.file) else None  # proto2 accepts any bytes as a string
    return {
        f.number: _Field(f, _WIRE_TYPES.get(f.type, VARINT), f.type == FieldDescriptor.TYPE_MESSAGE, f.type == text)
        for f in message.fields
    }


class _PayloadWalk:
    """`at` is the offset where the next read begins, `end` where it must end."""

    def __init__(self, data: bytes, strict: bool) -> None:
        self.data = data
        self.strict = strict
        self.at = 0
        self.numbers_left = MAX_NUMBERS

    def message(self, message: Descriptor | None, end: int, depth: int, group: int = 0) -> None:
        """Read all fields of a message, or without a descriptor those of an unknown group with field number `group`."""
        if depth > MAX_NESTING_LEVELS:
            raise Mismatch(f"is nested deeper than {MAX_NESTING_LEVELS} levels")
        fields = _fields(message) if message else {}
        while self.at < end:
            start = self.at
            number, wire = self.tag(end)
            if wire == END_GROUP and group:
                if number != group:
                    raise Mismatch(f"ends another group than it began, at byte {start}")
                return
            if wire == END_GROUP:
                raise Mismatch(f"ends a group that never began, at byte {start}")
            known = fields.get(number)
            if known is not None:
                try:
                    self.field(known, wire, end, depth)
                except Mismatch as error:
                    raise error.inside(f".{known.descriptor.name}") from None
            elif self.strict:
                raise Mismatch(f"has field number {number}, which the schema does not know")
            else:
                self.skip(number, wire, end, depth)
        if group:
            raise Mismatch("does not end the group that it began")

    def field(self, known: _Field, wire: int, end: int, depth: int) -> None:
        field = known.descriptor
        is_packed = wire == BYTES != known.wire and is_repeated(field)
        if wire != known.wire and not is_packed:
            if self.strict:
                raise Mismatch(f"holds {_NAMES[wire]} where its type has {_NAMES[known.wire]}")
            self.skip(field.number, wire, end, depth)
        elif wire == VARINT:
            self.varint_of(field, end)
        elif wire != BYTES:
            self.skip(field.number, wire, end, depth)
        else:
            last = self.length(end)
            if known.is_message:
                self.message(field.message_type, last, depth + 1)
            elif known.is_text:
                try:
                    self.data[self.at : last].decode()
                except UnicodeDecodeError:
                    raise Mismatch("is not valid UTF-8") from None
            elif is_packed and (last - self.at) % _WIDTH.get(known.wire, 1):
                raise Mismatch(f"has {last - self.at} bytes of packed values, no multiple of {_WIDTH[known.wire]}")
            while is_packed and known.wire == VARINT and self.at < last:
                self.varint_of(field, last)
            self.at = last

    def varint_of(self, field: FieldDescriptor, end: int) -> None:
        """If strict, refuse a number that a closed enum lacks: unknown to upb."""
        value = self.varint(end)
        if self.strict and field.type == FieldDescriptor.TYPE_ENUM and is_closed(field.enum_type):
            number = (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)
            if number not in field.enum_type.values_by_number:
                raise Mismatch(f"is {number}, which enum `{field.enum_type.name}` does not have")

    def skip(self, number: int, wire: int, end: int, depth: int) -> None:
        if wire == VARINT:
            self.varint(end)
        elif wire == BYTES:
            self.at = self.length(end)
        elif wire == GROUP:
            self.message(None, end, depth + 1, number)
        elif self.at + _WIDTH[wire] > end:
            raise Mismatch(f"breaks off: {end - self.at} of {_WIDTH[wire]} bytes")
        else:
            self.at += _WIDTH[wire]

    def tag(self, end: int) -> tuple[int, int]:
        start = self.at
        tag = self.varint(end)
        number, wire = tag >> 3, tag & 7
        if self.at - start > 5 or tag >= 1 << 32 or number == 0:
            raise Mismatch(f"has no valid field number at byte {start}")
        if wire > FIXED32:
            raise Mismatch(f"has the unknown wire type {wire} at byte {start}")
        return number, wire

    def varint(self, end: int) -> int:
        """Return a varint, modulo 2^64."""
        self.numbers_left -= 1
        if self.numbers_left < 0:
            raise _NumbersExhausted
        start, value = self.at, 0
        if start < end and (byte := self.data[start]) < 0x80:  # nearly all are
            self.at = start + 1
            return byte
        for shift, byte in enumerate(self.data[start : min(end, start + 10)]):
            value |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                self.at = start + shift + 1
                return value & 0xFFFFFFFFFFFFFFFF
        if end - start < 10:
            raise Mismatch(f"breaks off in a number at byte {start}")
        raise Mismatch(f"has a number of more than 10 bytes at byte {start}")

    def length(self, end: int) -> int:
        """Return the end of a length-delimited value."""
        start = self.at
        length = self.varint(end)
        if length > end - self.at:
            raise Mismatch(f"breaks off: {length} bytes announced at byte {start}, {end - self.at} there")
        return self.at + length

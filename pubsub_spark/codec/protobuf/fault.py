"""Where and why a payload breaks: a walk over its bytes, in Python, for the few payloads that upb refuses.

upb (protobuf's C core) decides whether bytes are a message; it does not say where they stop being one. This module
looks again at a refused payload and says it: the byte, the field's path, the reason. It keeps upb's rules (a tag of 32
bits, groups that match, 100 levels, UTF-8 in proto3 strings), so it finds a fault wherever upb did. It also names the
first field that the schema does not know, which `validate` refuses and a decoder skips.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto

MAX_DEPTH: Final = 100
# How many numbers (tags, lengths, values) are looked at: tenths of a second, where ten hostile megabytes took many.
MAX_NUMBERS: Final = 100_000

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)

_FIXED64 = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64)
_FIXED32 = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32)
_LENGTH = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
_WIDTH: Final = {FIXED64: 8, FIXED32: 4}
_NAMES: Final = {VARINT: "a varint", FIXED64: "8 bytes", BYTES: "a length", GROUP: "a group", FIXED32: "4 bytes"}


class Fault(ValueError):  # noqa: N818 (a finding, not a failure)
    """What is wrong with a payload, as a sentence."""


def find(data: bytes, message: Descriptor, strict: bool = False) -> str | None:
    """What is wrong with `data` as a `message`, or None; `strict` also minds what the schema does not know."""
    walk = _Walk(data, strict)
    try:
        walk.message(0, len(data), message, "", 1)
    except Fault as fault:
        return str(fault)
    except _TooLong:
        return f"The message is malformed, somewhere behind its first {MAX_NUMBERS:,} numbers"
    return None


class _TooLong(Exception):  # noqa: N818 (an end, not a failure)
    """Enough has been looked at."""


def _is_text(field: FieldDescriptor) -> bool:
    """Whether the wire must hold UTF-8 in `field`: strings of proto3. proto2 lets any bytes through."""
    return field.type == FieldDescriptor.TYPE_STRING and _is_proto3(field.containing_type.file)


@lru_cache(256)
def _is_proto3(file: FileDescriptor) -> bool:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return bool(proto.syntax == "proto3")


class _Walk:
    def __init__(self, data: bytes, strict: bool) -> None:
        self.data = data
        self.strict = strict
        self.left = MAX_NUMBERS

    def message(self, at: int, end: int, message: Descriptor, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise Fault(f"{_place(path)} is nested deeper than {MAX_DEPTH} levels")
        while at < end:
            start = at
            number, wire, at = self.tag(at, end, path)
            if wire == END_GROUP:
                raise Fault(f"{_place(path)} ends a group that never began, at byte {start}")
            field = message.fields_by_number.get(number)
            if field is None:
                if self.strict:
                    raise Fault(f"{_place(path)} has field number {number}, which the schema does not know")
                at = self.skip(at, end, number, wire, path, depth)
            else:
                here = f"{path}.{field.name}" if path else field.name
                at = self.field(at, end, field, wire, here, depth)

    def field(self, at: int, end: int, field: FieldDescriptor, wire: int, path: str, depth: int) -> int:
        expected = _wire_type(field)
        if wire == BYTES and expected != BYTES and is_repeated(field):
            return self.packed(at, end, field, expected, path)
        if wire != expected:
            if self.strict:
                raise Fault(f"Field `{path}` holds {_NAMES[wire]} where its type has {_NAMES[expected]}")
            return self.skip(at, end, field.number, wire, path, depth)
        if wire == VARINT:
            value, at = self.varint(at, end, path)
            self.member(value, field, path)
            return at
        if wire in _WIDTH:
            return self.fixed(at, end, _WIDTH[wire], path)
        length, at = self.length(at, end, path)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            self.message(at, at + length, field.message_type, path, depth + 1)
        elif _is_text(field):
            try:
                self.data[at : at + length].decode()
            except UnicodeDecodeError:
                raise Fault(f"Field `{path}` is not valid UTF-8") from None
        return at + length

    def packed(self, at: int, end: int, field: FieldDescriptor, wire: int, path: str) -> int:
        length, at = self.length(at, end, path)
        last = at + length
        if wire in _WIDTH and length % _WIDTH[wire]:
            raise Fault(f"Field `{path}` has {length} bytes of packed values, no multiple of {_WIDTH[wire]}")
        while wire == VARINT and at < last:
            value, at = self.varint(at, last, path)
            self.member(value, field, path)
        return last

    def member(self, value: int, field: FieldDescriptor, path: str) -> None:
        """A closed enum (proto2) puts numbers that it does not have with the unknown fields."""
        if self.strict and field.type == FieldDescriptor.TYPE_ENUM and is_closed(field.enum_type):
            number = (value & 0xFFFFFFFF) - ((value & 0x80000000) << 1)
            if number not in field.enum_type.values_by_number:
                raise Fault(f"Field `{path}` is {number}, which enum `{field.enum_type.name}` does not have")

    def skip(self, at: int, end: int, number: int, wire: int, path: str, depth: int) -> int:
        if wire == VARINT:
            return self.varint(at, end, path)[1]
        if wire in _WIDTH:
            return self.fixed(at, end, _WIDTH[wire], path)
        if wire == BYTES:
            length, at = self.length(at, end, path)
            return at + length
        groups = [number]  # an unknown group, and those inside it
        while groups:
            if depth + len(groups) > MAX_DEPTH:
                raise Fault(f"{_place(path)} is nested deeper than {MAX_DEPTH} levels")
            if at >= end:
                raise Fault(f"{_place(path)} does not end the group that it began")
            start = at
            number, wire, at = self.tag(at, end, path)
            if wire == GROUP:
                groups.append(number)
            elif wire == END_GROUP:
                if groups.pop() != number:
                    raise Fault(f"{_place(path)} ends another group than it began, at byte {start}")
            else:
                at = self.skip(at, end, number, wire, path, depth)
        return at

    def tag(self, at: int, end: int, path: str) -> tuple[int, int, int]:
        tag, after = self.varint(at, end, path)
        number, wire = tag >> 3, tag & 7
        if after - at > 5 or tag >= 1 << 32 or number == 0:
            raise Fault(f"{_place(path)} has no valid field number at byte {at}")
        if wire > FIXED32:
            raise Fault(f"{_place(path)} has the unknown wire type {wire} at byte {at}")
        return number, wire, after

    def varint(self, at: int, end: int, path: str) -> tuple[int, int]:
        self.left -= 1
        if self.left < 0:
            raise _TooLong
        value = 0
        for shift, index in enumerate(range(at, min(end, at + 10))):
            byte = self.data[index]
            value |= (byte & 0x7F) << (7 * shift)
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF, index + 1
        if end - at < 10:
            raise Fault(f"{_place(path)} breaks off in a number at byte {at}")
        raise Fault(f"{_place(path)} has a number of more than 10 bytes at byte {at}")

    def fixed(self, at: int, end: int, width: int, path: str) -> int:
        if at + width > end:
            raise Fault(
                f"Field `{path}` breaks off: {end - at} of {width} bytes"
                if path
                else f"The message breaks off at byte {at}"
            )
        return at + width

    def length(self, at: int, end: int, path: str) -> tuple[int, int]:
        length, after = self.varint(at, end, path)
        if length > end - after:
            raise Fault(f"{_place(path)} breaks off: {length} bytes announced at byte {at}, {end - after} there")
        return length, after


def is_closed(enum: EnumDescriptor) -> bool:
    """Whether the enum keeps numbers that it does not have out of its fields, as those of proto2 do."""
    closed: Any = getattr(enum, "is_closed", None)  # since protobuf 4.22
    return bool(closed)


def is_repeated(field: FieldDescriptor) -> bool:
    """Whether the field holds any number of values."""
    repeated: Any = getattr(field, "is_repeated", None)  # since protobuf 6.31, where `label` begins to warn
    return bool(field.label == FieldDescriptor.LABEL_REPEATED) if repeated is None else bool(repeated)


def _wire_type(field: FieldDescriptor) -> int:
    if field.type in _LENGTH:
        return BYTES
    if field.type in _FIXED64:
        return FIXED64
    return FIXED32 if field.type in _FIXED32 else VARINT


def _place(path: str) -> str:
    return f"Field `{path}`" if path else "The message"

"""Questions about descriptors. The versions of protobuf (5 to 7) answer some of them in different ways."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from pubsub_spark.schema.protobuf.protoc import WELL_KNOWN

_CACHED_FILES = 256


@lru_cache(_CACHED_FILES)
def is_proto3(file: FileDescriptor) -> bool:
    """Return whether the file has `syntax = "proto3"`."""
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return bool(proto.syntax == "proto3")


def is_closed(enum: EnumDescriptor) -> bool:
    """Return whether a field of the enum cannot hold undeclared numbers, as in proto2."""
    closed: Any = getattr(enum, "is_closed", None)  # since protobuf 4.22
    return bool(closed)


def is_repeated(field: FieldDescriptor) -> bool:
    repeated: Any = getattr(field, "is_repeated", None)  # since protobuf 6.31, where `label` begins to warn
    return bool(field.label == FieldDescriptor.LABEL_REPEATED) if repeated is None else bool(repeated)


def is_required(field: FieldDescriptor) -> bool:
    required: Any = getattr(field, "is_required", None)  # since protobuf 6.31, where `label` begins to warn
    return bool(field.label == FieldDescriptor.LABEL_REQUIRED) if required is None else bool(required)


def has_required(message: Descriptor, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether the message has a required field, at any depth."""
    if message.full_name in seen:
        return False
    seen |= {message.full_name}
    return any(
        is_required(field) or (field.message_type is not None and has_required(field.message_type, seen))
        for field in message.fields
    )


def declared_oneof(field: FieldDescriptor) -> str | None:
    """Return the name of the field's oneof, except the one of `optional` in proto3."""
    oneof = field.containing_oneof
    if oneof is None or (len(oneof.fields) == 1 and oneof.name == f"_{field.name}"):
        return None
    return str(oneof.name)


def well_known_name(type_: Descriptor | EnumDescriptor) -> str:
    """Return the full name of a well-known type, or "". Other types of such a name have none."""
    return str(type_.full_name) if well_known_shapes().get(type_.full_name) == _shape(type_) else ""


@cache
def well_known_files() -> list[FileDescriptor]:
    return [import_module(name.replace("/", ".").removesuffix(".proto") + "_pb2").DESCRIPTOR for name in WELL_KNOWN]


@cache
def well_known_shapes() -> dict[str, Any]:
    """Return the shape of each well-known type by its full name."""
    groups = [group for file in well_known_files() for group in (file.message_types_by_name, file.enum_types_by_name)]
    return {type_.full_name: _shape(type_) for group in groups for type_ in group.values()}


def _shape(type_: Any) -> list[tuple[Any, ...]]:
    if isinstance(type_, EnumDescriptor):
        return [(value.number, value.name) for value in type_.values]
    return [
        (field.number, field.name, field.type, is_repeated(field), field.message_type and field.message_type.full_name)
        for field in type_.fields
    ]


def unused_name(name: str, files: Collection[FileDescriptorProto]) -> str:
    """Return the name, with so many underscores behind it that no file has it."""
    texts = [file.SerializeToString() for file in files]
    while any(name.encode() in text for text in texts):
        name += "_"
    return name

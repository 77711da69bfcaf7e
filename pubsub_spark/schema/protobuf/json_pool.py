"""The pool of messages for `json_format`: the schema's own, under names that do not mislead it.

`json_format` calls methods on messages, and a field hides the method of its name (`HasField`, `DESCRIPTOR`). It knows
the well-known types by their names alone, and a schema can have another type of such a name. Both have other names in
this pool. A message is the same bytes and the same JSON text in both pools.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from pubsub_spark.schema.protobuf.descriptors import (
    unused_name,
    well_known_files,
    well_known_name,
    well_known_shapes,
)

# The names without an underscore: `json_format` uses no other, and their JSON names are the names themselves.
_HIDING: Final = frozenset(name for name in dir(Message) if not name.startswith("_")) | {"Extensions"}


def json_descriptor(files: Collection[FileDescriptorProto], root: Descriptor) -> Descriptor:
    """Return message `root` in the pool for `json_format`. files: each after those that it imports."""
    fields = {name: unused_name(f"{name}_", files) for name in _HIDING}
    types = {f".{name}": "." + unused_name(f"{name}_", files) for name in _misleading_types(root.file.pool)}
    pool = DescriptorPool()
    for file in files:
        copy = FileDescriptorProto.FromString(file.SerializeToString())
        del copy.service[:]  # which name types, too
        _rename(copy, f".{copy.package}" if copy.package else "", fields, types)
        pool.AddSerializedFile(copy.SerializeToString())
    for file in well_known_files():
        with suppress(TypeError):  # the schema has the file, or a type of a name in it
            pool.AddSerializedFile(file.serialized_pb)
    return pool.FindMessageTypeByName(_renamed(f".{root.full_name}", types).removeprefix("."))


def _misleading_types(pool: DescriptorPool) -> Iterator[str]:
    for name in well_known_shapes():
        for find in (pool.FindMessageTypeByName, pool.FindEnumTypeByName):
            with suppress(KeyError):
                if not well_known_name(find(name)):
                    yield name


def _rename(
    proto: FileDescriptorProto | DescriptorProto, scope: str, fields: dict[str, str], types: dict[str, str]
) -> None:
    is_message = isinstance(proto, DescriptorProto)
    for message in proto.nested_type if is_message else proto.message_type:
        _rename(message, f"{scope}.{message.name}", fields, types)
    for type_ in (*(proto.nested_type if is_message else proto.message_type), *proto.enum_type):
        type_.name = _renamed(f"{scope}.{type_.name}", types).rpartition(".")[2]
    for field in proto.field if is_message else ():
        if field.name in fields:
            field.json_name = field.json_name or field.name
            field.name = fields[field.name]
    for field in (*(proto.field if is_message else ()), *proto.extension):
        for reference in ("type_name", "extendee"):
            if field.HasField(reference):
                setattr(field, reference, _renamed(getattr(field, reference), types))


def _renamed(name: str, types: dict[str, str]) -> str:
    for old, new in types.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return name

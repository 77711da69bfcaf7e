"""The pool whose messages `json_format` is given: the schema's own, under names that do not mislead it.

`json_format` calls methods on messages, and a field hides the method of its name (`HasField`, `DESCRIPTOR`). Such a
field has another name in this pool. Its number and its JSON name are the schema's, so a message is the same bytes and
the same JSON text in both pools.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

# The names without an underscore: `json_format` uses no other, and of these the JSON name is the name itself.
_HIDING: Final = frozenset(name for name in dir(Message) if not name.startswith("_")) | {"Extensions"}


def json_descriptor(files: Iterable[FileDescriptorProto], root: str) -> Descriptor:
    """The descriptor of message `root` in the pool for `json_format`; `files`: each after those that it imports."""
    pool = DescriptorPool()
    for file in files:
        copy = FileDescriptorProto.FromString(file.SerializeToString())
        for message in copy.message_type:
            _rename_fields(message)
        pool.AddSerializedFile(copy.SerializeToString())
    return pool.FindMessageTypeByName(root)


def _rename_fields(message: DescriptorProto) -> None:
    """Rename the fields of a message, and of those in it, that hide a method."""
    names = {field.name for field in message.field}
    for field in message.field:
        if field.name in _HIDING:
            field.json_name = field.json_name or field.name
            while field.name in names:
                field.name += "_"
            names.add(field.name)
    for nested in message.nested_type:
        _rename_fields(nested)

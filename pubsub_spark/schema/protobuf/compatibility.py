"""Compatibility of revisions: Pub/Sub's rule for Protocol Buffers, which is narrower than the wire format's.

"You can add or remove optional fields. You can't add or remove other fields. You also can't edit any existing field."
(cloud.google.com/pubsub/docs/commit-schema-revision). Optional is what is neither required nor repeated. A field is
identified by its number; its name, type, label, default, oneof and packing may not be edited, in nested messages too.
An enum may gain values, for that edits no field; it may not lose, rename or renumber one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

_LABELS: Final = {
    FieldDescriptorProto.LABEL_OPTIONAL: "optional",
    FieldDescriptorProto.LABEL_REQUIRED: "required",
    FieldDescriptorProto.LABEL_REPEATED: "repeated",
}


class _File(NamedTuple):
    """A file, and the name of the schema's root message, which may be renamed: that edits no field."""

    content: FileDescriptorProto
    root: str


def find_edit(old: FileDescriptorProto, new: FileDescriptorProto, old_root: str, new_root: str) -> str | None:
    """A sentence about the first change in `new` that is not allowed, or None: optional fields may come and go.

    old_root, new_root: the names of the schemas' root messages, without a package; they need not be in these files.
    """
    if (old.syntax or "proto2") != (new.syntax or "proto2"):
        return f"The syntax changes from {old.syntax or 'proto2'} to {new.syntax or 'proto2'}"
    return next(_edits(_File(old, old_root), _File(new, new_root)), None)


def _edits(old: _File, new: _File) -> Iterator[str]:
    """The changes that are not allowed, each as a sentence."""
    old_messages, new_messages = dict(_messages(old)), dict(_messages(new))
    for path in filter(new_messages.__contains__, old_messages):
        yield from _message_edits(path, old, old_messages[path], new, new_messages[path])
    old_enums, new_enums = dict(_enums(old)), dict(_enums(new))
    for path in filter(new_enums.__contains__, old_enums):
        yield from _enum_edits(path, old_enums[path], new_enums[path])


def _message_edits(
    path: str, old_file: _File, old: DescriptorProto, new_file: _File, new: DescriptorProto
) -> Iterator[str]:
    before = {field.number: field for field in old.field}
    after = {field.number: field for field in new.field}
    numbers = {field.name: field.number for field in new.field}
    for number, field in before.items():
        where = f"Field `{_dotted(path, field.name)}`"
        if number in after:
            for what, was, now in _changed_properties(old_file, old, field, new_file, new, after[number]):
                yield f"{where} changes its {what} from {was} to {now}"
        elif field.name in numbers:
            yield f"{where} changes its number from {number} to {numbers[field.name]}"
        elif field.label != FieldDescriptorProto.LABEL_OPTIONAL:
            yield f"{where} is {_LABELS[field.label]} and is removed"
    for number, field in after.items():
        if number not in before and field.label != FieldDescriptorProto.LABEL_OPTIONAL:
            yield f"Field `{_dotted(path, field.name)}` is {_LABELS[field.label]} and is added"


def _changed_properties(
    old_file: _File,
    old: DescriptorProto,
    before: FieldDescriptorProto,
    new_file: _File,
    new: DescriptorProto,
    after: FieldDescriptorProto,
) -> Iterator[tuple[str, str, str]]:
    """The properties that a field has in both revisions with different values: (property, old value, new value)."""
    pairs = (
        ("name", before.name, after.name),
        ("label", _label(before), _label(after)),
        ("type", _type(old_file, before), _type(new_file, after)),
        ("default", _default(before), _default(after)),
        ("JSON name", before.json_name, after.json_name),
        ("oneof", _oneof(old, before), _oneof(new, after)),
        ("packing", str(before.options.packed), str(after.options.packed)),
    )
    for what, was, now in pairs:
        if was != now:
            yield what, f"`{was}`", f"`{now}`"


def _enum_edits(path: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    numbers = {value.name: value.number for value in new.value}
    for value in old.value:
        if value.name not in numbers:
            yield f"Enum `{path}` loses its value `{value.name}`"
        elif numbers[value.name] != value.number:
            yield f"Enum `{path}` changes the number of `{value.name}` from {value.number} to {numbers[value.name]}"


def _label(field: FieldDescriptorProto) -> str:
    return "explicitly optional" if field.proto3_optional else _LABELS[field.label]


def _default(field: FieldDescriptorProto) -> str:
    return str(field.default_value) if field.HasField("default_value") else "none"


def _type(file: _File, field: FieldDescriptorProto) -> str:
    """The type of a field as users write it."""
    if not field.type_name:
        return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()
    package = f"{file.content.package}." if file.content.package else ""
    root = f".{package}{file.root}"
    if field.type_name == root or field.type_name.startswith(f"{root}."):
        return f"message{field.type_name.removeprefix(root)}"
    return str(field.type_name).removeprefix(".").removeprefix(package)


def _oneof(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    if field.proto3_optional or not field.HasField("oneof_index"):
        return "none"
    return str(message.oneof_decl[field.oneof_index].name)


def _messages(file: _File) -> Iterator[tuple[str, DescriptorProto]]:
    """Every message with its path below the root message, which has the empty path; `/` is before all others'."""
    for message in file.content.message_type:
        yield from _nested("" if message.name == file.root else f"/{message.name}", message)


def _nested(path: str, message: DescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    yield path, message
    for inner in message.nested_type:
        yield from _nested(_dotted(path, inner.name), inner)


def _enums(file: _File) -> Iterator[tuple[str, EnumDescriptorProto]]:
    """Every enum with its path."""
    for enum in file.content.enum_type:
        yield f"/{enum.name}", enum
    for path, message in _messages(file):
        for enum in message.enum_type:
            yield _dotted(path, enum.name), enum


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

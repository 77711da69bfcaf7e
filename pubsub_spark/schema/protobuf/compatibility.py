"""Compatibility of revisions: Pub/Sub's rule for Protocol Buffers, which is narrower than the wire format's.

"You can add or remove optional fields. You can't add or remove other fields. You also can't edit any existing field."
(cloud.google.com/pubsub/docs/commit-schema-revision). A field is optional if it is neither required nor repeated. Its
number identifies it. Its name, type, label, default, oneof and packing may not be edited, also in nested messages. An
enum may gain values, because that edits no field. It may not lose, rename or renumber one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

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

# The properties of a field that no revision may edit, by the words for them.
_Properties = dict[str, str]


def find_edit(old: FileDescriptorProto, new: FileDescriptorProto, old_root: str, new_root: str) -> str | None:
    """Return an error message about the first forbidden change in `new`, or None.

    old_root, new_root: the names of the schemas' root messages, without a package. They need not be in these files, and
    may differ.
    """
    if (old.syntax or "proto2") != (new.syntax or "proto2"):
        return f"The syntax changes from {old.syntax or 'proto2'} to {new.syntax or 'proto2'}"
    return next(_edits(old, new, old_root, new_root), None)


def _edits(old: FileDescriptorProto, new: FileDescriptorProto, old_root: str, new_root: str) -> Iterator[str]:
    old_messages, new_messages = dict(_messages(old, old_root)), dict(_messages(new, new_root))
    for path in filter(new_messages.__contains__, old_messages):
        fields = (_fields(old, old_root, old_messages[path]), _fields(new, new_root, new_messages[path]))
        yield from _field_edits(path, *fields)
    old_enums, new_enums = dict(_enums(old, old_messages)), dict(_enums(new, new_messages))
    for path in filter(new_enums.__contains__, old_enums):
        yield from _enum_edits(path, old_enums[path], new_enums[path])


def _field_edits(path: str, before: dict[int, _Properties], after: dict[int, _Properties]) -> Iterator[str]:
    numbers = {field["name"]: number for number, field in after.items()}
    for number, field in before.items():
        where = f"Field `{_dotted(path, field['name'])}`"
        if number in after:
            for name, was in field.items():
                if was != after[number][name]:
                    yield f"{where} changes its {name} from `{was}` to `{after[number][name]}`"
        elif field["name"] in numbers:
            yield f"{where} changes its number from {number} to {numbers[field['name']]}"
        elif field["label"] in ("required", "repeated"):
            yield f"{where} is {field['label']} and is removed"
    for number, field in after.items():
        if number not in before and field["label"] in ("required", "repeated"):
            yield f"Field `{_dotted(path, field['name'])}` is {field['label']} and is added"


def _enum_edits(path: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    numbers = {value.name: value.number for value in new.value}
    for value in old.value:
        if value.name not in numbers:
            yield f"Enum `{path}` loses its value `{value.name}`"
        elif numbers[value.name] != value.number:
            yield f"Enum `{path}` changes the number of `{value.name}` from {value.number} to {numbers[value.name]}"


def _fields(file: FileDescriptorProto, root: str, message: DescriptorProto) -> dict[int, _Properties]:
    return {
        field.number: {
            "name": field.name,
            "label": "explicitly optional" if field.proto3_optional else _LABELS[field.label],
            "type": _type(file, root, field),
            "default": field.default_value if field.HasField("default_value") else "none",
            "JSON name": field.json_name,
            "oneof": (
                message.oneof_decl[field.oneof_index].name
                if field.HasField("oneof_index") and not field.proto3_optional
                else "none"
            ),
            "packing": str(field.options.packed),
        }
        for field in message.field
    }


def _type(file: FileDescriptorProto, root: str, field: FieldDescriptorProto) -> str:
    if not field.type_name:
        return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()
    package = f"{file.package}." if file.package else ""
    name = f"{field.type_name}.".removeprefix(f".{package}{root}.")
    if name != f"{field.type_name}.":
        return f"message.{name}".rstrip(".")
    return str(field.type_name).removeprefix(".").removeprefix(package)


def _messages(file: FileDescriptorProto, root: str) -> Iterator[tuple[str, DescriptorProto]]:
    """Yield the path of every message below the root, which has "". Paths of others begin with `/`."""

    def nested(path: str, message: DescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
        yield path, message
        for inner in message.nested_type:
            yield from nested(_dotted(path, inner.name), inner)

    for message in file.message_type:
        yield from nested("" if message.name == root else f"/{message.name}", message)


def _enums(
    file: FileDescriptorProto, messages: dict[str, DescriptorProto]
) -> Iterator[tuple[str, EnumDescriptorProto]]:
    yield from ((f"/{enum.name}", enum) for enum in file.enum_type)
    yield from ((_dotted(path, enum.name), enum) for path, message in messages.items() for enum in message.enum_type)


def _dotted(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

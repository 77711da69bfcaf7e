"""A schema definition of type PROTOCOL_BUFFER: parse, validate messages, compare revisions (`schema.definition`).

A definition is compiled into a pool of its own, so two revisions of one message live side by side. Methods of messages
are called through their class (`type(message).ByteSize(message)`): on a message, a field hides the method of its name.

Pub/Sub requires exactly one top-level message, of proto2 or proto3, and documents that imports are not supported. Here
the well-known types may be imported (`protoc.WELL_KNOWN`). A compiled schema (`schema.compiled_protobuf`) has any
number of files and messages, and names its root message.

`validate` also refuses a field that the schema does not have. A decoder skips it, but the revisions that a topic pins
decide which fields may be published.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, Literal

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from pubsub_spark.schema import compiled_protobuf
from pubsub_spark.schema.definition import Definition, Encoding, IncompatibleSchema, InvalidMessage, InvalidSchema
from pubsub_spark.schema.protobuf.compatibility import find_edit
from pubsub_spark.schema.protobuf.descriptors import unused_name
from pubsub_spark.schema.protobuf.error_locator import locate_error
from pubsub_spark.schema.protobuf.json_mapping import JsonReader
from pubsub_spark.schema.protobuf.json_pool import json_descriptor
from pubsub_spark.schema.protobuf.protoc import compile_text

# `message Envelope { repeated <the schema's message> messages = 1; }`: upb reads and writes whole batches at once.
_ENVELOPE: Final = "pubsub_spark_envelope"
ENVELOPE_TAG: Final = b"\x0a"


class ProtobufDefinition:
    """The message's class, and the envelope's."""

    type: Literal["PROTOCOL_BUFFER"] = "PROTOCOL_BUFFER"

    def __init__(self, text: str) -> None:
        self.text = text
        if compiled := compiled_protobuf.of_text(text):
            files, root = compiled.files(), compiled.root_message
            self.file = _file_of_root(files, root)
            self.imports: tuple[str, ...] = ()  # all of them are in the set
        else:
            files = list(compile_text(text).file)
            self.file = files[-1]
            self.imports = tuple(self.file.dependency)
            _check_shape(self.file)
            root = _full_name(self.file, self.file.message_type[0])
        self.files = {file.name: file for file in files}
        for file in files:
            _check_groups(file)
        self._pool = DescriptorPool()
        try:
            for file in files:
                self._pool.AddSerializedFile(file.SerializeToString())
            envelope = unused_name(_ENVELOPE, files)
            self._pool.AddSerializedFile(_envelope(envelope, self.file, root).SerializeToString())
        except TypeError as error:  # the error of upb for a file that it cannot build
            raise InvalidSchema(f"The definition cannot be loaded: {error}") from None
        self.message_class: type[Message] = GetMessageClass(self._pool.FindMessageTypeByName(root))
        self.envelope_class: Any = GetMessageClass(self._pool.FindMessageTypeByName(f"{envelope}.Envelope"))

    @property
    def message(self) -> Descriptor:
        return self.message_class.DESCRIPTOR

    @cached_property
    def json_class(self) -> Any:
        """The message's class for `json_format`, made when first used."""
        return GetMessageClass(json_descriptor(self.files.values(), self.message))

    @property
    def json_pool(self) -> DescriptorPool:
        """The pool of `json_class`, where `json_format` finds the type of an `Any`."""
        return self.json_class.DESCRIPTOR.file.pool

    @cached_property
    def json_reader(self) -> JsonReader:
        return JsonReader(self.message_class, self.json_class)

    def read(self, data: bytes, encoding: Encoding) -> Message:
        """Return the message in `data`, with its unknown fields (BINARY). Raises InvalidMessage for other bytes."""
        if encoding == "JSON":
            message = self.json_reader.read(data)
        else:
            try:
                message = self.message_class.FromString(data)
            except DecodeError as error:
                raise InvalidMessage(
                    locate_error(data, self.message) or f"The message cannot be read: {error}"
                ) from None
        if missing := type(message).FindInitializationErrors(message):
            raise InvalidMessage(f"Field `{missing[0]}` is required and missing")
        return message

    def validate(self, data: bytes, encoding: Encoding) -> None:
        message = self.read(data, encoding)
        if encoding == "BINARY" and _has_unknown(message):
            raise InvalidMessage(
                locate_error(data, self.message, strict=True) or "The message has fields which the schema does not know"
            )

    def first_invalid(self, messages: Sequence[bytes], encoding: Encoding) -> int | None:
        if encoding == "BINARY" and self._all_valid(messages):
            return None
        for index, data in enumerate(messages):
            try:
                self.validate(data, encoding)
            except InvalidMessage:
                return index
        return None

    def _all_valid(self, messages: Sequence[bytes]) -> bool:
        """All messages are parsed at once, as one envelope."""
        framed = b"".join(part for data in messages for part in (ENVELOPE_TAG, _varint(len(data)), data))
        try:
            envelope = self.envelope_class.FromString(framed)
        except DecodeError:
            return False
        return envelope.IsInitialized() and not _has_unknown(envelope)


def parse(text: str) -> ProtobufDefinition:
    """`text` is a `.proto` file or a compiled schema. Raises InvalidSchema."""
    return ProtobufDefinition(text)


def check_compatible(old: Definition, new: Definition) -> None:
    assert isinstance(old, ProtobufDefinition)
    assert isinstance(new, ProtobufDefinition)
    pairs = [(old.file, new.file)]
    pairs += [
        (file, new.files[name])
        for name, file in old.files.items()
        if name in new.files and file is not old.file and new.files[name] is not new.file
    ]
    edits = (find_edit(before, after, old.message.name, new.message.name) for before, after in pairs)
    if reason := next(filter(None, edits), None):
        raise IncompatibleSchema(f"{reason}. A new revision may only add and remove optional fields")


def _full_name(file: FileDescriptorProto, message: DescriptorProto) -> str:
    return f"{file.package}.{message.name}" if file.package else message.name


def _check_shape(file: FileDescriptorProto) -> None:
    if file.syntax == "editions":
        raise InvalidSchema(
            'The definition is of an edition, and Pub/Sub knows only `syntax = "proto2"` and `syntax = "proto3"`'
        )
    if len(file.message_type) != 1:
        names = ", ".join(f"`{message.name}`" for message in file.message_type) or "none"
        raise InvalidSchema(f"The definition must have exactly one top-level message, it has {names}")
    if file.service:
        raise InvalidSchema(f"The definition has the service `{file.service[0].name}`, and may only have a message")


def _check_groups(proto: FileDescriptorProto | DescriptorProto, path: str = "") -> None:
    is_message = isinstance(proto, DescriptorProto)
    for field in (*(proto.field if is_message else ()), *proto.extension):
        if field.type == FieldDescriptorProto.TYPE_GROUP:
            raise InvalidSchema(f"Field `{path}{field.name}` is a group. Write a nested message instead")
    for message in proto.nested_type if is_message else proto.message_type:
        _check_groups(message, f"{path}{message.name}.")


def _file_of_root(files: Sequence[FileDescriptorProto], root: str) -> FileDescriptorProto:
    for file in files:
        if any(root == _full_name(file, message) for message in file.message_type):
            return file
    raise InvalidSchema(f"The FileDescriptorSet has no top-level message `{root}`, which `root_message` names")


def _envelope(package: str, file: FileDescriptorProto, root: str) -> FileDescriptorProto:
    """The envelope has a package of its own, and imports the schema's file."""
    envelope = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3", dependency=[file.name])
    field = envelope.message_type.add(name="Envelope").field.add(name="messages", number=1, type_name=f".{root}")
    field.label, field.type = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_MESSAGE
    return envelope


def _has_unknown(message: Message) -> bool:
    """Return whether `message` has unknown fields, and discard them."""
    methods = type(message)
    size = methods.ByteSize(message)
    methods.DiscardUnknownFields(message)
    return bool(methods.ByteSize(message) != size)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)

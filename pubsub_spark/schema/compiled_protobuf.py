"""A compiled Protocol Buffer schema, `CompiledProtoSchema`, as a text that goes wherever a definition goes.

Everything that handles definitions expects texts. So a compiled schema is a text of three lines: one that no `.proto`
file begins with, the full name of the root message, and the serialized files in base64, so that its bytes are returned
unchanged. Pure.

Reference: https://cloud.google.com/pubsub/docs/reference/rpc/google.pubsub.v1#compiledprotoschema
"""

from __future__ import annotations

import base64
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from pubsub_spark.schema.definition import InvalidSchema

_FIRST_LINE: Final = "compiled_proto_schema"
_SYNTAXES: Final = ("", "proto2", "proto3")


class CompiledSchema(NamedTuple):
    root_message: str
    compiled_bytes: bytes

    def text(self) -> str:
        return f"{_FIRST_LINE}\n{self.root_message}\n{base64.b64encode(self.compiled_bytes).decode()}"

    def files(self) -> list[FileDescriptorProto]:
        """Return the files, each after its imports. Raises InvalidSchema if the set is not complete."""
        try:
            files = {file.name: file for file in FileDescriptorSet.FromString(self.compiled_bytes).file}
        except DecodeError:
            raise InvalidSchema("The compiled bytes are no FileDescriptorSet") from None
        if not files:
            raise InvalidSchema("The FileDescriptorSet has no file")
        for file in files.values():
            if missing := next((name for name in file.dependency if name not in files), None):
                raise InvalidSchema(
                    f"The FileDescriptorSet lacks `{missing}`, which `{file.name}` imports. Compile with "
                    "`--include_imports`"
                )
            if file.syntax not in _SYNTAXES:
                raise InvalidSchema(
                    f"The file `{file.name}` is of an edition, and Pub/Sub knows only proto2 and proto3"
                )
        try:
            return [
                files[name] for name in TopologicalSorter({f.name: f.dependency for f in files.values()}).static_order()
            ]
        except CycleError:
            raise InvalidSchema("The files of the FileDescriptorSet import each other in a circle") from None


def of_text(text: str) -> CompiledSchema | None:
    """Return the compiled schema of a text, or None for a `.proto` file."""
    lines = text.split("\n")
    if len(lines) != 3 or lines[0] != _FIRST_LINE:
        return None
    try:
        return CompiledSchema(lines[1], base64.b64decode(lines[2], validate=True))
    except ValueError:
        return None


def definition_of(schema: Any) -> str:
    """Return the definition of a `google.pubsub.v1.Schema`, compiled or not, as a text."""
    schema = type(schema).pb(schema) if hasattr(type(schema), "pb") else schema
    # Older client libraries do not have the field.
    if "compiled_proto_schema" in schema.DESCRIPTOR.fields_by_name and schema.HasField("compiled_proto_schema"):
        compiled = schema.compiled_proto_schema
        return CompiledSchema(compiled.root_message, compiled.compiled_bytes).text()
    return str(schema.definition)


def readable(text: str) -> str:
    """Return a definition in readable form: a compiled schema's files in protobuf's text format."""
    compiled = of_text(text)
    if compiled is None:
        return text
    return f"root_message: {compiled.root_message}\n" + "\n".join(map(str, compiled.files()))

"""The program that protobuf's conformance runner calls to parse a payload and write it in another format.

    python -m tests.bodies.conformance_testee ROUTE INCLUDE

INCLUDE is the folder of the suite's `.proto` files. ROUTE decides which code answers:

    validation   `Definition.validate` and `read` parse, as the emulator does, and google.protobuf writes
    columns      a decoder makes a row of the payload and an encoder a payload of the row, alone and among a hundred

A schema that Pub/Sub or Spark does not know is not tested: groups, and for columns messages that contain themselves and
fields with a default. Those fields are taken out of the schema, and a test whose payload has one of them is skipped.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from pubsub_spark.codec.registry import codec_of
from pubsub_spark.errors import PubSubError
from pubsub_spark.schema import schema_types
from pubsub_spark.schema.compiled_protobuf import CompiledSchema
from pubsub_spark.schema.definition import Encoding, InvalidMessage
from pubsub_spark.schema.protobuf.descriptors import is_repeated

_PROTOBUF, _JSON = 1, 2  # WireFormat
_BINARY_TEST, _JSON_TEST = 1, 2  # TestCategory
_MANY = 100
_CONTAIN_THEMSELVES = frozenset({"corecursive", "recursive_message"})
_WELL_KNOWN = Path(protoc.__file__).parent / "_proto"


def compiled(include: Path, *names: str) -> Any:
    """The FileDescriptorSet of some files, with their imports."""
    with TemporaryDirectory() as folder:
        output = Path(folder) / "files"
        arguments = [f"-I{include}", f"-I{_WELL_KNOWN}", "--include_imports", f"--descriptor_set_out={output}"]
        assert 0 == protoc.main(["protoc", *arguments, *names])
        return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())


def classes(files: Any, *names: str) -> Iterator[Any]:
    """Yield the classes of messages of a FileDescriptorSet, in a pool of their own."""
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    for name in names:
        yield GetMessageClass(pool.FindMessageTypeByName(name))


def take_out(message: Any, route: str, path: str) -> Iterator[str]:
    """Take fields out of a DescriptorProto and yield the full name of each."""
    for index in reversed(range(len(message.field))):
        field = message.field[index]
        is_group = field.type == field.TYPE_GROUP
        if is_group or (route == "columns" and (field.name in _CONTAIN_THEMSELVES or field.HasField("default_value"))):
            yield f"{path}.{field.name}"
            del message.field[index]
    for nested in message.nested_type:
        yield from take_out(nested, route, f"{path}.{nested.name}")


class Schema:
    """A message of the suite, as our schema and as google.protobuf has it."""

    def __init__(self, include: Path, file: str, name: str, route: str) -> None:
        files = compiled(include, file)
        [self._whole] = classes(files, name)
        own = next(each for each in files.file if each.name == file)
        self._taken_out = {
            field for message in own.message_type for field in take_out(message, route, f"{own.package}.{message.name}")
        }
        for index in reversed(range(len(own.extension))):
            if own.extension[index].type == descriptor_pb2.FieldDescriptorProto.TYPE_GROUP:
                del own.extension[index]
        text = CompiledSchema(name, files.SerializeToString()).text()
        self._definition: Any = schema_types.parse("PROTOCOL_BUFFER", text)

    @cache  # noqa: B019 - a process has two of them
    def _decoder(self, encoding: Encoding) -> Any:
        return codec_of("PROTOCOL_BUFFER").decoder(self._definition, self._definition, encoding)

    @cache  # noqa: B019
    def _encoder(self, encoding: Encoding) -> Any:
        codec = codec_of("PROTOCOL_BUFFER")
        return codec.encoder(self._definition, encoding, codec.value_type(self._definition), False)

    def lacks(self, data: bytes, encoding: Encoding) -> bool:
        """Return whether a payload has a field that was taken out."""
        message = self._whole()
        try:
            if encoding == "BINARY":
                message.ParseFromString(data)
            else:
                json_format.Parse(data, message, descriptor_pool=self._whole.DESCRIPTOR.file.pool)
        except (DecodeError, json_format.ParseError):
            return False
        return self._has_one(message)

    def _has_one(self, message: Any) -> bool:
        for field, value in message.ListFields():
            if field.full_name in self._taken_out or (field.is_extension and field.type == field.TYPE_GROUP):
                return True
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                if field.message_type.fields_by_name["value"].message_type is None:
                    continue
                value = value.values()
            if any(map(self._has_one, value if is_repeated(field) else [value])):
                return True
        return False

    def validated(self, data: bytes, encoding: Encoding, output: Encoding) -> bytes:
        """Return the payload written by google.protobuf. Raise InvalidMessage if ours does not accept it."""
        message = self._definition.read(data, encoding)
        if output == "BINARY":
            return bytes(message.SerializeToString())
        return str(json_format.MessageToJson(message, descriptor_pool=message.DESCRIPTOR.file.pool)).encode()

    def through_columns(self, data: bytes, encoding: Encoding, output: Encoding) -> bytes:
        """Return the payload written from the row that was read of it. Raise InvalidMessage if it cannot be read."""
        decode, encode = self._decoder(encoding), self._encoder(output)
        value, reason = decode(pa.array([data], pa.binary()))
        if reason[0].is_valid:
            raise InvalidMessage(reason[0].as_py())
        [payload] = encode(value).to_pylist()
        many, _ = decode(pa.array([data] * _MANY, pa.binary()))
        assert {payload} == set(encode(many).to_pylist()), "another payload among many"
        return bytes(payload)


def answer(request: Any, response: Any, route: str, schemas: dict[str, Schema]) -> None:
    """Fill in the response to a request."""
    kind = request.WhichOneof("payload")
    formats: dict[int, Encoding] = {_PROTOBUF: "BINARY", _JSON: "JSON"}
    output = formats.get(request.requested_output_format)
    schema = schemas.get(request.message_type)
    if (
        schema is None
        or output is None
        or kind not in ("protobuf_payload", "json_payload")
        or request.test_category not in (_BINARY_TEST, _JSON_TEST)
        or request.print_unknown_fields
    ):
        response.skipped = "not a form of a Pub/Sub message"
        return
    encoding: Encoding = "BINARY" if kind == "protobuf_payload" else "JSON"
    data = request.protobuf_payload if encoding == "BINARY" else request.json_payload.encode()
    if schema.lacks(data, encoding):
        response.skipped = "a field that was taken out"
        return
    write = schema.validated if route == "validation" else schema.through_columns
    try:
        payload = write(data, encoding, output)
    except InvalidMessage as error:
        response.parse_error = str(error)
    except (PubSubError, json_format.SerializeToJsonError) as error:
        response.serialize_error = str(error)
    except Exception as error:
        response.runtime_error = f"{type(error).__name__}: {error}"
    else:
        if output == "BINARY":
            response.protobuf_payload = payload
        else:
            response.json_payload = payload.decode()


def main(route: str, include: str) -> None:
    """Answer the requests on standard input until it ends."""
    folder = Path(include)
    protocol = compiled(folder, "conformance/conformance.proto")
    request_class, response_class, failures = classes(
        protocol, "conformance.ConformanceRequest", "conformance.ConformanceResponse", "conformance.FailureSet"
    )
    schemas = {
        name: Schema(folder, f"google/protobuf/test_messages_{syntax}.proto", name, route)
        for syntax in ("proto2", "proto3")
        for name in [f"protobuf_test_messages.{syntax}.TestAllTypes{syntax.title()}"]
    }
    while header := sys.stdin.buffer.read(4):
        request = request_class.FromString(sys.stdin.buffer.read(struct.unpack("<I", header)[0]))
        response = response_class()
        if request.message_type == "conformance.FailureSet":
            response.protobuf_payload = failures().SerializeToString()
        else:
            answer(request, response, route, schemas)
        raw = response.SerializeToString()
        sys.stdout.buffer.write(struct.pack("<I", len(raw)) + raw)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

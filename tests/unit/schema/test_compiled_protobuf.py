"""Compiled Protocol Buffer schemas: a FileDescriptorSet and its root message, as a definition."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.pubsub_v1 import types

from pubsub_spark.codec.registry import codec_of
from pubsub_spark.schema import schema_types
from pubsub_spark.schema.compiled_protobuf import CompiledSchema, definition_of, of_text, readable
from pubsub_spark.schema.definition import IncompatibleSchema, InvalidMessage, InvalidSchema

TYPE = FieldDescriptorProto
CITY = FileDescriptorProto(
    name="city.proto",
    package="air",
    syntax="proto3",
    message_type=[DescriptorProto(name="City", field=[TYPE(name="name", number=1, label=1, type=TYPE.TYPE_STRING)])],
)
FLIGHT = FileDescriptorProto(
    name="flight.proto",
    package="air",
    syntax="proto3",
    dependency=["city.proto"],
    message_type=[
        DescriptorProto(name="Crew", field=[TYPE(name="pilot", number=1, label=1, type=TYPE.TYPE_STRING)]),
        DescriptorProto(
            name="Flight",
            field=[
                TYPE(name="number", number=1, label=1, type=TYPE.TYPE_INT32, json_name="number"),
                TYPE(name="origin", number=2, label=1, type=TYPE.TYPE_MESSAGE, type_name=".air.City"),
                TYPE(name="crew", number=3, label=1, type=TYPE.TYPE_MESSAGE, type_name=".air.Crew"),
            ],
        ),
    ],
)


def text(*files: FileDescriptorProto, root: str = "air.Flight") -> str:
    return CompiledSchema(root, FileDescriptorSet(file=files).SerializeToString()).text()


def changed(file: FileDescriptorProto, message: int, **field: object) -> FileDescriptorProto:
    """Return the file with another first field in one of its messages."""
    copy = FileDescriptorProto.FromString(file.SerializeToString())
    for name, value in field.items():
        setattr(copy.message_type[message].field[0], name, value)
    return copy


def test_several_files_and_messages_validate_what_their_root_is():
    """The order of the files does not matter. The message in `root_message` is the schema's."""
    definition = schema_types.parse("PROTOCOL_BUFFER", text(FLIGHT, CITY))

    definition.validate(b'{"number": 7, "origin": {"name": "JFK"}, "crew": {"pilot": "A"}}', "JSON")
    definition.validate(b"\x08\x07\x12\x05\x0a\x03JFK", "BINARY")
    with pytest.raises(InvalidMessage, match="town"):
        definition.validate(b'{"origin": {"town": "JFK"}}', "JSON")


def test_columns_are_those_of_the_root():
    definition = schema_types.parse("PROTOCOL_BUFFER", text(CITY, FLIGHT))
    columns = codec_of("PROTOCOL_BUFFER").value_type(definition)

    assert ["number", "origin", "crew"] == [field.name for field in columns]


def test_the_bytes_of_a_resource_are_kept():
    given = types.Schema(
        type_="PROTOCOL_BUFFER", compiled_proto_schema={"root_message": "air.Flight", "compiled_bytes": b"\x00\xff\n"}
    )

    assert CompiledSchema("air.Flight", b"\x00\xff\n") == of_text(definition_of(given))
    assert "syntax" == definition_of(types.Schema.pb(types.Schema(definition="syntax")))
    assert of_text('syntax = "proto3"; message M {}') is None
    assert of_text("compiled_proto_schema\nM\n#") is None


def test_people_read_it_as_text():
    shown = readable(text(CITY))

    assert shown.startswith('root_message: air.Flight\nname: "city.proto"')
    assert "message M {}" == readable("message M {}")


EDITION = FileDescriptorProto(name="e.proto", syntax="editions", message_type=[DescriptorProto(name="M")])
CIRCLE = [FileDescriptorProto(name=a, dependency=[b]) for a, b in (("a.proto", "b.proto"), ("b.proto", "a.proto"))]


@pytest.mark.parametrize(
    ("definition", "sentence"),
    [
        (text(FLIGHT), "lacks `city.proto`, which `flight.proto` imports. Compile with `--include_imports`"),
        (text(CITY, FLIGHT, root="air.Plane"), "has no top-level message `air.Plane`, which `root_message` names"),
        (text(EDITION, root="M"), "The file `e.proto` is of an edition"),
        (text(*CIRCLE), "import each other in a circle"),
        (text(), "has no file"),
        (CompiledSchema("M", b"\xff").text(), "are no FileDescriptorSet"),
    ],
)
def test_a_set_that_cannot_be_used_says_why(definition: str, sentence: str):
    with pytest.raises(InvalidSchema, match=sentence):
        schema_types.parse("PROTOCOL_BUFFER", definition)


@pytest.mark.parametrize(
    ("new", "sentence"),
    [
        ((changed(FLIGHT, 1, name="no", json_name="no"), CITY), "Field `number` changes its name"),
        ((changed(FLIGHT, 0, type=TYPE.TYPE_BYTES), CITY), "Field `/Crew.pilot` changes its type"),
        ((FLIGHT, changed(CITY, 0, type=TYPE.TYPE_BYTES)), "Field `/City.name` changes its type"),
        ((FLIGHT, CITY), None),
    ],
)
def test_a_revision_may_not_edit_a_field_of_any_file(new: tuple[FileDescriptorProto, ...], sentence: str | None):
    before, after = (schema_types.parse("PROTOCOL_BUFFER", text(*files)) for files in ((CITY, FLIGHT), new))
    if sentence is None:
        schema_types.check_compatible(before, after)
    else:
        with pytest.raises(IncompatibleSchema, match=sentence):
            schema_types.check_compatible(before, after)

"""Protocol Buffers definitions, messages, JSON texts and damaged payloads that hypothesis makes up."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from pubsub_spark.schema.protobuf import parse
from pubsub_spark.schema.protobuf.definition import ProtobufDefinition
from pubsub_spark.schema.protobuf.descriptors import is_repeated, is_required

SCALARS = [
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
]


KEYS = [kind for kind in SCALARS if kind not in ("double", "float", "bytes")]


WELL_KNOWN = ["Timestamp", "Duration", "Int32Value", "UInt64Value", "StringValue", "BoolValue", "Struct", "Value"]


IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto";\n' for name in ("timestamp", "duration", "wrappers", "struct")
)


@st.composite
def members(draw: st.DrawFn, syntax: str, types: list[str], required: bool) -> list[str]:
    """The fields of one message, numbers in any order, with gaps."""
    count = draw(st.integers(0, 5))
    numbers = draw(st.lists(st.integers(1, 40), min_size=count, max_size=count, unique=True))
    lines, together = [], []
    for number in numbers:
        kind = draw(st.sampled_from([*SCALARS, *types, *(f"google.protobuf.{name}" for name in WELL_KNOWN)]))
        name = f"f{number}"
        labels = ["repeated", "map", "oneof", "optional"] + ([""] if syntax == "proto3" else [])
        labels += ["required"] if required and syntax == "proto2" else []
        label = draw(st.sampled_from(labels))
        if label == "map":
            lines.append(f"map<{draw(st.sampled_from(KEYS))}, {kind}> {name} = {number};")
        elif label == "oneof":
            together.append(f"{kind} {name} = {number};")
        elif label == "repeated" and kind in SCALARS and kind not in ("string", "bytes") and draw(st.booleans()):
            lines.append(f"repeated {kind} {name} = {number} [packed = {draw(st.sampled_from(['true', 'false']))}];")
        elif label == "optional" and syntax == "proto2" and kind == "int32" and draw(st.booleans()):
            lines.append(f"optional int32 {name} = {number} [default = -7];")
        else:
            lines.append(f"{label} {kind} {name} = {number};".strip())
    if together:
        lines.append("oneof choice { " + " ".join(together) + " }")
    return lines


@st.composite
def definitions(draw: st.DrawFn, required: bool = True) -> ProtobufDefinition:
    """A schema of one message with an enum and up to three nested messages, each using those before it."""
    syntax = draw(st.sampled_from(["proto2", "proto3"]))
    values = draw(st.lists(st.integers(-5, 200), max_size=4, unique=True).map(lambda more: [v for v in more if v]))
    enum = "enum E { ZERO = 0; " + " ".join(f"V{i} = {value};" for i, value in enumerate(values)) + " }"
    types, nested = ["E"], []
    for index in range(draw(st.integers(0, 3))):
        body = " ".join(draw(members(syntax, types, required)))
        nested.append(f"message N{index} {{ {body} }}")
        types.append(f"N{index}")
    body = "\n  ".join([enum, *nested, *draw(members(syntax, types, required))])
    return parse(f'syntax = "{syntax}";\npackage p;\n{IMPORTS}message M {{\n  {body}\n}}\n')


def _integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


TEXT = st.text(st.characters(codec="utf-8"), max_size=5)


VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.CPPTYPE_INT32: _integers(32, True),
    FieldDescriptor.CPPTYPE_INT64: _integers(64, True),
    FieldDescriptor.CPPTYPE_UINT32: _integers(32, False),
    FieldDescriptor.CPPTYPE_UINT64: _integers(64, False),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    # Not the largest: json_format writes it as a text that it does not read.
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(-(2.0**127), 2.0**127, width=32),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
}


def value_of(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    """A value of a scalar or enum field, zero now and then."""
    if field.type == FieldDescriptor.TYPE_ENUM:
        return draw(st.sampled_from([value.number for value in field.enum_type.values]))
    if field.type == FieldDescriptor.TYPE_STRING:
        return draw(TEXT)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw(st.binary(max_size=5))
    return draw(st.one_of(st.just(0), VALUES[field.cpp_type]))


def fill(draw: st.DrawFn, message: Any) -> None:
    """Set fields of `message`, required ones always."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        message.FromMicroseconds(draw(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)))
        return
    if name == "google.protobuf.Duration":
        message.FromMicroseconds(draw(st.integers(-(10**15), 10**15)))
        return
    if name in ("google.protobuf.Struct", "google.protobuf.Value"):
        value = draw(st.dictionaries(TEXT, st.none() | st.booleans() | TEXT | st.lists(st.integers(0, 9), max_size=2)))
        json_format.ParseDict(value, message)
        return
    for field in message.DESCRIPTOR.fields:
        if not is_required(field) and not draw(st.booleans()):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            for _ in range(draw(st.integers(0, 3))):
                if value.message_type is None:
                    getattr(message, field.name)[value_of(draw, key)] = value_of(draw, value)
                else:
                    fill(draw, getattr(message, field.name)[value_of(draw, key)])
        elif is_repeated(field):
            for _ in range(draw(st.integers(0, 3))):
                if field.message_type is None:
                    getattr(message, field.name).append(value_of(draw, field))
                else:
                    fill(draw, getattr(message, field.name).add())
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            fill(draw, getattr(message, field.name))
        else:
            setattr(message, field.name, value_of(draw, field))


@st.composite
def schemas_and_messages(draw: st.DrawFn, required: bool = True) -> tuple[ProtobufDefinition, list[Any]]:
    definition = draw(definitions(required))
    messages = []
    for _ in range(draw(st.integers(0, 4))):
        message = definition.message_class()
        fill(draw, message)
        messages.append(message)
    return definition, messages


ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(None, True, 0, -1, 1.0, 0.5, 2**31, 2**63, 2**64, 1e300, "", "1", "-1", "01", "1.0", "1e2", " 1", "NaN"),
        *("true", "A", "ZERO", "V0", "AA==", "AA", "-_", "2024-02-29T00:00:00Z", "2023-02-29T00:00:00Z", "\ud800"),
        *("2024-01-01T00:00:00.5+01:00", "0001-01-01T00:00:00Z", "1.5s", "-0.000000001s", "1s ", "999999999999s"),
        *([], {}, [None], [1], {"a": 1}, {"1": 1}, {"true": {}}, [{}], [[]], {"f1": None}, {"f2": 7}),
    ]
)


@st.composite
def odd_json(draw: st.DrawFn) -> tuple[ProtobufDefinition, list[str]]:
    """A schema and JSON texts of its messages, with members changed, added, spelled differently or written twice."""
    definition, messages = draw(schemas_and_messages())
    texts = []
    for message in messages or [definition.message_class()]:
        value = json_format.MessageToDict(message, preserving_proto_field_name=draw(st.booleans()))
        names = [field.name for field in definition.message.fields] or ["f1"]
        for _ in range(draw(st.integers(0, 2))):
            value[draw(st.sampled_from([*names, "f99", "[p.x]", *value]))] = draw(ODD)
        text = json.dumps(value, ensure_ascii=draw(st.booleans()))
        if draw(st.integers(0, 9)) == 0:
            text = text.replace("{", '{"f1": 1, ', 1)
        texts.append(text)
    return definition, texts


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


@st.composite
def wire(draw: st.DrawFn, depth: int = 0) -> bytes:
    """Bytes that look like a message: any number, wire type and nesting, groups, long varints, lengths that lie."""
    out = b""
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from([0, 0, 1, 2, 2, 2, 3, 5, 7]))
        number = draw(st.integers(1, 41) | st.sampled_from([0, 41 + (1 << 29)]))
        out += varint(number << 3 | kind)
        if kind == 0:
            out += draw(st.sampled_from([b"", b"\x80", b"\x80\x80"])) + varint(draw(_integers(64, False)))
        elif kind in (1, 5):
            out += draw(st.binary(min_size=8, max_size=8))[: 8 if kind == 1 else 4]
        elif kind == 2:
            inner = draw(wire(depth + 1)) if depth < 3 and draw(st.booleans()) else draw(st.binary(max_size=8))
            out += varint(len(inner)) + inner
        elif kind == 3 and depth < 3:
            out += draw(wire(depth + 1)) + varint(number << 3 | 4)
    return out


@st.composite
def broken(draw: st.DrawFn) -> tuple[ProtobufDefinition, list[bytes]]:
    """A schema and payloads of it, most of them damaged: cut, changed, glued together, or never a message at all."""
    definition, messages = draw(schemas_and_messages())
    whole = [message.SerializeToString() for message in messages] or [b""]
    payloads = []
    for _ in range(draw(st.integers(1, 5))):
        payload = bytearray(draw(st.sampled_from(whole)))
        for _ in range(draw(st.integers(0, 2))):
            damage = draw(st.sampled_from(["cut", "change", "insert", "append", "replace"]))
            at = draw(st.integers(0, max(0, len(payload) - 1)))
            if damage == "cut":
                del payload[at:]
            elif damage == "change" and payload:
                payload[at] = draw(st.integers(0, 255))
            elif damage == "insert":
                payload[at:at] = draw(
                    st.sampled_from([b"\xff" * 9 + b"\x01", b"\x80", b"\xff\xff\xff\xff\x7f", b"\x00"])
                )
            elif damage == "append":
                payload += draw(st.sampled_from(whole) | wire())
            else:
                payload = bytearray(draw(wire()))
        payloads.append(bytes(payload))
    return definition, payloads

"""Forms made of a schema: a field of the form for each field of the message, and the payload of the input. Pure.

A field with parts is written as JSON, in the schema's JSON encoding. An optional or nullable field may be left empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pubsub_spark.schema.definition import Definition, Encoding, InvalidMessage

FieldKind = Literal["text", "number", "choice", "json"]

_AVRO_KINDS: Mapping[str, FieldKind] = {
    "string": "text",
    "bytes": "text",
    "fixed": "text",
    "int": "number",
    "long": "number",
    "float": "number",
    "double": "number",
    "boolean": "choice",
    "enum": "choice",
}
# By the C++ type of a Protobuf field.
_PROTOBUF_KINDS: Mapping[int, FieldKind] = {
    1: "number",
    2: "number",
    3: "number",
    4: "number",
    5: "number",
    6: "number",
    7: "choice",
    8: "choice",
    9: "text",
    10: "json",
}
_PROTOBUF_TYPES = {
    1: "int32",
    2: "int64",
    3: "uint32",
    4: "uint64",
    5: "double",
    6: "float",
    7: "bool",
    8: "enum",
    9: "string",
    10: "message",
}
_BYTES = 12  # TYPE_BYTES of a Protobuf field
_BOOLEANS = ("true", "false")


class FormField(NamedTuple):
    name: str
    type: str  # by the schema's name
    kind: FieldKind
    is_optional: bool
    choices: tuple[str, ...] = ()
    default: str = ""
    branch: str = ""  # of an Avro union with null: the name that tags a value


def fields_of(definition: Definition) -> list[FormField] | None:
    """Return None if it is not the schema of a record."""
    schema: Any = definition
    if definition.type == "AVRO":
        return None if schema.root.kind != "record" else list(_avro_fields(schema.root))
    if definition.type == "PROTOCOL_BUFFER":
        return list(_protobuf_fields(schema.message))
    return None


def payload(definition: Definition, encoding: Encoding, filled_in: Mapping[str, str]) -> bytes:
    """Raise InvalidMessage if the input is not a message of the schema."""
    values: dict[str, Any] = {}
    for field in fields_of(definition) or ():
        text = filled_in.get(field.name, "")
        is_empty = text == "" and (field.is_optional or field.kind != "text")
        if not is_empty:
            value = _value(field, text)
            values[field.name] = {field.branch: value} if field.branch else value
        elif field.branch:
            values[field.name] = None
    data = json.dumps(values).encode()
    definition.validate(data, "JSON")
    if encoding == "JSON":
        return data
    schema: Any = definition
    if definition.type == "AVRO":
        written: bytes = schema.datum.write(schema.read_json(data))
        return written
    serialized: bytes = schema.message_class.SerializeToString(schema.read(data, "JSON"))
    return serialized


def _value(field: FormField, text: str) -> Any:
    if field.kind == "text" or (field.kind == "choice" and field.choices != _BOOLEANS):
        return text
    if field.kind == "number" and text in ("NaN", "Infinity", "-Infinity"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        wanted = "JSON" if field.kind == "json" else "a number" if field.kind == "number" else "true or false"
        raise InvalidMessage(f"Field `{field.name}` must be {wanted}, got `{text[:100]}`") from None


def _avro_fields(record: Any) -> Iterator[FormField]:
    from pubsub_spark.schema.avro import json_encoding, schema_tree

    for field in record.fields:
        node, branch = field.node, ""
        if node.kind == "union" and len(node.branches) == 2 and "null" in {member.kind for member in node.branches}:
            [node] = [member for member in node.branches if member.kind != "null"]
            branch = schema_tree.type_name(node)
        kind = _AVRO_KINDS.get(node.kind, "json")
        choices = _BOOLEANS if node.kind == "boolean" else tuple(node.symbols) if node.kind == "enum" else ()
        default = ""
        if field.has_default:
            value = json.loads(json_encoding.write_message(field.node, field.default))
            value = value[branch] if branch and value is not None else value
            default = "" if value is None else value if isinstance(value, str) else json.dumps(value)
        is_optional = bool(branch) and default == ""
        yield FormField(field.name, schema_tree.type_name(node), kind, is_optional, choices, default, branch)


def _protobuf_fields(message: Any) -> Iterator[FormField]:
    from pubsub_spark.schema.protobuf import descriptors

    for field in message.fields:
        kind = _PROTOBUF_KINDS[field.cpp_type]
        type_ = "bytes (base64)" if field.type == _BYTES else _PROTOBUF_TYPES[field.cpp_type]
        choices: tuple[str, ...] = ()
        if kind == "choice":
            choices = _BOOLEANS if field.enum_type is None else tuple(value.name for value in field.enum_type.values)
        if descriptors.is_repeated(field):
            kind, choices = "json", ()
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            type_ = "map" if is_map else f"repeated {type_}"
        yield FormField(field.json_name, type_, kind, not descriptors.is_required(field), choices)

"""A JSON schema as an Arrow type: Spark's own JSON (`df.schema.json()`), or JSON Schema if columns can express it."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from pubsub_spark.codec.json import ddl

_STRINGS: Final[dict[str, pa.DataType]] = {"date-time": ddl.SCALARS["timestamp"], "date": pa.date32()}
_PLAIN: Final[dict[str, pa.DataType]] = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


def parse(schema: Any) -> pa.StructType:
    """`schema` was parsed from JSON. Raises ValueError with an error message."""
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema is an object")
    type_ = _spark(schema, "the schema") if schema.get("type") == "struct" else _type(schema, "the schema")
    if not pa.types.is_struct(type_):
        raise ValueError("the schema is not of an object with `properties`, whose fields become columns")
    return type_


def _spark(kind: Any, path: str) -> pa.DataType:
    if isinstance(kind, str):
        if (type_ := ddl.scalar(kind)) is not None:
            return type_
    elif isinstance(kind, dict) and kind.get("type") == "struct":
        fields = ((field["name"], field["type"]) for field in kind["fields"])
        return pa.struct([pa.field(name, _spark(type_, f"`{name}`")) for name, type_ in fields])
    elif isinstance(kind, dict) and kind.get("type") == "array":
        return pa.list_(pa.field("element", _spark(kind["elementType"], path)))
    elif isinstance(kind, dict) and kind.get("type") == "map" and kind["keyType"] == "string":
        return pa.map_(pa.string(), _spark(kind["valueType"], path))
    raise ValueError(f"{path} has the type `{kind}`, which JSON payloads cannot have")


def _type(schema: Any, path: str) -> pa.DataType:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(kind, list):  # ["string", "null"]: every column may be null
        kinds = [name for name in kind if name != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    if kind == "object" and isinstance(schema.get("properties"), dict) and schema["properties"]:
        return pa.struct([pa.field(name, _type(part, f"`{name}`")) for name, part in schema["properties"].items()])
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return pa.map_(pa.string(), _type(schema["additionalProperties"], path))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return pa.list_(pa.field("element", _type(schema["items"], path)))
    if kind == "string":
        if schema.get("contentEncoding") == "base64":
            return pa.binary()
        return _STRINGS.get(schema.get("format"), pa.string())
    if kind in _PLAIN:
        return _PLAIN[kind]
    raise ValueError(
        f"{path} has no one type that a column can have. Set `type`, with `properties` or `additionalProperties` of "
        "an object and `items` of an array, and no `$ref` or `oneOf`"
    )

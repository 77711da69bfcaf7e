"""One message at a time, by `fastavro`: bytes to a datum, and a datum to bytes (for the datum see `json_encoding`).

fastavro reads bytes only after `error_locator` has passed them, and schemas only after `parser` has parsed them.
"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import fastavro

from pubsub_spark.schema.avro import schema_tree as tree
from pubsub_spark.schema.avro.json_encoding import branch_name


class DatumSerializer:
    """In the schema for fastavro, logical types are left out, and each branch of a union is a record with one field,
    `value`, which adds no byte. So a union's value names its branch. By itself, fastavro does so only for named types,
    and writes a value of `["int", "long"]` as the branch that fits first.
    """

    def __init__(self, node: tree.Node) -> None:
        named: dict[str, Any] = {}
        self._schema = _parsed(_record("message", {"value": _tagged(node, named)}), named)

    def read(self, data: bytes) -> Any:
        read: Any = fastavro.schemaless_reader(BytesIO(data), self._schema, None, return_named_type=True)
        return read["value"]

    def write(self, datum: Any) -> bytes:
        data = BytesIO()
        fastavro.schemaless_writer(data, self._schema, {"value": datum})
        return data.getvalue()


def fastavro_schema(text: str, root: tree.Node, logical: bool = True, is_reader: bool = False) -> Any:
    """Return the schema `text`, parsed as `root`, for fastavro's functions. Values of unions are plain.

    logical: fastavro converts values of logical types. is_reader: the defaults are values as fastavro reads them.
    Otherwise they are JSON, as in the text.
    """
    named: dict[str, Any] = {}
    return _parsed(_resolved(json.loads(text), root, named, logical, is_reader), named)


def _parsed(schema: Any, named: dict[str, Any]) -> Any:
    for part in schema if isinstance(schema, list) else [schema]:
        if isinstance(part, dict):
            part |= {"__fastavro_parsed": True, "__named_schemas": named}
    return schema


def _resolved(declared: Any, node: tree.Node, named: dict[str, Any], logical: bool, is_reader: bool) -> Any:
    """Return a part of a schema's text with full names, without parts that the parser ignores. named: types so far."""

    def inner(declared: Any, node: tree.Node) -> Any:
        return _resolved(declared, node, named, logical, is_reader)

    if isinstance(node, tree.Union):
        return [inner(branch, parsed) for branch, parsed in zip(declared, node.branches, strict=True)]
    if isinstance(declared, str) or (isinstance(node, tree.Named) and node.name in named):
        return tree.type_name(node)
    schema = {key: value for key, value in declared.items() if key not in ("namespace", "logicalType")}
    if logical and isinstance(node, tree.Primitive | tree.Fixed) and node.logical:
        schema["logicalType"] = node.logical.name
    if isinstance(node, tree.Named):
        named[node.name] = schema
        schema |= {"name": node.name, "aliases": list(node.aliases)} | ({} if "." in node.name else {"namespace": ""})
    match node:
        case tree.Array(items):
            schema["items"] = inner(declared["items"], items)
        case tree.Map(values):
            schema["values"] = inner(declared["values"], values)
        case tree.Record(fields=fields):
            schema["fields"] = []
            for part, field in zip(declared["fields"], fields, strict=True):
                schema["fields"].append(part | {"type": inner(part["type"], field.node)})
                if field.has_default and is_reader:
                    default = BytesIO(DatumSerializer(field.node).write(field.default))
                    reader = _parsed(_record("", {"value": schema["fields"][-1]["type"]}), named)
                    value: Any = fastavro.schemaless_reader(default, reader, None)
                    schema["fields"][-1]["default"] = value["value"]
    return schema


def _tagged(node: tree.Node, named: dict[str, Any]) -> Any:
    match node:
        case tree.Primitive(kind):
            return kind
        case tree.Array(items):
            return {"type": "array", "items": _tagged(items, named)}
        case tree.Map(values):
            return {"type": "map", "values": _tagged(values, named)}
        case tree.Union(branches):
            return [
                _record(branch_name(node, index), {"value": _tagged(branch, named)})
                for index, branch in enumerate(branches)
            ]
    if node.name in named:
        return node.name
    schema: dict[str, Any] = {"type": node.kind, "name": node.name}
    named[node.name] = schema
    match node:
        case tree.Fixed():
            schema["size"] = node.size
        case tree.Enum():
            schema["symbols"] = list(node.symbols)
        case tree.Record():
            schema |= _record(node.name, {field.name: _tagged(field.node, named) for field in node.fields})
    return schema


def _record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    declared = [{"name": key, "type": type_} for key, type_ in fields.items()]
    return {"type": "record", "name": name, "fields": declared}

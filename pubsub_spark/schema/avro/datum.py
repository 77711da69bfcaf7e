"""One message at a time, by `fastavro`: bytes to a datum, and a datum to bytes (for the datum see `json_encoding`).

Bytes are given to fastavro only after `error_locator` has passed them. Its schema is made from our tree: logical types
are left out, and each branch of a union is a record of its own with one field, `value`, which adds no byte. So a
union's value says which branch it is; fastavro by itself says so of named types only, and writes a value of
`["int", "long"]` as the branch that fits first.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro

from pubsub_spark.schema.avro.json_encoding import branch_name
from pubsub_spark.schema.avro.schema_tree import Array, Enum, Fixed, Map, Named, Node, Primitive, Record, Union


class DatumSerializer:
    """The reader and writer of one schema's messages."""

    def __init__(self, node: Node) -> None:
        names: dict[Named, str] = {}
        declared: dict[str, Any] = {}
        self._schema = fastavro.parse_schema(_record("message", {"value": _declared(node, names)}), declared)
        for named, name in names.items():
            if isinstance(named, Enum):
                declared[name]["symbols"] = list(named.symbols)

    def read(self, data: bytes) -> Any:
        """The datum of a message that `error_locator` has passed."""
        read: Any = fastavro.schemaless_reader(BytesIO(data), self._schema, None, return_named_type=True)
        return read["value"]

    def write(self, datum: Any) -> bytes:
        """The message of a datum."""
        data = BytesIO()
        fastavro.schemaless_writer(data, self._schema, {"value": datum})
        return data.getvalue()


def _declared(node: Node, names: dict[Named, str]) -> Any:
    """The schema as JSON has it, each named type under a short name where it is met first."""
    match node:
        case Primitive(kind):
            return kind
        case Array(items):
            return {"type": "array", "items": _declared(items, names)}
        case Map(values):
            return {"type": "map", "values": _declared(values, names)}
        case Union(branches):
            return [
                _record(branch_name(node, index), {"value": _declared(branch, names)})
                for index, branch in enumerate(branches)
            ]
    if node in names:
        return names[node]
    name = names[node] = f"named{len(names)}"
    match node:
        case Fixed():
            return {"type": "fixed", "name": name, "size": node.size}
        case Enum():
            # fastavro refuses letters beyond ASCII here; the symbols are set when it has parsed the schema.
            return {"type": "enum", "name": name, "symbols": []}
        case Record():
            return _record(name, {field.name: _declared(field.node, names) for field in node.fields})


def _record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    declared = [{"name": key, "type": type_} for key, type_ in fields.items()]
    return {"type": "record", "name": name, "fields": declared}

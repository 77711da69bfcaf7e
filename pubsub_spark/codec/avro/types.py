"""The column type of an Avro node: Spark's `SchemaConverters` as a table of Arrow types (see docs/types.md).

Only a union with null makes a nullable column. Types that Spark cannot hold (a recursive record, a decimal of more than
38 digits) are refused here, with their path.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.avro.schema_tree import (
    Array,
    Enum,
    Fixed,
    Logical,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    weight,
)

_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}

# Logical types that change the column. The others (time, nanos, uuid, duration) show as their underlying type, as in
# Spark 4.0. Spark 4.3 shows time-micros as TIME and nanos as TIMESTAMP(9), which Python sources cannot all hand over.
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}

# Two-branch unions that are one number: the wider branch.
_WIDENED: Final[dict[frozenset[str], str]] = {
    frozenset({"int", "long"}): "long",
    frozenset({"float", "double"}): "double",
}

MAX_PRECISION: Final = 38
# A schema whose named types use each other 40 deep stands for more columns than atoms. Real tables have hundreds.
MAX_NODES: Final = 30_000


def value_type(root: Node) -> pa.StructType:
    """A root that is not a struct becomes its only field, `value`."""
    if weight(root) > MAX_NODES:
        raise SchemaError(f"The schema stands for more than {MAX_NODES} fields, items and branches of unions")
    column = column_of(root)
    return column.type if pa.types.is_struct(column.type) else pa.struct([column.with_name("value")])


def column_of(node: Node) -> pa.Field:
    """Return a node's type and nullability, as a field without a name. Raises SchemaError with the path."""
    return _column(node, "", frozenset())


def variants(node: Union) -> list[Node]:
    """Return the branches of a union that are not null."""
    return [branch for branch in node.branches if branch.kind != "null"]


def widened(node: Union) -> Primitive | None:
    """Return the plain `long` or `double` of a union of two widths, or None."""
    kinds = variants(node)
    wide = _WIDENED.get(frozenset(branch.kind for branch in kinds)) if len(kinds) == 2 else None
    return Primitive(wide) if wide else None


def _column(node: Node, path: str, outer: frozenset[Node]) -> pa.Field:
    match node:
        case Primitive(kind, logical):
            return pa.field("", _logical(logical, path) or _PRIMITIVES[kind], kind == "null")
        case Fixed(logical=logical):
            return pa.field("", _logical(logical, path) or pa.binary(), False)
        case Enum():
            return pa.field("", pa.string(), False)
        case Array(items):
            return pa.field("", pa.list_(_column(items, f"{path}[]", outer).with_name("element")), False)
        case Map(values):
            value = _column(values, f"{path}{{}}", outer)
            return pa.field("", pa.map_(pa.string(), value.with_name("value")), False)
        case Union():
            return _union(node, path, outer)
        case Record():
            return _record(node, path, outer)


def _union(node: Union, path: str, outer: frozenset[Node]) -> pa.Field:
    kinds = variants(node)
    nullable = len(kinds) < len(node.branches)
    wide = widened(node)
    if wide:
        return pa.field("", _PRIMITIVES[wide.kind], nullable)
    if len(kinds) == 1:
        return _column(kinds[0], path, outer).with_nullable(nullable)
    members = (_column(branch, path, outer).with_nullable(True) for branch in kinds)
    return pa.field("", pa.struct([column.with_name(f"member{i}") for i, column in enumerate(members)]), nullable)


def _record(node: Record, path: str, outer: frozenset[Node]) -> pa.Field:
    if node in outer:
        raise SchemaError(f"The schema is recursive: field `{path}` contains its own record `{node.name}`")
    inner = outer | {node}
    fields = []
    for field in node.fields:
        here = f"{path}.{field.name}" if path else field.name
        fields.append(_column(field.node, here, inner).with_name(field.name))
    return pa.field("", pa.struct(fields), False)


def _logical(logical: Logical | None, path: str) -> pa.DataType | None:
    if logical is None:
        return None
    if logical.name == "decimal":
        if logical.precision > MAX_PRECISION:
            where = f"Field `{path}`" if path else "The schema"
            raise SchemaError(f"{where} is a decimal of {logical.precision} digits, Spark has at most {MAX_PRECISION}")
        return pa.decimal128(logical.precision, logical.scale)
    return _LOGICAL.get(logical.name)

"""The Arrow types of a column tree, as Spark's `to_arrow_schema(timezone="UTC")` returns them.

The types are those of Spark's `from_protobuf` with its defaults (docs/types.md has the table).
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pubsub_spark.codec.protobuf.column_tree import Array, Enum, Json, Map, Node, Scalar, Struct, Time

SCALARS: Final[dict[str, pa.DataType]] = {
    "double": pa.float64(),
    "float": pa.float32(),
    **dict.fromkeys(("int32", "sint32", "sfixed32", "uint32", "fixed32"), pa.int32()),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint64", "fixed64"), pa.int64()),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
UNSIGNED: Final[dict[str, pa.DataType]] = {
    **dict.fromkeys(("uint32", "fixed32"), pa.uint32()),
    **dict.fromkeys(("uint64", "fixed64"), pa.uint64()),
}
TIMES: Final[dict[str, pa.DataType]] = {"Timestamp": pa.timestamp("us", tz="UTC"), "Duration": pa.duration("us")}

# The largest number of seconds whose microseconds, whatever the nanos, fit 64 bits: 292,000 years either way.
MAX_SECONDS: Final = 9_223_372_036_850


def arrow_type(node: Node) -> pa.DataType:
    match node:
        case Scalar(kind):
            return SCALARS[kind]
        case Enum() | Json():
            return pa.string()
        case Time(name):
            return TIMES[name]
        case Array(element):
            return pa.list_(pa.field("element", arrow_type(element), nullable=False))
        case Map(key, value):
            return pa.map_(arrow_type(key), pa.field("value", arrow_type(value), nullable=False))
        case Struct():
            return struct_type(node)


def ptars_type(node: Node) -> pa.DataType:
    """Return the type that `ptars` reads and writes (`ptars_schema`)."""
    match node:
        case Scalar(kind):
            return UNSIGNED.get(kind) or SCALARS[kind]
        case Enum():
            return pa.int32()
        case Json():
            return pa.binary()
        case Time():
            return pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
        case Array(element):
            return pa.list_(ptars_type(element))
        case Map(key, value):
            return pa.list_(pa.struct([("key", ptars_type(key)), ("value", ptars_type(value))]))
        case Struct(columns=columns):
            return pa.struct([(f"f{column.number}", ptars_type(column.node)) for column in columns])


def struct_type(struct: Struct) -> pa.StructType:
    """A field is nullable unless proto2 requires it."""
    return pa.struct([pa.field(c.name, arrow_type(c.node), nullable=not c.required) for c in struct.columns])

"""Avro's JSON encoding by the JSON reader and writer: between texts and raw columns.

Raw columns are those of a schema whose logical types are left out (`schema_tree.without_logical`). A schema that
contains itself has none. `encode` makes binary messages of them, and `columns` reads those. Here is only the common
form of JSON messages: `json_encoding` decides about all forms.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from json import dumps
from json.encoder import encode_basestring
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.arrays import named_structs
from pubsub_spark.codec.avro.columns import batches, compile_columns
from pubsub_spark.codec.avro.encode import compile_rows
from pubsub_spark.codec.avro.types import column_of, value_type, variants, widened
from pubsub_spark.codec.json import reader, writer
from pubsub_spark.codec.json.reader import JsonReader, Names, Plan, Values
from pubsub_spark.codec.json.writer import Write
from pubsub_spark.errors import SchemaError
from pubsub_spark.schema.avro import json_encoding
from pubsub_spark.schema.avro import schema_tree as tree
from pubsub_spark.schema.avro.cursors import MIN_VECTORISED_ROWS
from pubsub_spark.schema.avro.definition import AvroDefinition


def compile_reader(definition: AvroDefinition) -> JsonReader:
    def exact(text: bytes) -> bytes:
        return definition.datum.write(definition.read_json(text))

    try:
        raw = tree.without_logical(definition.root)
        type_, plan = value_type(raw), _plan(raw)
    except SchemaError:
        return JsonReader(None, pa.binary(), lambda _: None, exact)
    rows = compile_rows(raw, type_)
    wrapped = not pa.types.is_struct(column_of(raw).type)

    def write(column: pa.Array) -> pa.BinaryArray:
        return rows(named_structs({"value": column}, len(column)) if wrapped else column)

    return JsonReader(plan, pa.binary(), write, exact)


def compile_writer(definition: AvroDefinition) -> Callable[[pa.BinaryArray], pa.BinaryArray]:
    """The input is binary messages, which show the branch of each union."""

    def one(message: bytes) -> bytes:
        return json_encoding.write_message(definition.root, definition.datum.read(message))

    columns, write = None, None
    with suppress(SchemaError):
        raw = tree.without_logical(definition.root)
        value_type(raw)
        columns, write = compile_columns(definition.root, raw), _writer(raw)

    def texts(messages: pa.BinaryArray) -> pa.BinaryArray:
        if columns and write and len(messages) >= MIN_VECTORISED_ROWS:
            column, batch = columns.decode(messages)
            if not batch.any_fell_back:  # as does a map with one key twice
                return write(column).cast(pa.binary())
        return pa.array(map(one, messages.to_pylist()), pa.binary())

    return lambda messages: pa.concat_arrays(
        [pa.array([], pa.binary()), *(texts(messages.slice(start, end - start)) for start, end in batches(messages))]
    )


def _members(union: tree.Union) -> list[tree.Node]:
    """Return the branches that are not null. Raises SchemaError if one column does not tell them apart."""
    if widened(union):
        raise SchemaError("Branches of a union have one column")
    return variants(union)


# ---------------------------------------------------------------------------------------------------------- reading


def _plan(node: tree.Node) -> Plan:
    if isinstance(node, tree.Union):
        plan = _union(node)
        return plan if len(variants(node)) < len(node.branches) else reader.required(plan)
    return _given(node) if node.kind == "null" else reader.required(_given(node))


def _given(node: tree.Node) -> Plan:
    match node:
        case tree.Record(fields=fields):
            plans = [([field.name], _plan(field.node)) for field in fields]
            return reader.objects(plans, reader.of_names([field.name for field in fields]), size=len(fields))
        case tree.Array(items):
            return reader.lists(_plan(items))
        case tree.Map(values):
            return reader.maps(_PLANS["string"], _plan(values))
        case tree.Fixed(size=size):
            return reader.each_text(partial(_bytes, size), pa.binary())
        case tree.Enum(symbols=symbols):
            return reader.texts(partial(_symbols, pa.array(symbols, pa.string())))
    return _PLANS[node.kind]


def _union(node: tree.Union) -> Plan:
    kinds = _members(node)
    if not kinds:  # whose column is a struct without fields
        return reader.leaf(pa.null(), lambda array: pa.nulls(len(_nulls(array)), pa.struct([])))
    plans = {tree.type_name(branch): _given(branch) for branch in kinds}
    names = [f"member{number}" for number in range(len(kinds))]

    def build(arrays: list[pa.Array], length: int) -> pa.Array:
        reader.require(bool((reader.values_per_row(arrays) == 1).all()))
        return arrays[0] if len(arrays) == 1 else reader.of_names(names)(arrays, length)

    def read(values: Values, counts: Names) -> pa.Array:
        """In one pass, because each object has only one name."""
        columns: dict[str, Values] = {name: [None] * len(values) for name in plans}
        absent = [value is None for value in values]
        for row, value in enumerate(values):
            if value is not None:
                ((name, inner),) = value.items()
                reader.require(inner is not None)
                columns[name][row] = inner
        arrays = [plan.read(columns[name], counts) for name, plan in plans.items()]
        return arrays[0] if len(arrays) == 1 else pa.StructArray.from_arrays(arrays, names, mask=pa.array(absent))

    return reader.objects([([name], plan) for name, plan in plans.items()], build, size=1)._replace(read=read)


def _bytes(size: int | None, text: str) -> bytes:
    data = text.encode("iso-8859-1")
    reader.require(size is None or len(data) == size)
    return data


def _symbols(symbols: pa.StringArray, array: pa.StringArray) -> pa.StringArray:
    reader.require(pc.index_in(array, symbols).null_count == array.null_count)
    return array


def _nulls(array: pa.Array) -> pa.Array:
    reader.require(array.null_count == len(array))
    return array


_PLANS: Final = {
    "null": reader.leaf(pa.null(), _nulls),
    "boolean": reader.exactly(pa.bool_()),
    "int": reader.integers(pa.int32(), None),
    "long": reader.integers(pa.int64(), None),
    "float": reader.floats(pa.float32()),
    "double": reader.floats(pa.float64()),
    "string": reader.exactly(pa.string()),
    "bytes": reader.each_text(partial(_bytes, None), pa.binary()),
}


# ---------------------------------------------------------------------------------------------------------- writing


def _writer(node: tree.Node) -> Write:
    match node:
        case tree.Record(fields=fields):
            writers = [(field.name, _writer(field.node)) for field in fields]
            return lambda array: writer.objects(
                [(name, array.field(index), write) for index, (name, write) in enumerate(writers)], array
            )
        case tree.Array(items):
            return partial(writer.lists, write=_writer(items))
        case tree.Map(values):
            return partial(writer.maps, write_key=writer.strings, write=_writer(values))
        case tree.Union():
            return _union_writer(node)
    return _WRITERS[node.kind]


def _union_writer(node: tree.Union) -> Write:
    kinds = _members(node)
    members = [(f"{{{dumps(tree.type_name(branch), ensure_ascii=False)}:", _writer(branch)) for branch in kinds]

    def write(array: pa.Array) -> pa.StringArray:
        columns = array.flatten() if len(members) > 1 else [array]
        texts = [
            writer.joined(tag, write_member(column), "}")
            for (tag, write_member), column in zip(members, columns, strict=True)
        ]
        return pc.coalesce(*texts, writer.constant("null"))

    return write if members else _WRITERS["null"]


_WRITERS: Final[dict[str, Write]] = {
    "null": lambda array: pa.repeat("null", len(array)),
    **dict.fromkeys(("boolean", "int", "long"), writer.plain),
    **dict.fromkeys(("float", "double"), lambda array: writer.floats(array.cast(pa.float64()))),
    **dict.fromkeys(("string", "enum"), writer.strings),
    **dict.fromkeys(
        ("bytes", "fixed"),
        lambda array: writer.one_by_one(lambda value: encode_basestring(value.decode("iso-8859-1")), array.to_pylist()),
    ),
}

"""Avro's JSON encoding by the JSON reader and writer: between texts and raw columns.

Raw columns are those of a schema whose logical types are left out (`schema_tree.without_logical`). A schema that
contains itself has none. `encode` makes binary messages of them, and `columns` reads those. Here is only the common
form of JSON messages: `json_encoding` decides about all forms.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from json import dumps
from json.encoder import encode_basestring
from operator import is_
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.bound import Bound
from pubsub_spark.codec.arrays import named_structs
from pubsub_spark.codec.avro.columns import ColumnReader, batches, compile_columns
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
    exact = Bound(_exact_message, definition)
    try:
        raw = tree.without_logical(definition.root)
        type_, plan = value_type(raw), _plan(raw)
    except SchemaError:
        return JsonReader(None, pa.binary(), exact, exact)
    write: reader.Convert = compile_rows(raw, type_)
    if not pa.types.is_struct(column_of(raw).type):
        write = Bound(_rows_of_values, write)
    return JsonReader(plan, pa.binary(), write, exact)


def _exact_message(definition: AvroDefinition, text: bytes) -> bytes:
    return definition.datum.write(definition.read_json(text))


def _rows_of_values(write: reader.Convert, values: pa.Array) -> pa.BinaryArray:
    return write(named_structs({"value": values}, len(values)))


def compile_writer(definition: AvroDefinition) -> Callable[[pa.BinaryArray], pa.BinaryArray]:
    """The input is binary messages, which show the branch of each union."""
    columns, write = None, None
    with suppress(SchemaError):
        raw = tree.without_logical(definition.root)
        value_type(raw)
        columns, write = compile_columns(definition.root, raw), _writer(raw)
    return Bound(_texts, definition, columns, write)


def _texts(
    definition: AvroDefinition, columns: ColumnReader | None, write: Write | None, messages: pa.BinaryArray
) -> pa.BinaryArray:
    texts = [pa.array([], pa.binary())]
    for start, end in batches(messages):
        some = messages.slice(start, end - start)
        if columns and write and len(some) >= MIN_VECTORISED_ROWS:
            column, batch = columns.decode(some)
            if not batch.any_fell_back:  # as does a map with one key twice
                texts.append(write(column).cast(pa.binary()))
                continue
        data = map(definition.datum.read, some.to_pylist())
        texts.append(pa.array([json_encoding.write_message(definition.root, datum) for datum in data], pa.binary()))
    return pa.concat_arrays(texts)


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
            names = tuple(field.name for field in fields)
            plans = tuple(((field.name,), _plan(field.node)) for field in fields)
            return reader.Objects(plans, Bound(reader.structs, names), size=len(fields))
        case tree.Array(items):
            return reader.Lists(_plan(items))
        case tree.Map(values):
            return reader.Maps(_PLANS["string"], _plan(values))
        case tree.Fixed(size=size):
            return reader.texts(Bound(_bytes, size))
        case tree.Enum(symbols=symbols):
            return reader.texts(Bound(_symbols, symbols))
    return _PLANS[node.kind]


def _union(node: tree.Union) -> Plan:
    kinds = _members(node)
    if not kinds:  # whose column is a struct without fields
        return reader.Leaf(pa.null(), _empty_structs)
    names = tuple(f"member{number}" for number in range(len(kinds)))
    plans = tuple(((tree.type_name(branch),), _given(branch)) for branch in kinds)
    return _UnionPlan(plans, Bound(_one_of_members, names), size=1)


class _UnionPlan(reader.Objects):
    def read(self, values: Values, names: Names) -> pa.Array:
        """Each object has only one name, so a branch may look for its own in all of them."""
        objects = [value or {} for value in values]
        arrays = [plan.read(list(map(dict.get, objects, repeat(name))), names) for (name,), plan in self.fields]
        absent = np.fromiter(map(is_, values, repeat(None)), np.bool_, len(values))
        present = sum(len(array) - array.null_count for array in arrays)
        reader.require({0, 1}.issuperset(map(len, objects)) and present == len(values) - np.count_nonzero(absent))
        if len(arrays) == 1:
            return arrays[0]
        return pa.StructArray.from_arrays(arrays, [f"member{at}" for at in range(len(arrays))], mask=pa.array(absent))


def _one_of_members(names: tuple[str, ...], arrays: list[pa.Array], length: int) -> pa.Array:
    reader.require(bool((reader.values_per_row(arrays) == 1).all()))
    return arrays[0] if len(arrays) == 1 else reader.structs(names, arrays, length)


def _empty_structs(array: pa.Array) -> pa.StructArray:
    return pa.nulls(len(_nulls(array)), pa.struct([]))


def _bytes(size: int | None, array: pa.StringArray) -> pa.BinaryArray:
    data = [None if text is None else text.encode("iso-8859-1") for text in array.to_pylist()]
    reader.require(size is None or {len(value) for value in data if value is not None} <= {size})
    return pa.array(data, pa.binary())


def _symbols(symbols: tuple[str, ...], array: pa.StringArray) -> pa.StringArray:
    reader.require(pc.index_in(array, pa.array(symbols, pa.string())).null_count == array.null_count)
    return array


def _nulls(array: pa.Array) -> pa.Array:
    reader.require(array.null_count == len(array))
    return array


_PLANS: Final = {
    "null": reader.Leaf(pa.null(), _nulls),
    "boolean": reader.exactly(pa.bool_()),
    "int": reader.integers(pa.int32(), None),
    "long": reader.integers(pa.int64(), None),
    "float": reader.floats(pa.float32()),
    "double": reader.floats(pa.float64()),
    "string": reader.exactly(pa.string()),
    "bytes": reader.texts(Bound(_bytes, None)),
}


# ---------------------------------------------------------------------------------------------------------- writing


def _writer(node: tree.Node) -> Write:
    match node:
        case tree.Record(fields=fields):
            return Bound(_objects, tuple((field.name, _writer(field.node)) for field in fields))
        case tree.Array(items):
            return Bound(writer.lists, _writer(items))
        case tree.Map(values):
            return Bound(writer.maps, writer.strings, _writer(values))
        case tree.Union():
            kinds = _members(node)
            tags = [f"{{{dumps(tree.type_name(branch), ensure_ascii=False)}:" for branch in kinds]
            members = tuple(zip(tags, map(_writer, kinds), strict=True))
            return Bound(_union_texts, members) if members else writer.nulls
    return _WRITERS[node.kind]


def _objects(fields: tuple[tuple[str, Write], ...], array: pa.StructArray) -> pa.StringArray:
    return writer.objects([(name, array.field(index), write) for index, (name, write) in enumerate(fields)], array)


def _union_texts(members: tuple[tuple[str, Write], ...], array: pa.Array) -> pa.StringArray:
    columns = array.flatten() if len(members) > 1 else [array]
    texts = [writer.joined(tag, write(column), "}") for (tag, write), column in zip(members, columns, strict=True)]
    return pc.coalesce(*texts, writer.constant("null"))


def _floats(array: pa.Array) -> pa.StringArray:
    return writer.floats(array.cast(pa.float64()))


def _byte_texts(array: pa.BinaryArray) -> pa.StringArray:
    texts = [None if value is None else value.decode("iso-8859-1") for value in array.to_pylist()]
    return writer.one_by_one(encode_basestring, texts)


_WRITERS: Final[dict[str, Write]] = {
    "null": writer.nulls,
    **dict.fromkeys(("boolean", "int", "long"), writer.plain),
    **dict.fromkeys(("float", "double"), _floats),
    **dict.fromkeys(("string", "enum"), writer.strings),
    **dict.fromkeys(("bytes", "fixed"), _byte_texts),
}

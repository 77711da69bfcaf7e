"""The projection of decoded values onto the columns of another schema revision.

A replayed batch has the reader schema of the run that planned it. Spark expects the columns of the current run.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


class IncompatibleTypeError(Exception):
    """A field has another type, or cannot be null in the new type. The message names its path."""


def project(values: pa.Array, type_: pa.DataType, path: str = "value") -> pa.Array:
    """Return the values in a type: fields of the same name and type kept, new ones null, others left out.

    The rule applies to structs at any depth. Raises IncompatibleTypeError, which depends on the types alone.
    """
    source = values.type
    if source == type_:
        return values
    if pa.types.is_struct(source) and pa.types.is_struct(type_):
        children = [_project_field(values, field, f"{path}.{field.name}") for field in type_]
        valid = pc.invert(values.is_null()).buffers()[1]
        return pa.Array.from_buffers(type_, len(values), [valid], children=children)
    if pa.types.is_map(source) and pa.types.is_map(type_) and source.key_type == type_.key_type:
        entry = pa.struct([type_.key_field, type_.item_field])
        _check_nullable(source.item_field, type_.item_field, f"{path}{{}}")
        items = project(values.items, type_.item_type, f"{path}{{}}")
        return _with_child(
            values, type_, pa.Array.from_buffers(entry, len(items), [None], children=[values.keys, items])
        )
    if pa.types.is_list(source) and pa.types.is_list(type_):
        _check_nullable(source.value_field, type_.value_field, f"{path}[]")
        return _with_child(values, type_, project(values.values, type_.value_type, f"{path}[]"))
    raise IncompatibleTypeError(f"`{path}` was {source} and is {type_}")


def _project_field(structs: pa.StructArray, field: pa.Field, path: str) -> pa.Array:
    index = structs.type.get_field_index(field.name)
    if index >= 0:
        _check_nullable(structs.type.field(index), field, path)
        return project(structs.field(index), field.type, path)
    if not field.nullable:
        raise IncompatibleTypeError(f"`{path}` is new and cannot be null")
    return pa.nulls(len(structs), field.type)


def _check_nullable(before: pa.Field, now: pa.Field, path: str) -> None:
    if before.nullable and not now.nullable:
        raise IncompatibleTypeError(f"`{path}` was nullable and is not")


def _with_child(values: pa.Array, type_: pa.DataType, child: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), values.buffers()[:2], offset=values.offset, children=[child])

"""Arrow arrays made of parts: structs of their children, values of some rows, values and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def structs(type_: pa.StructType, length: int, children: Sequence[pa.Array], like: pa.Array | None = None) -> Any:
    """The structs of `children`, null where `like` is null."""
    valid = like.is_valid().buffers()[1] if like is not None and like.null_count else None
    return pa.Array.from_buffers(type_, length, [valid], children=list(children))


def named_structs(children: dict[str, pa.Array], length: int, like: pa.Array | None = None) -> pa.StructArray:
    """The same, with the types of the children."""
    type_ = pa.struct([pa.field(name, child.type) for name, child in children.items()])
    return structs(type_, length, list(children.values()), like)


def at_rows(values: pa.Array, rows: npt.NDArray[np.integer[Any]], count: int) -> pa.Array:
    """`count` values: `values` at `rows`, null elsewhere."""
    index, absent = np.zeros(count, np.int64), np.ones(count, np.bool_)
    index[rows], absent[rows] = np.arange(len(rows)), False
    return values.take(pa.array(index, mask=absent))


def with_reasons(values: pa.StructArray, reasons: dict[int, str]) -> tuple[pa.StructArray, pa.StringArray]:
    """The values, null at the rows that have a reason, and the reasons, null elsewhere; values are not copied."""
    if not reasons:
        return values, pa.nulls(len(values), pa.string())
    column = at_rows(pa.array(reasons.values(), pa.string()), np.fromiter(reasons, np.int64), len(values))
    valid = pc.and_(column.is_null(), values.is_valid()).buffers()[1]
    children = [values.field(index) for index in range(values.type.num_fields)]
    return pa.Array.from_buffers(values.type, len(values), [valid], children=children), column

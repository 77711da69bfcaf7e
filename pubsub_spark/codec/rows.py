"""Rows to encode: the column of each field, the types that fit, and the row of a value that cannot be written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pubsub_spark.errors import RowError, SchemaError

# The types that fit in addition to a field's own: narrower ones, without loss (Spark's `to_avro` is as strict).
_NARROWER: Final[dict[pa.DataType, tuple[pa.DataType, ...]]] = {
    pa.int32(): (pa.int8(), pa.int16()),
    pa.int64(): (pa.int8(), pa.int16(), pa.int32()),
    pa.float64(): (pa.float32(), pa.int8(), pa.int16(), pa.int32()),
    pa.float32(): (pa.int8(), pa.int16()),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
}


class Unwritable(ValueError):  # noqa: N818 (about a value, not a failure)
    """The index of a value that cannot be written, the reason, and the path from the array to the value.

    On the way up, the path gets names in front, and the index of an item becomes that of the list.
    """

    def __init__(self, index: int, reason: str, path: str = "") -> None:
        self.index = index
        self.reason = reason
        self.path = path

    def row_error(self, first: int = 0) -> RowError:
        """`first`: the row of the array's first value."""
        column = f"column `{self.path.removeprefix('.')}`" if self.path else "the row"
        return RowError(first + self.index, f"{column} {self.reason}")


@dataclass(slots=True)
class Inside:  # a generator as context manager takes 1 us more per column
    """Adds the step to the path of an Unwritable. offsets: of the lists whose items are written."""

    step: str
    offsets: npt.NDArray[Any] | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Unwritable):
            index, lists = error.index, self.offsets
            index = index if lists is None else int(np.searchsorted(lists, index, side="right")) - 1
            raise Unwritable(index, error.reason, f"{self.step}{error.path}") from None


def fits(wanted: pa.DataType, source: pa.DataType) -> bool:
    """Return whether every value of a column's type has a value of the wanted type."""
    if pa.types.is_decimal(wanted) and pa.types.is_decimal(source):
        whole, source_whole = wanted.precision - wanted.scale, source.precision - source.scale
        return bool(source.scale <= wanted.scale and source_whole <= whole)
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(source):
        return source.unit == "us" and (wanted.tz is None) == (source.tz is None)
    return source == wanted or source in _NARROWER.get(wanted, ())


def unfit(path: str, source: pa.DataType, wanted: pa.DataType) -> SchemaError:
    where = f"Column `{path}`" if path else "The row"
    return SchemaError(f"{where} is `{spelled(source)}`, the schema wants `{spelled(wanted)}`")


def spelled(type_: pa.DataType) -> str:
    from pubsub_spark.codec.spark_types import type_name  # which needs Spark, unlike the emulator

    return type_name(type_)


def child(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def find_columns(
    fields: Sequence[str], source: pa.StructType, path: str, ignore_extra: bool
) -> tuple[dict[str, int], list[str]]:
    """Return the index of each field's column, and the problem that columns have no field.

    A field's column has its name, or its name in another case if only one column and one field have that.
    """
    names = {column.name: index for index, column in reversed([*enumerate(source)])}
    spellings: dict[str, tuple[list[str], list[int]]] = defaultdict(lambda: ([], []))
    for name in set(fields) - names.keys():
        spellings[name.casefold()][0].append(name)
    for name in names.keys() - set(fields):
        spellings[name.casefold()][1].append(names[name])
    places = {name: names[name] for name in fields if name in names}
    places |= {same[0]: columns[0] for same, columns in spellings.values() if len(same) == len(columns) == 1}
    taken = set(places.values())
    extra = [f"`{child(path, column.name)}`" for index, column in enumerate(source) if index not in taken]
    if not extra or ignore_extra:
        return places, []
    return places, [f"The schema has no field for {', '.join(extra)}: drop it, or set ignoreExtraColumns=true"]

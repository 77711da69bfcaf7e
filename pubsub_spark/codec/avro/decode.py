"""Messages of one writer's revision as the reader's column: the fast path proves, the slow path explains.

Binary messages are decoded in step (`columns`). Whatever is not plainly right there, and everything in JSON, is decoded
alone: `binary` or `json` to a datum, `resolution` to the reader's value. So a message's outcome is that of the slow
path, whichever way it took, and a bad one costs its neighbours nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from pubsub_spark.codec.avro.columns import Columns, NotInStep, batches, compile_columns
from pubsub_spark.codec.avro.datum import Mismatch
from pubsub_spark.codec.avro.definition import AvroDefinition
from pubsub_spark.codec.avro.lanes import FEW, Bits, merge
from pubsub_spark.codec.avro.resolution import Unresolvable, compile_values
from pubsub_spark.codec.avro.types import column_of, value_type
from pubsub_spark.codec.definition import Encoding, InvalidMessage


class AvroDecoder:
    """Compiled for one (writer, reader, encoding); keeps nothing between calls."""

    def __init__(self, writer: AvroDefinition, reader: AvroDefinition, encoding: Encoding) -> None:
        self.type = value_type(reader.root)
        self._wrapped = not pa.types.is_struct(column_of(reader.root).type)
        self._read = writer.read_binary if encoding == "BINARY" else writer.read_json
        self._value = compile_values(writer.root, reader.root)
        self._columns = _columns(writer, reader) if encoding == "BINARY" else None

    def __call__(self, data: pa.BinaryArray) -> tuple[pa.StructArray, pa.StringArray]:
        """The value of each message, null where the second array has the reason for it."""
        if self._columns is None or len(data) < FEW:
            return self._alone(item.as_py() for item in data)
        parts = [self._in_step(self._columns, data.slice(start, end - start)) for start, end in batches(data)]
        if len(parts) == 1:
            return parts[0]
        values, errors = zip(*parts, strict=True)
        return pa.concat_arrays(values), pa.concat_arrays(errors)

    def _in_step(self, columns: Columns, data: pa.BinaryArray) -> tuple[pa.StructArray, pa.StringArray]:
        column, left = columns.decode(data)
        if self._wrapped:
            column = pa.Array.from_buffers(self.type, len(column), [None], children=[column])
        if not left.any():
            return column, pa.nulls(len(data), pa.string())
        which = np.flatnonzero(left)
        values, reasons = self._alone(data[index].as_py() for index in which.tolist())
        index = np.zeros(len(data), np.int32)
        index[which] = np.arange(len(which), dtype=np.int32)
        errors = reasons.take(pa.array(index, mask=~left))
        if values.null_count == len(values) and not column.null_count:
            return _with_nulls(column, left), errors
        stayed = np.flatnonzero(~left)
        return merge([column.take(pa.array(stayed)), values], [stayed, which]), errors

    def _alone(self, messages: Iterable[bytes | None]) -> tuple[pa.StructArray, pa.StringArray]:
        values: list[Any] = []
        errors: list[str | None] = []
        for data in messages:
            try:
                value = self._value(self._read(data or b""))
            except Mismatch as mismatch:
                values.append(None)
                errors.append(str(InvalidMessage(mismatch.sentence())))
            else:
                values.append((value,) if self._wrapped else value)
                errors.append(None)
        return pa.array(values, self.type), pa.array(errors, pa.string())


def _columns(writer: AvroDefinition, reader: AvroDefinition) -> Columns | None:
    try:
        return compile_columns(writer.root, reader.root)
    except (NotInStep, Unresolvable):
        return None


def _with_nulls(column: pa.StructArray, absent: Bits) -> pa.StructArray:
    """A struct without nulls, made null where `absent`; its fields are not copied."""
    valid = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    children = [column.field(place) for place in range(column.type.num_fields)]
    return pa.Array.from_buffers(column.type, len(column), [valid], children=children)

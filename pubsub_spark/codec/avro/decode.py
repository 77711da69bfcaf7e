"""Messages of one writer's revision as the reader's column: `columns` reads them, and the rest get a reason.

A message that fell back is checked alone, so its outcome does not depend on its neighbours. If it is not a message of
its schema, `error_locator` finds where. Otherwise fastavro reads it and writes it again. If the bytes differ (a map had
a key twice), the columns read them. If not, the columns know the reason. Messages in JSON are written as binary first
(`json`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pubsub_spark.codec import arrays
from pubsub_spark.codec.avro.columns import batches, compile_columns
from pubsub_spark.codec.avro.json import compile_reader
from pubsub_spark.codec.avro.types import column_of, value_type
from pubsub_spark.schema.avro import error_locator
from pubsub_spark.schema.avro.compatibility import Unresolvable
from pubsub_spark.schema.avro.definition import AvroDefinition
from pubsub_spark.schema.definition import Encoding, Mismatch


class AvroDecoder:
    """It keeps nothing between calls."""

    def __init__(self, writer: AvroDefinition, reader: AvroDefinition, encoding: Encoding) -> None:
        self.type = value_type(reader.root)
        self._wrapped = not pa.types.is_struct(column_of(reader.root).type)
        self._writer = writer
        self._json_reader = compile_reader(writer) if encoding == "JSON" else None
        self._refusal: Unresolvable | None = None
        try:
            self._columns = compile_columns(writer.root, reader.root)
        except Unresolvable as error:
            self._refusal = error

    def __call__(self, data: pa.BinaryArray) -> tuple[pa.StructArray, pa.StringArray]:
        reasons: dict[int, str] = {}
        if self._json_reader:
            data, reasons = self._json_reader.read(data)
            data = data.fill_null(b"") if reasons else data
        parts = [self._batch(data.slice(start, end - start), start, reasons) for start, end in batches(data)]
        column = parts[0] if len(parts) == 1 else pa.concat_arrays([pa.nulls(0, self.type), *parts])
        return arrays.with_reasons(column, reasons)

    def _batch(self, data: pa.BinaryArray, start: int, reasons: dict[int, str]) -> pa.StructArray:
        """`start` is the row of the first message. The value of a row with a reason is meaningless."""
        if self._refusal:
            for row, message in enumerate(data.to_pylist(), start):
                reasons.setdefault(row, str(self._mismatch(message) or self._refusal))
            return pa.nulls(len(data), self.type)
        column, batch = self._columns.decode(data)
        if self._wrapped:
            column = arrays.structs(self.type, len(column), [column])
        again: dict[int, bytes] = {}
        for row in np.flatnonzero(batch.fell_back).tolist() if batch.any_fell_back else ():
            message = data[row].as_py()
            mismatch = self._mismatch(message)
            if mismatch is None:
                rewritten = self._writer.datum.write(self._writer.datum.read(message))
                if rewritten != message:
                    again[row] = rewritten
                    continue
                mismatch = batch.reasons.get(row) or Mismatch("cannot be read")  # the latter is not known
            reasons.setdefault(start + row, str(mismatch))
        if not again:
            return column
        rows = list(again)
        reasons_again: dict[int, str] = {}
        column_again = self._batch(pa.array(again.values(), pa.binary()), 0, reasons_again)
        reasons.update({start + rows[again_row]: reason for again_row, reason in reasons_again.items()})
        index = np.arange(len(data))
        index[rows] = len(data) + np.arange(len(rows))
        return pa.concat_arrays([column, column_again]).take(pa.array(index))

    def _mismatch(self, message: bytes) -> Mismatch | None:
        try:
            error_locator.check(self._writer.root, message)
        except Mismatch as mismatch:
            return mismatch
        return None

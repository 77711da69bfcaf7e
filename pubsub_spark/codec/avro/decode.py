"""Messages of one writer's revision as the reader's column: `columns` reads them, and a reason is found for the rest.

A message that fell back is looked at alone. If it is no message of its schema, `error_locator` says where. Otherwise
fastavro reads it and writes it again, and if that makes a difference (a map had a key twice), the columns read what it
wrote. If it makes none, the message has no value, and the columns said why. Messages in JSON are written as binary
first (`json`). So a message's outcome does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from pubsub_spark.codec.avro.columns import batches, compile_columns
from pubsub_spark.codec.avro.cursor_arrays import merge, offsets_of
from pubsub_spark.codec.avro.json import compile_reader
from pubsub_spark.codec.avro.types import column_of, value_type
from pubsub_spark.schema.avro import error_locator
from pubsub_spark.schema.avro.cursors import Bits
from pubsub_spark.schema.avro.definition import AvroDefinition
from pubsub_spark.schema.avro.mismatch import Mismatch, Unresolvable
from pubsub_spark.schema.definition import Encoding, InvalidMessage

Decoded = tuple[pa.StructArray, pa.StringArray]


class AvroDecoder:
    """Compiled for one (writer, reader, encoding); keeps nothing between calls."""

    def __init__(self, writer: AvroDefinition, reader: AvroDefinition, encoding: Encoding) -> None:
        self.type = value_type(reader.root)
        self._wrapped = not pa.types.is_struct(column_of(reader.root).type)
        self._writer = writer
        self._json_reader = compile_reader(writer)
        self._decode = self._binary if encoding == "BINARY" else self._json
        self._refusal: Unresolvable | None = None
        try:
            self._columns = compile_columns(writer.root, reader.root)
        except Unresolvable as error:
            self._refusal = error

    def __call__(self, data: pa.BinaryArray) -> Decoded:
        """The value of each message, null where the second array has the reason for it."""
        return self._decode(data)

    def _binary(self, data: pa.BinaryArray) -> Decoded:
        return self._in_batches(data, self._batch)

    def _json(self, data: pa.BinaryArray) -> Decoded:
        return self._in_batches(data, self._json_batch)

    def _in_batches(self, data: pa.BinaryArray, decode: Callable[[pa.BinaryArray], Decoded]) -> Decoded:
        parts = [decode(data.slice(start, end - start)) for start, end in batches(data)]
        if len(parts) == 1:
            return parts[0]
        values, errors = zip(self._refused([]), *parts, strict=True)
        return pa.concat_arrays(values), pa.concat_arrays(errors)

    def _json_batch(self, data: pa.BinaryArray) -> Decoded:
        binary, reasons = self._json_reader.read(data)
        if not reasons:
            return self._binary(binary)
        refused = pa.nulls(len(reasons), self.type), pa.array(reasons.values(), pa.string())
        good = np.flatnonzero(binary.is_valid().to_numpy(zero_copy_only=False))
        return _merged([(good, self._binary(binary.drop_null())), (reasons, refused)])

    def _batch(self, data: pa.BinaryArray) -> Decoded:
        if self._refusal:
            return self._refused(self._mismatch(message) or self._refusal for message in data.to_pylist())
        column, batch = self._columns.decode(data)
        if self._wrapped:
            column = pa.Array.from_buffers(self.type, len(column), [None], children=[column])
        if not batch.any_fell_back:
            return column, pa.nulls(len(data), pa.string())
        mismatches: dict[int, Mismatch] = {}
        again: dict[int, bytes] = {}
        fallen = np.flatnonzero(batch.fell_back)
        for row, message in zip(fallen.tolist(), data.take(pa.array(fallen)).to_pylist(), strict=True):
            mismatch = self._mismatch(message)
            if mismatch:
                mismatches[row] = mismatch
                continue
            rewritten = self._writer.datum.write(self._writer.datum.read(message))
            if rewritten == message:
                mismatches[row] = batch.reasons.get(row) or Mismatch("cannot be read")  # the latter is not known
            else:
                again[row] = rewritten
        refused = self._refused(mismatches.values())
        if not again and not column.null_count:
            return _with_nulls(column, batch.fell_back), _spread_texts(refused[1], batch.fell_back)
        good = np.flatnonzero(~batch.fell_back)
        kept = column.take(pa.array(good)), pa.nulls(len(good), pa.string())
        decoded_again = self._binary(pa.array(again.values(), pa.binary()))
        return _merged([(good, kept), (mismatches, refused), (again, decoded_again)])

    def _mismatch(self, message: bytes) -> Mismatch | None:
        try:
            error_locator.check(self._writer.root, message)
        except Mismatch as mismatch:
            return mismatch
        return None

    def _refused(self, mismatches: Iterable[Mismatch]) -> Decoded:
        errors = pa.array([str(InvalidMessage(mismatch.sentence())) for mismatch in mismatches], pa.string())
        return pa.nulls(len(errors), self.type), errors


def _merged(parts: list[tuple[Iterable[int], Decoded]]) -> Decoded:
    """The outcomes of all rows; each part comes with its rows."""
    rows = [np.array(list(part), np.int64) for part, _ in parts]
    values, errors = zip(*(decoded for _, decoded in parts), strict=True)
    return merge(list(values), rows), merge(list(errors), rows)


def _with_nulls(column: pa.StructArray, absent: Bits) -> pa.StructArray:
    """A struct without nulls, made null where `absent`; its fields are not copied."""
    valid = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    children = [column.field(place) for place in range(column.type.num_fields)]
    return pa.Array.from_buffers(column.type, len(column), [valid], children=children)


def _spread_texts(texts: pa.StringArray, present: Bits) -> pa.StringArray:
    """The texts at the places that are `present`, null elsewhere; the texts are not copied."""
    sizes = np.zeros(len(present) + 1, np.int32)
    sizes[1:][present] = np.diff(offsets_of(texts))
    valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    offsets = pa.py_buffer(np.cumsum(sizes, dtype=np.int32))
    return pa.Array.from_buffers(pa.string(), len(present), [valid, offsets, texts.buffers()[2]])

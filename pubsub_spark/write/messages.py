"""Messages from rows: an Arrow batch of rows becomes an Arrow batch of messages, without a Python object per row.

Columns of the result: `data`, and `attributes`, `ordering_key` and `topic` if the mapping has them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import RowError
from ..names import SCHEMA_PREFIX
from ..publish.limits import Ints, MapEntries
from .column_mapping import ColumnMapping

EncodeRows = Callable[[pa.StructArray], pa.Array]
"""Encodes rows: a binary for each, null for a null row. Raises RowError for one that cannot be."""

_ATTRIBUTES = pa.map_(pa.string(), pa.string())


def to_messages(batch: pa.RecordBatch, mapping: ColumnMapping, encode: EncodeRows) -> pa.RecordBatch:
    """Raises RowError for a row that cannot be a message.

    No value is null, except in `topic`, which the caller checks.
    """
    _check_text(batch, mapping)
    columns = {"data": _data(batch, mapping, encode)}
    if mapping.attributes is not None:
        attributes = batch.column(mapping.attributes)
        columns["attributes"] = _publishable(
            attributes if pa.types.is_map(attributes.type) else _attributes_of_json(attributes)
        )
    if mapping.attribute_columns:
        columns["attributes"] = with_attributes(
            columns.get("attributes"), [(name, _text(batch.column(at))) for name, at in mapping.attribute_columns]
        )
    if mapping.fixed_attributes:
        fixed = [(name, _repeated(text, len(batch))) for name, text in mapping.fixed_attributes]
        columns["attributes"] = with_attributes(columns.get("attributes"), fixed)
    if mapping.ordering_text is not None:
        columns["ordering_key"] = _repeated(mapping.ordering_text, len(batch))
    elif mapping.ordering_key is not None:
        keys = batch.column(mapping.ordering_key)
        keys = pc.struct_field(keys, list(mapping.ordering_path)) if mapping.ordering_path else keys
        columns["ordering_key"] = _text(keys).fill_null("")
    if mapping.topic is not None:
        columns["topic"] = _text(batch.column(mapping.topic))
    return pa.RecordBatch.from_pydict(columns)


def _check_text(batch: pa.RecordBatch, mapping: ColumnMapping) -> None:
    """Raise RowError for a string that is not UTF-8, in any column but `data`. Spark does not check strings."""
    metadata = {mapping.attributes, mapping.ordering_key, mapping.topic, *(at for _, at in mapping.attribute_columns)}
    for at, name in enumerate(batch.schema.names):
        column = batch.column(at)
        if (at in metadata or (at in mapping.payload and mapping.payload_kind != "data")) and not _is_text(column):
            for row in range(len(column)):
                value = column.take([row])
                if not _is_text(value):
                    complaint = "holds a string that is not UTF-8"
                    remedy = "Repair it with `make_valid_utf8`, or send it as binary"
                    raise RowError(row, f"`{_text_path(name, value)}` {complaint}. {remedy}")


def _is_text(column: pa.Array) -> bool:
    try:
        column.validate(full=True)  # in Spark's output only strings can be invalid
    except pa.ArrowInvalid:
        return False
    return True


def _text_path(path: str, value: pa.Array) -> str:
    if pa.types.is_struct(value.type):
        for field, member in zip(value.type, value.flatten(), strict=True):
            if not _is_text(member):
                return _text_path(f"{path}.{field.name}", member)
    return path


def _data(batch: pa.RecordBatch, mapping: ColumnMapping, encode: EncodeRows) -> pa.BinaryArray:
    if mapping.payload_kind == "row":
        encoded = encode(batch.select(list(mapping.payload)).to_struct_array())
    elif mapping.payload_kind == "value":
        encoded = encode(batch.column(mapping.payload[0]))
    else:
        encoded = batch.column(mapping.payload[0])
    return encoded.cast(pa.binary()).fill_null(b"")


def _repeated(text: str, rows: int) -> pa.StringArray:
    return pa.repeat(pa.scalar(text), rows)


def _text(column: pa.Array) -> pa.StringArray:
    return column.cast(pa.string())


def _publishable(maps: pa.MapArray) -> pa.MapArray:
    """Return the maps, none null, without null values and the entries that Pub/Sub adds by itself."""
    if maps.type != _ATTRIBUTES:
        maps = maps.cast(_ATTRIBUTES)  # Spark writes large strings if it is configured to
    absent = np.asarray(maps.is_null().to_numpy(zero_copy_only=False))
    if maps.null_count:
        maps = maps.take(pa.array(np.arange(len(maps))))  # a null may hide entries, but a taken one does not
    entries = MapEntries.of(maps)
    added = pc.starts_with(entries.keys, SCHEMA_PREFIX)
    if not (absent.any() or entries.values.null_count or pc.any(added).as_py()):
        return maps
    entries = entries.where(np.asarray(pc.and_not(entries.values.is_valid(), added).to_numpy(zero_copy_only=False)))
    return pa.MapArray.from_arrays(pa.array(entries.offsets, pa.int32()), entries.keys, entries.values)


def _attributes_of_json(texts: pa.Array) -> pa.MapArray:
    """Return null for a null text. Raises RowError for one that is no object of strings."""
    distinct = _text(texts).dictionary_encode()
    maps: list[list[tuple[str, str]] | None] = []
    for index, text in enumerate(distinct.dictionary.to_pylist()):
        entries = _entries_of_json(text)
        if entries is None:
            row = pc.index(distinct.indices, index).as_py()
            raise RowError(row, "`attributes` is not a JSON object whose values are strings")
        maps.append(entries)
    return pa.array(maps, _ATTRIBUTES).take(distinct.indices)


def _entries_of_json(text: str) -> list[tuple[str, str]] | None:
    """Return None for text that is no object of strings, and for half a surrogate pair."""
    try:
        entries = json.loads(text)
        if isinstance(entries, dict):
            "".join([*entries, *entries.values()]).encode()  # raises for a value that is no string, or no UTF-8
            return list(entries.items())
    except (ValueError, TypeError, RecursionError):  # the last for brackets in thousands
        pass
    return None


def with_attributes(maps: pa.MapArray | None, extra: list[tuple[str, pa.StringArray]]) -> pa.MapArray:
    """Return the maps with further entries. Each replaces an entry of its name. A null value adds nothing."""
    rows = len(extra[0][1])
    present = [np.asarray(values.is_valid().to_numpy(zero_copy_only=False)) for _, values in extra]
    if maps is None:
        old = MapEntries(pa.array([], pa.string()), pa.array([], pa.string()), np.zeros(rows + 1, dtype=np.int64))
    else:
        old = MapEntries.of(maps)
        for (name, _), has_value in zip(extra, present, strict=True):
            same = np.asarray(pc.equal(old.keys, name).to_numpy(zero_copy_only=False))
            if same.any():
                old = old.where(~(same & np.repeat(has_value, old.counts)))
    offsets = np.concatenate([[0], np.cumsum(old.counts + np.sum(present, axis=0))]).astype(np.int64)
    # The new position of each entry: the old ones at the front of their row, then the extra ones.
    positions: list[Ints] = [np.arange(len(old.keys)) + np.repeat(offsets[:-1] - old.offsets[:-1], old.counts)]
    following = offsets[:-1] + old.counts
    keys, values = [old.keys], [old.values]
    for (name, column), has_value in zip(extra, present, strict=True):
        positions.append(following[has_value])
        following = following + has_value
        keys.append(pa.array([name], pa.string()).take(pa.array(np.zeros(int(has_value.sum()), dtype=np.int64))))
        values.append(column.drop_null())
    sources = np.empty(int(offsets[-1]), dtype=np.int64)
    sources[np.concatenate(positions)] = np.arange(len(sources))
    order = pa.array(sources)
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.concat_arrays(keys).take(order), pa.concat_arrays(values).take(order)
    )


def with_column(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    """Return the batch with a column added or replaced."""
    return pa.RecordBatch.from_pydict(dict(zip(batch.schema.names, batch.columns, strict=True)) | {name: column})


def concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of batches with the same columns as one batch."""
    if len(batches) == 1:
        return batches[0]
    names = batches[0].schema.names
    return pa.RecordBatch.from_pydict(
        {name: pa.concat_arrays([batch.column(name) for batch in batches]) for name in names}
    )

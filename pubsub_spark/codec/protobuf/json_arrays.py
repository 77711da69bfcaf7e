"""Arrays of JSON values as the arrays that `ptars` writes: what `json_columns` and `json_batches` both do.

ValueError wherever a value does not have the common form of its field.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.protobuf import ptars_schema
from pubsub_spark.codec.protobuf.column_tree import Struct
from pubsub_spark.codec.protobuf.json_text import LEAST_SECONDS
from pubsub_spark.schema.protobuf.json_mapping import FLOAT_LIMIT

TIME: Final = pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
# The bytes of a timestamp to the end of its seconds: each is a digit, or as it is here. Behind are up to nine digits.
_EPOCH_TEXT: Final = "1970-01-01T00:00:00Z"
_LEAST_DIGITS: Final = np.frombuffer(b"0000-00-00T00:00:00", np.uint8)
_MOST_DIGITS: Final = np.frombuffer(b"9999-99-99T99:99:99", np.uint8)
_SECOND_BYTES: Final = len(_LEAST_DIGITS)
_MOST_BYTES: Final = _SECOND_BYTES + len(".123456789Z")
_NANOS: Final = 10 ** np.arange(8, -1, -1, dtype=np.int32)
_POINT, _ZERO, _Z = b".0Z"


def require(fits: bool) -> None:
    """Raise ValueError unless something holds."""
    if not fits:
        raise ValueError


def oneofs(struct: Struct, kept: list[str]) -> list[list[int]]:
    """The places of the members of each oneof among the columns that are kept."""
    groups: dict[str, list[int]] = {}
    for column in struct.columns:
        if column.oneof and ptars_schema.field_name(column) in kept:
            groups.setdefault(column.oneof, []).append(kept.index(ptars_schema.field_name(column)))
    return [places for places in groups.values() if len(places) > 1]


def check_oneof(members: list[pa.Array]) -> None:
    """Raise ValueError where two members of a oneof are given."""
    given = [array.is_valid().to_numpy(zero_copy_only=False) for array in members if array.null_count < len(array)]
    require(len(given) < 2 or int(np.sum(given, axis=0).max()) < 2)


def structs(names: list[str], arrays: list[pa.Array], length: int, valid: pa.Buffer | None = None) -> pa.StructArray:
    """A struct array of fields of those names."""
    type_ = pa.struct([pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)])
    return pa.Array.from_buffers(type_, length, [valid], children=arrays)


def floats(numbers: pa.Array, type_: pa.DataType) -> pa.Array:
    """Doubles, rounded to the type as one number after another would be."""
    bound = np.inf if type_ == numbers.type else FLOAT_LIMIT
    require(bool((np.abs(numbers.drop_null().to_numpy()) < bound).all()))
    return numbers.cast(type_, safe=False)


def timestamps(texts: pa.StringArray) -> pa.Array:
    """Times in UTC as seconds and nanoseconds."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), TIME)
    valid = validity(texts)
    texts = pa.concat_arrays([texts.fill_null(_EPOCH_TEXT)])
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1)
    data, length = np.frombuffer(texts.buffers()[2], np.uint8, offsets[-1]), np.diff(offsets)
    whole = length == _SECOND_BYTES + 1
    require(bool((whole | ((length > _SECOND_BYTES + 2) & (length <= _MOST_BYTES))).all()))
    characters = data[np.minimum(offsets[:-1, None] + np.arange(_MOST_BYTES), len(data) - 1)]
    second, behind = characters[:, :_SECOND_BYTES], characters[:, _SECOND_BYTES]
    require(bool(((second >= _LEAST_DIGITS) & (second <= _MOST_DIGITS)).all()))
    require(bool((data[offsets[1:] - 1] == _Z).all() and ((behind == _POINT) | whole).all()))
    digits = characters[:, _SECOND_BYTES + 1 : -1] - _ZERO
    digits[np.arange(_SECOND_BYTES + 1, _MOST_BYTES - 1) >= length[:, None] - 1] = 0
    require(bool((digits <= 9).all()))
    starts = np.arange(0, second.size + 1, _SECOND_BYTES, dtype=np.int32)
    seconds = pa.StringArray.from_buffers(len(texts), pa.py_buffer(starts), pa.py_buffer(second.tobytes()))
    seconds = seconds.cast(pa.timestamp("s")).cast(pa.int64())
    require(pc.min(seconds).as_py() >= LEAST_SECONDS)
    nanos = pa.array(digits @ _NANOS, pa.int32())
    return structs(["seconds", "nanos"], [seconds, nanos], len(texts), valid)


def validity(array: pa.Array) -> pa.Buffer | None:
    """The bits of the values that are not null; None if all are."""
    return array.is_valid().buffers()[1] if array.null_count else None

"""Dead letters: the messages published to a dead-letter topic for those that break a limit or cannot be decoded.

A dead letter must itself be within the limits: the first 9 MB of the data, the attributes that fit, no ordering key
(one stuck key would hold back the next dead letter), and attributes of ours that give the reason. They are rare, so
they are made row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from ..names import RESERVED_PREFIX, TRACE_ATTRIBUTES
from .limits import MAX_ATTRIBUTES, MAX_KEY_BYTES, MAX_VALUE_BYTES

ERROR_ATTRIBUTE = "pubsub_spark_error"
SIZE_ATTRIBUTE = "pubsub_spark_data_bytes"

_MAX_DATA_BYTES = 9_000_000


def dead_letters(messages: pa.RecordBatch, reasons: Iterable[tuple[int, Mapping[str, str]]]) -> pa.RecordBatch:
    """The dead letters for some of the messages, each given by its row and the attributes that say what is wrong."""
    data, attributes = [], []
    for row, reason in reasons:
        whole = messages.column("data")[row].as_py()
        data.append(whole[:_MAX_DATA_BYTES])
        added = {key: _shortened(value) for key, value in reason.items()} | {SIZE_ATTRIBUTE: str(len(whole))}
        own = messages.column("attributes")[row].as_py() if "attributes" in messages.schema.names else []
        kept = [(key, value) for key, value in own if key not in added and _is_within_limits(key, value)]
        # The last of them: that of `idAttribute` is at the end.
        attributes.append([*kept[-(MAX_ATTRIBUTES - len(added)) :], *added.items()])
    return pa.RecordBatch.from_pydict(
        {"data": pa.array(data, pa.binary()), "attributes": pa.array(attributes, pa.map_(pa.string(), pa.string()))}
    )


def _shortened(value: str) -> str:
    return value.encode()[:MAX_VALUE_BYTES].decode(errors="ignore")


def _is_within_limits(key: str, value: str) -> bool:
    return (
        0 < len(key.encode()) <= MAX_KEY_BYTES
        and len(value.encode()) <= MAX_VALUE_BYTES
        and (key in TRACE_ATTRIBUTES or not key.lower().startswith(RESERVED_PREFIX))
    )

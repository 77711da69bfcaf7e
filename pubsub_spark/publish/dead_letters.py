"""Dead letters: the messages published to a dead-letter topic for those that break a limit or cannot be decoded.

A dead letter must itself be within the limits: the first 9 MB of the data, the attributes that fit, and attributes of
ours with the reason. It has no ordering key, because one stuck key would hold back the next dead letter. An attribute
has the message's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from ..names import RESERVED_PREFIX, SCHEMA_PREFIX, TRACE_ATTRIBUTES
from .limits import MAX_ATTRIBUTES, MAX_KEY_BYTES, MAX_VALUE_BYTES

ERROR_ATTRIBUTE = "pubsub_spark_error"
SIZE_ATTRIBUTE = "pubsub_spark_data_bytes"
ORDERING_KEY_ATTRIBUTE = "pubsub_spark_ordering_key"
INCOMPLETE_ATTRIBUTE = "pubsub_spark_incomplete"
"""Names the fields of the message that its dead letter does not have in full. Absent if it has all."""

_MAX_DATA_BYTES = 9_000_000


def dead_letters(messages: pa.RecordBatch, reasons: Iterable[tuple[int, Mapping[str, str]]]) -> pa.RecordBatch:
    """Return the dead letters for some of the messages: by row, with attributes that name the problem."""
    data, attributes = [], []
    for row, reason in reasons:
        [message] = messages.slice(row, 1).to_pylist()
        whole, key = message["data"], message.get("ordering_key", "")
        own = [(name, value) for name, value in message.get("attributes", ()) if not name.startswith(SCHEMA_PREFIX)]
        added = {name: _shortened(value) for name, value in reason.items()} | {SIZE_ATTRIBUTE: str(len(whole))}
        if key:
            added[ORDERING_KEY_ATTRIBUTE] = _shortened(key)
        kept = [(name, value) for name, value in own if name not in added and _is_within_limits(name, value)]
        is_incomplete = {
            "data": len(whole) > _MAX_DATA_BYTES,
            "attributes": len(kept) < len(own) or len(kept) + len(added) > MAX_ATTRIBUTES,
            "ordering_key": key != added.get(ORDERING_KEY_ATTRIBUTE, ""),
        }
        if any(is_incomplete.values()):
            added[INCOMPLETE_ATTRIBUTE] = ",".join(field for field, is_cut in is_incomplete.items() if is_cut)
        data.append(whole[:_MAX_DATA_BYTES])
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

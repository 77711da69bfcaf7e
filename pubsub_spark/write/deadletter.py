"""What is sent to a dead-letter topic for a message that cannot go on: over a limit of Pub/Sub, or not decodable.

It must itself be within the limits: the data cut at 9 MB, the attributes that fit, no ordering key (one stuck key would
hold back the next), and attributes of ours that say why. Rare, so it may go row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from ..names import RESERVED_PREFIX
from .limits import MAX_ATTRIBUTES, MAX_KEY_BYTES, MAX_VALUE_BYTES

ERROR_ATTRIBUTE = "pubsub_spark_error"
SIZE_ATTRIBUTE = "pubsub_spark_data_bytes"

_LONGEST_DATA = 9_000_000


def letters(messages: pa.RecordBatch, labels: Iterable[tuple[int, Mapping[str, str]]]) -> pa.RecordBatch:
    """The dead letters for some of the messages: a row, and the attributes that say what is wrong with it."""
    data, attributes = [], []
    for row, label in labels:
        whole = messages.column("data")[row].as_py()
        data.append(whole[:_LONGEST_DATA])
        ours = {key: _cut(value) for key, value in label.items()} | {SIZE_ATTRIBUTE: str(len(whole))}
        own = messages.column("attributes")[row].as_py() if "attributes" in messages.schema.names else []
        kept = [(key, value) for key, value in own if key not in ours and _fits(key, value)]
        attributes.append([*kept[: MAX_ATTRIBUTES - len(ours)], *ours.items()])
    return pa.RecordBatch.from_pydict(
        {"data": pa.array(data, pa.binary()), "attributes": pa.array(attributes, pa.map_(pa.string(), pa.string()))}
    )


def _cut(value: str) -> str:
    return value.encode()[:MAX_VALUE_BYTES].decode(errors="ignore")


def _fits(key: str, value: str) -> bool:
    return (
        0 < len(key.encode()) <= MAX_KEY_BYTES
        and len(value.encode()) <= MAX_VALUE_BYTES
        and not key.lower().startswith(RESERVED_PREFIX)
    )

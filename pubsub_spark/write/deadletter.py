"""What is sent to the dead-letter topic for a message that breaks a limit of Pub/Sub.

It must itself be within the limits: the data cut at 9 MB, the attributes that fit, no ordering key (one stuck key would
hold back the next), and attributes of ours that say why. Rare, so it may go row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from .limits import MAX_KEY_BYTES, MAX_VALUE_BYTES, RESERVED_PREFIX, Breach

ERROR_ATTRIBUTE = "pubsub_spark_error"
SIZE_ATTRIBUTE = "pubsub_spark_data_bytes"

_LONGEST_DATA = 9_000_000
_MOST_ATTRIBUTES = 90


def letters(messages: pa.RecordBatch, found: Iterable[Breach], why: Callable[[Breach], str]) -> pa.RecordBatch:
    """The dead letters for the breaches found; `why` gives the sentence."""
    data, attributes = [], []
    for breach in found:
        whole = messages.column("data")[breach.row].as_py()
        data.append(whole[:_LONGEST_DATA])
        own = messages.column("attributes")[breach.row].as_py() if "attributes" in messages.schema.names else []
        kept = [(key, value) for key, value in own if _fits(key, value)][:_MOST_ATTRIBUTES]
        reason = why(breach).encode()[:MAX_VALUE_BYTES].decode(errors="ignore")
        attributes.append([*kept, (ERROR_ATTRIBUTE, reason), (SIZE_ATTRIBUTE, str(len(whole)))])
    return pa.RecordBatch.from_pydict(
        {"data": pa.array(data, pa.binary()), "attributes": pa.array(attributes, pa.map_(pa.string(), pa.string()))}
    )


def _fits(key: str, value: str) -> bool:
    return (
        0 < len(key.encode()) <= MAX_KEY_BYTES
        and len(value.encode()) <= MAX_VALUE_BYTES
        and not key.lower().startswith(RESERVED_PREFIX)
    )

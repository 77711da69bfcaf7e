"""The fixed columns of a message, around `value`: StreamingPullResponse bytes to Arrow, no Python object per message.

`ptars` reads the protobuf wire format in Rust. `MESSAGES` (as delivered) and `RECEIPTS` (for the acks) are staged.
Users see columns made from MESSAGES by `envelope` or `databricks`. Their Spark types come from the same Arrow schemas,
because Spark compares them exactly.

Column reference: https://cloud.google.com/pubsub/docs/reference/rpc/google.pubsub.v1#pubsubmessage
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pubsub_spark.codec.arrays import offsets_of

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_ATTRIBUTES = pa.map_(pa.string(), pa.string())

MESSAGES = pa.schema(
    [
        ("message_id", pa.string()),
        ("data", pa.binary()),
        ("attributes", _ATTRIBUTES),
        ("publish_time", _TIMESTAMP),
        ("ordering_key", pa.string()),
        ("delivery_attempt", pa.int32()),
    ]
)
"""Messages as delivered: `ordering_key` is "" and `delivery_attempt` 0 where the service sent none."""

RECEIPTS = pa.schema([("ack_id", pa.string()), ("message_id", pa.string())])
"""The ack id of a message, and its message id, which identifies a redelivery."""

DATABRICKS = pa.schema(
    [
        ("messageId", pa.string()),
        ("payload", pa.binary()),
        ("attributes", pa.string()),
        ("publishTimestampInMillis", pa.int64()),
    ]
)
"""The columns of Databricks' `pubsub` source."""


class Received(NamedTuple):
    """Deliveries: row by row, `messages` has the schema MESSAGES and `receipts` RECEIPTS."""

    messages: pa.RecordBatch
    receipts: pa.RecordBatch

    def slice(self, offset: int, length: int | None = None) -> Received:
        return Received(self.messages.slice(offset, length), self.receipts.slice(offset, length))


@lru_cache(maxsize=1)
def _responses() -> Any:
    from google.pubsub_v1.types import StreamingPullResponse
    from ptars import HandlerPool, PtarsConfig

    descriptor = StreamingPullResponse.pb().DESCRIPTOR
    config = PtarsConfig(timestamp_unit="us", list_nullable=True, map_nullable=True, map_value_nullable=True)
    return HandlerPool([descriptor.file], config).get_for_message(descriptor)


def received(responses: Sequence[bytes]) -> Received:
    """Return the deliveries in serialized StreamingPullResponses, in their order."""
    deliveries = _responses().list_to_record_batch(list(responses)).column("received_messages").flatten()
    message = deliveries.field("message")
    columns = [*map(message.field, MESSAGES.names[:-1]), deliveries.field("delivery_attempt")]
    messages = pa.RecordBatch.from_arrays(columns, schema=MESSAGES)
    receipts = pa.RecordBatch.from_arrays([deliveries.field("ack_id"), message.field("message_id")], schema=RECEIPTS)
    return Received(messages, receipts)


def first_deliveries(received: Sequence[Received]) -> list[pa.RecordBatch]:
    """Return the messages, with only the first delivery of each message id."""
    ids = pa.chunked_array([batch.messages.column("message_id") for batch in received], pa.string())
    if pc.count_distinct(ids, mode="all").as_py() == len(ids):  # a table imports pandas, which takes 0.3 s
        return [batch.messages for batch in received]
    rows = pa.table({"id": ids, "row": np.arange(len(ids))})
    first = rows.group_by("id").aggregate([("row", "min")]).column("row_min")
    mask = np.zeros(len(ids), dtype=bool)
    mask[first.to_numpy()] = True
    ends = np.cumsum([0, *(batch.messages.num_rows for batch in received)])
    return [batch.messages.filter(pa.array(mask[ends[i] : ends[i + 1]])) for i, batch in enumerate(received)]


def envelope(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Return MESSAGES, with null where the service sent nothing."""
    *columns, keys, attempts = messages.columns
    columns.append(_null_unless(pc.binary_length(keys).cast(pa.bool_()), keys))
    columns.append(_null_unless(attempts.cast(pa.bool_()), attempts))
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def databricks(messages: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of Databricks' `pubsub` source: attributes as JSON, the publish time in milliseconds."""
    millis = pc.cast(messages.column("publish_time"), pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    attributes = pa.array([json.dumps(dict(pairs)) for pairs in messages.column("attributes").to_pylist()], pa.string())
    return pa.RecordBatch.from_arrays(
        [messages.column("message_id"), messages.column("data"), attributes, millis], schema=DATABRICKS
    )


def attribute(messages: pa.RecordBatch, name: str) -> pa.StringArray:
    """Return the first value of one attribute in each message, or null."""
    maps = messages.column("attributes")
    if maps.null_count:
        maps = maps.take(pa.array(np.arange(len(maps))))  # a null may hide entries, but not after `take`
    first, last = _span(maps)
    keys, values = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    entries = np.flatnonzero(np.asarray(pc.equal(keys, name)))
    counts = np.diff(offsets_of(maps))
    rows = np.repeat(np.arange(len(maps)), counts)[entries]
    if len(entries) == len(maps) and (np.diff(rows) == 1).all():
        return values.take(pa.array(entries))
    places = np.full(len(maps), -1)
    places[rows[::-1]] = entries[::-1]  # of several the first is written last
    return values.take(pa.array(places, mask=places < 0))


def size(messages: pa.RecordBatch) -> int:
    """Return the bytes of the payloads and attributes as published."""
    attributes = messages.column("attributes")
    first, last = _span(attributes)  # keys and items are those of the whole array, whatever part of it this is
    texts = (attributes.keys.slice(first, last - first), attributes.items.slice(first, last - first))
    return sum(last - first for first, last in map(_span, (messages.column("data"), *texts)))


def has_text(array: pa.StringArray) -> bool:
    first, last = _span(array)
    return last > first


def _span(array: pa.Array) -> tuple[int, int]:
    offsets = offsets_of(array)
    return int(offsets[0]), int(offsets[-1])


def _null_unless(present: pa.BooleanArray, array: pa.Array) -> pa.Array:
    """Arrow makes a scalar of a Python value with the help of pandas, whose import takes a new worker 0.3 s."""
    if present.true_count == len(array):
        return array
    if not present.true_count:
        return pa.nulls(len(array), array.type)
    return pc.if_else(present, array, pa.nulls(1, array.type)[0])

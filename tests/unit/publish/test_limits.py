"""Pub/Sub's limits: message sizes to the byte, and each limit at its edge and one beyond."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.pubsub_v1.types import PublishRequest, PubsubMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from pubsub_spark.publish import limits

ATTRIBUTES = pa.map_(pa.string(), pa.string())
TOPIC = "projects/p/topics/t"

message_dicts = st.fixed_dictionaries(
    {
        "data": st.one_of(st.binary(max_size=40), st.integers(100, 20_000).map(lambda n: b"x" * n)),
        "attributes": st.dictionaries(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=300), max_size=4),
        "ordering_key": st.text(max_size=200),
    }
)


def batch(*messages: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "data": pa.array([m.get("data", b"") for m in messages], pa.binary()),
            "attributes": pa.array([list(m.get("attributes", {}).items()) for m in messages], ATTRIBUTES),
            "ordering_key": pa.array([m.get("ordering_key", "") for m in messages], pa.string()),
        }
    )


def violations(*messages: dict[str, Any]) -> list[limits.LimitViolation]:
    made = batch(*messages)
    return limits.violations(made, limits.message_sizes(made), limits.topic_field_bytes(TOPIC))


@settings(deadline=None, max_examples=60)
@given(st.lists(message_dicts, max_size=6), st.integers(0, 2))
def test_sizes_are_those_of_protobuf(messages, skipped):
    """A request is as long as its topic and the sizes of its messages, also when the batch is a slice."""
    sizes = limits.message_sizes(batch(*messages).slice(skipped))

    for message, size in zip(messages[skipped:], sizes, strict=True):
        request = PublishRequest.pb()(topic=TOPIC, messages=[PubsubMessage.pb()(**message)])
        assert len(request.SerializeToString()) == limits.topic_field_bytes(TOPIC) + size


@pytest.mark.parametrize("bits", [7, 14, 21])
def test_sizes_where_a_length_takes_one_byte_more(bits: int):
    """Lengths of data and of whole messages, on both sides of a longer length in protobuf."""
    messages = [{"data": b"x" * length} for length in range(2**bits - 6, 2**bits + 2)]
    whole = (PublishRequest.pb()(messages=[PubsubMessage.pb()(**message)]) for message in messages)

    assert [request.ByteSize() for request in whole] == limits.message_sizes(batch(*messages)).tolist()


@pytest.mark.parametrize(
    "message",
    [
        {"attributes": {f"k{i}": "v" for i in range(100)}},
        {"attributes": {"k" * 256: "v"}},
        {"attributes": {"k": "v" * 1024}},
        {"attributes": {"k": "ä" * 512}},
        {"attributes": {"agoog": "v"}},
        {"attributes": {f"googclient_{name}": "v" for name in ("traceparent", "tracestate", "baggage")}},
        {"ordering_key": "k" * 1024},
        {"data": b"x" * (10_000_000 - limits.topic_field_bytes(TOPIC) - 5 - 5)},
    ],
    ids=["100 attributes", "key", "value", "value in bytes", "goog inside", "tracing", "ordering key", "request"],
)
def test_at_the_limit_is_taken(message):
    """The largest that Pub/Sub takes passes."""
    assert [] == violations(message)


@pytest.mark.parametrize(
    ("message", "column", "complaint"),
    [
        ({"attributes": {f"k{i}": "v" for i in range(101)}}, "attributes", "101 entries"),
        ({"attributes": {"a": "b", "k" * 257: "v"}}, "attributes", "a key of 257 bytes"),
        ({"attributes": {"a": "b", "k": "v" * 1025}}, "attributes", "a value of 1025 bytes under `k`"),
        ({"attributes": {"k": "ä" * 513}}, "attributes", "a value of 1026 bytes under `k`"),
        ({"attributes": {"a": "b", "google": "v"}}, "attributes", "`google`, but names that begin with `goog`"),
        ({"attributes": {"a": "b", "GooGle": "v"}}, "attributes", "`GooGle`, but names that begin with `goog`"),
        ({"attributes": {"googclient_schemaname": "v"}}, "attributes", "`googclient_schemaname`, but names that begin"),
        ({"attributes": {"a": "b", "": "v"}}, "attributes", "an empty key"),
        ({"ordering_key": "k" * 1025}, "ordering_key", "1025 bytes, more than the 1024"),
        ({"data": b"x" * (10_000_000 - limits.topic_field_bytes(TOPIC) - 5 - 4)}, "data", "10,000,001 bytes"),
    ],
    ids=[
        "101 attributes",
        "key",
        "value",
        "value in bytes",
        "goog",
        "goog in any case",
        "schema of a message",
        "no key",
        "ordering key",
        "request",
    ],
)
def test_beyond_the_limit_is_named(message, column, complaint):
    """A value one beyond the limit is refused with the row, the column and the number."""
    [violation] = violations({"data": b"fine", "attributes": {"a": "b"}}, message, {"data": b"fine"})

    assert (1, column) == violation[:2]
    assert complaint in violation.complaint


def test_neighbours_of_a_slice_are_not_named():
    """Arrow keeps the entries of a whole map column behind each slice of it."""
    made = batch({"attributes": {"a": "b"}}, {"data": b"fine"}, {"attributes": {"k": "v" * 1025}}).slice(1, 1)

    assert [] == limits.violations(made, limits.message_sizes(made), limits.topic_field_bytes(TOPIC))


def test_a_row_is_named_once():
    """For a message with several faults the first is reported."""
    [violation] = violations({"attributes": {"googa": "v" * 2000}, "ordering_key": "k" * 2000})

    assert "attributes" == violation.field


def test_neither_data_nor_attributes_is_empty():
    """An ordering key makes no message."""
    made = batch({}, {"data": b"x"}, {"attributes": {"a": ""}}, {"ordering_key": "k"})

    assert [True, False, False, True] == limits.is_empty(made).tolist()


def test_no_rows_have_no_sizes():
    """An empty Arrow batch is as good as any."""
    assert [] == limits.message_sizes(batch()).tolist()
    assert [] == violations()

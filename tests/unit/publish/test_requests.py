"""Publish requests: each message is in one of them, in order, within the limits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from google.pubsub_v1.types import PublishRequest
from hypothesis import given, settings
from hypothesis import strategies as st

from pubsub_spark.publish import limits, requests

TOPIC = "projects/p/topics/t"


def messages(keys: list[str], topics: list[str] | None = None) -> pa.RecordBatch:
    """Messages 0, 1, 2 ... with these ordering keys."""
    columns = {"data": pa.array([b"%d" % i for i in range(len(keys))], pa.binary())}
    if any(keys):
        columns["ordering_key"] = pa.array(keys, pa.string())
    if topics is not None:
        columns["topic"] = pa.array(topics, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def made(batch: pa.RecordBatch, topic: str | None = TOPIC, count: int = 1000, size: int = 1_000_000):
    return list(requests.encoded_requests(batch, limits.message_sizes(batch), topic, count, size))


def parsed(request: requests.EncodedRequest):
    return PublishRequest.pb().FromString(request.body)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.sampled_from(["", "", "a", "b", "c"]), max_size=60),
    st.lists(st.sampled_from(["projects/p/topics/one", "projects/p/topics/longer"]), min_size=60, max_size=60),
    st.booleans(),
    st.integers(1, 7),
    st.integers(60, 120),
)
def test_every_message_once_and_in_order(keys, topics, by_row, count, size):
    """Of each topic and key the messages are those of the rows, in their order, within count and bytes."""
    batch = messages(keys, topics[: len(keys)] if by_row else None)
    found = made(batch, None if by_row else TOPIC, count, size)

    expected: dict[tuple[str, str], list[int]] = {}
    for i, key in enumerate(keys):
        expected.setdefault((topics[i] if by_row else TOPIC, key), []).append(i)
    sent: dict[tuple[str, str], list[int]] = {}
    for request in found:
        body = parsed(request)
        assert {request.ordering_key} == {message.ordering_key for message in body.messages}
        assert request.topic == body.topic
        assert request.messages == len(body.messages) <= count
        assert len(request.body) <= size
        sent.setdefault((body.topic, request.ordering_key), []).extend(int(m.data) for m in body.messages)
    assert expected == sent


def test_keys_take_turns():
    """The first request of every key comes before the second of any, so that a key waits for no other."""
    found = made(messages(["a"] * 6 + ["b"] * 4), count=2)

    assert ["a", "b", "a", "b", "a"] == [request.ordering_key for request in found]


def test_batched_by_count():
    """A request has at most `maxBatchMessages` messages."""
    assert [1000, 1000, 500] == [request.messages for request in made(messages([""] * 2500))]


def test_batched_by_exact_bytes():
    """A request is as long as `maxBatchBytes` and not a byte longer."""
    batch = pa.RecordBatch.from_pydict({"data": pa.array([b"x" * 96] * 10)})  # 100 bytes each in a request
    size = limits.topic_field_bytes(TOPIC) + 300

    assert [300 + limits.topic_field_bytes(TOPIC)] * 3 == [len(r.body) for r in made(batch, size=size)][:3]
    assert [2] * 5 == [request.messages for request in made(batch, size=size - 1)]


def test_a_message_over_the_batch_size_goes_alone():
    """`maxBatchBytes` does not refuse a message that Pub/Sub takes."""
    batch = pa.RecordBatch.from_pydict({"data": pa.array([b"a", b"x" * 5000, b"b"])})

    assert [1, 1, 1] == [request.messages for request in made(batch, size=1000)]


def test_no_message_makes_no_request():
    """An empty Arrow batch has no ranges."""
    assert [] == made(messages([]))
    assert 0 == len(requests.batch_ranges(np.array([], dtype=np.int64), 10, 10).starts)


@pytest.mark.parametrize("count", [1, 3000])
def test_requests_are_encoded_a_few_at_a_time(count, monkeypatch):
    """However many bytes there are, no more than a few megabytes are encoded before the first is sent."""
    encoded = []
    encode = requests.encode

    def counted(*args):
        encoded.append(1)
        return encode(*args)

    monkeypatch.setattr(requests, "encode", counted)
    batch = pa.RecordBatch.from_pydict({"data": pa.array([b"x" * 10_000] * count)})

    next(iter(requests.encoded_requests(batch, limits.message_sizes(batch), TOPIC, 1000, 1_000_000)))

    assert 1 == len(encoded)

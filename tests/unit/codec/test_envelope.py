"""The size of a batch of messages, the values of an attribute in it, and its redeliveries."""

import datetime

import pyarrow as pa
import pytest

from pubsub_spark.codec.envelope import MESSAGES, Received, attribute, first_deliveries, received, size
from tests.unit.read.service import response

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def messages(*contents: tuple[bytes | None, dict[str, str] | None]) -> pa.RecordBatch:
    rows = [
        {
            "message_id": str(number),
            "data": data,
            "attributes": None if attributes is None else list(attributes.items()),
            "publish_time": NOW,
            "ordering_key": "",
            "delivery_attempt": 0,
        }
        for number, (data, attributes) in enumerate(contents)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGES)


def test_size_is_what_was_published():
    """The size counts payloads, attribute names and attribute values, each byte once, in a batch or a part of one."""
    all_of_it = messages((b"four", {"k": "v"}), (None, None), (b"", {}), (b"abc", {"key": "", "other": "value"}))

    assert [6, 0, 0, 16] == [size(all_of_it.slice(row, 1)) for row in range(4)]
    assert [22, 16, 0] == [size(all_of_it), size(all_of_it.slice(1)), size(all_of_it.slice(4))]
    assert 16 == size(all_of_it.filter(pa.array([False, True, True, True])))
    assert 0 == size(messages())


@pytest.mark.parametrize(
    "attributes",
    [
        [{"k": "1"}, {"k": "2"}, {"k": "3"}],
        [{"a": "", "k": "1"}, {"k": "2", "kk": "3"}, {"k": "", "a": "4"}],
        [{"k": "1"}, {}, {"a": "2"}],
        [{}, None, {"k": "1"}],
        [{}, {}],
        [None, None],
        [],
    ],
)
def test_attribute_of_each_message(attributes: list[dict[str, str] | None]):
    """Each message has the attribute's value or null, also in a part of a batch."""
    batch = messages(*((b"", each) for each in attributes))
    expected = [each.get("k") if each else None for each in attributes]

    assert expected == attribute(batch, "k").to_pylist()
    assert expected[1:] == attribute(batch.slice(1), "k").to_pylist()
    assert expected[:2] == attribute(batch.slice(0, 2), "k").to_pylist()


def test_attribute_that_comes_twice_has_its_first_value():
    """protobuf's wire format allows an entry twice. The first value counts."""
    batch = messages((b"", {"k": "1", "a": "2"}), (b"", {}))
    maps = batch.column("attributes")
    twice = pa.MapArray.from_arrays(maps.offsets, pa.array(["k", "k"]), maps.items)
    batch = batch.set_column(2, MESSAGES.field(2), twice)

    assert ["1", None] == attribute(batch, "k").to_pylist()


def test_entries_behind_a_null_are_not_found():
    """Entries that an Arrow array has behind a null are ignored."""
    batch = messages((b"", {"k": "1"}), (b"", {"k": "2"}))
    maps = batch.column("attributes")
    hidden = pa.MapArray.from_arrays(maps.offsets, maps.keys, maps.items, mask=pa.array([True, False]))
    batch = batch.set_column(2, MESSAGES.field(2), hidden)

    assert [None, "2"] == attribute(batch, "k").to_pylist()


def test_first_delivery_of_a_message_stays():
    """The first of several messages with one id stays, across all batches and in their order."""
    arrived = [received([response(texts)]) for texts in ("aba", "b", "acb")]
    kept = [batch.column("data").to_pylist() for batch in first_deliveries(arrived)]
    assert [[b"a", b"b"], [], [b"c"]] == kept


@pytest.mark.parametrize("texts", [[], ["ab", "c"]])
def test_without_redeliveries_nothing_is_copied(texts: list[str]):
    """Without redeliveries the batches are returned without a copy."""
    arrived: list[Received] = [received([response(each)]) for each in texts]
    assert all(got is each.messages for got, each in zip(first_deliveries(arrived), arrived, strict=True))

"""How much a batch of messages holds."""

import datetime

import pyarrow as pa

from pubsub_spark.codec.envelope import MESSAGES, size

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
    """Payloads, names and values of attributes, each byte once, of a batch or of a part of one."""
    all_of_it = messages((b"four", {"k": "v"}), (None, None), (b"", {}), (b"abc", {"key": "", "other": "value"}))

    assert [6, 0, 0, 16] == [size(all_of_it.slice(row, 1)) for row in range(4)]
    assert [22, 16, 0] == [size(all_of_it), size(all_of_it.slice(1)), size(all_of_it.slice(4))]
    assert 16 == size(all_of_it.filter(pa.array([False, True, True, True])))
    assert 0 == size(messages())

"""Rows of Bigtable subscriptions, made from messages alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.sinks.bigtable import Row, row
from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.message import Message

SUB = "projects/p/subscriptions/rows"
TABLE = "projects/p/instances/i/tables/t"
BY_KEY = {"delimited_key": {"key_fields": ["a", "b"], "delimiter": b"#"}}


def made(data: bytes, families: tuple[str, ...] = ("data",), **fields: Any) -> Row:
    body = protos.PubsubMessage(data=data, attributes={"x": "y"}, ordering_key="k").SerializeToString()
    [frame] = wire_format.message_frames([body], 10**16, wire_format.publish_time_field(1.5))
    return row(protos.BigtableConfig(table=TABLE, **fields), Message(10**16, 1.5, "k", frame), SUB, families)


def test_row_is_named_for_its_message():
    """Without a mapping the key is subscription, hash and id, and the data are one cell."""
    key, cells = made(b"\xff")

    assert key.startswith(f"{SUB}#".encode())
    assert key.endswith(b"#10000000000000000")
    assert [("data", b"", b"\xff")] == cells


def test_metadata_have_a_family():
    """The metadata are cells of `pubsub_metadata`. Attributes are JSON, including the ordering key."""
    _, [_, *metadata] = made(b"a", write_metadata=True)

    assert {"pubsub_metadata"} == {cell.family for cell in metadata}
    values = {cell.qualifier.decode(): cell.value for cell in metadata}
    assert (SUB.encode(), b"10000000000000000", b"1500000") == tuple(
        values[name] for name in ("subscription_name", "message_id", "publish_time")
    )
    assert {"x": "y", "ordering_key": "k"} == json.loads(values["attributes"])


def test_fields_become_columns():
    """Fields are columns of `data`, or cells of the family of their name, one for each field in them."""
    key, cells = made(
        b'{"a": "x", "b": 7, "f": {"p": 1, "q": "z"}, "g": [1], "data": 2}',
        ("data", "f", "g"),
        column_family_mapping=BY_KEY,
    )

    assert b"x#7" == key
    assert [
        ("data", b"a", b"x"), ("data", b"b", b"7"), ("f", b"p", b"1"), ("f", b"q", b"z"), ("g", b"", b"[1]"),
        ("data", b"data", b"2"),
    ] == cells  # fmt: skip


@pytest.mark.parametrize("data", [b'{"a": "x"}', b"[]", b"no"])
def test_messages_without_a_key_are_no_rows(data):
    """A message makes no row if it is not a JSON object or lacks a field of the key."""
    with pytest.raises(ValueError, match=r"has no field `b`|not a JSON object|Expecting value"):
        made(data, column_family_mapping=BY_KEY)

"""The arguments of the methods of an Emulator."""

from __future__ import annotations

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.arguments import message


@pytest.mark.parametrize("given", ["é", "é".encode(), {"data": "é"}, {"data": "é".encode()}])
def test_text_is_published_as_utf8(given):
    """A text is its UTF-8, alone and as `data` of a mapping."""
    assert protos.PubsubMessage(data=b"\xc3\xa9") == message(given)


@pytest.mark.parametrize("given", [5, bytearray(b"x"), {"dat": b"x"}, {"data": b"x", "attributes": {"a": 1}}])
def test_what_is_no_message_is_a_sentence(given):
    """The error says what a message is, and what was given in its place."""
    with pytest.raises((TypeError, ValueError)) as refused:
        message(given)
    assert str(refused.value).startswith("A message is bytes, a text, or a mapping of `data` (bytes or a text), ")
    assert str(refused.value).endswith(f", not `{given!r}`.")

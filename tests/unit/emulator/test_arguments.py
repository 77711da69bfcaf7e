"""The arguments of the methods of an Emulator."""

from __future__ import annotations

import pytest

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.arguments import message, resource


@pytest.mark.parametrize("given", ["é", "é".encode(), {"data": "é"}, {"data": "é".encode()}])
def test_text_is_published_as_utf8(given):
    """A text is encoded as UTF-8, alone and as `data` of a mapping."""
    assert protos.PubsubMessage(data=b"\xc3\xa9") == message(given)


@pytest.mark.parametrize("given", [5, bytearray(b"x"), {"dat": b"x"}, {"data": b"x", "attributes": {"a": 1}}])
def test_what_is_no_message_is_a_sentence(given):
    """The error names the accepted forms of a message, and the rejected value."""
    with pytest.raises((TypeError, ValueError)) as refused:
        message(given)
    assert str(refused.value).startswith("A message is bytes, a text, or a mapping of `data` (bytes or a text), ")
    assert str(refused.value).endswith(f", not `{given!r}`.")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ackDeadline": 3}, "`ackDeadline` is not a field of Subscription; did you mean `ack_deadline_seconds`?"),
        (
            {"dead_letter_policy": {"max_attempts": 5}},
            "`max_attempts` is not a field of DeadLetterPolicy; did you mean `max_delivery_attempts`?",
        ),
        (
            {"retry_policy": {"x": 1}},
            "`x` is not a field of RetryPolicy; its fields are minimum_backoff, maximum_backoff",
        ),
    ],
)
def test_unknown_field_names_the_nearest(settings, sentence):
    """An unknown field of a resource, or of a policy in it, is a TypeError that names the right one."""
    with pytest.raises(TypeError) as refused:
        resource(protos.Subscription, "projects/p/subscriptions/s", **settings)
    assert sentence == str(refused.value)


def test_labels_are_no_fields():
    """A map accepts any keys."""
    made = resource(protos.Topic, "projects/p/topics/t", labels={"team": "shop"})
    assert {"team": "shop"} == dict(made.labels)

"""The options that a message of a document sets, in addition to those of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from pubsub_spark.asyncapi.message_options import parse
from pubsub_spark.errors import OptionsError
from pubsub_spark.options import ReadOptions, WriteOptions

EXAMPLE = str(Path(__file__).parent.parent.parent.parent / "examples" / "flights.asyncapi.yaml")
PROJECT = {"GOOGLE_CLOUD_PROJECT": "p"}


def test_write_is_as_the_message_says():
    """Topic, encoding, attributes and ordering key of a write are those of the message."""
    options = parse(WriteOptions, {"asyncapi": EXAMPLE, "message": "flightDeparted"}, PROJECT)

    assert ("projects/p/topics/flight-departures", "topic") == (options.topic, options.encode)
    assert ((("source", "nyc"),), ("tailnum",)) == (options.described_attributes, options.ordering_field)
    assert "projects/p/schemas/flight" == options.described_schema


def test_read_is_as_the_message_says():
    """Subscription and schema of a read are those of the channel and the message. The only message needs no name."""
    options = parse(ReadOptions, {"AsyncAPI": EXAMPLE}, PROJECT)

    assert "projects/p/subscriptions/flight-departures-to-table" == options.subscription
    assert ("topic", "projects/p/schemas/flight") == (options.decode, options.schema)
    assert (("source", "nyc"),) == options.described_attributes


def test_what_the_user_gives_wins():
    """An option that the user sets overrides the document."""
    options = parse(WriteOptions, {"asyncapi": EXAMPLE, "topicid": "other", "orderingKey": "carrier"}, PROJECT)

    assert ("projects/p/topics/other", "carrier") == (options.topic, options.ordering_key)
    assert (None, None) == (options.ordering_field, options.ordering_text)


def test_ordering_key_without_such_a_field_is_a_text(tmp_path: Path):
    """A key that is not a field of the payload is the ordering key itself."""
    document = tmp_path / "api.yaml"
    document.write_text("""
asyncapi: 3.0.0
channels:
  flights:
    bindings: {googlepubsub: {}}
    messages:
      m:
        payload: {type: object, properties: {a: {type: string}}}
        bindings: {googlepubsub: {orderingKey: all flights}}
""")
    options = parse(WriteOptions, {"asyncapi": str(document)}, PROJECT)

    assert ("all flights", None) == (options.ordering_text, options.ordering_field)


TWO_CHANNELS = """
asyncapi: 3.0.0
channels:
  old:
    bindings: {googlepubsub: {}}
    messages: {event: {bindings: {googlepubsub: {attributes: {version: "1"}}}}}
  new:
    bindings: {googlepubsub: {}}
    messages: {event: {bindings: {googlepubsub: {attributes: {version: "2"}}}}}
operations:
  from-new: {action: receive, channel: {$ref: '#/channels/new'}}
"""


@pytest.mark.parametrize(
    ("cls", "given"), [(WriteOptions, {"topicId": "new"}), (ReadOptions, {"subscriptionId": "from-new"})]
)
def test_message_of_two_channels_is_that_of_the_topic(tmp_path: Path, cls, given):
    """The topic, or the subscription's topic, selects one of the messages with the same name."""
    document = tmp_path / "api.yaml"
    document.write_text(TWO_CHANNELS)

    options = parse(cls, {"asyncapi": str(document), "message": "event", **given}, PROJECT)

    assert (("version", "2"),) == options.described_attributes


def test_message_that_two_channels_describe_differently_is_refused(tmp_path: Path):
    """Without a topic no message is chosen by chance."""
    document = tmp_path / "api.yaml"
    document.write_text(TWO_CHANNELS)
    sentence = "`event`, which the channels of the topics `projects/p/topics/old` and `projects/p/topics/new` describe"

    with pytest.raises(OptionsError, match=sentence):
        parse(WriteOptions, {"asyncapi": str(document), "message": "event"}, PROJECT)


def test_unknown_message_is_a_sentence():
    """The error about an unknown message lists the known names."""
    with pytest.raises(
        OptionsError, match="`message` names `flight`, but the document's messages are `flightDeparted`"
    ):
        parse(ReadOptions, {"asyncapi": EXAMPLE, "message": "flight"}, PROJECT)


def test_message_needs_its_document():
    """`message` without `asyncapi` is refused."""
    with pytest.raises(OptionsError, match="`asyncapi` is required with `message`"):
        WriteOptions.parse({"message": "m", "topicId": "t-1"}, PROJECT)

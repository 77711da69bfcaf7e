"""The wire format's shortcuts for hot calls: each reads a request as a protobuf parser does, or leaves it to one."""

from __future__ import annotations

from google.pubsub_v1.types import ReceivedMessage
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.state import wire_format

_MESSAGES = st.builds(
    lambda data, attributes, key: protos.PubsubMessage(data=data, attributes=attributes, ordering_key=key),
    st.one_of(st.binary(max_size=200), st.integers(120, 20_000).map(bytes)),
    st.just({}) | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    st.just("") | st.text(max_size=3),
)


@given(st.lists(_MESSAGES, max_size=20), st.sampled_from(["", "projects/my-project/topics/news"]))
def test_bodies_of_data_alone_are_the_messages(messages: list[protos.PubsubMessage], topic: str):
    """Messages of data alone, with lengths of one to three bytes, are cut out as they are.

    With a message of another form none is.
    """
    raw = protos.PublishRequest(topic=topic, messages=messages).SerializeToString()
    plain = all(message.data and not message.attributes and not message.ordering_key for message in messages)

    found = wire_format.bodies_of_data_alone(raw)

    assert found is None or [message.SerializeToString() for message in messages] == found
    if plain and all(len(message.data) < 16_384 for message in messages):
        assert found is not None
    if not plain:
        assert found is None


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20), st.integers(10**16, 10**17 - 100))
def test_frames_hold_the_message_its_id_and_its_time(data: list[bytes], first: int):
    """Subscribers get the message as published, and the two fields that the service adds."""
    bodies = [protos.PubsubMessage(data=each).SerializeToString() for each in data]
    made = wire_format.message_frames(bodies, first, wire_format.publish_time_field(1_234.567))

    got = [ReceivedMessage.pb().FromString(frame).message for frame in made]
    assert data == [message.data for message in got]
    assert [str(first + n) for n in range(len(data))] == [message.message_id for message in got]
    assert {1_234_567} == {message.publish_time.ToMilliseconds() for message in got}
    response = protos.PublishResponse.FromString(wire_format.publish_response(range(first, first + len(data))))
    assert [message.message_id for message in got] == list(response.message_ids)


_NAME = "projects/my-project/subscriptions/sub"
_NUMBERS = st.lists(st.integers(0, 2**64 - 1), max_size=5) | st.builds(
    lambda first, length: list(range(first, first + length)), st.integers(0, 2**50), st.integers(1, 30)
)


@given(_NUMBERS, st.sampled_from(["", "x", "x" * 190]), st.integers(0, 5))
def test_ack_ids_cut_out_of_a_request_are_its_ack_ids(numbers: list[int], stranger: str, place: int):
    """The ack ids cut out are the request's, in any order or a batch's own, or None if one of them is not ours."""
    ack_ids = wire_format.AckIds(_NAME)
    texts = [ack_ids.text(number) for number in numbers]
    if stranger:
        texts.insert(place, stranger)
    raw = protos.AcknowledgeRequest(subscription=_NAME, ack_ids=texts).SerializeToString()

    name, rest = wire_format.subscription_and_rest(raw)
    found = ack_ids.numbers_in(rest)

    assert _NAME == name
    assert (None if stranger or not numbers else numbers) == (found if found is None else list(found))
    assert rest == protos.StreamingPullRequest(ack_ids=texts).SerializeToString()


@given(st.binary(max_size=400), st.integers(0, 400))
def test_bytes_that_are_no_ack_ids_are_left_to_the_parser(noise: bytes, at: int):
    """Whatever a request contains, its shortcut reads nothing that a parser would not find."""
    ack_ids = wire_format.AckIds(_NAME)
    good = protos.AcknowledgeRequest(ack_ids=[ack_ids.text(4096), ack_ids.text(4097)]).SerializeToString()
    bad = good[:at] + noise + good[at:]

    wire_format.subscription_and_rest(noise)
    found = ack_ids.numbers_in(bad)

    assert (found is None) == (bad != good)


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20), st.integers(0, 2**40), st.booleans())
def test_received_messages_carry_ack_ids_and_attempts(data: list[bytes], batch: int, counted: bool):
    """A response put together from parts is parsed correctly by a client: the ack ids, the messages, the attempts."""
    ack_ids = wire_format.AckIds(_NAME)
    numbers = range(4096 * batch, 4096 * batch + len(data))
    bodies = [protos.PubsubMessage(data=each).SerializeToString() for each in data]
    made = wire_format.message_frames(bodies, 10**16, wire_format.publish_time_field(0))
    attempts = list(range(1, len(data) + 1)) if counted else None

    got = protos.PullResponse.FromString(ack_ids.received(numbers, made, attempts)).received_messages

    assert [ack_ids.text(number) for number in numbers] == [each.ack_id for each in got]
    assert data == [each.message.data for each in got]
    assert (attempts or [0] * len(data)) == [each.delivery_attempt for each in got]

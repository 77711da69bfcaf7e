"""The publisher's short cut: bodies cut out of a request are the messages that a parser finds, or it is not taken."""

from __future__ import annotations

from google.pubsub_v1.types import ReceivedMessage
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.emulator import frames, protos

_MESSAGES = st.builds(
    lambda data, attributes, key: protos.PubsubMessage(data=data, attributes=attributes, ordering_key=key),
    st.one_of(st.binary(max_size=200), st.integers(120, 20_000).map(bytes)),
    st.just({}) | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    st.just("") | st.text(max_size=3),
)


@given(st.lists(_MESSAGES, max_size=20), st.sampled_from(["", "projects/my-project/topics/news"]))
def test_bodies_of_data_alone_are_the_messages(messages: list[protos.PubsubMessage], topic: str):
    """Sizes of one, two and three bytes of length; a message of another form sends all the long way round."""
    raw = protos.PublishRequest(topic=topic, messages=messages).SerializeToString()
    plain = all(message.data and not message.attributes and not message.ordering_key for message in messages)

    found = frames.bodies_of_data_alone(raw)

    assert found is None or [message.SerializeToString() for message in messages] == found
    if plain and all(len(message.data) < 16_384 for message in messages):
        assert found is not None
    if not plain:
        assert found is None


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=20), st.integers(10**16, 10**17 - 100))
def test_frames_hold_the_message_its_id_and_its_time(data: list[bytes], first: int):
    """What subscribers get is the message as published, and the two fields that the service adds."""
    bodies = [protos.PubsubMessage(data=each).SerializeToString() for each in data]
    made = frames.message_frames(bodies, first, frames.publish_time_field(1_234.567))

    got = [ReceivedMessage.pb().FromString(frame).message for frame in made]
    assert data == [message.data for message in got]
    assert [str(first + n) for n in range(len(data))] == [message.message_id for message in got]
    assert {1_234_567} == {message.publish_time.ToMilliseconds() for message in got}
    response = protos.PublishResponse.FromString(frames.publish_response(range(first, first + len(data))))
    assert [message.message_id for message in got] == list(response.message_ids)

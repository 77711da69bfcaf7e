"""Messages that were published together and are kept as one object."""

from __future__ import annotations

import gc
import sys
from typing import Any

from pubsub_spark.emulator.state import wire_format
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.message import PackedFrames, Publication

FIRST, PUBLISHED = 10**16, 1_700_000_000.125
BODIES = [b"\x0a\x01a", b"\x0a\x02bb", b"\x0a\x03ccc"]


def test_packed_frames_are_those_of_the_messages():
    """Index, slice, iteration and comparison return the same frames as a list of them."""
    frames = wire_format.message_frames(BODIES, FIRST, wire_format.publish_time_field(PUBLISHED))
    packed = PackedFrames(BODIES, FIRST, PUBLISHED)

    assert frames == list(packed) == packed[:]
    assert (frames[1], frames[-1]) == (packed[1], packed[-1])
    for each in (slice(1, None), slice(-2, None), slice(0, 2), slice(2, 1), slice(5, 9), slice(None, None, -2)):
        assert frames[each] == packed[each]
    assert packed == frames
    assert 3 == len(packed)
    publication = Publication(FIRST, PUBLISHED, "", packed)
    assert list(Publication(FIRST, PUBLISHED, "", frames).messages()) == list(publication.messages())
    assert isinstance(publication.unpacked().frames, list)


def test_backlog_takes_little_more_than_its_bodies():
    """A thousand messages of 100 bytes take less than 120 each, whatever the number of subscriptions."""
    events: list[Any] = []
    broker = Broker(events)
    topic = broker.create_topic("projects/p/topics/t")
    bodies = [b"\x0a\x64" + b"x" * 100] * 1000

    broker.publish(topic, bodies, "", 1.0)

    frames = events[-1].publication.frames
    held = [part for part in gc.get_referents(frames) if part is not type(frames)]
    assert 100_000 < sum(map(sys.getsizeof, held)) < 120_000

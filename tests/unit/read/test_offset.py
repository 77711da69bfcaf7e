"""Offsets: their form in a checkpoint."""

import json

import pytest

from pubsub_spark.errors import StagingError
from pubsub_spark.read.offset import Offset


def test_start_is_a_new_stream_each_time():
    """Two new checkpoints never meet in one staging area."""
    assert Offset.start().stream != Offset.start().stream
    start = Offset.start("projects/p/subscriptions/s")
    assert (0, "projects/p/subscriptions/s", None) == (start.batch, start.subscription, start.area)


def test_json_and_back():
    """An offset is read from JSON as it was written."""
    offset = Offset("s", 7)
    assert {"version": 1, "stream": "s", "batch": 7} == offset.to_json()
    assert offset == Offset.from_json(json.loads(json.dumps(offset.to_json())))
    assert offset == Offset.from_json({"version": 1, "stream": "s", "batch": 7})


def test_subscription_is_kept():
    """A checkpoint names its subscription. One of an older release does not, and is written as it was."""
    offset = Offset("s", 7, "projects/p/subscriptions/s")
    assert offset == Offset.from_json(offset.to_json())
    assert "subscription" not in Offset("s", 7).to_json()


def test_area_is_kept():
    """A checkpoint names the staging area of its last batch by a digest."""
    offset = Offset("s", 7, area="0c8f")
    assert {"version": 1, "stream": "s", "batch": 7, "area": "0c8f"} == offset.to_json()
    assert offset == Offset.from_json(offset.to_json())


@pytest.mark.parametrize("text", [{"version": 2, "stream": "s", "batch": 1}, {"topic": {"0": 1}}, {"version": 1}])
def test_foreign_offset_is_refused(text: dict[str, object]):
    """A checkpoint of another source or of a newer release is refused with the offset in the error."""
    with pytest.raises(StagingError, match="cannot read") as refused:
        Offset.from_json(text)
    assert str(text) in str(refused.value)

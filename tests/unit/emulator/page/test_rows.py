"""Pages of lists, times and amounts."""

from __future__ import annotations

import pytest

from pubsub_spark.emulator.page import rows


def test_pages_of_a_list():
    """A list is sorted and cut. A page beyond the last is the last."""
    names = ["c", "a", "b"]

    assert rows.Page(["a", "b"], 1, 2, 3) == rows.page(names, 1, 2)
    assert rows.Page(["c"], 2, 2, 3) == rows.page(names, 9, 2)
    assert rows.Page([], 1, 1, 0) == rows.page([], 1, 2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "none"), (0.04, "0.0 s"), (12.3, "12 s"), (310, "5 min 10 s"), (3600, "1 h"), (183_600, "2 d 3 h")],
)
def test_durations(seconds, text):
    """A duration is shown in two units at most."""
    assert text == rows.duration(seconds)


def test_moments_beyond_the_calendar():
    """A clock that was advanced by a million years still has a time."""
    assert "1970-01-01 00:00:01.500 UTC" == rows.moment(1.5)
    assert rows.moment(1e14).endswith("s after 1970")


def test_addresses_are_quoted():
    """A name with a `%` or a space leads to its own page."""
    assert "/page/projects/p/topics/a%25b" == rows.address("projects/p/topics/a%b")
    assert "?name=projects/p/topics/a%2Bb" == rows.query([("name", "projects/p/topics/a+b"), ("find", "")])

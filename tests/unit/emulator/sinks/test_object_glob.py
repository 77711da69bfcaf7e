"""The globs that select objects for ingestion."""

from __future__ import annotations

import pytest

from pubsub_spark.emulator.sinks.object_glob import Glob


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("", ["a", "a/b.txt"], []),
        ("*.txt", ["a.txt"], ["a/b.txt", "a.csv"]),
        ("**.txt", ["a.txt", "a/b.txt"], ["a.csv"]),
        ("in/**/x?.csv", ["in/x1.csv", "in/a/b/xy.csv"], ["x1.csv", "in/x.csv"]),
        ("[ab]-{one,other}.*", ["a-one.txt", "b-other.csv"], ["c-one.txt", "a-two.txt"]),
        ("[!a]", ["b"], ["a"]),
        ("a.b+(c)", ["a.b+(c)"], ["axb+(c)"]),
        ("[z-a]", ["[z-a]"], ["a", "b"]),
    ],
)
def test_globs(glob, yes, no):
    """One star stops at a slash, two do not. The rest is as in Cloud Storage."""
    chosen = Glob(glob)

    assert [] == [name for name in yes if not chosen.matches(name)]
    assert [] == [name for name in no if chosen.matches(name)]


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("glob", "name"),
    [("*a" * 30 + "b", "a" * 1000), ("**/" * 30 + "x", "a/" * 500), ("{a*,*a}" * 30 + "b", "a" * 1000)],
)
def test_globs_of_many_stars_take_no_time(glob, name):
    """The time does not grow with the number of ways to read a name. Some of these have more ways than there are
    seconds.
    """
    assert not Glob(glob).matches(name)

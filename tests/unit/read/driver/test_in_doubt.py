"""Ids in doubt: found until their time is over, in as few runs as make a batch cost what it has itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.read.driver.in_doubt import REMEMBERED_SECONDS, InDoubt
from pubsub_spark.read.staging.ids import is_in
from tests.unit.read.service import ids


def found(in_doubt: InDoubt, *texts: str) -> list[bool]:
    return list(is_in(ids(*texts), [run.ids for run in in_doubt.runs]))


def test_ids_are_in_doubt_for_the_longest_lease():
    """An id is found as long as its message may be delivered again, and at most a minute longer."""
    in_doubt = InDoubt("x-")
    in_doubt.add(ids("a"), 1, now=0)
    in_doubt.add(ids("b", "c"), 2, now=100)
    in_doubt.add(ids(), 3, now=100)

    for now, left in [
        (REMEMBERED_SECONDS, [True, True, True]),
        (REMEMBERED_SECONDS + 60, [False, True, True]),
        (REMEMBERED_SECONDS + 100, [False, True, True]),
        (REMEMBERED_SECONDS + 160, [False, False, False]),
    ]:
        in_doubt.forget(now)
        assert left == found(in_doubt, "a", "b", "c"), now


def test_no_ids_are_no_run():
    """A part without doubtful ids adds nothing to look into."""
    in_doubt = InDoubt("x-")
    in_doubt.add(ids(), 1, now=0)
    assert [] == in_doubt.runs


def test_merged_run_names_the_last_of_its_batches():
    """In a checkpoint that was put back to before that batch, ids of the run may be those of rows."""
    in_doubt = InDoubt("x-")
    in_doubt.add(ids("a"), 7, now=0)
    in_doubt.add(ids("b", "c"), 5, now=1)

    assert [(7, 3)] == [(run.batch, run.count) for run in in_doubt.runs]


def test_runs_of_a_minute_that_is_over_are_merged():
    """The first ids of another minute close the runs of the one before, which keep their time."""
    in_doubt = InDoubt("x-")
    in_doubt.add(ids(*(str(n) for n in range(100))), 1, now=0)
    in_doubt.add(ids("a"), 2, now=1)
    assert [100, 1] == [run.count for run in in_doubt.runs]
    in_doubt.add(ids("b"), 3, now=60)

    assert [(660, 2, 101), (720, 3, 1)] == [(run.until, run.batch, run.count) for run in in_doubt.runs]


def test_file_is_obsolete_when_no_run_and_no_planned_batch_needs_it():
    """A task may still read the file of a run that was merged or forgotten."""
    in_doubt = InDoubt("x-")
    in_doubt.add(ids("a"), 1, now=0)
    in_doubt.load("old", ids("b"), 1, until=60)
    in_doubt.files.add("x-1")
    assert [] == in_doubt.obsolete(set())

    in_doubt.add(ids("c", "d"), 2, now=1)
    in_doubt.forget(60)

    assert ["old", "x-1"] == in_doubt.obsolete(set())
    assert ["old"] == in_doubt.obsolete({"x-1"})


@given(st.lists(st.tuples(st.floats(0, 400), st.integers(1, 50)), max_size=40))
def test_ids_in_doubt_are_a_few_runs(steps: list[tuple[float, int]]):
    """Whatever is added when, nothing is forgotten before its time, and the runs are few."""
    in_doubt, now = InDoubt("x-"), 0.0
    times: dict[str, float] = {}
    paths: set[str] = set()
    for number, (pause, count) in enumerate(steps):
        now += pause
        texts = [f"{number}-{n}" for n in range(count)]
        before = {run.path: run for run in in_doubt.runs}
        in_doubt.add(ids(*texts), number, now)
        times |= dict.fromkeys(texts, now)
        in_doubt.forget(now)
        new = {run.path for run in in_doubt.runs} - before.keys()
        assert not new & paths, "a name is never used twice"
        paths |= new
    kept = [text for text, at in times.items() if at + REMEMBERED_SECONDS > now]

    assert all(found(in_doubt, *kept))
    assert len(in_doubt.runs) <= REMEMBERED_SECONDS / 60 + 2 + 11
    assert sorted(run.until for run in in_doubt.runs) == [run.until for run in in_doubt.runs]


@pytest.mark.parametrize("batches", [600, 6000])
def test_a_batch_costs_what_it_has(batches: int):
    """Ids are sorted a few times each, however many there are: the runs of a log-structured merge tree."""
    in_doubt, two = InDoubt("x-"), ids("a", "b")
    sizes: dict[str, int] = {}
    for batch in range(batches):
        in_doubt.add(two, batch, batch / 10)
        sizes |= {run.path: run.count for run in in_doubt.runs[-2:]}  # new ones are the last: each is sorted once

    assert sum(sizes.values()) < batches * 2 * 12

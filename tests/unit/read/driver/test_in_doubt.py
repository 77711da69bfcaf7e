"""Ids in doubt: found until their time is over, in so few runs that a batch costs only its own ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.read.driver.in_doubt import DOUBT_SECONDS, KEPT_SECONDS, InDoubt
from pubsub_spark.read.staging.ids import is_in
from tests.unit.read.service import ids


def found(in_doubt: InDoubt, *texts: str) -> list[bool]:
    return list(is_in(ids(*texts), [run.ids for run in in_doubt.runs]))


def test_ids_are_in_doubt_until_the_subscription_was_drained():
    """Time alone makes no id forgotten. A subscription drained too early proves nothing about it."""
    in_doubt = InDoubt("x-")
    in_doubt.add(ids("a"), 1, now=0)
    in_doubt.add(ids("b", "c"), 2, now=100)
    in_doubt.add(ids(), 3, now=100)

    for now, is_overdue, left in [
        (DOUBT_SECONDS, False, [True, True, True]),
        (DOUBT_SECONDS + 60, True, [False, True, True]),
        (DOUBT_SECONDS + 100, False, [False, True, True]),
        (DOUBT_SECONDS + 180, True, [False, False, False]),
        (DOUBT_SECONDS * 10, False, [False, False, False]),
    ]:
        assert is_overdue == in_doubt.is_overdue(now)
        in_doubt.drained(now)
        assert left == found(in_doubt, "a", "b", "c"), now


def test_accepted_ids_are_not_in_doubt():
    """A redelivery that was acknowledged in time is the last one. The rest of a run is another run."""
    in_doubt = InDoubt("x-")
    in_doubt.add(ids("a", "b"), 1, now=0)
    in_doubt.load("whole", ids("c"), 1, until=0)
    in_doubt.load("gone", ids("d"), 1, until=0)
    in_doubt.accept(ids("a"))
    in_doubt.accept(ids("d", "x"))

    assert 0 == in_doubt.compact(now=0)
    assert [False, True, True, False] == found(in_doubt, "a", "b", "c", "d")
    assert ["whole", "x-2"] == [run.path for run in in_doubt.runs]
    assert ["gone"] == in_doubt.obsolete(set())


def test_ids_are_forgotten_after_a_week():
    """A query that never drains its subscription does not keep ids forever, and reports how many it forgets."""
    in_doubt = InDoubt("x-")
    in_doubt.load("old", ids("a", "b"), 1, until=10)
    in_doubt.load("new", ids("c"), 1, until=11)

    assert 0 == in_doubt.compact(now=KEPT_SECONDS)
    assert 2 == in_doubt.compact(now=KEPT_SECONDS + 10)
    assert [False, False, True] == found(in_doubt, "a", "b", "c")


def test_more_ids_than_fit_in_memory_are_forgotten():
    """The oldest ones, because their redeliveries are the least likely."""
    in_doubt = InDoubt("x-", max_ids=3)
    for number, texts in enumerate(["ab", "c", "de"]):
        in_doubt.load(texts, ids(*texts), 1, until=number)

    assert 2 == in_doubt.compact(now=0)
    assert ["c", "de"] == [run.path for run in in_doubt.runs]


def test_copies_of_ids_do_not_count():
    """Each refused ack of a redelivery puts its id in doubt again, for longer."""
    in_doubt = InDoubt("x-", max_ids=3)
    for number in range(5):
        in_doubt.add(ids("a", "b"), 1, now=60.0 * number)

    assert 0 == in_doubt.compact(now=300.0)
    assert [2] == [run.count for run in in_doubt.runs]
    assert in_doubt.runs[0].until > 4 * 60 + DOUBT_SECONDS


def test_runs_of_a_subscription_that_is_never_drained_are_few():
    """Some ids are in doubt in each minute, and are never delivered again."""
    in_doubt = InDoubt("x-")
    texts = [str(minute) for minute in range(3 * 1440)]
    for minute, text in enumerate(texts):
        in_doubt.add(ids(text), minute, now=60.0 * minute)
        in_doubt.compact(now=60.0 * minute)

    assert len(in_doubt.runs) <= DOUBT_SECONDS / 60 + 32 + 5
    assert all(found(in_doubt, *texts))
    assert sorted(run.until for run in in_doubt.runs) == [run.until for run in in_doubt.runs]


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

    assert [(1260, 2, 101), (1320, 3, 1)] == [(run.until, run.batch, run.count) for run in in_doubt.runs]


def test_restarts_pile_up_no_files():
    """Of the runs whose time is over those of a day are one. The others stay as they are."""
    day = 86400.0
    in_doubt = InDoubt("x-")
    for path, texts, until in [("a", "1", -2.5 * day), ("b", "2", -2.2 * day), ("c", "3", 0.0), ("d", "4", 60.0)]:
        in_doubt.load(path, ids(texts), 1, until)
    in_doubt.load("e", ids("5"), 1, 120.0)

    in_doubt.join(now=0.0)

    assert ["x-1", "c", "d", "e"] == [run.path for run in in_doubt.runs]
    assert [-2.2 * day, 0.0, 60.0, 120.0] == [run.until for run in in_doubt.runs]
    assert [True] * 5 == found(in_doubt, "1", "2", "3", "4", "5")


def test_file_is_obsolete_when_no_run_and_no_planned_batch_needs_it():
    """A task may still read the file of a run that was merged or forgotten."""
    in_doubt = InDoubt("x-")
    in_doubt.add(ids("a"), 1, now=0)
    in_doubt.load("old", ids("b"), 1, until=60)
    in_doubt.files.add("x-1")
    assert [] == in_doubt.obsolete(set())

    in_doubt.add(ids("c", "d"), 2, now=1)
    in_doubt.drained(60)

    assert ["old", "x-1"] == in_doubt.obsolete(set())
    assert ["old"] == in_doubt.obsolete({"x-1"})


Step = tuple[float, int, bool]  # a pause, the number of ids, whether the subscription is drained


@given(st.lists(st.tuples(st.floats(0, 400), st.integers(1, 50), st.booleans()), max_size=40))
def test_ids_in_doubt_are_a_few_runs(steps: list[Step]):
    """Whatever is added when, nothing is forgotten before its time, and the runs are few."""
    in_doubt, now = InDoubt("x-"), 0.0
    times: dict[str, float] = {}
    paths: set[str] = set()
    for number, (pause, count, drained) in enumerate(steps):
        now += pause
        texts = [f"{number}-{n}" for n in range(count)]
        before = {run.path for run in in_doubt.runs}
        in_doubt.add(ids(*texts), number, now)
        times |= dict.fromkeys(texts, now)
        new = {run.path for run in in_doubt.runs} - before
        assert not new & paths, "a name is never used twice"
        paths |= new
        if drained:
            in_doubt.drained(now)
            assert len(in_doubt.runs) <= DOUBT_SECONDS / 60 + 2 + 11
    kept = [text for text, at in times.items() if at + DOUBT_SECONDS > now]

    assert all(found(in_doubt, *kept))
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

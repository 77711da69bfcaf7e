"""Recent ids: found until their time is over, in as few runs as make a batch cost what it has itself."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.read import recent_ids
from pubsub_spark.read.pull.lease import LEASE_SECONDS
from pubsub_spark.read.recent_ids import IdSet, RecentIds, deserialized, digests, is_in, merged, serialized
from tests.unit.read.service import ids


def found(recent: RecentIds, *texts: str) -> list[bool]:
    return list(is_in(ids(*texts), [run.ids for run in recent.runs]))


def test_digests_are_those_of_the_texts():
    """In the order of the array, a slice of it too; a null has one of its own kind."""
    texts = pa.array(["x", "a", "é", "a"])

    assert digests(texts)[:, 1:3].tolist() == digests(texts.slice(1, 2)).tolist() == ids("a", "é").tolist()
    assert digests(pa.array(["", None], pa.string())).shape == (2, 2)
    assert digests(pa.array([], pa.string())).shape == (2, 0)


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=4), st.lists(st.integers(0, 9), max_size=12))
def test_ids_are_in_runs(runs: list[list[int]], wanted: list[int]):
    """Wherever they are, however often, and in the order that was asked for."""
    made = [IdSet(merged([ids(*map(str, run))])) for run in runs]
    every = {each for run in runs for each in run}

    assert [each in every for each in wanted] == is_in(ids(*map(str, wanted)), made).tolist()


def test_digests_that_are_half_the_same_are_not_the_same():
    """Both halves count, also where several have the same first one."""
    made = ids("a", "b", "c").copy()
    made[0] = 7
    wanted = made.copy()
    wanted[1, 2] += 1

    assert [True, True, False] == is_in(wanted, [IdSet(merged([made[:, :2]])), IdSet(made[:, :0])]).tolist()


def test_recent_for_the_longest_lease():
    """An id is found for as long as its old lease may bring it again, and a minute longer at the most."""
    recent = RecentIds()
    recent.add(ids("a"), now=0)
    recent.add(ids("b", "c"), now=100)
    recent.add(ids(), now=100)

    for now, left in [
        (LEASE_SECONDS, [True, True, True]),
        (LEASE_SECONDS + 60, [False, True, True]),
        (LEASE_SECONDS + 100, [False, True, True]),
        (LEASE_SECONDS + 160, [False, False, False]),
    ]:
        recent.forget(now)
        assert left == found(recent, "a", "b", "c"), now


@given(st.lists(st.tuples(st.floats(0, 400), st.integers(1, 50)), max_size=40))
def test_recent_ids_are_a_few_runs(steps: list[tuple[float, int]]):
    """Whatever comes when, nothing is forgotten before its time, and the runs of a minute are few."""
    recent, now = RecentIds(), 0.0
    times: dict[str, float] = {}
    for number, (pause, count) in enumerate(steps):
        now += pause
        texts = [f"{number}-{n}" for n in range(count)]
        recent.add(ids(*texts), now)
        times |= dict.fromkeys(texts, now)
        recent.forget(now)
    kept = [text for text, at in times.items() if at + LEASE_SECONDS > now]

    assert all(found(recent, *kept))
    assert len(recent.runs) <= LEASE_SECONDS / 60 + 2 + 11
    assert len({run.number for run in recent.runs}) == len(recent.runs)


@pytest.mark.parametrize("batches", [600, 6000])
def test_a_batch_costs_what_it_has(batches: int, monkeypatch: pytest.MonkeyPatch):
    """Ids are sorted a few times each, however many there are: the runs of a log-structured merge tree."""
    sorted_ids = 0

    def counted(parts: list[recent_ids.Digests]) -> recent_ids.Digests:
        nonlocal sorted_ids
        result = merged(parts)
        sorted_ids += result.shape[1]
        return result

    monkeypatch.setattr(recent_ids, "merged", counted)
    recent, each = RecentIds(), ids("a", "b")
    for batch in range(batches):
        recent.add(each, batch / 10)

    assert sorted_ids < batches * 2 * 12


def test_file_has_its_ids_sorted_and_its_metadata():
    """As Arrow, for whoever looks into the staging area."""
    content, metadata = deserialized(serialized(merged([ids("b"), ids("a")]), topic="t", part=3, nothing=None))

    assert (merged([ids("a", "b")]).tolist(), {"topic": "t", "part": "3"}) == (content.tolist(), metadata)
    assert (2, 0) == deserialized(serialized(merged([])))[0].shape

"""Recent ids: found until their time is over, in as few runs as make a batch cost what it has itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsub_spark.read import recent_ids
from pubsub_spark.read.leases import LEASE_SECONDS
from pubsub_spark.read.staging.ids import Digests, is_in, merged
from pubsub_spark.read.pull.lease import LEASE_SECONDS
from tests.unit.read.service import ids


def found(recent: RecentIds, *texts: str) -> list[bool]:
    return list(is_in(ids(*texts), [run.ids for run in recent.runs]))


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

    def counted(parts: list[Digests]) -> Digests:
        nonlocal sorted_ids
        result = merged(parts)
        sorted_ids += result.shape[1]
        return result

    monkeypatch.setattr(recent_ids, "merged", counted)
    recent, each = RecentIds(), ids("a", "b")
    for batch in range(batches):
        recent.add(each, batch / 10)

    assert sorted_ids < batches * 2 * 12

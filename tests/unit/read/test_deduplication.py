"""Deduplication: which messages may be delivered again, and the dropping of their rows."""

import pyarrow as pa

from pubsub_spark.codec.envelope import Received, received
from pubsub_spark.read.deduplication import RecentIds, drop_duplicates, exclude
from pubsub_spark.read.leases import LEASE_SECONDS
from tests.unit.read.service import response


def arrival(texts: str) -> Received:
    return received([response(texts)])


def texts(kept: Received) -> list[str]:
    return [data.decode() for data in kept.messages.column("data").to_pylist()]


def test_no_recent_ids_drop_nothing():
    """The usual case costs nothing and changes nothing."""
    got = arrival("ab")
    assert got is exclude(got, pa.array([], pa.string()))


def test_recent_ids_are_dropped():
    """Rows of recent ids are left out, wherever they are; the others keep their order."""
    recent = pa.array(["id-b", "id-d", "id-x"], pa.string())
    assert [["a", "c"], []] == [texts(exclude(arrival(group), recent)) for group in ("abc", "d")]


def test_the_first_of_a_deduplication_id_stays():
    """Of messages with one deduplication id the first stays, over all batches and in their order."""
    assert [["a", "b"], [], ["c"]] == [
        texts(got) for got in drop_duplicates([arrival("aba"), arrival("b"), arrival("acb")])
    ]


def test_recent_for_the_longest_lease():
    """An id is dropped for as long as its old lease may bring it again, and no longer."""
    recent = RecentIds()
    recent.add(pa.array(["a"]), now=0)
    recent.add(pa.array(["b", "c"]), now=100)
    recent.add(pa.array([], pa.string()), now=100)

    for now, left in [(LEASE_SECONDS - 1, ["a", "b", "c"]), (LEASE_SECONDS, ["b", "c"]), (LEASE_SECONDS + 100, [])]:
        recent.forget(now)
        assert left == recent.ids.to_pylist()

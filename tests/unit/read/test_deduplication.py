"""Deduplication: which messages may be delivered again, and the dropping of their rows."""

from pathlib import Path

from pubsub_spark.codec.envelope import Received, received
from pubsub_spark.read import claims
from pubsub_spark.read.deduplication import Deduplication, drop_duplicates, exclude, repeated_ids
from pubsub_spark.read.leases import Leases
from pubsub_spark.read.recent_ids import IdSet, is_in, merged
from pubsub_spark.read.staging import Staging
from tests.unit.read.service import SUBSCRIPTION, ids, part, response


def arrival(texts: str) -> Received:
    return received([response(texts)])


def texts(kept: Received) -> list[str]:
    return [data.decode() for data in kept.messages.column("data").to_pylist()]


def test_no_recent_ids_drop_nothing():
    """The usual case costs nothing and changes nothing."""
    got = arrival("ab")
    assert got is exclude(got, [])


def test_recent_ids_are_dropped():
    """Rows of recent ids are left out, wherever they are; the others keep their order."""
    recent = [IdSet(merged([ids(*each)])) for each in (["id-b", "id-x"], ["id-d"])]
    assert [["a", "c"], []] == [texts(exclude(arrival(group), recent)) for group in ("abc", "d")]


def test_the_first_of_a_deduplication_id_stays():
    """Of messages with one deduplication id the first stays, over all batches and in their order."""
    assert [["a", "b"], [], ["c"]] == [
        texts(got) for got in drop_duplicates([arrival("aba"), arrival("b"), arrival("acb")])
    ]


def test_ids_that_an_earlier_part_has_are_repeated():
    """Earlier in the order of the parts that are given, whatever their numbers."""
    found = repeated_ids({part: ids(*texts) for part, texts in {0: "a", 3: "abc", 1: "xcb", 2: "y"}.items()})

    expected = {3: merged([ids("a")]).tolist(), 1: merged([ids("c", "b")]).tolist()}
    assert expected == {part: each.tolist() for part, each in found.items()}


def test_claim_of_a_part_that_is_not_in_the_batch_is_nothing(tmp_path: Path):
    """A task that outlives its driver claims after the manifest: its messages come again, and are no duplicates."""
    staging = Staging(str(tmp_path), SUBSCRIPTION, "stream")
    staging.create("1/part-1", part("a"))
    claims.claim(staging, 1, 1, merged([ids("id-a")]))
    staging.write_manifest(1)
    staging.create("1/part-2", part("b"))
    claims.claim(staging, 1, 2, merged([ids("id-a", "id-b")]))
    deduplication = Deduplication(staging, Leases(), lambda: 0.0, every_batch=True)

    assert 0 == deduplication.add_committed(1, staging.parts(1))
    assert [True, False] == list(is_in(ids("id-a", "id-b"), deduplication.ids_to_exclude(0.0)))

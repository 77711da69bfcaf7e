"""Deduplication: which messages may be delivered again, and the dropping of their rows."""

from pubsub_spark.codec.envelope import Received, received
from pubsub_spark.read.deduplication import drop_duplicates, exclude
from pubsub_spark.read.staging.ids import IdSet, merged
from tests.unit.read.service import ids, response


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


def test_the_first_of_a_message_id_stays():
    """Of messages with one id the first stays, over all batches and in their order."""
    assert [["a", "b"], [], ["c"]] == [
        texts(got) for got in drop_duplicates([arrival("aba"), arrival("b"), arrival("acb")])
    ]

"""Dropping what was seen before: the rows go, the receipts stay."""

import pyarrow as pa

from pubsub_spark.codec.envelope import Received, received
from pubsub_spark.read.redelivery import firsts, without
from tests.unit.read.service import response


def arrival(texts: str) -> Received:
    return received([response(texts)])


def texts(kept: Received) -> list[str]:
    return [data.decode() for data in kept.messages.column("data").to_pylist()]


def test_nothing_known_drops_nothing():
    """The usual case costs nothing and changes nothing."""
    got = arrival("ab")
    assert got is without(got, pa.array([], pa.string()))


def test_known_ids_are_dropped():
    """Rows of known ids are left out, wherever they are; the others keep their order."""
    known = pa.array(["id-b", "id-d", "id-x"], pa.string())
    assert [["a", "c"], []] == [texts(without(arrival(group), known)) for group in ("abc", "d")]


def test_the_first_of_an_identity_stays():
    """Over all that was received, and in its order."""
    assert [["a", "b"], [], ["c"]] == [texts(got) for got in firsts([arrival("aba"), arrival("b"), arrival("acb")])]

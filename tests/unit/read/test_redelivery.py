"""Dropping what was seen before: the rows go, the receipts stay."""

import pyarrow as pa

from pubsub_spark.codec.envelope import Received, received
from pubsub_spark.read.redelivery import without
from tests.unit.read.service import response


def arrivals(*groups: str) -> list[Received]:
    return [received([response(group)]) for group in groups]


def texts(kept: list[pa.RecordBatch]) -> list[list[str]]:
    return [[data.decode() for data in batch.column("data").to_pylist()] for batch in kept]


def test_nothing_known_drops_nothing():
    """The usual case costs nothing and changes nothing."""
    assert ([["a", "b"]], 0) == _dropped(arrivals("ab"), [])


def test_known_ids_are_dropped():
    """Rows of known ids are left out, wherever they are; the others keep their order."""
    assert ([["a", "c"], []], 2) == _dropped(arrivals("abc", "d"), ["id-b", "id-d", "id-x"])


def _dropped(arrived: list[Received], known: list[str]) -> tuple[list[list[str]], int]:
    kept, count = without(arrived, pa.array(known, pa.string()))
    return texts(kept), count

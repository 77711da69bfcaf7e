"""A Python source that yields one Arrow batch over and over: the floor, which is the time of Spark alone.

A module of its own, because Spark's workers import it by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
from canned import responses
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from pubsub_spark.codec.envelope import MESSAGES, envelope, received
from pubsub_spark.codec.spark_types import struct_type

BATCH = 1_000_000  # messages in a micro-batch


class ReadyMade(DataSource):
    """A source of one Arrow batch, yielded over and over."""

    @classmethod
    def name(cls) -> str:
        return "ready_made"

    def schema(self) -> Any:
        return struct_type(pa.struct(list(MESSAGES)))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ARG002
        return ReadyMadeReader(int(self.options["messages"]), int(self.options["partitions"]))


class ReadyMadeReader(DataSourceStreamReader):
    def __init__(self, messages: int, partitions: int) -> None:
        self.messages, self.count = messages, partitions

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: Mapping[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: ARG002
        assert start is not None
        return {"n": min(start["n"] + BATCH, self.messages)}

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[InputPartition]:
        return [InputPartition((end["n"] - start["n"]) // self.count) for _ in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = _ready_batch()
        for _ in range(partition.value // batch.num_rows):
            yield batch


@lru_cache(maxsize=1)
def _ready_batch() -> pa.RecordBatch:
    return envelope(received(responses(10)).messages)

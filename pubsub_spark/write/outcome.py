"""What became of rows: counted in the tasks, added up on the driver, and carried there in two ways.

A task's commit message tells the writer's `commit`, which logs the sum. For a program there is `WriteSummary`, an
accumulator of Spark's and a format of its own that adds to it what each successful task has published.

    summary = WriteSummary(spark)
    df.write.format(summary.format).mode("append").option("topicId", "t").save()
    summary.value.messages
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam, _deserialize_accumulator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Outcome:
    """Counts: confirmed messages, the bytes of their requests, requests, retries of requests, and what was not sent."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    dropped: int = 0
    dead_lettered: int = 0

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.messages} messages, {self.bytes} bytes, {self.requests} requests, {self.retries} retries, "
            f"{self.dropped} rows dropped, {self.dead_lettered} dead-lettered"
        )


class _Sum(AccumulatorParam[Outcome]):
    def zero(self, value: Outcome) -> Outcome:
        return type(value)()

    def addInPlace(self, value1: Outcome, value2: Outcome) -> Outcome:
        return value1 + value2


class WriteSummary:
    """What writes have published so far: write to `format` in place of `pubsub`, read `value` at any time.

    Counts the tasks that ended well, of batch writes and of streams, in classic PySpark (Spark Connect has no
    accumulators).
    """

    def __init__(self, spark: SparkSession) -> None:
        self._sum = spark.sparkContext.accumulator(Outcome(), _Sum())
        self.format = f"pubsub_counted_{self._sum.aid}"
        # Spark takes accumulators only from a source that a program has registered, not from one that it has found by
        # itself, and 4.0 lets nobody register again what it has found. So this is the same source by another name.
        spark.dataSource.register(_counted(self.format, self._sum.aid))

    @property
    def value(self) -> Outcome:
        """The sum so far."""
        return self._sum.value


def _counted(name: str, accumulator: int) -> type[DataSource]:
    from ..source import PubSubDataSource

    class Counted(PubSubDataSource):
        """The source, whose writers report to one accumulator."""

        @classmethod
        def name(cls) -> str:
            return name

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            made = super().writer(schema, overwrite)
            made.summary = accumulator  # type: ignore[attr-defined]
            return made

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            made = super().streamWriter(schema, overwrite)
            made.summary = accumulator  # type: ignore[attr-defined]
            return made

    return Counted


def report(accumulator: int, outcome: Outcome) -> None:
    """Add a task's outcome to the accumulator of that id; Spark sends it to the driver when the task ends well."""
    # An accumulator reaches a task by being unpickled there. A data source is made from options in a process that has
    # no SparkContext and could not pickle one, so the task makes what unpickling would have made.
    _deserialize_accumulator(accumulator, Outcome(), _Sum()).add(outcome)

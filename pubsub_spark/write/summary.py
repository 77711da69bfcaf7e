"""`WriteSummary`: the metrics of all writes of a program, in a Spark accumulator.

    summary = WriteSummary(spark)
    df.write.format(summary.format).mode("append").option("topicId", "t").save()
    summary.value.messages

Spark takes accumulators only from a data source that a program has registered, and Spark 4.0 does not let an installed
one be registered again. So `summary.format` is the sink under another name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .metrics import WriteMetrics, WriteMetricsParam
from .sink import PubSubSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class WriteSummary:
    """The metrics of all writes so far: write to `format` instead of `pubsub`, read `value` at any time.

    Counts the tasks that ended well, of batch writes and of streams. Raises RuntimeError for a session of Spark
    Connect, which has no accumulators.
    """

    def __init__(self, spark: SparkSession) -> None:
        if not hasattr(spark, "sparkContext"):
            raise RuntimeError(
                "`WriteSummary` needs an accumulator, which a session of Spark Connect does not have. The log of the "
                "Connect server's driver has the counts of each write."
            )
        self._accumulator = spark.sparkContext.accumulator(WriteMetrics(), WriteMetricsParam())
        self.format = f"pubsub_counted_{self._accumulator.aid}"
        spark.dataSource.register(_counting_sink(self.format, self._accumulator.aid))

    @property
    def value(self) -> WriteMetrics:
        """The sum so far."""
        return self._accumulator.value


def _counting_sink(name: str, accumulator_id: int) -> type[DataSource]:
    class CountingSink(PubSubSink):
        @classmethod
        def name(cls) -> str:
            return name

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            writer = super().writer(schema, overwrite)
            writer.accumulator_id = accumulator_id  # type: ignore[attr-defined]
            return writer

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            writer = super().streamWriter(schema, overwrite)
            writer.accumulator_id = accumulator_id  # type: ignore[attr-defined]
            return writer

    return CountingSink

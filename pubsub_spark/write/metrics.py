"""The counts of a write: kept by each task, added up on the driver."""

from __future__ import annotations

from dataclasses import astuple, dataclass

from pyspark.accumulators import AccumulatorParam, _deserialize_accumulator


@dataclass(frozen=True)
class WriteMetrics:
    """Counts of a write: confirmed messages, the bytes of their requests, requests, retries, and rows not published."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    retries: int = 0
    dropped: int = 0
    dead_lettered: int = 0

    def __add__(self, other: WriteMetrics) -> WriteMetrics:
        return WriteMetrics(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return (
            f"{self.messages} messages, {self.bytes} bytes, {self.requests} requests, {self.retries} retries, "
            f"{self.dropped} rows dropped, {self.dead_lettered} dead-lettered"
        )


class WriteMetricsParam(AccumulatorParam[WriteMetrics]):
    def zero(self, value: WriteMetrics) -> WriteMetrics:
        return type(value)()

    def addInPlace(self, value1: WriteMetrics, value2: WriteMetrics) -> WriteMetrics:
        return value1 + value2


def add_to_accumulator(accumulator_id: int, metrics: WriteMetrics) -> None:
    """Spark sends the metrics to the driver when the task ends well."""
    # An accumulator reaches a task by being unpickled there. A data source is made from options in a process that has
    # no SparkContext and could not pickle one, so the task makes the same object itself.
    _deserialize_accumulator(accumulator_id, WriteMetrics(), WriteMetricsParam()).add(metrics)

"""The table function `read_pubsub(...)` of SQL: a batch read, with the options as named arguments.

A Python table function of Spark runs once and ends, so it reads as `spark.read` does: up to `maxMessages` messages,
which are returned to the subscription. `analyze` parses the options and chooses the schema, once, on the driver. The
reader travels with its result to the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.functions import udtf
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult, UserDefinedTableFunction

from .errors import OptionsError
from .read.batch_reader import PubSubBatchReader
from .source import PubSubDataSource

NAME = "read_pubsub"


@dataclass
class ReadAnalysis(AnalyzeResult):
    """The columns of a call of the function, and the reader of its rows."""

    reader: PubSubBatchReader | None = None


class ReadPubSub:
    def __init__(self, analysis: ReadAnalysis | None = None) -> None:
        self._reader = None if analysis is None else analysis.reader

    @staticmethod
    def analyze(**arguments: AnalyzeArgument) -> ReadAnalysis:
        """Return the columns that the options ask for. Raises OptionsError, and the errors of
        `PubSubBatchReader.check`.
        """
        moving = [name for name, argument in arguments.items() if not _is_constant(argument)]
        if moving:
            raise OptionsError([f"`{name}` must be a constant in `{NAME}`, not a column" for name in moving])
        options = {name: _text(argument.value) for name, argument in arguments.items() if argument.value is not None}
        source = PubSubDataSource(options)
        schema = source.schema()
        reader = cast("PubSubBatchReader", source.reader(schema))
        reader.check()
        return ReadAnalysis(schema, reader=reader)

    def eval(self, **_: Any) -> Iterator[tuple[Any, ...]]:
        assert self._reader is not None, "Spark makes the function with the result of `analyze`"
        for batch in self._reader.read(InputPartition(0)):
            columns = (column.to_pylist(maps_as_pydicts="strict") for column in batch.columns)
            yield from zip(*columns, strict=True)


def register_function(spark: SparkSession) -> None:
    """Register the function in a session. The kind of function depends on the kind of session (Connect or not)."""
    # Rows are made one by one here. With `useArrow` Spark would ask for pandas, and warn if it is missing.
    spark.udtf.register(NAME, cast("UserDefinedTableFunction", udtf(ReadPubSub, useArrow=False)))


def _is_constant(argument: AnalyzeArgument) -> bool:
    """Spark 4.0 shows that an argument is constant in its value alone."""
    return bool(getattr(argument, "isConstantExpression", True)) and not argument.isTable


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

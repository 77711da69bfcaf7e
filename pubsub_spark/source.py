"""`format("pubsub")`: name, schema, and the readers and writers. Wiring only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from .backend import from_options, schemas
from .codec.json import JsonSchema
from .codec.registry import TopicSchema
from .errors import OptionsError
from .options import ReadOptions
from .read.batch_reader import PubSubBatchReader
from .read.rows import Rows
from .read.stream_reader import PubSubStreamReader
from .write.sink import PubSubSink, parsed


class PubSubDataSource(PubSubSink):
    """The data source `format("pubsub")`: the sink, which writes, and the readers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._rows: Rows | None = None

    @classmethod
    def name(cls) -> str:
        return "pubsub"

    def schema(self) -> StructType:
        """Return the columns of a message (docs/options.md), with `value` when the topic's schema decodes it."""
        return self._shape(parsed(ReadOptions, self._given, self._environ)).spark_schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `spark.read`, which acknowledges nothing."""
        return PubSubBatchReader(*self._reading(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PubSubStreamReader(*self._reading(schema))

    def _reading(self, schema: StructType) -> tuple[ReadOptions, Any, Rows]:
        options = parsed(ReadOptions, self._given, self._environ)
        rows = self._shape(options)
        if rows.spark_schema != schema:
            raise OptionsError(
                [
                    'format("pubsub") does not accept `.schema(...)`. Its columns are '
                    f"`{rows.spark_schema.simpleString()}`. Leave it out and select the columns you need. A table "
                    f"keeps the columns of its CREATE TABLE: use the same options in `WITH (...)`, or create it again"
                ]
            )
        return options, from_options(options), rows

    def _shape(self, options: ReadOptions) -> Rows:
        """Return the columns of the rows, kept and pickled with the source: all of a query must use one schema
        revision.
        """
        if self._rows is None:
            backend = from_options(options)
            schema: TopicSchema | JsonSchema | None = None
            if options.decode == "json":
                schema = JsonSchema(options.schema or "")
            elif options.decode == "topic":
                with backend.connect() as connection:
                    schema = schemas.for_reading(connection.admin, options)
            self._rows = Rows(options, backend, schema)
        return self._rows


class PubSubSparkDataSource(PubSubDataSource):
    """The data source `format("pubsub_spark")`: the same under a name that no Java source has."""

    @classmethod
    def name(cls) -> str:
        return "pubsub_spark"


__all__ = ["PubSubDataSource", "PubSubSparkDataSource"]

"""The writing half of `format("pubsub")`: the data source class whose writers publish. Wiring only.

`source` adds the reading half. `WriteSummary` registers this half alone, under a name of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from ..backend import from_options
from ..options import WriteOptions
from .writer import PubSubBatchWriter, PubSubStreamWriter

_ENVIRONMENT = ("PUBSUB_EMULATOR_HOST", "GOOGLE_CLOUD_PROJECT")


class PubSubSink(DataSource):
    """A data source that can be written to. Spark makes and pickles it often: the constructor opens nothing."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = dict(options)
        self._environ = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of `df.write`."""
        options = WriteOptions.parse(self._given, self._environ)
        return PubSubBatchWriter(options, from_options(options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of `df.writeStream`."""
        options = WriteOptions.parse(self._given, self._environ)
        return PubSubStreamWriter(options, from_options(options), schema, overwrite)

"""The writing half of `format("pubsub")`: the data source class whose writers publish. Wiring only.

`source` adds the reading half. `WriteSummary` registers this half alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from ..backend import from_options
from ..errors import OptionsError
from ..options import ReadOptions, WriteOptions
from ..service_options import PROJECT_VARIABLES
from .writer import PubSubBatchWriter, PubSubStreamWriter

_ENVIRONMENT = ("PUBSUB_EMULATOR_HOST", "GOOGLE_CLOUD_UNIVERSE_DOMAIN", *PROJECT_VARIABLES)


Options = TypeVar("Options", ReadOptions, WriteOptions)


def parsed(cls: type[Options], options: Mapping[str, str], environ: Mapping[str, str]) -> Options:
    """Return the options, including those of an AsyncAPI document. Raises OptionsError."""
    if "asyncapi" not in (name.lower() for name in options):
        return cls.parse(options, environ)
    try:
        from ..asyncapi import message_options
    except ModuleNotFoundError as error:
        raise OptionsError(
            [f"`asyncapi` needs the package `{error.name}`: install pubsub-spark with its extra `asyncapi`"]
        ) from None
    return message_options.parse(cls, options, environ)


class PubSubSink(DataSource):
    """A data source that can be written to. Spark makes and pickles it often: the constructor opens nothing."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = dict(options)
        self._environ = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = parsed(WriteOptions, self._given, self._environ)
        return PubSubBatchWriter(options, from_options(options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = parsed(WriteOptions, self._given, self._environ)
        return PubSubStreamWriter(options, from_options(options), schema, overwrite)

"""The external services of an emulator, which decide the exports and ingestions that run.

Libraries are imported only if their service is configured.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pubsub_spark.emulator.options import EmulatorOptions
from pubsub_spark.emulator.sinks.destination import Destination, Destinations
from pubsub_spark.emulator.sinks.ingestion_source import IngestionSource, Marks, Sources

_BIGTABLE = "BIGTABLE_EMULATOR_HOST"  # Google's clients of Bigtable also read it


def destinations(options: EmulatorOptions) -> Destinations:
    """Raise OSError if a service cannot be used."""
    factories: dict[str, Callable[[Any], Destination]] = {}
    if options.storage_root is not None:
        from pubsub_spark.emulator.sinks.cloud_storage import Bucket
        from pubsub_spark.emulator.sinks.storage_root import StorageRoot

        factories["cloud_storage_config"] = partial(Bucket, StorageRoot(str(options.storage_root)))
    if options.bigquery_root is not None and options.bigquery_endpoint is not None:
        raise OSError("BigQuery is in files or behind an endpoint. Set either `bigquery_root` or `bigquery_endpoint`.")
    if options.bigquery_root is not None:
        from pubsub_spark.emulator.sinks.bigquery import BigQuery
        from pubsub_spark.emulator.sinks.bigquery_duckdb import DuckDbTable, check_root

        root = Path(options.bigquery_root)
        check_root(root)
        factories["bigquery_config"] = lambda config: BigQuery(DuckDbTable(root, config.table), config)
    if (endpoint := options.bigquery_endpoint) is not None:
        from pubsub_spark.emulator.sinks.bigquery import BigQuery
        from pubsub_spark.emulator.sinks.bigquery_rest import RestTable

        factories["bigquery_config"] = lambda config: BigQuery(RestTable(endpoint, config.table), config)
    if address := os.environ.get(_BIGTABLE):
        from pubsub_spark.emulator.sinks.bigtable import BigtableTable

        factories["bigtable_config"] = partial(BigtableTable, address)
    return factories


def sources(options: EmulatorOptions) -> Sources:
    """Raise OSError if a service cannot be used."""
    factories: dict[str, Callable[[Any, Marks], IngestionSource]] = {}
    if options.storage_root is not None:
        from pubsub_spark.emulator.sinks.ingestion_cloud_storage import CloudStorageSource
        from pubsub_spark.emulator.sinks.storage_root import StorageRoot

        factories["cloud_storage"] = partial(CloudStorageSource, StorageRoot(str(options.storage_root)))
    if options.kinesis_endpoint is not None:
        from pubsub_spark.emulator.sinks.ingestion_kinesis import KinesisSource

        _require("boto3", "boto3", "Ingestion from Kinesis")
        factories["aws_kinesis"] = partial(KinesisSource, options.kinesis_endpoint)
    if options.kafka_config is not None and options.kafka_endpoint is None:
        raise OSError("`kafka_config` has settings for a broker. Set that broker as `kafka_endpoint`.")
    if options.kafka_endpoint is not None:
        from pubsub_spark.emulator.sinks.ingestion_kafka import SERVICES, KafkaSource, read_properties

        _require("confluent_kafka", "confluent-kafka", "Ingestion from Kafka")
        properties = read_properties(options.kafka_config) if options.kafka_config is not None else {}
        factories |= {
            name: partial(KafkaSource, service, options.kafka_endpoint, properties)
            for name, service in SERVICES.items()
        }
    return factories


def _require(module: str, package: str, use: str) -> None:
    if find_spec(module) is None:
        raise OSError(f"{use} needs `{package}`. Run `pip install {package}`.")

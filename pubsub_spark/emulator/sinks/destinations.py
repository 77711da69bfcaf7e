"""The destinations that an emulator was given: which exports run, by the names of their configurations.

What a destination needs is imported when it is given: most emulators start without any.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pubsub_spark.emulator.sinks.destination import Destination, Destinations

_BIGTABLE = "BIGTABLE_EMULATOR_HOST"  # which Google's clients of Bigtable read, too


def destinations(
    storage_root: Path | str | None, bigquery_root: Path | str | None, bigquery_endpoint: str | None
) -> Destinations:
    """What makes a destination of each configuration that runs; OSError when one of them cannot be used."""
    made: dict[str, Callable[[Any], Destination]] = {}
    if storage_root is not None:
        from pubsub_spark.emulator.sinks.cloud_storage import Bucket
        from pubsub_spark.emulator.sinks.storage_root import StorageRoot

        made["cloud_storage_config"] = partial(Bucket, StorageRoot(str(storage_root)))
    if bigquery_root is not None and bigquery_endpoint is not None:
        raise OSError("BigQuery is in files or behind an endpoint; give `bigquery_root` or `bigquery_endpoint`.")
    if bigquery_root is not None:
        from pubsub_spark.emulator.sinks.bigquery import BigQuery
        from pubsub_spark.emulator.sinks.bigquery_duckdb import DuckDbTable, check_root

        root = Path(bigquery_root)
        check_root(root)
        made["bigquery_config"] = lambda config: BigQuery(DuckDbTable(root, config.table), config)
    if bigquery_endpoint is not None:
        from pubsub_spark.emulator.sinks.bigquery import BigQuery
        from pubsub_spark.emulator.sinks.bigquery_rest import RestTable

        made["bigquery_config"] = lambda config: BigQuery(RestTable(bigquery_endpoint, config.table), config)
    if address := os.environ.get(_BIGTABLE):
        from pubsub_spark.emulator.sinks.bigtable import BigtableTable

        made["bigtable_config"] = partial(BigtableTable, address)
    return made

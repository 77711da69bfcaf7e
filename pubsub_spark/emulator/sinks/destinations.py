"""The destinations that an emulator was given: which exports run, by the names of their configurations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pubsub_spark.emulator.sinks.cloud_storage import Bucket
from pubsub_spark.emulator.sinks.export_worker import Destination, Destinations
from pubsub_spark.emulator.sinks.storage_root import StorageRoot


def destinations(storage_root: Path | str | None) -> Destinations:
    """What makes a destination of each configuration that runs; OSError when one of them cannot be used."""
    made: dict[str, Callable[[Any], Destination]] = {}
    if storage_root is not None:
        made["cloud_storage_config"] = partial(Bucket, StorageRoot(str(storage_root)))
    return made

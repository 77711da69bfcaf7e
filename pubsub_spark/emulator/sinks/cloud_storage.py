"""The destination of Cloud Storage subscriptions: an object in a bucket for each batch."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from pubsub_spark.emulator.sinks.destination import TopicSchema
from pubsub_spark.emulator.sinks.export_batch import Limits, OpenBatch
from pubsub_spark.emulator.sinks.object_format import encoder, object_name
from pubsub_spark.emulator.sinks.storage_root import StorageRoot

_UNIQUE_BYTES = 6  # of an object's name


class Bucket:
    def __init__(self, root: StorageRoot, config: Any) -> None:
        self._root = root
        self._config = config
        self._encode = encoder(config)
        seconds = config.max_duration.seconds + config.max_duration.nanos / 1e9
        self.limits = Limits(seconds, getattr(config, "max_messages", 0), config.max_bytes)

    def check(self) -> None:
        self._root.open(self._config.bucket)

    def write(self, batch: OpenBatch, subscription: str, schema: TopicSchema | None) -> Sequence[int]:
        """Messages that do not fit the topic's schema cannot be written."""
        encoded = self._encode([lease.message for lease in batch.leases], subscription, schema)
        if encoded.content:
            name = object_name(self._config, batch.opened, secrets.token_urlsafe(_UNIQUE_BYTES))
            self._root.put(self._config.bucket, name, encoded.content)
        return encoded.misfits

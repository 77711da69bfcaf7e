"""The reader of `spark.read`: at most `maxMessages` messages, nacked after reading, never acknowledged.

Nothing tells a batch read when to acknowledge, so its messages are delivered again to the next reader. With a
dead-letter policy each read counts as a delivery attempt. A final error of the stream is raised, instead of fewer rows.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from .. import logs
from ..backend import Backend
from ..codec.envelope import Received, first_deliveries
from ..errors import ForbiddenError
from ..options import ReadOptions
from .driver import subscription
from .pull import acks
from .pull.lease import pull_lease_seconds
from .pull.pull import Pull
from .pull.streaming_pull import DEFAULT_TIMES, PullTimes, StreamSettings
from .rows import Rows

_log = logging.getLogger(__name__)


class PubSubBatchReader(DataSourceReader):
    """The reader of `spark.read.format("pubsub")`."""

    def __init__(self, options: ReadOptions, backend: Backend, rows: Rows, times: PullTimes = DEFAULT_TIMES) -> None:
        self._options = options
        self._backend = backend
        self._rows = rows
        self._times = times

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition, so that `maxMessages` is one limit. Raises as `check`, before any task."""
        self.check()
        return [InputPartition(0)]

    def check(self) -> None:
        """Raise MissingError, ResourceError or ServiceError. Warn if the read uses up delivery attempts."""
        with self._backend.connect() as connection, suppress(ForbiddenError):
            existing = connection.admin.subscription(self._options.subscription)
            subscription.refuse_unless_pulled(existing)
            if existing.dead_letter_policy.dead_letter_topic:
                logs.to_stderr(self._options.log_level)
                _log.warning(
                    "each batch read of `%s` uses up a delivery attempt of the messages that it returns. Pub/Sub moves "
                    "a message to `%s` after %d attempts. Read a subscription without a dead-letter policy, or look at "
                    "messages with `pubsub-spark tail TOPIC`",
                    existing.name,
                    existing.dead_letter_policy.dead_letter_topic,
                    existing.dead_letter_policy.max_delivery_attempts,
                )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Yield the rows of up to `maxMessages` messages, each message once."""
        options = self._options
        logs.to_stderr(options.log_level)
        settings = StreamSettings(
            options.subscription,
            client_id=uuid.uuid4().hex,
            lease_seconds=pull_lease_seconds(options.max_fetch_period),
            max_messages=options.max_messages,
            max_bytes=options.max_bytes_per_trigger,
        )
        with self._backend.connect() as connection:
            arrived: list[Received] = []

            def take(received: Received) -> pa.RecordBatch:
                arrived.append(received)
                return received.messages

            period, idle = options.max_fetch_period, options.idle_timeout
            result = Pull(connection, settings, period, idle, take, times=self._times).run()
            receipts = (received.receipts for received in arrived)
            acks.nack(connection, options.subscription, receipts, self._times.nack)
        if result.failure is not None:
            raise result.failure
        yield from self._rows.of(_first(first_deliveries(arrived), options.max_messages))


def _first(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows: the service need not cut a response to the messages that are left."""
    for batch in batches:
        yield batch.slice(0, max(0, rows))
        rows -= batch.num_rows

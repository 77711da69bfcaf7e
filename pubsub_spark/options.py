"""The declaration of every option of reading and writing.

`parse` finds every problem before it raises, and refuses unknown names.

Pure: the environment is an argument. Runs on the driver. The parsed object is pickled to the executors, so everything
in it is a plain value and secrets are kept out of its `repr`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from . import names
from .declare import declare
from .service_options import ServiceOptions

__all__ = ["ReadOptions", "ServiceOptions", "WriteOptions"]

_PROTOBUF = re.compile(r"\bmessage\s+\w+\s*\{")

# Settings of a subscription that are not options of a query, and the flags of `pubsub-spark subscriptions create`.
_SETTINGS = {
    "ackDeadlineSeconds": "--ack-deadline 60",
    "retainAckedMessages": "--retain-acked-messages",
    "messageRetentionDuration": "--message-retention-duration 7d",
    "expirationTtl": "--expiration-period 31d",
    "subscriptionDeadLetterTopic": "--dead-letter-topic DEAD_LETTERS",
    "maxDeliveryAttempts": "--dead-letter-topic DEAD_LETTERS --max-delivery-attempts 5",
    "minimumBackoff": "--min-retry-delay 10s",
    "maximumBackoff": "--max-retry-delay 600s",
}

# Names that reading refuses, and the rest of the error message about each.
REFUSED: Mapping[str, str] = {
    name: "is not an option of a query. Create the subscription with `pubsub-spark subscriptions create SUBSCRIPTION "
    f"--topic TOPIC {flags}`, or with gcloud or Terraform"
    for name, flags in _SETTINGS.items()
} | {
    "idAttribute": "is an option of writing, not of reading. Drop messages that were published twice with "
    """`df.selectExpr("*", "coalesce(attributes['NAME'], message_id) AS id")"""
    '.withWatermark("publish_time", "10 minutes").dropDuplicatesWithinWatermark(["id"])`'
}


@dataclass(frozen=True, kw_only=True)
class ReadOptions(ServiceOptions):
    """The options of `spark.readStream.format("pubsub")` and `spark.read.format("pubsub")`."""

    purpose = "reading"
    elsewhere: ClassVar[Mapping[str, str]] = {**ServiceOptions.elsewhere, **REFUSED}

    subscription_id: str | None = declare(
        "subscriptionId",
        "string",
        None,
        "The subscription to read: an id or `projects/p/subscriptions/s`.",
        shown="required",
    )
    topic_id: str | None = declare(
        "topicId", "string", None, "Topic to create a missing subscription on, or whose schema `decode=topic` uses."
    )
    num_fetch_partitions: int | None = declare(
        "numFetchPartitions",
        "integer",
        None,
        "Tasks that pull at the same time when there is a backlog.",
        shown="tasks that Spark runs at once, at most 64",
        low=1,
        high=1000,
    )
    streams_per_partition: int | None = declare(
        "streamsPerPartition",
        "integer",
        None,
        "StreamingPulls of a task. The service sends 10 MB/s at most on each.",
        shown="1, or 64 after a pull at 10 MB/s a stream",
        low=1,
        high=64,
    )
    max_messages_per_trigger: int = declare(
        "maxMessagesPerTrigger", "integer", 1_000_000, "Maximum number of messages in a micro-batch.", low=1
    )
    max_bytes_per_trigger: int = declare(
        "maxBytesPerTrigger",
        "size",
        256 * 2**20,
        "Maximum number of bytes in a micro-batch (soft: responses on their way may exceed it).",
        shown="256m",
        low=1,
    )
    max_records_per_fetch: int | None = declare(
        "maxRecordsPerFetch", "integer", None, "Maximum number of messages per task and micro-batch.", low=1
    )
    max_fetch_period: float = declare(
        "maxFetchPeriod",
        "duration",
        2.0,
        "Longest time that a task pulls for a micro-batch.",
        shown="2s",
        low=0.01,
        high=240,
    )
    idle_timeout: float = declare(
        "idleTimeout",
        "duration",
        2.0,
        "An `availableNow` query ends after this time without messages, a pull after this time without its first one.",
        shown="2s",
        low=0.01,
        high=600,
    )
    max_unacknowledged_batches: int = declare(
        "maxUnacknowledgedBatches",
        "integer",
        100,
        "Committed batches that may wait for their acks. At this number no batch is planned.",
        low=1,
    )
    fail_after: float | None = declare(
        "failAfter",
        "duration",
        None,
        "How long a running query waits for Pub/Sub, or for the object store of `stagingLocation`, before it fails.",
        shown="never for Pub/Sub (a WARNING and retries), 5m for the store",
        low=1,
    )
    staging_location: str | None = declare(
        "stagingLocation",
        "string",
        None,
        "Where pulled batches are kept until committed: a path or URL (`gs://`, `s3://`, `az://`) all executors see.",
        shown="a folder under the system's temp folder",
    )
    metrics_location: str | None = declare(
        "metricsLocation",
        "string",
        None,
        "Folder (a path or URL) for a file with the query's metrics in Prometheus' text format.",
    )
    fail_on_data_loss: bool = declare(
        "failOnDataLoss",
        "boolean",
        True,
        "Fail if Spark asks again for a batch that was acknowledged and deleted. With `false` that batch is empty.",
    )
    starting_timestamp: datetime.datetime | None = declare(
        "startingTimestamp",
        "timestamp",
        None,
        "Seek the subscription to this time at the first start of a checkpoint.",
    )
    starting_snapshot: str | None = declare(
        "startingSnapshot",
        "string",
        None,
        "Seek the subscription to this snapshot at the first start of a checkpoint.",
    )
    delete_subscription_on_stream_stop: bool = declare(
        "deleteSubscriptionOnStreamStop", "boolean", False, "Delete the subscription when the query stops cleanly."
    )
    columns: str = declare(
        "columns",
        "choice",
        "pubsub",
        "The columns: this connector's, or those of Databricks' connector.",
        choices=("pubsub", "databricks"),
    )
    decode: str = declare(
        "decode",
        "choice",
        "none",
        "`topic` adds `value`, decoded with the topic's schema. `json` decodes with the columns of `schema`.",
        choices=("none", "topic", "json"),
    )
    mode: str = declare(
        "mode",
        "choice",
        "PERMISSIVE",
        "The effect of a payload that cannot be decoded: a null `value`, no row, or a failure.",
        choices=("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
    )
    schema: str | None = declare(
        "schema",
        "string",
        None,
        "With `decode=topic` a schema's name, or its Avro or Protobuf text. With `decode=json` a DDL or a JSON schema.",
        shown="the topic's",
    )
    schema_encoding: str | None = declare(
        "schemaEncoding",
        "choice",
        None,
        "Encoding of messages that name no schema revision, if `schema` is set.",
        shown="BINARY",
        choices=("BINARY", "JSON"),
    )
    schema_revision: str | None = declare(
        "schemaRevision",
        "string",
        None,
        "Revision id whose fields become the columns of `value`.",
        shown="the newest that the topic allows",
    )
    dead_letter_topic: str | None = declare(
        "deadLetterTopic", "string", None, "Topic for payloads that cannot be decoded."
    )
    max_messages: int = declare("maxMessages", "integer", 1000, "Batch read only: the most messages to read.", low=1)
    enable_message_ordering: bool = declare(
        "enableMessageOrdering", "boolean", False, "Ordering keys for a subscription that is created."
    )
    enable_exactly_once_delivery: bool = declare(
        "enableExactlyOnceDelivery", "boolean", False, "Exactly-once delivery for a subscription that is created."
    )
    filter: str | None = declare("filter", "string", None, "Filter of a subscription that is created.")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.subscription_id is None:
            yield "`subscriptionId` is required, e.g. `projects/my-project/subscriptions/my-sub`"
        yield from self._named("subscriptionId", self.subscription_id, "subscriptions")
        yield from self._named("topicId", self.topic_id, "topics")
        if self.decode == "json" and self.schema is None:
            yield "`schema` is required with `decode=json`, e.g. `carrier STRING, delay INT`"
        elif self.decode == "topic" and self.schema_definition is None:
            yield from self._named("schema", self.schema, "schemas")
        yield from self._named("startingSnapshot", self.starting_snapshot, "snapshots")
        yield from self._named("deadLetterTopic", self.dead_letter_topic, "topics")
        if self.starting_timestamp is not None and self.starting_snapshot is not None:
            yield "`startingTimestamp` and `startingSnapshot` are both set, but a stream starts in one place. Keep one"
        if self.dead_letter_topic is not None and self.decode == "none":
            yield "`deadLetterTopic` is for payloads that cannot be decoded. It needs `decode=topic` or `decode=json`"
        yield from self._unused_schema_options()
        if self.columns == "databricks" and self.decode != "none":
            yield f"`columns=databricks` has no column for decoded values. Drop it, or drop `decode={self.decode}`"

    def _unused_schema_options(self) -> Iterator[str]:
        if self.decode == "none" and self.schema is not None and self.asyncapi is None:
            yield "`schema` says how payloads are decoded. It needs `decode=topic` or `decode=json`"
        of_topic = {"schemaRevision": self.schema_revision, "schemaEncoding": self.schema_encoding}
        if self.decode != "topic":
            yield from (f"`{name}` needs `decode=topic`" for name, value in of_topic.items() if value is not None)
        elif self.schema is None and self.schema_encoding is not None:
            yield "`schemaEncoding` needs `schema`. Without it the topic has the encoding"
        elif self.schema_definition is not None and self.schema_revision is not None:
            yield "`schemaRevision` is one of a schema resource. `schema` is a definition, which has none"

    @property
    def subscription(self) -> str:
        assert self.subscription_id is not None, "parse() refuses options without it"
        return names.full(self.subscription_id, self.project, "subscriptions")

    @property
    def topic(self) -> str | None:
        """The full name of the topic, or None."""
        return self._full(self.topic_id, "topics")

    @property
    def schema_definition(self) -> Literal["AVRO", "PROTOCOL_BUFFER"] | None:
        """The language of the definition that `schema` is, or None if it is a name or not set."""
        if (self.schema or "").lstrip().startswith(("{", "[")):
            return "AVRO"
        return "PROTOCOL_BUFFER" if _PROTOBUF.search(self.schema or "") else None

    @property
    def dead_letter(self) -> str | None:
        """The full name of the dead-letter topic, or None."""
        return self._full(self.dead_letter_topic, "topics")


@dataclass(frozen=True, kw_only=True)
class WriteOptions(ServiceOptions):
    """The options of `df.write.format("pubsub")` and `df.writeStream.format("pubsub")`."""

    purpose = "writing"

    topic_id: str | None = declare(
        "topicId",
        "string",
        None,
        "The topic to publish to: an id or `projects/p/topics/t`.",
        shown="required, or a column `topic`",
    )
    ordering_key: str | None = declare(
        "orderingKey", "string", None, "Column whose value is the ordering key.", shown="column `ordering_key`"
    )
    described_schema: str | None = None  # these three by the document of `asyncapi`
    ordering_field: tuple[str, ...] | None = None
    ordering_text: str | None = None
    attribute_columns: tuple[str, ...] = declare(
        "attributeColumns", "list", (), "Columns that are sent as attributes, e.g. `country,kind`."
    )
    id_attribute: str | None = declare(
        "idAttribute", "string", None, "Attribute with a deterministic id that identifies repeated messages."
    )
    encode: str | None = declare(
        "encode",
        "choice",
        None,
        "Encode `value`, or the whole row, by the topic's schema.",
        shown="`topic` when there is no `data` column and the topic has a schema",
        choices=("topic", "none"),
    )
    columns: str = declare(
        "columns",
        "choice",
        "pubsub",
        "The columns: this connector's, or those of Databricks' connector.",
        choices=("pubsub", "databricks"),
    )
    ignore_extra_columns: bool = declare(
        "ignoreExtraColumns", "boolean", False, "Leave out columns that the topic's schema does not have."
    )
    max_batch_messages: int = declare(
        "maxBatchMessages", "integer", 1000, "Maximum number of messages in a publish request.", low=1, high=1000
    )
    max_batch_bytes: int = declare(
        "maxBatchBytes", "size", 1_000_000, "Maximum number of bytes in a publish request.", low=1, high=10_000_000
    )
    max_outstanding_requests: int = declare(
        "maxOutstandingRequests",
        "integer",
        8,
        "Publish requests of a task that may be in flight at once.",
        low=1,
        high=1000,
    )
    publish_timeout: float = declare(
        "publishTimeout",
        "duration",
        60.0,
        "How long a request is retried before the task fails.",
        shown="60s",
        low=1,
        high=3600,
    )
    on_oversize: str = declare(
        "onOversize",
        "choice",
        "error",
        "The effect of a message above a limit of Pub/Sub: a failure, no message, or a dead letter.",
        choices=("error", "drop", "deadletter"),
    )
    dead_letter_topic: str | None = declare("deadLetterTopic", "string", None, "Topic for `onOversize=deadletter`.")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from self._named("topicId", self.topic_id, "topics")
        yield from self._named("deadLetterTopic", self.dead_letter_topic, "topics")
        if self.on_oversize == "deadletter" and self.dead_letter_topic is None:
            yield "`deadLetterTopic` is required with `onOversize=deadletter`"
        if self.columns == "databricks" and self.encode == "topic":
            yield "`columns=databricks` sends `payload` as it is. Drop it, or drop `encode=topic`"
        for option, attribute in [
            ("idAttribute", self.id_attribute),
            *(("attributeColumns", column) for column in self.attribute_columns),
        ]:
            if attribute is not None and attribute.lower().startswith(names.RESERVED_PREFIX):
                yield f"`{option}` names the attribute `{attribute}`, but names that begin with `goog` are Google's own"

    @property
    def topic(self) -> str | None:
        """The full name of the topic, or None if each row names its own."""
        return self._full(self.topic_id, "topics")

    @property
    def dead_letter(self) -> str | None:
        """The full name of the topic for messages that break a limit, or None."""
        return self._full(self.dead_letter_topic, "topics")

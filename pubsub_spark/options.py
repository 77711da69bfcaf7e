"""Every option once: name, kind, default, bounds, one sentence.

A field of `ReadOptions` or `WriteOptions` is the declaration. Parsing, the errors and the README's table are read
from it, so they cannot disagree. `parse` finds every problem before it raises, and refuses names it does not know: a
misspelt option that is silently ignored costs somebody a night.

Pure: the environment is an argument. Runs on the driver; the parsed object is pickled to the executors, so everything
in it is a plain value and secrets are kept out of its `repr`.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from . import names
from .errors import OptionsError

# Spark hands these to a Python source among the user's own options; they are Spark's business.
_SPARK_OWN = frozenset({"checkpointlocation", "queryname"})

_UNITS: dict[str, dict[str, float]] = {
    "duration": {"": 1, "ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400},
    "size": {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30},
}
_WORDS: dict[str, dict[str, float]] = {
    "duration": {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86400},
    "size": {},
}
_QUANTITY = re.compile(r"(?P<number>\d+(\.\d+)?)\s*(?P<unit>[a-zA-Z]*)")


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError("must be `true` or `false`") from None


def _quantity(text: str, kind: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match is not None:
        unit = match["unit"].lower()
        factor = _UNITS[kind].get(unit) or _WORDS[kind].get(unit.removesuffix("s"))
        if factor is not None:
            return float(match["number"]) * factor
    raise ValueError(f"must be a {kind} such as {example}")


def _duration(text: str) -> float:
    return _quantity(text, "duration", "`500ms`, `10s` or `5m`")


def _size(text: str) -> int:
    return int(_quantity(text, "size", "`64m` or `1g`"))


def _timestamp(text: str) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a timestamp such as `2026-01-31T00:00:00Z`") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)


def _text(text: str) -> str:
    return text


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: dict[str, Callable[[str], Any]] = {
    "string": _text,
    "integer": _integer,
    "boolean": _boolean,
    "duration": _duration,
    "size": _size,
    "timestamp": _timestamp,
    "list": _list,
}

Kind = Literal["string", "integer", "boolean", "duration", "size", "timestamp", "list", "choice"]


@dataclass(frozen=True)
class Option:
    """One declared option, as the README's table shows it."""

    name: str
    kind: Kind
    default: str
    sentence: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False

    def parse(self, text: str) -> Any:
        """The value of `text`; ValueError with the rest of the sentence "`name` ..." when it has none."""
        if self.kind == "choice":
            chosen = next((choice for choice in self.choices if choice.lower() == text.lower()), None)
            if chosen is None:
                raise ValueError(f"must be one of {', '.join(f'`{c}`' for c in self.choices)}, got `{text}`")
            return chosen
        try:
            value = _PARSERS[self.kind](text)
        except ValueError as error:
            raise ValueError(f"{error}, got `{text}`") from None
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            raise ValueError(f"must be {self.bounds}, got `{text}`")
        if self.kind == "string" and not text:
            raise ValueError("must not be empty")
        return value

    @property
    def bounds(self) -> str:
        """The allowed range in words, empty when any value will do."""
        unit = {"duration": " s", "size": " bytes"}.get(self.kind, "")
        if self.low is not None and self.high is not None:
            return f"between {self.low:g} and {self.high:g}{unit}"
        if self.low is not None:
            return f"{self.low:g}{unit} or more"
        return "" if self.high is None else f"{self.high:g}{unit} or less"


def _declare(
    name: str,
    kind: Kind,
    default: Any,
    sentence: str,
    *,
    shown: str | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A dataclass field that carries its option; `shown` is the default as a user would write it."""
    if shown is None:
        shown = (
            {True: "true", False: "false", None: ""}.get(default) if not default or default is True else str(default)
        )
    option = Option(name, kind, shown or "", sentence, low, high, choices, secret)
    return field(default=default, repr=not secret, metadata={"option": option})


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Which Pub/Sub, and as whom: the options that reading and writing share."""

    project: str | None = _declare(
        "projectId",
        "string",
        None,
        "The Google Cloud project of resources given by id.",
        shown="`GOOGLE_CLOUD_PROJECT`",
    )
    backend: str | None = _declare(
        "backend",
        "choice",
        None,
        "Real Google Cloud, or an emulator without credentials.",
        shown="by `endpoint`",
        choices=("gcp", "emulator"),
    )
    endpoint: str | None = _declare(
        "endpoint",
        "string",
        None,
        "`host:port` of an emulator or of a regional service endpoint.",
        shown="`PUBSUB_EMULATOR_HOST`, else the global endpoint",
    )
    credentials_file: str | None = _declare(
        "credentialsFile",
        "string",
        None,
        "Path on the driver of a credentials file in JSON.",
        shown="Application Default Credentials",
    )
    credentials: str | None = _declare(
        "credentials", "string", None, "Credentials in JSON, or that JSON in base64.", secret=True
    )
    client_email: str | None = _declare(
        "clientEmail", "string", None, "Databricks' way to give a service account: its e-mail."
    )
    client_id: str | None = _declare("clientId", "string", None, "Databricks' way: the service account's client id.")
    private_key: str | None = _declare(
        "privateKey", "string", None, "Databricks' way: the private key in PEM.", secret=True
    )
    private_key_id: str | None = _declare(
        "privateKeyId", "string", None, "Databricks' way: the id of the private key.", secret=True
    )
    connect_timeout: float = _declare(
        "connectTimeout",
        "duration",
        20.0,
        "How long to wait for an endpoint that does not answer.",
        shown="20s",
        low=0.1,
        high=600,
    )

    def problems(self) -> Iterator[str]:
        """What is wrong with the options taken together, a sentence each."""
        given = [
            option.name
            for option, value in self.items()
            if option.name in {"credentialsFile", "credentials", "privateKey"} and value is not None
        ]
        if len(given) > 1:
            yield f"{' and '.join(f'`{name}`' for name in given)} are given, but only one can say who calls; keep one"
        if self.private_key is not None and self.client_email is None:
            yield "`clientEmail` is required with `privateKey`"
        if self.endpoint is not None and not re.fullmatch(r".+:\d{1,5}", self.endpoint):
            yield f"`endpoint` must be `host:port`, got `{self.endpoint}`"
        if self.backend == "emulator" and self.endpoint is None:
            yield "`endpoint` is required with `backend=emulator`, e.g. `localhost:8085`, or set PUBSUB_EMULATOR_HOST"

    def items(self) -> Iterator[tuple[Option, Any]]:
        """Each option with its parsed value."""
        for fld in dataclasses.fields(self):
            if "option" in fld.metadata:
                yield fld.metadata["option"], getattr(self, fld.name)

    @classmethod
    def declared(cls) -> tuple[Option, ...]:
        """All options of this class, in the order of the README's table."""
        return tuple(fld.metadata["option"] for fld in dataclasses.fields(cls) if "option" in fld.metadata)

    @classmethod
    def parse(cls, given: Mapping[str, str], environ: Mapping[str, str]) -> Self:
        """The options that `given` (any case of names, values as text) and the environment make.

        Raises OptionsError with every problem found.
        """
        fields = {f.metadata["option"].name.lower(): f for f in dataclasses.fields(cls) if "option" in f.metadata}
        values: dict[str, Any] = {}
        problems: list[str] = []
        for key, text in given.items():
            if key.lower() in _SPARK_OWN:
                continue
            if key.lower() not in fields:
                problems.append(_unknown(key, [f.metadata["option"].name for f in fields.values()]))
                continue
            fld = fields[key.lower()]
            option: Option = fld.metadata["option"]
            try:
                values[fld.name] = option.parse(text)
            except ValueError as error:
                complaint = f"`{option.name}` {error}"
                problems.append(
                    complaint.replace(f"`{text}`", "a secret that is not shown") if option.secret else complaint
                )
        if "endpoint" not in values and values.get("backend") != "gcp" and environ.get("PUBSUB_EMULATOR_HOST"):
            values |= {"endpoint": environ["PUBSUB_EMULATOR_HOST"], "backend": "emulator"}
        if environ.get("GOOGLE_CLOUD_PROJECT"):
            values.setdefault("project", environ["GOOGLE_CLOUD_PROJECT"])
        parsed = cls(**values)
        problems.extend(parsed.problems())
        if problems:
            raise OptionsError(problems)
        return parsed

    def _named(self, option: str, value: str | None, collection: names.Collection) -> Iterator[str]:
        if value is not None:
            try:
                names.full(value, self.project, collection)
            except ValueError as error:
                yield f"`{option}`: {error}"


def _unknown(key: str, known: list[str]) -> str:
    lowered = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(key.lower(), lowered, n=1, cutoff=0.6)
    hint = f"; did you mean `{lowered[nearest[0]]}`?" if nearest else "; the README lists the options"
    return f"`{key}` is not an option{hint}"


@dataclass(frozen=True, kw_only=True)
class ReadOptions(ServiceOptions):
    """What `spark.readStream.format("pubsub")` and `spark.read.format("pubsub")` take."""

    subscription_id: str | None = _declare(
        "subscriptionId",
        "string",
        None,
        "The subscription to read: an id or `projects/p/subscriptions/s`.",
        shown="required",
    )
    topic_id: str | None = _declare(
        "topicId", "string", None, "Topic to create a missing subscription on, or whose schema `decode=topic` uses."
    )
    num_fetch_partitions: int | None = _declare(
        "numFetchPartitions",
        "integer",
        None,
        "Tasks that pull at the same time when there is a backlog.",
        shown="cores of the driver, 8 at most",
        low=1,
        high=1000,
    )
    max_messages_per_trigger: int = _declare(
        "maxMessagesPerTrigger", "integer", 1_000_000, "Most messages in a micro-batch.", low=1
    )
    max_bytes_per_trigger: int = _declare(
        "maxBytesPerTrigger",
        "size",
        256 * 2**20,
        "Most bytes in a micro-batch (soft: a response may overshoot it).",
        shown="256m",
        low=1,
    )
    max_records_per_fetch: int | None = _declare(
        "maxRecordsPerFetch", "integer", None, "Most messages that one task pulls for a micro-batch.", low=1
    )
    max_fetch_period: float = _declare(
        "maxFetchPeriod",
        "duration",
        2.0,
        "Longest time that a task pulls for a micro-batch.",
        shown="2s",
        low=0.01,
        high=240,
    )
    idle_timeout: float = _declare(
        "idleTimeout",
        "duration",
        2.0,
        "A pull ends, and an `availableNow` query too, when nothing came for so long.",
        shown="2s",
        low=0.01,
        high=600,
    )
    staging_location: str | None = _declare(
        "stagingLocation",
        "string",
        None,
        "Where pulled batches are kept until committed: a path or URL (`gs://`, `s3://`, `az://`) all executors see.",
        shown="a folder under the system's temp folder",
    )
    fail_on_data_loss: bool = _declare(
        "failOnDataLoss",
        "boolean",
        True,
        "Fail when Spark asks again for a batch that was acknowledged and released; `false` gives an empty batch.",
    )
    starting_timestamp: datetime.datetime | None = _declare(
        "startingTimestamp",
        "timestamp",
        None,
        "Seek the subscription here when a checkpoint starts for the first time.",
    )
    starting_snapshot: str | None = _declare(
        "startingSnapshot",
        "string",
        None,
        "Seek the subscription to this snapshot when a checkpoint starts for the first time.",
    )
    delete_subscription_on_stream_stop: bool = _declare(
        "deleteSubscriptionOnStreamStop", "boolean", False, "Delete the subscription when the query stops."
    )
    columns: str = _declare(
        "columns",
        "choice",
        "pubsub",
        "The columns: this connector's, or those of Databricks' connector.",
        choices=("pubsub", "databricks"),
    )
    decode: str = _declare(
        "decode", "choice", "none", "`topic` adds `value`, decoded with the topic's schema.", choices=("none", "topic")
    )
    mode: str = _declare(
        "mode",
        "choice",
        "PERMISSIVE",
        "What a payload that cannot be decoded does: a null `value`, no row, or a failure.",
        choices=("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
    )
    schema: str | None = _declare(
        "schema",
        "string",
        None,
        "Schema for `decode=topic` where the caller may not read the topic.",
        shown="the topic's",
    )
    schema_encoding: str = _declare(
        "schemaEncoding",
        "choice",
        "BINARY",
        "Encoding of messages without attributes when `schema` is given.",
        choices=("BINARY", "JSON"),
    )
    schema_revision: str | None = _declare(
        "schemaRevision",
        "string",
        None,
        "Revision id whose fields become the columns of `value`.",
        shown="the newest that the topic allows",
    )
    dead_letter_topic: str | None = _declare(
        "deadLetterTopic", "string", None, "Topic to which payloads that cannot be decoded are published."
    )
    id_attribute: str | None = _declare(
        "idAttribute", "string", None, "Attribute that names a message; later messages of the same name are dropped."
    )
    max_messages: int = _declare(
        "maxMessages", "integer", 1000, "Batch read only: the most messages to peek at.", low=1
    )
    ack_deadline_seconds: int | None = _declare(
        "ackDeadlineSeconds",
        "integer",
        None,
        "Ack deadline of a subscription that is created.",
        shown="10",
        low=10,
        high=600,
    )
    enable_message_ordering: bool = _declare(
        "enableMessageOrdering", "boolean", False, "Ordering keys for a subscription that is created."
    )
    enable_exactly_once_delivery: bool = _declare(
        "enableExactlyOnceDelivery", "boolean", False, "Exactly-once delivery for a subscription that is created."
    )
    filter: str | None = _declare("filter", "string", None, "Filter of a subscription that is created.")
    retain_acked_messages: bool = _declare(
        "retainAckedMessages", "boolean", False, "Keep acknowledged messages in a subscription that is created."
    )
    message_retention_duration: float | None = _declare(
        "messageRetentionDuration",
        "duration",
        None,
        "Retention of a subscription that is created.",
        shown="7d",
        low=600,
        high=31 * 86400,
    )
    expiration_ttl: float | None = _declare(
        "expirationTtl",
        "duration",
        None,
        "A subscription that is created is deleted when unused for so long.",
        shown="31d",
        low=86400,
    )
    subscription_dead_letter_topic: str | None = _declare(
        "subscriptionDeadLetterTopic", "string", None, "Dead-letter topic of a subscription that is created."
    )
    max_delivery_attempts: int | None = _declare(
        "maxDeliveryAttempts",
        "integer",
        None,
        "Attempts before dead-lettering by a subscription that is created.",
        shown="5",
        low=5,
        high=100,
    )
    minimum_backoff: float | None = _declare(
        "minimumBackoff", "duration", None, "Shortest retry delay of a subscription that is created.", low=0, high=600
    )
    maximum_backoff: float | None = _declare(
        "maximumBackoff", "duration", None, "Longest retry delay of a subscription that is created.", low=0, high=600
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.subscription_id is None:
            yield "`subscriptionId` is required, e.g. `projects/my-project/subscriptions/my-sub`"
        yield from self._named("subscriptionId", self.subscription_id, "subscriptions")
        yield from self._named("topicId", self.topic_id, "topics")
        yield from self._named("schema", self.schema, "schemas")
        yield from self._named("startingSnapshot", self.starting_snapshot, "snapshots")
        yield from self._named("deadLetterTopic", self.dead_letter_topic, "topics")
        yield from self._named("subscriptionDeadLetterTopic", self.subscription_dead_letter_topic, "topics")
        if self.starting_timestamp is not None and self.starting_snapshot is not None:
            yield "`startingTimestamp` and `startingSnapshot` are given, but a stream starts in one place; keep one"
        if self.dead_letter_topic is not None and self.decode == "none":
            yield "`deadLetterTopic` takes payloads that cannot be decoded; it needs `decode=topic`"
        if self.columns == "databricks" and self.decode == "topic":
            yield "`columns=databricks` has no column for decoded values; drop it, or drop `decode=topic`"
        if self.max_delivery_attempts is not None and self.subscription_dead_letter_topic is None:
            yield "`maxDeliveryAttempts` needs `subscriptionDeadLetterTopic`"
        if (self.minimum_backoff or 10.0) > (600.0 if self.maximum_backoff is None else self.maximum_backoff):
            yield "`minimumBackoff` must not be more than `maximumBackoff`"

    @property
    def subscription(self) -> str:
        """Full name of the subscription."""
        assert self.subscription_id is not None, "parse() refuses options without it"
        return names.full(self.subscription_id, self.project, "subscriptions")

    @property
    def topic(self) -> str | None:
        """Full name of the topic, if one was given."""
        return None if self.topic_id is None else names.full(self.topic_id, self.project, "topics")

    @property
    def dead_letter(self) -> str | None:
        """Full name of the dead-letter topic, if one was given."""
        return None if self.dead_letter_topic is None else names.full(self.dead_letter_topic, self.project, "topics")


@dataclass(frozen=True, kw_only=True)
class WriteOptions(ServiceOptions):
    """What `df.write.format("pubsub")` and `df.writeStream.format("pubsub")` take."""

    topic_id: str | None = _declare(
        "topicId",
        "string",
        None,
        "The topic to publish to: an id or `projects/p/topics/t`.",
        shown="required, or a column `topic`",
    )
    ordering_key: str | None = _declare(
        "orderingKey", "string", None, "Column whose value is the ordering key.", shown="column `ordering_key`"
    )
    attribute_columns: tuple[str, ...] = _declare(
        "attributeColumns", "list", (), "Columns that are sent as attributes, e.g. `country,kind`."
    )
    id_attribute: str | None = _declare(
        "idAttribute", "string", None, "Attribute to carry a deterministic id by which repeated messages can be told."
    )
    encode: str | None = _declare(
        "encode",
        "choice",
        None,
        "Encode `value`, or the whole row, by the topic's schema.",
        shown="`topic` when there is no `data` column and the topic has a schema",
        choices=("topic", "none"),
    )
    ignore_extra_columns: bool = _declare(
        "ignoreExtraColumns", "boolean", False, "Leave out columns that the topic's schema does not have."
    )
    max_batch_messages: int = _declare(
        "maxBatchMessages", "integer", 1000, "Most messages in a publish request.", low=1, high=1000
    )
    max_batch_bytes: int = _declare(
        "maxBatchBytes", "size", 1_000_000, "Most bytes in a publish request.", low=1, high=10_000_000
    )
    max_outstanding_requests: int = _declare(
        "maxOutstandingRequests",
        "integer",
        8,
        "Publish requests of a task that may be under way at once.",
        low=1,
        high=1000,
    )
    publish_timeout: float = _declare(
        "publishTimeout",
        "duration",
        60.0,
        "How long a request is retried before the task fails.",
        shown="60s",
        low=1,
        high=3600,
    )
    on_oversize: str = _declare(
        "onOversize",
        "choice",
        "error",
        "What a message over a limit of Pub/Sub does.",
        choices=("error", "drop", "deadletter"),
    )
    dead_letter_topic: str | None = _declare("deadLetterTopic", "string", None, "Topic for `onOversize=deadletter`.")

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from self._named("topicId", self.topic_id, "topics")
        yield from self._named("deadLetterTopic", self.dead_letter_topic, "topics")
        if self.on_oversize == "deadletter" and self.dead_letter_topic is None:
            yield "`deadLetterTopic` is required with `onOversize=deadletter`"

    @property
    def topic(self) -> str | None:
        """Full name of the topic, None when each row names its own."""
        return None if self.topic_id is None else names.full(self.topic_id, self.project, "topics")


def table(options: type[ServiceOptions]) -> str:
    """The Markdown table of a class's options, as the README shows it."""
    lines = ["| option | kind | default | meaning |", "|---|---|---|---|"]
    for option in options.declared():
        kind = " \\| ".join(f"`{choice}`" for choice in option.choices) or option.kind
        bounds = f" ({option.bounds})" if option.bounds else ""
        lines.append(f"| `{option.name}` | {kind} | {option.default} | {option.sentence}{bounds} |")
    return "\n".join(lines)

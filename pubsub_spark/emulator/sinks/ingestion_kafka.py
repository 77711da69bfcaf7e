"""A Kafka topic as a source, for Amazon MSK, Confluent Cloud and Azure Event Hubs: each record once.

All three are read from the one broker that the emulator is configured with, each partition from its oldest record. No
consumer group is joined: the marks record the position in each partition. TLS and logins are settings of librdkafka.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from pubsub_spark.emulator.sinks.ingestion_source import IngestedMessage, Marks, Portion, SourceError

_log = logging.getLogger("pubsub_spark.emulator")

_ANSWER_SECONDS = 3.0
_RECORDS, _FETCH_SECONDS = 5000, 0.25  # of all partitions, at a time
_ATTRIBUTES, _NAME_BYTES, _VALUE_BYTES = 100, 256, 1024  # of a message, at most


class Service(NamedTuple):
    """A service's field names for its topic, and the states of its settings."""

    topic: str
    unreachable: str
    denied: str
    missing: str


SERVICES = {
    "aws_msk": Service("topic", "CLUSTER_NOT_FOUND", "MSK_PERMISSION_DENIED", "TOPIC_NOT_FOUND"),
    "confluent_cloud": Service(
        "topic", "UNREACHABLE_BOOTSTRAP_SERVER", "CONFLUENT_CLOUD_PERMISSION_DENIED", "TOPIC_NOT_FOUND"
    ),
    "azure_event_hubs": Service(
        "event_hub", "NAMESPACE_NOT_FOUND", "EVENT_HUBS_PERMISSION_DENIED", "EVENT_HUB_NOT_FOUND"
    ),
}


def read_properties(path: Path | str) -> dict[str, str]:
    """Read librdkafka's settings from a file of `name=value` lines. Raise OSError if it is unreadable or invalid."""
    properties: dict[str, str] = {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        raise OSError(f"The settings of Kafka in `{path}` cannot be read: {problem}.") from None
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if equals and name.strip():
            properties[name.strip()] = value.strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            raise OSError(f"Line {number} of `{path}` must be `name=value`, as `security.protocol=ssl`.")
    return properties


class KafkaSource:
    """properties: further settings of the client, by the names of librdkafka."""

    def __init__(
        self, service: Service, endpoint: str, properties: Mapping[str, str], settings: Any, marks: Marks
    ) -> None:
        self._service = service
        self._endpoint = endpoint
        self._properties = properties
        self._topic: str = getattr(settings, service.topic)
        self._marks = marks  # by partition, the offset that is read next
        self._made: Any = None
        self._assigned: set[int] = set()  # partitions

    def new(self) -> Iterator[Portion]:
        kafka: Any = import_module("confluent_kafka")
        try:
            consumer = self._consumer(kafka)
            self._assign(consumer, self._partitions(consumer), kafka)
            records = consumer.consume(_RECORDS, _FETCH_SECONDS)
        except kafka.KafkaException as problem:
            raise self._failed(problem.args[0], kafka.KafkaError) from None
        partitions = defaultdict(list)
        errors = [record.error() for record in records if record.error() is not None]
        for record in records:
            if record.error() is None:
                partitions[record.partition()].append(record)
        for partition, batch in partitions.items():
            messages = (_message(record, kafka.TIMESTAMP_NOT_AVAILABLE) for record in batch)
            where = f"partition {partition} of `{self._topic}`"
            yield Portion(where, messages, self._part(partition), str(batch[-1].offset() + 1))
        if errors:
            raise self._failed(errors[0], kafka.KafkaError)

    def _consumer(self, kafka: Any) -> Any:
        if self._made is None:
            self._made = kafka.Consumer(
                {
                    **self._properties,
                    "bootstrap.servers": self._endpoint,
                    "group.id": "pubsub-emulator",  # required, but never joined
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",  # also if a mark's offset no longer exists
                    "log_level": 0,  # an error becomes a state of the topic
                }
            )
        return self._made

    def _partitions(self, consumer: Any) -> set[int]:
        if not self._topic:
            sentence = f"The settings name no topic of Kafka. Set `{self._service.topic}`."
            raise SourceError(self._service.missing, sentence)
        topic = consumer.list_topics(self._topic, timeout=_ANSWER_SECONDS).topics[self._topic]
        if topic.error is not None:
            raise self._failed(topic.error, type(topic.error))
        return set(topic.partitions)

    def _assign(self, consumer: Any, partitions: set[int], kafka: Any) -> None:
        if new := partitions - self._assigned:
            begin = {number: int(self._marks.get(self._part(number), kafka.OFFSET_BEGINNING)) for number in new}
            consumer.incremental_assign([kafka.TopicPartition(self._topic, *start) for start in begin.items()])
            self._assigned |= new

    def _part(self, partition: int) -> str:
        return f"kafka://{self._topic}/{partition}"

    def _failed(self, error: Any, codes: Any) -> SourceError:
        """Discard records read ahead: the next look begins at the marks."""
        self._made, self._assigned = None, set()
        code = error.code()
        if code in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION, codes.TOPIC_EXCEPTION):
            return SourceError(self._service.missing, f"The topic `{self._topic}` of Kafka does not exist. Create it.")
        if code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED, codes._AUTHENTICATION):
            sentence = f"The topic `{self._topic}` of Kafka may not be read. Grant access ({error.str()})."
            return SourceError(self._service.denied, sentence)
        if code in (codes._TRANSPORT, codes._ALL_BROKERS_DOWN, codes._TIMED_OUT, codes._RESOLVE):
            sentence = f"The Kafka broker at `{self._endpoint}` does not answer. Start it ({error.str()})."
            return SourceError(self._service.unreachable, sentence)
        return SourceError("ACTIVE", f"The topic `{self._topic}` of Kafka cannot be read now: {error.str()}")


def _message(record: Any, no_timestamp: int) -> IngestedMessage:
    kind, milliseconds = record.timestamp()
    metadata = {
        "kafka.topic": record.topic(),
        "kafka.partition": str(record.partition()),
        "kafka.offset": str(record.offset()),
    }
    if kind != no_timestamp:
        metadata["kafka.timestamp"] = str(milliseconds)
    if record.key() is not None:
        metadata["key"] = _text(record.key())
    headers = {name: _text(value or b"") for name, value in record.headers() or ()}  # the last of each name
    attributes = {**metadata, **headers, **metadata}  # metadata first, and instead of headers of the same names
    fit = within_limits(attributes)
    if left_out := attributes.keys() - fit.keys():
        where = (record.offset(), record.partition(), record.topic())
        _log.warning("Attributes of offset %d of partition %d of `%s` are left out: %s", *where, sorted(left_out))
    return IngestedMessage(record.value() or b"", fit)


def _text(content: bytes) -> str:
    return content.decode(errors="replace")  # attributes are text


def within_limits(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes except those that would make Pub/Sub refuse the message.

    The service documents that they are left out (`IngestionFailureEvent.ApiViolationReason`).
    """
    return dict(islice((attribute for attribute in attributes.items() if _fits(*attribute)), _ATTRIBUTES))


def _fits(name: str, value: str) -> bool:
    allowed = name != "" and not name.lower().startswith("goog")
    return allowed and len(name.encode()) <= _NAME_BYTES and len(value.encode()) <= _VALUE_BYTES

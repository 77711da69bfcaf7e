"""Exports (BigQuery, Cloud Storage, Bigtable), ingestion from foreign sources, transforms: their checks and defaults.

Every configuration is checked as the service checks it, kept and returned. One that does nothing here is reported: by
the state of an export or an ingestion, and by UNIMPLEMENTED for a transform that is not JavaScript.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError, invalid, invalid_argument, unimplemented
from pubsub_spark.emulator.resources import limits
from pubsub_spark.emulator.state.broker import Broker
from pubsub_spark.emulator.state.subscription import Subscription
from pubsub_spark.emulator.state.topic import Topic

ACTIVE, RESOURCE_ERROR = 1, 2  # of Subscription.State. In Topic.State, 2 is INGESTION_RESOURCE_ERROR

# Configuration of a Subscription -> the state for a missing destination.
_EXPORTS = {
    "bigquery_config": "NOT_FOUND",
    "cloud_storage_config": "NOT_FOUND",
    "bigtable_config": "PERMISSION_DENIED",  # also Bigtable's state for a missing table. Its NOT_FOUND is unused
}
# Older client libraries lack the newest.
_KNOWN_EXPORTS = [name for name in _EXPORTS if name in protos.Subscription.DESCRIPTOR.fields_by_name]
# Source of a Topic -> the state for a missing source.
_SOURCES = {
    "aws_kinesis": "STREAM_NOT_FOUND",
    "cloud_storage": "BUCKET_NOT_FOUND",
    "azure_event_hubs": "EVENT_HUB_NOT_FOUND",
    "aws_msk": "TOPIC_NOT_FOUND",
    "confluent_cloud": "UNREACHABLE_BOOTSTRAP_SERVER",
}
# Source or transform -> its required fields.
_REQUIRED = {
    "aws_kinesis": ("stream_arn", "consumer_arn", "aws_role_arn", "gcp_service_account"),
    "aws_msk": ("cluster_arn", "topic", "aws_role_arn", "gcp_service_account"),
    "confluent_cloud": ("bootstrap_server", "cluster_id", "topic", "identity_pool_id", "gcp_service_account"),
    "javascript_udf": ("function_name", "code"),
    "compression": ("compression_algorithm", "compression_mode"),
    "ai_inference": ("endpoint",),
}
_MAX_TRANSFORMS = 5  # enabled, on one resource
_MAX_UDF_BYTES = 20_480
_AI_ENDPOINT = re.compile(r"projects/[^/]+/locations/[^/]+/(endpoints/[^/]+|publishers/[^/]+/models/[^/]+)")
_BIGQUERY_TABLE = re.compile(r"([^:/]+\.[^:/]+:)?[^.:/]+[.:][^.:/]+\.[^.:/]+")  # `example.com:project` is a project
_BIGTABLE_TABLE = re.compile(r"projects/[^/]+/instances/[^/]+/tables/[^/]+")
_BIGTABLE_DELIMITER = 50  # bytes, at most
# https://cloud.google.com/storage/docs/buckets#naming (of misspellings, only the one that is named there)
_BUCKET = re.compile(r"(?=.{3,222}$)(?!goog)(?!.*(google|g00gle))(?!\d+(\.\d+){3}$)[a-z0-9]([a-z0-9_.-]*[a-z0-9])?")
_BUCKET_COMPONENT = 63  # characters between dots, at most
# https://cloud.google.com/storage/docs/objects#naming
_RESERVED_OBJECTS = ".well-known/acme-challenge/"
_OBJECT_NAME_BYTES = 1024
# https://cloud.google.com/pubsub/docs/create-cloudstorage-subscription#file_names
_DATETIME_FORMAT = re.compile(r"(?:YY|MM|DD|hh|mm|ss|T|Z|\+00:00|[-_:/])*")
_DATETIME_MATCHER = re.compile(r"YYYY|YY|MM|DD|hh|mm|ss|T|Z|\+00:00")
_SAME_MATCHER = {"YYYY": "YY", "+00:00": "Z"}  # two forms of the year, and of the offset
_REQUIRED_MATCHERS = frozenset({"YY", "MM", "DD", "hh", "mm", "ss"})
_GCS_BYTES = (1000, 10 * 1024**3)
_GCS_LEAST_MESSAGES = 1000
_GCS_DURATION_SECONDS = 5 * limits.MINUTE


def export_of(subscription: Any) -> str:
    """Return the name of the configuration, or an empty text."""
    present = [name for name in _KNOWN_EXPORTS if subscription.HasField(name)]
    if len(present) > 1:
        raise invalid(f"At most one of {', '.join(_EXPORTS)} may be set, got {' and '.join(present)}.")
    return "".join(present)


def fill_export(subscription: Any, running: Collection[str] = ()) -> None:
    """`running` are the configurations that work."""
    name = export_of(subscription)
    subscription.state = RESOURCE_ERROR if name and name not in running else ACTIVE
    if not name:
        return
    config = getattr(subscription, name)
    _CHECKS[name](config, subscription)
    state = "ACTIVE" if name in running else _EXPORTS[name]
    config.state = config.DESCRIPTOR.enum_types_by_name["State"].values_by_name[state].number


def _check_bigquery(config: Any, _: Any) -> None:
    if not _BIGQUERY_TABLE.fullmatch(config.table):
        raise _bad("bigquery_config.table", config.table)
    if config.use_topic_schema and config.use_table_schema:
        raise invalid("Only one of use_topic_schema and use_table_schema can be set in a bigquery_config.")


def _fill_cloud_storage(config: Any, subscription: Any) -> None:
    _check_bucket("cloud_storage_config.bucket", config.bucket)
    _check_object_name(config.filename_prefix, config.filename_suffix)
    if config.filename_datetime_format and not _is_datetime_format(config.filename_datetime_format):
        raise _bad("cloud_storage_config.filename_datetime_format", config.filename_datetime_format)
    if not config.HasField("max_duration"):
        config.max_duration.seconds = _GCS_DURATION_SECONDS
    duration = config.max_duration.seconds + config.max_duration.nanos / 1e9
    limits.check_duration(duration, limits.GCS_MAX_DURATION)
    # A file may not stay open longer than its messages are leased, so an unset deadline becomes its duration.
    subscription.ack_deadline_seconds = subscription.ack_deadline_seconds or int(duration)
    limits.check_at_most("max_duration", duration, subscription.ack_deadline_seconds, limits.go_duration)
    if config.max_bytes:
        limits.check_at_least("max_bytes", config.max_bytes, _GCS_BYTES[0])
        limits.check_at_most("max_bytes", config.max_bytes, _GCS_BYTES[1])
    if config.max_messages:
        limits.check_at_least("max_messages", config.max_messages, _GCS_LEAST_MESSAGES)
    if config.WhichOneof("output_format") is None:
        config.text_config.SetInParent()


def _check_object_name(prefix: str, suffix: str) -> None:
    if prefix.startswith(_RESERVED_OBJECTS) or any(char in prefix for char in "\r\n"):
        raise _bad("cloud_storage_config.filename_prefix", prefix)
    if suffix.endswith("/") or any(char in suffix for char in "\r\n"):
        raise _bad("cloud_storage_config.filename_suffix", suffix)
    limits.check_at_most("object_name_size", len(f"{prefix}{suffix}".encode()), _OBJECT_NAME_BYTES)


def _is_datetime_format(text: str) -> bool:
    """Return whether a format has each date and time part once, at most one `T` and offset, else only delimiters."""
    if not _DATETIME_FORMAT.fullmatch(text):
        return False
    matchers = Counter(_SAME_MATCHER.get(matcher, matcher) for matcher in _DATETIME_MATCHER.findall(text))
    return matchers.keys() >= _REQUIRED_MATCHERS and set(matchers.values()) == {1}


def _check_bigtable(config: Any, _: Any) -> None:
    if not _BIGTABLE_TABLE.fullmatch(config.table):
        raise _bad("bigtable_config.table", config.table)
    mapping = getattr(config, "column_family_mapping", None)  # older client libraries lack it
    if mapping is None or not mapping.HasField("delimited_key"):
        return
    key = mapping.delimited_key
    if not key.key_fields:
        raise _bad("bigtable_config.column_family_mapping.delimited_key.key_fields", "")
    if len(key.delimiter) > _BIGTABLE_DELIMITER or (len(key.key_fields) > 1 and not key.delimiter):
        raise _bad("bigtable_config.column_family_mapping.delimited_key.delimiter", str(key.delimiter))


_CHECKS = {
    "bigquery_config": _check_bigquery,
    "cloud_storage_config": _fill_cloud_storage,
    "bigtable_config": _check_bigtable,
}


def fill_ingestion(topic: Any) -> None:
    """Set the state of a Topic's ingestion to that of a missing source, until a worker sets another."""
    topic.ClearField("state")
    if not topic.HasField("ingestion_data_source_settings"):
        return
    settings = topic.ingestion_data_source_settings
    source = settings.WhichOneof("source")
    if source is not None:
        config = getattr(settings, source)
        _check_required(f"ingestion_data_source_settings.{source}", source, config)
        if source == "cloud_storage" and config.bucket:  # which need not be there yet
            _check_bucket("ingestion_data_source_settings.cloud_storage.bucket", config.bucket)
        states = config.DESCRIPTOR.enum_types_by_name["State"].values_by_name
        config.state = states[_SOURCES[source]].number if source in _SOURCES else 0
        topic.state = RESOURCE_ERROR


def check_transforms(transforms: Sequence[Any]) -> None:
    """A well-formed transform of another kind than JavaScript is kept if it is disabled."""
    names = [transform.javascript_udf.function_name for transform in transforms if transform.HasField("javascript_udf")]
    if len(names) != len(set(names)):
        raise invalid("The function names of the message transforms of one resource must be distinct.")
    for transform in transforms:
        kind = transform.WhichOneof("transform")
        if kind is None:
            raise _bad("message_transforms", "empty")
        _check_required(f"message_transforms.{kind}", kind, getattr(transform, kind))
        if kind == "ai_inference" and not _AI_ENDPOINT.fullmatch(transform.ai_inference.endpoint):
            raise _bad("message_transforms.ai_inference.endpoint", transform.ai_inference.endpoint)
        if kind == "javascript_udf":
            size = len(transform.javascript_udf.code.encode())
            limits.check_at_most("javascript_udf.code", size, _MAX_UDF_BYTES)
        elif not transform.disabled:
            raise unimplemented(
                f"This emulator runs message transforms of JavaScript only. Set `disabled` to keep one of `{kind}` "
                "without running it."
            )
    enabled = sum(not transform.disabled for transform in transforms)
    limits.check_at_most("message_transforms", enabled, _MAX_TRANSFORMS)


def _check_required(path: str, kind: str, config: Any) -> None:
    for field in _REQUIRED.get(kind, ()):
        value, known = getattr(config, field), config.DESCRIPTOR.fields_by_name[field].enum_type
        if not value or (known is not None and value not in known.values_by_number):
            raise _bad(f"{path}.{field}", str(value or ""))


def _check_bucket(path: str, name: str) -> None:
    if not _BUCKET.fullmatch(name) or max(map(len, name.split("."))) > _BUCKET_COMPONENT:
        raise _bad(path, name)


def _bad(argument: str, value: str) -> RpcError:
    return invalid_argument(f"{argument}; value={value}")


def keep_state(changed: Any, present: Any) -> None:
    """Keep the state of a Topic's source or a Subscription's export that is configured as before.

    For another configuration, the worker that ingests or exports sets the state, which may be long after.
    """
    before, now = _configuration(present), _configuration(changed)
    if before is None or type(before) is not type(now):
        return
    initial, now.state = now.state, before.state
    if now == before:
        changed.state = present.state
    else:
        now.state = initial


def _configuration(resource: Any) -> Any:
    if isinstance(resource, protos.Topic):
        settings = resource.ingestion_data_source_settings
        source = settings.WhichOneof("source")
        return getattr(settings, source) if source else None
    name = export_of(resource)
    return getattr(resource, name) if name else None


def reset_states(broker: Broker, running: Collection[str]) -> None:
    """Reset the states of exports and ingestion to those at creation: an earlier start may have had other services.

    running: the export configurations that work.
    """
    for topic in broker.topics.values():
        if topic.resource.HasField("ingestion_data_source_settings"):
            _refill(broker, topic, fill_ingestion)
    for subscription in broker.subscriptions.values():
        if export_of(subscription.resource):
            _refill(broker, subscription, partial(fill_export, running=running))


def _refill(broker: Broker, record: Topic | Subscription, fill: Callable[[Any], None]) -> None:
    resource = deepcopy(record.resource)
    fill(resource)
    if resource != record.resource:
        broker.replace(record, resource)

"""The validation and the defaults of Topic and Subscription resources.

Resources go in as the client sent them and come out as `Get...` will show them, or an RpcError reports the mistake.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from google.protobuf import json_format

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import invalid, invalid_argument
from pubsub_spark.emulator.resources import filter as filters
from pubsub_spark.emulator.resources import integrations, limits
from pubsub_spark.emulator.state.settings import Settings

_KMS_KEY = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")
_HOST = re.compile(r"[\w.-]+|[0-9a-f:.]+")  # a name, or an address
_PUSH_VERSION = "x-goog-version"  # the one attribute of a PushConfig
_PUSH_VERSIONS = ("v1beta1", "v1beta2", "v1")  # the last two are names of one format
_NEVER = float("inf")


def check_values(resource: Any) -> None:
    """Refuse a Duration, Timestamp or number outside its type's range, which gRPC carries but JSON cannot.

    If it were kept, calls of the JSON API that show or list the resource would have no answer.
    """
    try:
        json_format.MessageToDict(resource)
    except json_format.SerializeToJsonError as problem:
        raise invalid_argument(str(problem).rstrip(".")) from None


def topic(resource: Any) -> Any:
    kept = protos.Topic()
    kept.CopyFrom(resource)
    _clear(kept, "satisfies_pzs", "state", "tags")
    check_values(kept)
    limits.check_labels(kept.labels)
    if kept.HasField("message_retention_duration"):
        limits.check_duration(seconds(kept.message_retention_duration), limits.RETENTION)
    if kept.kms_key_name and not _KMS_KEY.fullmatch(kept.kms_key_name):
        raise invalid(f"Invalid KMS key name given (kms_key_name={kept.kms_key_name}).")
    if kept.HasField("message_storage_policy") and not kept.message_storage_policy.allowed_persistence_regions:
        raise invalid_argument("message_storage_policy")
    integrations.check_transforms(kept.message_transforms)
    integrations.fill_ingestion(kept)
    return kept


def retention(kept: Any) -> float:
    """Return seconds, or 0 if the topic does not keep messages."""
    return seconds(kept.message_retention_duration) if kept.HasField("message_retention_duration") else 0


def subscription(resource: Any, exports: Collection[str] = ()) -> Any:
    """`exports` are the configurations that run."""
    kept = protos.Subscription()
    kept.CopyFrom(resource)
    _clear(kept, "state", "topic_message_retention_duration", "analytics_hub_subscription_info", "tags")
    check_values(kept)
    limits.check_labels(kept.labels)
    integrations.fill_export(kept, exports)
    kept.ack_deadline_seconds = limits.check_ack_deadline(kept.ack_deadline_seconds or limits.DEFAULT_ACK_DEADLINE, 10)
    _fill_expiration(kept)
    _fill_retention(kept)
    _fill_retry(kept)
    _fill_dead_letter(kept)
    _check_filter(kept.filter)
    integrations.check_transforms(kept.message_transforms)
    _check_delivery(kept)
    return kept


def settings(kept: Any) -> Settings:
    expiration, retry, dead_letter = kept.expiration_policy, kept.retry_policy, kept.dead_letter_policy
    has_retry = kept.HasField("retry_policy")
    return Settings(
        ack_deadline=kept.ack_deadline_seconds,
        retention=seconds(kept.message_retention_duration),
        retain_acked=kept.retain_acked_messages,
        ordering=kept.enable_message_ordering,
        exactly_once=kept.enable_exactly_once_delivery,
        dead_letter_topic=dead_letter.dead_letter_topic,
        dead_letter_attempts=dead_letter.max_delivery_attempts,
        min_backoff=seconds(retry.minimum_backoff) if has_retry else 0,
        max_backoff=seconds(retry.maximum_backoff) if has_retry else 0,
        ttl=seconds(expiration.ttl) if expiration.HasField("ttl") else _NEVER,
        matches=filters.compile(kept.filter) if kept.filter else None,
    )


def show_topic_retention(subscription: Any, topic: Any) -> None:
    subscription.ClearField("topic_message_retention_duration")
    if topic.HasField("message_retention_duration"):
        subscription.topic_message_retention_duration.CopyFrom(topic.message_retention_duration)


def push_config(config: Any) -> None:
    """An empty PushConfig is a pull subscription's."""
    endpoint = config.push_endpoint
    # The service insists on https. An emulator's endpoint is a test's own server.
    if endpoint and not _is_web_address(endpoint):
        raise invalid(
            f"Invalid push endpoint given (endpoint={endpoint}). "
            "Refer to https://cloud.google.com/pubsub/subscriber#create for more information."
        )
    version = config.attributes.get(_PUSH_VERSION, "v1")
    if version not in _PUSH_VERSIONS:
        raise invalid(f"Invalid push endpoint version given in push config (version={version}).")
    if endpoint and config.HasField("oidc_token") and not config.oidc_token.service_account_email:
        raise invalid_argument("push_config.oidc_token.service_account_email")
    if endpoint:
        config.attributes[_PUSH_VERSION] = version


def _is_web_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(_HOST.fullmatch(parts.hostname or "")) and parts.port != 0
    except ValueError:
        return False


def keep_push_version(changed: Any, kept: Any) -> None:
    """Keep the push format of the old configuration if the new one does not name one.

    This also holds for a pull subscription, which becomes a push subscription again with it.
    """
    version = kept.attributes.get(_PUSH_VERSION)
    # Not setdefault: in protobuf 5 a map creates keys that are read.
    if version is not None and _PUSH_VERSION not in changed.attributes:
        changed.attributes[_PUSH_VERSION] = version


def kind(kept: Any) -> str:
    if kept.push_config.push_endpoint:
        return "push"
    return "export" if integrations.export_of(kept) else "pull"


def _clear(kept: Any, *output_only: str) -> None:
    """Clear output-only fields, as far as the installed client library knows them."""
    for name in output_only:
        if name in kept.DESCRIPTOR.fields_by_name:
            kept.ClearField(name)


def seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / 1e9)


def _fill_expiration(kept: Any) -> None:
    """A policy without a ttl means never."""
    if not kept.HasField("expiration_policy"):
        kept.expiration_policy.ttl.seconds = limits.DEFAULT_EXPIRATION
    elif kept.expiration_policy.HasField("ttl"):
        ttl = seconds(kept.expiration_policy.ttl)
        limits.check_at_least("expiration duration", ttl, limits.DAY, limits.go_duration)


def _fill_retention(kept: Any) -> None:
    if kept.HasField("message_retention_duration"):
        limits.check_duration(seconds(kept.message_retention_duration), limits.RETENTION)
        return
    ttl = seconds(kept.expiration_policy.ttl) if kept.expiration_policy.HasField("ttl") else _NEVER
    kept.message_retention_duration.seconds = int(min(limits.DEFAULT_RETENTION, ttl))


def _fill_retry(kept: Any) -> None:
    if not kept.HasField("retry_policy"):
        return
    policy = kept.retry_policy
    for bounds, default in limits.BACKOFFS:
        if not policy.HasField(bounds.field):
            getattr(policy, bounds.field).seconds = default
        limits.check_duration(seconds(getattr(policy, bounds.field)), bounds)
    if seconds(policy.minimum_backoff) > seconds(policy.maximum_backoff):
        raise invalid("The value for minimum_backoff must not be greater than the value for maximum_backoff.")


def _fill_dead_letter(kept: Any) -> None:
    if not kept.HasField("dead_letter_policy"):
        return
    policy = kept.dead_letter_policy
    limits.check_name(policy.dead_letter_topic, "topics")
    policy.max_delivery_attempts = policy.max_delivery_attempts or limits.DEFAULT_DELIVERY_ATTEMPTS
    limits.check_at_least("max_delivery_attempts", policy.max_delivery_attempts, 5)
    limits.check_at_most("max_delivery_attempts", policy.max_delivery_attempts, 100)


def _check_filter(text: str) -> None:
    if text:
        try:
            filters.compile(text)
        except ValueError as problem:
            raise invalid(f"Invalid filter given (filter={text}). {problem}") from None


def _check_delivery(kept: Any) -> None:
    """Refuse a second way of delivery, and exactly-once delivery other than by pull."""
    if not kept.HasField("push_config"):
        kept.push_config.SetInParent()
    push_config(kept.push_config)
    export = integrations.export_of(kept)
    if export and kept.push_config.push_endpoint:
        raise invalid(f"At most one of push_config and {export} may be set.")
    if kept.enable_exactly_once_delivery and kind(kept) != "pull":
        raise invalid("Exactly-once delivery is only supported for pull subscriptions.")

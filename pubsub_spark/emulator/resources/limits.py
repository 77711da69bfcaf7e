"""The limits, defaults and error messages of the service, as tables, and the checks that read them.

The messages are the service's own if they are known, so a test that matches them passes on both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pubsub_spark import names
from pubsub_spark.emulator.api.errors import RpcError, invalid, invalid_argument

# Requests
MAX_PUBLISH_MESSAGES = 1000
MAX_PUBLISH_BYTES = 10_000_000
MAX_PAYLOAD_BYTES = 10 * 1024 * 1024  # of any request, before its content is read
MAX_ATTRIBUTES = 100
MAX_ATTRIBUTE_KEY_BYTES = 256
MAX_ATTRIBUTE_VALUE_BYTES = 1024
MAX_ORDERING_KEY_BYTES = 1024
_SCHEMA_WORDS = {"AVRO": "AVRO", "PROTOCOL_BUFFER": "PROTO"}  # of reasons. We have never seen that of JSON_PROTO
MAX_ACK_REQUEST_BYTES = 512 * 1024
MAX_PULL_MESSAGES = 1000
MAX_PAGE_SIZE = 1000
DEFAULT_PAGE_SIZE = 100
MAX_LABELS = 64
MAX_SCHEMA_BYTES = 300 * 1024
MAX_SCHEMA_REVISIONS = 20

# Seconds
MINUTE, HOUR, DAY = 60, 3600, 86_400
DEFAULT_ACK_DEADLINE = 10
DEFAULT_RETENTION = 7 * DAY
DEFAULT_EXPIRATION = 31 * DAY
DEFAULT_DELIVERY_ATTEMPTS = 5


def go_duration(seconds: float) -> str:
    """Return seconds in the service's format: 9m59s, 10m, 744h."""
    hours, remaining = divmod(abs(seconds), HOUR)
    minutes, remaining = divmod(remaining, MINUTE)
    parts = [(f"{hours:.0f}h", hours), (f"{minutes:.0f}m", minutes), (f"{remaining:.9g}s", remaining)]
    text = "".join(part for part, amount in parts if amount) or "0s"
    return f"-{text}" if seconds < 0 else text


class Bounds(NamedTuple):
    """A closed interval of seconds."""

    field: str
    low: float
    high: float
    text: Callable[[float], str] = go_duration


_BACKOFF_TEXT = "{:.9g}s".format  # as Google's emulator writes it. No other wording is known
RETENTION = Bounds("message retention duration", 10 * MINUTE, 31 * DAY)
# Field of a RetryPolicy, with its default in seconds
BACKOFFS = (
    (Bounds("minimum_backoff", 0, 600, _BACKOFF_TEXT), 10),
    (Bounds("maximum_backoff", 0, 600, _BACKOFF_TEXT), 600),
)
GCS_MAX_DURATION = Bounds("max_duration", MINUTE, 10 * MINUTE)

_PROJECT = re.compile(r"projects/[^/]+")


def check_name(name: str, collection: names.Collection) -> str:
    """Raise RpcError unless `name` is valid."""
    try:
        names.parse(name, collection)
    except ValueError:
        raise invalid_name(name) from None
    return name


def invalid_name(name: str) -> RpcError:
    return invalid(
        f"Invalid resource name given (name={name}). Refer to "
        "https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names for more information. An id has 3 to 255 "
        "characters, letters, digits and -_.~+%, begins with a letter and not with 'goog'."
    )


def check_project(project: str) -> str:
    """Raise RpcError unless it is `projects/ID`."""
    if not _PROJECT.fullmatch(project):
        raise invalid_name(project)
    return project


def check_duration(value: float, bounds: Bounds) -> float:
    if not bounds.low <= value <= bounds.high:
        raise out_of_bounds(bounds.field, value, bounds.low, bounds.high, bounds.text)
    return value


def out_of_bounds(field: str, value: Any, low: Any, high: Any, text: Callable[[Any], str] = str) -> RpcError:
    return invalid(
        f"The value for {field} is out of bounds. You passed {text(value)} in the request, "
        f"but the value must be between {text(low)} and {text(high)}."
    )


def check_at_least(field: str, value: float, least: float, text: Any = str) -> None:
    if value < least:
        raise invalid(
            f"The value for {field} is too small. You passed {text(value)} in the request, "
            f"but the minimum value is {text(least)}."
        )


def check_at_most(field: str, value: float, most: float, text: Any = str) -> None:
    if value > most:
        raise invalid(
            f"The value for {field} is too large. You passed {text(value)} in the request, "
            f"but the maximum value is {text(most)}."
        )


def check_payload(size: int, most: int = MAX_PAYLOAD_BYTES) -> None:
    if size > most:
        raise invalid(f"Request payload size exceeds the limit: {most} bytes.")


def check_ack_deadline(seconds: int, low: int) -> int:
    """Check the seconds of a lease: from 0 for a single message, from 10 for a subscription or a stream."""
    if not low <= seconds <= 600:
        raise invalid(
            f"Invalid ack deadline given (ack_deadline={seconds}). "
            f"The ack deadline must be between {low} and 600 seconds."
        )
    return seconds


def check_ack_ids(ack_ids: Sequence[str]) -> None:
    if not ack_ids:
        raise invalid("You have not specified an ack ID in the request.")


def malformed_ack_id(ack_id: str) -> RpcError:
    return invalid(f"You have passed an invalid ack ID to the service (ack_id={ack_id}).")


def exactly_once_failure(ack_ids: Sequence[str], outcome: str = "PERMANENT_FAILURE_INVALID_ACK_ID") -> RpcError:
    """The ErrorInfo names each ack id, as clients read it."""
    return RpcError(
        "INVALID_ARGUMENT",
        "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids have "
        "expired or the acknowledgement ids were malformed.",
        reason="EXACTLY_ONCE_ACKID_FAILURE",
        metadata=dict.fromkeys(ack_ids, outcome),
    )


def failed_validation(schema_type: str, encoding: str, problem: str, **metadata: str) -> RpcError:
    """The reason and metadata are the service's."""
    failed = "Message failed schema validation"
    return RpcError(
        "INVALID_ARGUMENT",
        f"Invalid data in message: {failed}. {problem}",
        reason=f"INVALID_{encoding}_{_SCHEMA_WORDS[schema_type]}_MESSAGE",
        metadata={"message": failed, **metadata},
    )


def check_labels(labels: Mapping[str, str]) -> None:
    """Check labels: at most 64, of lower-case letters, digits, `_` and `-`. A key begins with a letter."""
    if len(labels) > MAX_LABELS:
        raise _bad_labels(f"has {len(labels)} entries, but the maximum is {MAX_LABELS}")
    for key, value in labels.items():
        if not (_is_label(key, 1) and unicodedata.category(key[0]) in ("Ll", "Lo")):
            raise _bad_labels(rf'key "{key}" does not conform to [\p{{Ll}}\p{{Lo}}][\p{{Ll}}\p{{Lo}}\p{{N}}_-]{{0,62}}')
        if not _is_label(value, 0):
            raise _bad_labels(rf'value "{value}" does not conform to [\p{{Ll}}\p{{Lo}}\p{{N}}_-]{{0,63}}')


def _is_label(text: str, least: int) -> bool:
    return least <= len(text) <= 63 and all(
        char in "_-" or unicodedata.category(char) in ("Ll", "Lo", "Nd", "Nl", "No") for char in text
    )


def _bad_labels(problem: str) -> RpcError:
    return invalid_argument(f'Invalid labels: Invalid field "labels"; {problem}.')


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Refuse attributes over a limit, and keys that begin with `goog`, except those that Google's clients set."""
    check_at_most("attribute_count", len(attributes), MAX_ATTRIBUTES)
    for key, value in attributes.items():
        if not key or (key[:4].lower() == "goog" and key not in names.TRACE_ATTRIBUTES):
            raise invalid(
                f"The request contains an attribute key that is not valid (key={key}). Attribute keys must be "
                "non-empty and must not begin with 'goog' (case-insensitive)."
            )
        # A character has at most four bytes, so short texts are known to fit without encoding them.
        if len(key) * 4 > MAX_ATTRIBUTE_KEY_BYTES:
            _check_attribute(key, "key", len(key.encode()), MAX_ATTRIBUTE_KEY_BYTES)
        if len(value) * 4 > MAX_ATTRIBUTE_VALUE_BYTES:
            _check_attribute(key, "value", len(value.encode()), MAX_ATTRIBUTE_VALUE_BYTES)


def _check_attribute(name: str, part: str, size: int, most: int) -> None:
    """The service calls its bytes characters."""
    if size > most:
        raise invalid(
            f'The attribute "{name}" in the request has a {part} that is too long. The length is {size} characters, '
            f"but the maximum allowed is {most}. Refer to https://cloud.google.com/pubsub/quotas for more information."
        )

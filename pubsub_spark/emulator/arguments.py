"""The arguments of the methods of an Emulator, from Python values to protobuf messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import duration_pb2

from pubsub_spark.declare import hint
from pubsub_spark.emulator.api import protos

Publishable = bytes | str | Mapping[str, Any]

_UPPER = re.compile(r"[A-Z]")
_DURATIONS = frozenset({"message_retention_duration", "minimum_backoff", "maximum_backoff", "ttl", "max_duration"})


def message(value: Publishable) -> Any:
    """Return the PubsubMessage of bytes, a text, or a mapping of its fields, or raise TypeError or ValueError."""
    fields: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"data": value}
    data = fields.get("data")
    if isinstance(data, str):
        fields["data"] = data.encode()
    try:
        return protos.PubsubMessage(**fields)
    except (TypeError, ValueError) as error:
        raise type(error)(
            "A message is bytes, a text, or a mapping of `data` (bytes or a text), `attributes` (texts) and "
            f"`ordering_key` (a text), not `{value!r:.100}`."
        ) from error


def resource(kind: Any, name: str, **settings: Any) -> Any:
    """TypeError names the nearest field for an unknown one."""
    _refuse_unknown(kind.DESCRIPTOR, settings)
    return kind(name=name, **with_durations(settings))


def _refuse_unknown(message_type: Any, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        field = message_type.fields_by_name.get(name)
        if field is None:
            names = message_type.fields_by_name
            near = hint(_UPPER.sub(r"_\g<0>", name), names, f"its fields are {', '.join(names)}")
            raise TypeError(f"`{name}` is not a field of {message_type.name}{near}")
        if isinstance(value, Mapping) and field.message_type and not field.message_type.GetOptions().map_entry:
            _refuse_unknown(field.message_type, value)


def with_durations(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with Durations instead of seconds, also in policies."""
    fields = {name: with_durations(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    seconds = {name: value for name, value in fields.items() if name in _DURATIONS and isinstance(value, int | float)}
    return fields | {name: _duration(name, value) for name, value in seconds.items()}


def _duration(name: str, seconds: float) -> Any:
    duration = duration_pb2.Duration()
    try:
        duration.FromNanoseconds(round(seconds * 1e9))
    except (ValueError, OverflowError):  # not a number, or infinity
        raise ValueError(f"`{name}` must be a number of seconds, got {seconds}.") from None
    return duration


def one_of(table: Mapping[str, int], name: str, field: str) -> int:
    """ValueError names the field if the table does not have the name."""
    if name not in table:
        raise ValueError(f"`{field}` must be one of {', '.join(table)}, got {name}.")
    return table[name]

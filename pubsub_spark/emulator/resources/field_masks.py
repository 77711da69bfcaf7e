"""Update masks: which fields of a resource a request replaces.

A path names a field or a field of a field, which is cleared if it is unset in the request. One bad path leaves
everything unchanged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from google.protobuf.message import Message

from pubsub_spark.emulator.api.errors import invalid

# The service's example of a well-formed path.
_EXAMPLES = {
    "Topic": "'schema_settings' rather than 'schemaSettings'",
    "Subscription": "'push_config' rather than 'pushConfig'",
    "Snapshot": "'expire_time' rather than 'expireTime'",
}


def updated(resource: Any, update: Any, paths: Collection[str], mutable: Collection[str]) -> Any:
    kind = resource.DESCRIPTOR.name
    request = f"Update{kind}Request"
    if not paths:
        raise invalid(f"The update_mask in the {request} must be set, and must contain a non-empty paths list.")
    for path in paths:
        _check(resource, path, mutable, kind, request)
    result = type(resource)()
    result.CopyFrom(resource)
    for path in paths:
        _replace(result, update, path.split("."))
    return result


def _check(resource: Any, path: str, mutable: Collection[str], kind: str, request: str) -> None:
    *parents, last = path.split(".")
    within = resource
    for part in parents:  # lists and maps have no fields that a path could name
        within = getattr(within, part, None) if isinstance(within, Message) else None
    if not isinstance(within, Message) or last not in within.DESCRIPTOR.fields_by_name:
        raise invalid(
            f"Invalid update_mask provided in the {request}: '{path}' is not a known {kind} field. "
            f"Note that field paths must be of the form {_EXAMPLES[kind]}."
        )
    if path.partition(".")[0] not in mutable:
        raise invalid(
            f"Invalid update_mask provided in the {request}: the '{path}' field in the {kind} is not mutable."
        )


def _replace(target: Any, source: Any, path: list[str]) -> None:
    for part in path[:-1]:
        if not (source.HasField(part) or target.HasField(part)):
            return  # a missing parent has nothing to clear, and clearing does not make it
        source = getattr(source, part)
        target = getattr(target, part)
    target.ClearField(path[-1])
    only = type(source)()
    only.CopyFrom(source)
    for field in source.DESCRIPTOR.fields:
        if field.name != path[-1]:
            only.ClearField(field.name)
    target.MergeFrom(only)

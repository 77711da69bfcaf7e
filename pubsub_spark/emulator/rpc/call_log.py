"""Log records of calls: RPC, resource, messages, status and duration, as a sentence and as fields.

Requests are parsed for it, which costs as much as a second handler, so only for logged calls.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import Code, RpcError
from pubsub_spark.emulator.api.routes import Route, routes
from pubsub_spark.emulator.rpc.context import RpcContext

# The number of messages in a call, by its request and its response.
_COUNTS: dict[str, Callable[[Any, bytes], int]] = {
    "Publish": lambda request, _: len(request.messages),
    "Pull": lambda _, response: len(protos.PullResponse.FromString(response).received_messages),
    "Acknowledge": lambda request, _: len(request.ack_ids),
    "ModifyAckDeadline": lambda request, _: len(request.ack_ids),
}


class Ended(NamedTuple):
    sentence: str
    fields: Mapping[str, Any]


def ended(context: RpcContext, response: bytes, error: BaseException | None, seconds: float) -> Ended:
    resource, messages = _about(context, response)
    fields: dict[str, Any] = {"rpc": context.rpc, "resource": resource}
    if messages is not None:
        fields["messages"] = messages
    fields["code"] = "OK" if error is None else code_of(error)
    if isinstance(error, RpcError):
        fields["error"] = error.message
    fields |= {"milliseconds": round(seconds * 1000, 3), "peer": context.peer}
    said = [context.rpc, resource, "" if messages is None else f"{messages} message{'s' * (messages != 1)}"]
    why = f": {error.message}" if isinstance(error, RpcError) else ""
    said += [f"{seconds * 1000:.1f} ms", f"from {context.peer}", f"{fields['code']}{why}"]
    return Ended(" ".join(", ".join(filter(None, said)).splitlines()), fields)


def code_of(error: BaseException) -> Code:
    if isinstance(error, RpcError):
        return error.code
    if isinstance(error, DecodeError):
        return "INVALID_ARGUMENT"
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else "INTERNAL"


def _about(context: RpcContext, response: bytes) -> tuple[str, int | None]:
    """Return the resource of a call, or an empty text, and its number of messages, or None."""
    rpc = context.rpc
    route = _routes().get(rpc)
    request_type = protos.StreamingPullRequest if route is None else route.request
    try:
        request = request_type.FromString(context.request)
    except DecodeError:
        return "", None
    if route is None:
        return request.subscription, context.messages
    value = request
    for name in route.fields[0].split("."):
        value = getattr(value, name)
    return value, _COUNTS[rpc](request, response) if rpc in _COUNTS else None


@lru_cache(maxsize=1)
def _routes() -> dict[str, Route]:
    """The field that fills the path of a route names the resource."""
    return {route.rpc.rpartition("/")[2]: route for route in routes()}


class JsonFormatter(logging.Formatter):
    """A record is one line of JSON, with Google Cloud's names for structured logging."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "severity": record.levelname,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)

"""Sends the script to an emulator, by gRPC or by HTTP, and keeps the comparable parts of each answer.

Ids, times and tokens change from run to run: of those only their presence is kept.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

import grpc
from google.protobuf import json_format

from pubsub_spark.emulator.api import routes
from tests.conformance.script import STEPS, Step

PATIENCE = 3.0  # seconds to wait for messages
VOLATILE = frozenset(
    {"ackId", "messageId", "messageIds", "publishTime", "revisionId", "revisionCreateTime", "expireTime", "etag"}
    | {"nextPageToken", "CloudPubSubDeadLetterSourceTopicPublishTime", "googclient_schemarevisionid"}
)
_REVISION = re.compile(r"revision [0-9a-f]{8}")
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Outcome(NamedTuple):
    """The outcome of a step: a status code, the answer's JSON without ids and times, the error's text."""

    code: str
    answer: Any
    message: str = ""


class Refused(Exception):  # noqa: N818 - an answer, not an error of the test
    """The emulator answered with an error."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        self.message = message


class Line(Protocol):
    """The sending of an RPC to an emulator, JSON in and JSON out."""

    def ask(self, rpc: str, request: Mapping[str, Any]) -> Any: ...

    def close(self) -> None: ...


def play(line: Line) -> dict[str, Outcome]:
    """Return every step's outcome by its name, without the steps that this way cannot express."""
    saved: dict[str, Any] = {}
    outcomes = {}
    for step in STEPS:
        with contextlib.suppress(InexpressibleError):
            outcomes[step.name] = _play(line, step, saved)
    line.close()
    return outcomes


def _play(line: Line, step: Step, saved: dict[str, Any]) -> Outcome:
    request = _filled(step.request, saved)
    try:
        answer = line.ask(step.rpc, request) if step.expects is None else _collect(line, step, request)
    except Refused as error:
        return Outcome(error.code, None, _REVISION.sub("revision", error.message))  # each emulator draws its own
    for name, path in step.saves.items():
        with contextlib.suppress(LookupError):  # the comparison shows a missing message
            saved[name] = _at(answer, path)
    return Outcome("OK", _normal(answer))


def _collect(line: Line, step: Step, request: Mapping[str, Any]) -> Any:
    """Pull until the expected messages are there, or patience ends. Pull once if none are expected."""
    received: list[Any] = []
    ends = time.monotonic() + PATIENCE
    while True:
        received += line.ask(step.rpc, request).get("receivedMessages", [])
        if len(received) >= (step.expects or 0) or time.monotonic() > ends:
            return {"receivedMessages": received}
        time.sleep(0.02)


class GrpcLine:
    """The sending by gRPC."""

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint, _OPTIONS)

    def ask(self, rpc: str, request: Mapping[str, Any]) -> Any:
        route = _routes(rpc)[0]
        method = self._channel.unary_unary(route.rpc, route.request.SerializeToString, route.response.FromString)
        try:
            return json_format.MessageToDict(method(json_format.ParseDict(request, route.request()), timeout=10))
        except grpc.RpcError as error:
            raise Refused(error.code().name, error.details() or "") from None

    def close(self) -> None:
        self._channel.close()


class InexpressibleError(Exception):
    """The error for a request that no URL can express: the name in its path is missing, or is not a name."""


class HttpLine:
    """The sending by HTTP and JSON."""

    def __init__(self, endpoint: str) -> None:
        self._connection = http.client.HTTPConnection(endpoint, timeout=10)

    def ask(self, rpc: str, request: Mapping[str, Any]) -> Any:
        verb, path, body = _written(rpc, request)
        self._connection.request(verb, path, body, {"Content-Type": "application/json"})
        answer = json.loads(self._connection.getresponse().read() or "{}")
        if "error" in answer:
            raise Refused(answer["error"]["status"], answer["error"]["message"])
        return answer

    def close(self) -> None:
        self._connection.close()


def _written(rpc: str, request: Mapping[str, Any]) -> tuple[str, str, str | None]:
    """Return the HTTP request of an RPC: its route's parts are the path, and the rest is body or query."""
    for route in _routes(rpc):
        rest = json.loads(json.dumps(request))
        # The pattern with its groups filled in is the path.
        path = re.sub(r"\\(.)", r"\1", route.pattern.pattern)
        for field in route.fields:
            *parents, last = field.split(".")
            holder = rest
            for parent in parents:
                holder = holder.get(parent, {})
            name = holder.get(last, "") if parents else holder.pop(last, "")
            before, _, after = path.partition("(")
            path = before + quote(name) + after.partition(")")[2]
        if route.pattern.fullmatch(path):
            if route.body is None:
                return route.verb, f"{path}?{urlencode(rest)}" if rest else path, None
            if route.body != "*":
                body = rest.pop(route.body, {})
                return route.verb, f"{path}?{urlencode(rest)}", json.dumps(body)
            return route.verb, path, json.dumps(rest)
    raise InexpressibleError


def _routes(rpc: str) -> list[routes.Route]:
    return [route for route in routes.routes() if route.rpc.rpartition(".")[2] == rpc]


def _filled(value: Any, saved: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith("$"):
        return saved.get(value[1:], value)
    if isinstance(value, Mapping):
        return {name: _filled(item, saved) for name, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, saved) for item in value]
    return value


def _at(value: Any, path: str) -> Any:
    """Return `receivedMessages.0.ackId` of an answer. `*` is each item of a list."""
    for part in path.split("."):
        if part == "*":
            return [_at(item, path.partition("*.")[2]) for item in value]
        value = value[int(part)] if part.isdecimal() else value[part]
    return value


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        # In which order revisions are listed is documented nowhere.
        value = value | {"schemas": sorted(value["schemas"], key=str)} if "schemas" in value else value
        return {name: "<>" if name in VOLATILE else _normal(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_normal(item) for item in value]
    return value

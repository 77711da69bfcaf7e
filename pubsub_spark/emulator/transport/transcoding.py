"""The JSON of the v1 API as protobuf requests, and responses as JSON again, without a socket. Pure.

A few parameters set the format of the answer: `fields`, `prettyPrint`, `alt=proto`. A body may also be a serialized
message. `callback` is refused: JSONP lets any page that a browser shows read the emulator's data.

The JSON is protobuf's, and requests may have names in camelCase or snake case. An unknown field is an error, as in the
service.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import grpc
from google.api_core import exceptions
from google.protobuf import descriptor, json_format
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import invalid
from pubsub_spark.emulator.api.routes import Route
from pubsub_spark.emulator.transport import field_selector

# Parameters of every Google API for the format of the answer.
_SYSTEM_PARAMETERS = frozenset(
    {"access_token", "alt", "callback", "fields", "key", "oauth_token", "prettyPrint", "quotaUser", "uploadType"}
    | {"upload_protocol", "userProject", "$alt", "$callback", "$fields", "$key", "$prettyPrint", "$unique", "$.xgafv"}
)
_INTEGER_ENUMS = "enum-encoding=int"
_CALLBACK = "callback"
_ALTS = ("json", "proto")
_SERIALIZED = ("application/x-protobuf", "application/protobuf")  # the first is the answer's
JSON = "application/json; charset=utf-8"
_UNKNOWN_FIELD = re.compile(r'no field named "(?P<name>[^"]*)"')
_UNDERSCORE = re.compile("_([a-z0-9])")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")


class Call(NamedTuple):
    route: Route
    request: Any
    form: Form


class Form(NamedTuple):
    """`fields` are the paths of the wanted fields."""

    serialized: bool
    integer_enums: bool
    pretty: bool
    fields: Sequence[field_selector.Path]


def read(route: Route, path: str, query: str, body: bytes, content_type: str = "") -> Call:
    """Raise RpcError if the request cannot be read."""
    request = route.request()
    parameters = parse_qsl(query, keep_blank_values=True)
    if route.body is not None and body.strip():
        target = request if route.body == "*" else getattr(request, route.body)
        if target is not request:
            target.SetInParent()
        if content_type.partition(";")[0].strip().lower() in _SERIALIZED:
            _parse(target, body)
        else:
            document = _with_camel_case_masks(_json(body))
            _check_base64(target.DESCRIPTOR, document)
            _fill(target, document)
    for name, text in parameters:
        if name not in _SYSTEM_PARAMETERS:
            _fill(request, _with_camel_case_masks(_nested(request.DESCRIPTOR, name, text)))
    match = route.pattern.fullmatch(path)
    for field, text in zip(route.fields, match.groups() if match else (), strict=True):
        _assign(request, field, _segment(text))
    return Call(route, request, _form({name.removeprefix("$"): text for name, text in parameters}, route))


def _form(parameters: Mapping[str, str], route: Route) -> Form:
    """Return the answer's format from the system parameters. https://cloud.google.com/apis/docs/system-parameters"""
    alt, *options = parameters.get("alt", "json").split(";")
    if alt not in _ALTS:
        raise invalid(f"Invalid value at 'alt': `{alt}`. It must be json or proto.")
    if _CALLBACK in parameters:
        raise invalid("`callback` is not supported: JSONP would let any web page read this emulator. Leave it out.")
    try:
        fields = field_selector.paths(parameters.get("fields") or "*", route.response.DESCRIPTOR)
    except ValueError as error:
        raise invalid(str(error)) from None
    return Form(alt == "proto", _INTEGER_ENUMS in options, parameters.get("prettyPrint") not in ("false", "0"), fields)


def answer(call: Call, response: Any) -> bytes:
    document = json_format.MessageToDict(response, use_integers_for_enums=call.form.integer_enums)
    document = field_selector.select(document, call.form.fields)
    if call.form.serialized:
        return bytes(json_format.ParseDict(document, type(response)()).SerializeToString())
    indent, separators = (2, None) if call.form.pretty else (None, (",", ":"))
    return json.dumps(document, indent=indent, separators=separators, ensure_ascii=False).encode()


def media_type(call: Call) -> str:
    return _SERIALIZED[0] if call.form.serialized else JSON


def http_status(code: str) -> int:
    """Return HTTP's status for a code of gRPC, as google/rpc/code.proto maps them."""
    # UNKNOWN and DATA_LOSS have no class of their own.
    return int(
        exceptions.exception_class_for_grpc_status(grpc.StatusCode[code]).code or HTTPStatus.INTERNAL_SERVER_ERROR
    )


def failure(code: str, message: str, details: bytes = b"") -> tuple[int, bytes]:
    """`details` is a serialized google.rpc.Status."""
    status = http_status(code)
    error: dict[str, Any] = {"code": status, "message": message, "status": code}
    if readable := _readable(details):
        error["details"] = readable
    return status, json.dumps({"error": error}, indent=2, ensure_ascii=False).encode()


def _readable(details: bytes) -> list[Any]:
    """Types that google.rpc does not define have no JSON form and are left out."""
    known = error_details_pb2.DESCRIPTOR.message_types_by_name
    return [
        json_format.MessageToDict(detail)
        for detail in status_pb2.Status.FromString(details).details
        if detail.TypeName().removeprefix("google.rpc.") in known
    ]


def _segment(text: str) -> str:
    """Return a percent-decoded path segment, except for a slash, which would make two segments of one."""
    return "%2F".join(unquote(part) for part in re.split("%2[Ff]", text))


def _with_camel_case_masks(document: dict[str, Any]) -> dict[str, Any]:
    """Protobuf's form of an update mask is camelCase. The service also accepts snake case and mixtures."""
    masks = {
        name: _UNDERSCORE.sub(lambda match: match[1].upper(), text)
        for name in ("updateMask", "update_mask")
        if isinstance(text := document.get(name), str)
    }
    return document | masks


def _parse(message: Any, body: bytes) -> None:
    try:
        message.MergeFromString(body)
    except DecodeError:
        raise invalid(f"Invalid payload received. It is no serialized {message.DESCRIPTOR.full_name}.") from None


def _json(body: bytes) -> Any:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None
    except RecursionError:
        raise invalid("Invalid JSON payload received. It is nested too deeply.") from None
    if not isinstance(document, dict):
        raise invalid("Invalid JSON payload received. It must be an object.")
    return document


def _check_base64(message: descriptor.Descriptor, document: dict[str, Any]) -> None:
    """Refuse bytes that are not base64, because protobuf's own reader would skip invalid characters."""
    for name, value in document.items():
        field = message.fields_by_camelcase_name.get(name) or message.fields_by_name.get(name)
        if field is None:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and field.message_type is not None:
                _check_base64(field.message_type, item)
            elif isinstance(item, str) and field.type == field.TYPE_BYTES and not _BASE64.fullmatch(item):
                raise invalid(
                    f"Invalid JSON payload received. Invalid value at '{name}' (TYPE_BYTES), Base64 decoding failed."
                )


def _fill(message: Any, document: dict[str, Any]) -> None:
    try:
        json_format.ParseDict(document, message)
    except json_format.ParseError as error:
        unknown = _UNKNOWN_FIELD.search(str(error))
        reason = f'Unknown name "{unknown["name"]}": Cannot find field.' if unknown else protos.complaint(error)
        raise invalid(f"Invalid JSON payload received. {reason}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None


def _nested(message: descriptor.Descriptor, name: str, text: str) -> dict[str, Any]:
    """Return a query parameter `a.b=text` as the JSON `{"a": {"b": text}}`, with the types of that JSON."""
    head, _, tail = name.partition(".")
    field = message.fields_by_camelcase_name.get(head) or message.fields_by_name.get(head)
    if field is None:
        raise invalid(f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter.')
    if tail:
        if field.message_type is None:
            raise invalid(f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter.')
        return {head: _nested(field.message_type, tail, text)}
    value: Any = text
    if field.type == field.TYPE_BOOL:
        value = {"true": True, "false": False}.get(text, text)
    elif field.enum_type is not None and text.lstrip("-").isdecimal():
        value = int(text)
    return {head: [value] if isinstance(field.default_value, list) else value}


def _assign(message: Any, field: str, text: str) -> None:
    """Set `topic.name` or `name`: a value in the path takes precedence over the body's."""
    *parents, last = field.split(".")
    for parent in parents:
        message = getattr(message, parent)
    setattr(message, last, text)

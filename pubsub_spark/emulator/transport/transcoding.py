"""From HTTP and JSON to a protobuf request of an RPC, and back: the v1 JSON API, without a socket.

Pure. The routes are the protos' own `google.api.http` annotations. The client library ships no descriptors of its
services, but its REST transport is generated from those annotations and keeps each of them (verb, path, body) beside
the RPC's message types; `routes()` walks that, so that no route is written here by hand.

A few parameters say how to answer: `fields` which part of it, `prettyPrint` with or without white space.

JSON is protobuf's: base64 bytes, `"600s"`, RFC 3339, 64-bit integers as strings, defaults left out, names in camelCase
(both spellings are read). An unknown field is an error, as in the service.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from google.protobuf import descriptor, json_format
from google.pubsub_v1.services.publisher.transports import base as publisher_base
from google.pubsub_v1.services.publisher.transports import rest_base as publisher_rest
from google.pubsub_v1.services.schema_service.transports import base as schema_base
from google.pubsub_v1.services.schema_service.transports import rest_base as schema_rest
from google.pubsub_v1.services.subscriber.transports import base as subscriber_base
from google.pubsub_v1.services.subscriber.transports import rest_base as subscriber_rest
from google.rpc import error_details_pb2, status_pb2

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import Code
from pubsub_spark.emulator.transport import field_selector

# HTTP's status for each code of gRPC, as google/rpc/code.proto maps them.
HTTP_STATUS: dict[str, int] = {
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}

_SERVICES = (
    ("google.pubsub.v1.Publisher", publisher_base.PublisherTransport, publisher_rest._BasePublisherRestTransport),
    ("google.pubsub.v1.Subscriber", subscriber_base.SubscriberTransport, subscriber_rest._BaseSubscriberRestTransport),
    ("google.pubsub.v1.SchemaService", schema_base.SchemaServiceTransport, schema_rest._BaseSchemaServiceRestTransport),
)
_IAM = "google.iam.v1.IAMPolicy"
_IAM_RPCS = frozenset({"GetIamPolicy", "SetIamPolicy", "TestIamPermissions"})

# Parameters of every Google API that say how to talk, not what to do.
_SYSTEM_PARAMETERS = frozenset(
    {"access_token", "alt", "callback", "fields", "key", "oauth_token", "prettyPrint", "quotaUser", "uploadType"}
    | {"upload_protocol", "userProject", "$alt", "$callback", "$fields", "$key", "$prettyPrint", "$unique", "$.xgafv"}
)
_INTEGER_ENUMS = "enum-encoding=int"
_CALLBACK = "callback"
_UNKNOWN_FIELD = re.compile(r'no field named "(?P<name>[^"]*)"')
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_VARIABLE = re.compile(r"\{(?P<field>[\w.]+)=(?P<pattern>[^}]+)\}")


@dataclass(frozen=True)
class Route:
    """One annotation: which requests it takes, and the RPC that it stands for."""

    verb: str
    pattern: re.Pattern[str]
    fields: tuple[str, ...]
    body: str | None
    rpc: str
    request: Any
    response: Any


class Call(NamedTuple):
    """An RPC with its request, and how its answer is to be written."""

    route: Route
    request: Any
    form: Form


class Form(NamedTuple):
    """How an answer is to be written; `fields` are the paths of what is wanted."""

    integer_enums: bool
    pretty: bool
    fields: Sequence[field_selector.Path]


class BadRequestError(ValueError):
    """The HTTP request stands for no valid RPC; the message is what the service would say."""

    code: Code = "INVALID_ARGUMENT"


class UnknownFormError(BadRequestError):
    """The answer is wanted in a form that there is none of here."""

    code: Code = "UNIMPLEMENTED"


def find(verb: str, path: str) -> Route | None:
    """The route of a request, None when there is none at that place."""
    return next((route for route in routes() if route.verb == verb and route.pattern.fullmatch(path)), None)


def read(route: Route, path: str, query: str, body: bytes) -> Call:
    """The RPC that a request on this route asks for; BadRequestError says what cannot be read."""
    request = route.request()
    parameters = parse_qsl(query, keep_blank_values=True)
    if route.body is not None and body.strip():
        target = request if route.body == "*" else getattr(request, route.body)
        if target is not request:
            target.SetInParent()
        document = _json(body)
        _check_base64(target.DESCRIPTOR, document)
        _fill(target, document)
    for name, text in parameters:
        if name not in _SYSTEM_PARAMETERS:
            _fill(request, _nested(request.DESCRIPTOR, name, text))
    match = route.pattern.fullmatch(path)
    for field, text in zip(route.fields, match.groups() if match else (), strict=True):
        _assign(request, field, _segment(text))
    return Call(route, request, _form({name.removeprefix("$"): text for name, text in parameters}, route))


def _form(parameters: Mapping[str, str], route: Route) -> Form:
    """What the system parameters say of the answer. https://cloud.google.com/apis/docs/system-parameters"""
    alt, *options = parameters.get("alt", "json").split(";")
    if alt != "json" or _CALLBACK in parameters:
        raise UnknownFormError(
            "This emulator answers in plain JSON; leave out `callback`, and `alt` or set it to json."
        )
    try:
        fields = field_selector.paths(parameters.get("fields") or "*", route.response.DESCRIPTOR)
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    return Form(_INTEGER_ENUMS in options, parameters.get("prettyPrint") not in ("false", "0"), fields)


def answer(call: Call, response: Any) -> bytes:
    """The body of a successful answer."""
    document = json_format.MessageToDict(response, use_integers_for_enums=call.form.integer_enums)
    document = field_selector.select(document, call.form.fields)
    indent, separators = (2, None) if call.form.pretty else (None, (",", ":"))
    return json.dumps(document, indent=indent, separators=separators, ensure_ascii=False).encode()


def failure(code: str, message: str, details: bytes = b"") -> tuple[int, bytes]:
    """HTTP's status and the body of an error; `details` is a serialized google.rpc.Status."""
    status = HTTP_STATUS[code]
    error: dict[str, Any] = {"code": status, "message": message, "status": code}
    if readable := _readable(details):
        error["details"] = readable
    return status, json.dumps({"error": error}, indent=2, ensure_ascii=False).encode()


def _readable(details: bytes) -> list[Any]:
    """The details in JSON; one of a type that google.rpc does not define has no JSON form and is left out."""
    known = error_details_pb2.DESCRIPTOR.message_types_by_name
    return [
        json_format.MessageToDict(detail)
        for detail in status_pb2.Status.FromString(details).details
        if detail.TypeName().removeprefix("google.rpc.") in known
    ]


@lru_cache(maxsize=1)
def routes() -> tuple[Route, ...]:
    """Every annotation of the three services and of IAM, each once."""
    found = {
        (route.verb, route.pattern): route
        for service, base, rest in _SERVICES
        for route in _routes_of(service, base, rest)
    }
    return tuple(found.values())


def _routes_of(service: str, base: Any, rest: Any) -> Iterator[Route]:
    for name, holder in inspect.getmembers(rest, inspect.isclass):
        annotations = getattr(holder, "_get_http_options", None)
        if annotations is None:
            continue
        rpc = name.removeprefix("_Base")
        request, response = _message_types(base, rpc)
        for annotation in annotations():
            pattern, fields = _compiled(annotation["uri"])
            full = f"/{_IAM if rpc in _IAM_RPCS else service}/{rpc}"
            yield Route(annotation["method"].upper(), pattern, fields, annotation.get("body"), full, request, response)


def _message_types(base: Any, rpc: str) -> tuple[Any, Any]:
    """Request and response of an RPC, from the type of the transport's property for it."""
    attribute = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower()
    returned = typing.get_type_hints(getattr(base, attribute).fget)["return"]
    [request], response = typing.get_args(returned)
    return _plain(request), _plain(typing.get_args(response)[0])


def _plain(message: Any) -> Any:
    """The protobuf class behind one of the client library's."""
    return message.pb() if hasattr(message, "pb") else message


def _compiled(template: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """`/v1/{name=projects/*/topics/*}:publish` as a pattern, and the fields that its groups fill."""
    parts: list[str] = []
    fields: list[str] = []
    end = 0
    for variable in _VARIABLE.finditer(template):
        parts.append(re.escape(template[end : variable.start()]))
        # A project may be `example.com:name`; in the last segment of the path a colon starts the verb.
        *parents, last = variable["pattern"].split("*")
        ends_path = "/" not in template[variable.end() :]
        parts.append(f"({'[^/]+'.join(parents)}{'[^/:]+' if ends_path else '[^/]+'}{last})")
        fields.append(variable["field"])
        end = variable.end()
    parts.append(re.escape(template[end:]))
    return re.compile("".join(parts)), tuple(fields)


def _segment(text: str) -> str:
    """Percent-decoded, save the slash that would make two segments of one."""
    return "%2F".join(unquote(part) for part in re.split("%2[Ff]", text))


def _json(body: bytes) -> Any:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise BadRequestError(f"Invalid JSON payload received. {error}") from None
    except RecursionError:
        raise BadRequestError("Invalid JSON payload received. It is nested too deeply.") from None
    if not isinstance(document, dict):
        raise BadRequestError("Invalid JSON payload received. It must be an object.")
    return document


def _check_base64(message: descriptor.Descriptor, document: dict[str, Any]) -> None:
    """Refuse bytes that are not base64; protobuf's own reader would skip what it cannot read."""
    for name, value in document.items():
        field = message.fields_by_camelcase_name.get(name) or message.fields_by_name.get(name)
        if field is None:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, dict) and field.message_type is not None:
                _check_base64(field.message_type, item)
            elif isinstance(item, str) and field.type == field.TYPE_BYTES and not _BASE64.fullmatch(item):
                raise BadRequestError(
                    f"Invalid JSON payload received. Invalid value at '{name}' (TYPE_BYTES), Base64 decoding failed."
                )


def _fill(message: Any, document: dict[str, Any]) -> None:
    try:
        json_format.ParseDict(document, message)
    except json_format.ParseError as error:
        unknown = _UNKNOWN_FIELD.search(str(error))
        reason = f'Unknown name "{unknown["name"]}": Cannot find field.' if unknown else protos.complaint(error)
        raise BadRequestError(f"Invalid JSON payload received. {reason}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise BadRequestError(f"Invalid JSON payload received. {error}") from None


def _nested(message: descriptor.Descriptor, name: str, text: str) -> dict[str, Any]:
    """A query parameter `a.b=text` as the JSON `{"a": {"b": text}}`, with the types that JSON wants there."""
    head, _, rest = name.partition(".")
    field = message.fields_by_camelcase_name.get(head) or message.fields_by_name.get(head)
    if field is None:
        raise BadRequestError(f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter.')
    if rest:
        if field.message_type is None:
            raise BadRequestError(f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter.')
        return {head: _nested(field.message_type, rest, text)}
    value: Any = text
    if field.type == field.TYPE_BOOL:
        value = {"true": True, "false": False}.get(text, text)
    elif field.enum_type is not None and text.lstrip("-").isdecimal():
        value = int(text)
    return {head: [value] if isinstance(field.default_value, list) else value}


def _assign(message: Any, field: str, text: str) -> None:
    """Set `topic.name` or `name`: what stands in the path goes before what stands in the body."""
    *parents, last = field.split(".")
    for parent in parents:
        message = getattr(message, parent)
    setattr(message, last, text)

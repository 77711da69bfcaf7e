"""The verbs of the emulator over HTTP: methods of `Emulator` at `/_emulator/NAME`, for tests in any language.

A GET reads, with fields from the query. A POST changes something, with a JSON object. The fields, their kinds and their
defaults are those of the method's parameters, in camelCase. The answer is the return value of the method: bytes in
base64, records as objects, `{}` for nothing.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from google.protobuf import json_format

from pubsub_spark.emulator.api import protos
from pubsub_spark.emulator.api.errors import RpcError, invalid

_MAX_WHOLE = 2**63 - 1


class Kind(NamedTuple):
    """`read` may raise ValueError or TypeError."""

    label: str
    read: Callable[[Any], Any]


class Verb:
    def __init__(self, name: str, http_method: str, function: Callable[..., Any]) -> None:
        self.name = _camel_case(name)
        self.http_method = http_method
        self._function = function
        self.parameters = {
            _camel_case(name): parameter for name, parameter in inspect.signature(function).parameters.items()
        }

    def run(self, query: str, body: bytes) -> bytes:
        """Return the result as JSON. Raise RpcError for an invalid request."""
        fields = dict(parse_qsl(query, keep_blank_values=True)) if self.http_method == "GET" else self._object(body)
        arguments = self._arguments(fields)
        try:
            return json.dumps(_shown(self._function(*arguments))).encode()
        except ValueError as problem:
            raise invalid(str(problem)) from None
        except RuntimeError as problem:  # the emulator does not run yet, or has failed
            raise RpcError("UNAVAILABLE", str(problem)) from None

    def _object(self, body: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(body or b"{}")
        except (ValueError, RecursionError) as problem:
            raise invalid(f"The body of `{self.name}` is not JSON: {problem}.") from None
        if not isinstance(fields, dict):
            raise invalid(f"The body of `{self.name}` must be a JSON object. {self._fields}.")
        return fields

    def _arguments(self, fields: Mapping[str, Any]) -> list[Any]:
        if unknown := sorted(set(fields) - set(self.parameters)):
            raise invalid(f"`{unknown[0]}` is not a field of `{self.name}`. {self._fields}.")
        arguments: list[Any] = []
        for name, parameter in self.parameters.items():
            is_list = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            if name not in fields and parameter.default is not inspect.Parameter.empty:
                arguments.append(parameter.default)
            elif name not in fields:
                raise invalid(f"`{name}` is missing. {self._fields}.")
            elif is_list:
                arguments += self._read_list(name, parameter, fields[name])
            else:
                arguments.append(self._read(name, parameter, fields[name]))
        return arguments

    def _read(self, name: str, parameter: inspect.Parameter, value: Any) -> Any:
        kind = KINDS[parameter.annotation]
        try:
            return kind.read(value)
        except json_format.ParseError as problem:
            raise invalid(f"`{name}` of `{self.name}` must be {kind.label}: {protos.complaint(problem)}") from None
        except (ValueError, TypeError):
            raise invalid(f"`{name}` of `{self.name}` must be {kind.label}, got {_quoted(value)}.") from None

    def _read_list(self, name: str, parameter: inspect.Parameter, values: Any) -> list[Any]:
        if not isinstance(values, list):
            raise invalid(f"`{name}` of `{self.name}` must be a list, got {_quoted(values)}.")
        return [self._read(f"{name}[{index}]", parameter, value) for index, value in enumerate(values)]

    @property
    def _fields(self) -> str:
        return f"`{self.name}` takes {', '.join(f'`{name}`' for name in self.parameters) or 'no fields'}"


def table(looks: Mapping[str, Callable[..., Any]], changes: Mapping[str, Callable[..., Any]]) -> dict[str, Verb]:
    verbs = [Verb(name, "GET", function) for name, function in looks.items()]
    verbs += [Verb(name, "POST", function) for name, function in changes.items()]
    return {verb.name: verb for verb in verbs}


def find(verbs: Mapping[str, Verb], http_method: str, name: str) -> Verb:
    """Raise RpcError for an unknown name, or another HTTP method."""
    verb = verbs.get(name)
    if verb is None:
        raise RpcError(
            "NOT_FOUND", f"`{name}` is not a verb of the emulator. Its verbs are {', '.join(sorted(verbs))}."
        )
    if verb.http_method != {"HEAD": "GET"}.get(http_method, http_method):
        raise invalid(f"`{name}` is asked for by {verb.http_method}, not by {http_method}.")
    return verb


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # half of a surrogate pair, which JSON can contain, is not text
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MAX_WHOLE:
        raise TypeError
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise TypeError
    return float(value)


def _message(value: Any) -> dict[str, Any]:
    """Return the message in the form of `Emulator.publish`."""
    message = json_format.ParseDict(value, protos.PubsubMessage())
    return {"data": message.data, "attributes": dict(message.attributes), "ordering_key": message.ordering_key}


def _or_null(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


# By the annotations of the methods' parameters.
KINDS = {
    "str": Kind("a text", _text),
    "int": Kind("a whole number", _whole),
    "float": Kind("a number", _number),
    "int | None": Kind("a whole number or null", _or_null(_whole)),
    "Code": Kind("a status code such as UNAVAILABLE", _text),
    "Code | None": Kind("a status code such as UNAVAILABLE, or null", _or_null(_text)),
    "Publishable": Kind("an object of `data` (base64), `attributes` and `orderingKey`", _message),
}


def _shown(value: Any) -> Any:
    if value is None:
        return {}
    if is_dataclass(value) and not isinstance(value, type):
        return {_camel_case(name): _plain(field) for name, field in asdict(value).items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {_camel_case(name): _plain(field) for name, field in value._asdict().items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _quoted(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _camel_case(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)

"""The protobuf message classes of google.pubsub.v1, by their short names: `protos.Topic`.

The client library ships no `pb2` modules, but its wrapped classes provide the protobuf ones.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from google.protobuf import duration_pb2, empty_pb2, field_mask_pb2, json_format, timestamp_pb2

# By name, because after `import_messages` the two are imported, and their package is not.
_WRAPPED = (import_module("google.pubsub_v1.types.pubsub"), import_module("google.pubsub_v1.types.schema"))
_PLAIN = (duration_pb2, empty_pb2, field_mask_pb2, timestamp_pb2)


def __getattr__(name: str) -> Any:
    for module in (*_WRAPPED, *_PLAIN):
        if name[:1].isupper() and (message := getattr(module, name, None)) is not None:
            return globals().setdefault(name, message.pb() if module in _WRAPPED else message)
    raise AttributeError(f"google.pubsub.v1 has no message `{name}`.")


# The errors that protobuf's reader of JSON leaves to Python, and their meaning.
_PYTHON = (
    (re.compile(r"expected string or bytes-like object, got '[\w.]+'"), "the value must be a text, in quotes"),
    (re.compile(r"'\w+' object (is not iterable|has no attribute '\w+')"), "the value must be a mapping of fields"),
)


def complaint(error: json_format.ParseError) -> str:
    """Return the error as one sentence, without protobuf's list of known fields."""
    text = str(error).partition("\n")[0]
    for pattern, meaning in _PYTHON:
        text = pattern.sub(meaning, text)
    return f"{text.rstrip('.')}."

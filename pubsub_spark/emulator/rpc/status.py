"""The google.rpc.Status of an error: the details sent along with its code and message."""

from __future__ import annotations

from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from pubsub_spark.emulator.api.errors import NUMBERS, RpcError

# An error is in the trailers. Clients accept 8 KB of them, and a byte that is not ASCII takes three.
_MAX_SENTENCE_BYTES = 1000
_DOMAIN = "pubsub.googleapis.com"


def sentence(error: RpcError) -> str:
    """The message is cut to the length that clients accept."""
    return _cut(error.message)


def _cut(text: str) -> str:
    whole = text.encode()
    if len(whole) <= _MAX_SENTENCE_BYTES:
        return text
    return f"{whole[:_MAX_SENTENCE_BYTES].decode(errors='ignore')}..."


def details(error: RpcError) -> bytes:
    """Return a serialized google.rpc.Status, or no bytes without a reason."""
    if not error.reason:
        return b""
    detail = any_pb2.Any()
    metadata = {key: _cut(value) for key, value in error.metadata.items()}
    detail.Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN, metadata=metadata))
    status = status_pb2.Status(code=NUMBERS[error.code], message=sentence(error), details=[detail])
    raw: bytes = status.SerializeToString()
    return raw

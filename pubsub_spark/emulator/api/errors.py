"""The error of an RPC: a status code, a message, and for some a machine-readable reason.

Handlers and rules raise it. The wire layers (gRPC, REST) convert it to their own kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Code = Literal[
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
]
NUMBERS: dict[str, int] = {code: number for number, code in enumerate(get_args(Code), 1)}  # as in google.rpc.Code


class RpcError(Exception):
    def __init__(
        self, code: Code, message: str, *, reason: str = "", metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code: Code = code
        self.message = message
        self.reason = reason  # of a google.rpc.ErrorInfo, or empty for none
        self.metadata = dict(metadata or {})


def invalid(message: str) -> RpcError:
    return RpcError("INVALID_ARGUMENT", message)


def invalid_argument(argument: str) -> RpcError:
    """Return the INVALID_ARGUMENT error of problems without a specific message in the service."""
    return invalid(f"You have passed an invalid argument to the service (argument={argument}).")


def not_found(name: str) -> RpcError:
    return RpcError("NOT_FOUND", f"Resource not found (resource={name.rpartition('/')[2]}).")


def already_exists(name: str) -> RpcError:
    return RpcError("ALREADY_EXISTS", f"Resource already exists in the project (resource={name.rpartition('/')[2]}).")


def failed_precondition(message: str) -> RpcError:
    return RpcError("FAILED_PRECONDITION", message)


def unimplemented(message: str) -> RpcError:
    return RpcError("UNIMPLEMENTED", message)

"""Interceptors: functions around every call, the outermost first.

An interceptor is given the context of a call and `proceed`, which carries the call out and returns its response (None
for a stream); it may raise an RpcError instead. Calls of unknown methods never get here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pubsub_spark.emulator.api.errors import Code, RpcError
from pubsub_spark.emulator.rpc.context import Metadata, RpcContext
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults

_log = logging.getLogger("pubsub_spark.emulator")

Proceed = Callable[[], Awaitable[Any]]
Interceptor = Callable[[RpcContext, Proceed], Awaitable[Any]]


class Recorded(NamedTuple):
    """One call that came in."""

    rpc: str
    metadata: Metadata


def stopping() -> RpcError:
    """The status of calls that the end of the emulator ends."""
    return RpcError("UNAVAILABLE", "The emulator is stopping.")


def code_of(error: BaseException) -> Code:
    """The status of a call that an exception ended."""
    if isinstance(error, RpcError):
        return error.code
    if isinstance(error, DecodeError):
        return "INVALID_ARGUMENT"
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else "INTERNAL"


class Recorder:
    """Keeps every call, for a test to read."""

    def __init__(self) -> None:
        self.calls: list[Recorded] = []

    async def __call__(self, context: RpcContext, proceed: Proceed) -> Any:
        self.calls.append(Recorded(context.rpc, context.metadata))
        return await proceed()


class InjectFaults:
    """Delays or refuses the calls that a test has ordered a fault for; the delay is on the emulator's clock."""

    def __init__(self, faults: Faults, engine: Engine) -> None:
        self._faults = faults
        self._engine = engine

    async def __call__(self, context: RpcContext, proceed: Proceed) -> Any:
        fault = self._faults.match(context.rpc)
        if fault is not None:
            if fault.delay and not await self._engine.sleep(fault.delay):
                raise stopping()
            if fault.code is not None:
                raise RpcError(fault.code, fault.message or f"This {fault.rpc} was told to fail with {fault.code}.")
        return await proceed()


async def log(context: RpcContext, proceed: Proceed) -> Any:
    """Writes a line for each call, and one for its error."""
    if not _log.isEnabledFor(logging.INFO):
        return await proceed()
    _log.info("%s from %s", context.rpc, context.peer)
    try:
        return await proceed()
    except RpcError as error:
        _log.info("%s refused: %s: %s", context.rpc, error.code, error.message)
        raise

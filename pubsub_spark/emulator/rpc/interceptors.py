"""Interceptors: functions around every call, the outermost first.

An interceptor receives the context of a call and `proceed`, which carries the call out and returns its response (None
for a stream). It may raise an RpcError instead. Calls of unknown methods do not reach interceptors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc import call_log
from pubsub_spark.emulator.rpc.context import Metadata, RpcContext
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults

_log = logging.getLogger("pubsub_spark.emulator")

Proceed = Callable[[], Awaitable[Any]]
Interceptor = Callable[[RpcContext, Proceed], Awaitable[Any]]


class Recorded(NamedTuple):
    """One call that was received."""

    rpc: str
    metadata: Metadata


def stopping() -> RpcError:
    return RpcError("UNAVAILABLE", "The emulator is stopping.")


class Recorder:
    def __init__(self) -> None:
        self.calls: list[Recorded] = []

    async def __call__(self, context: RpcContext, proceed: Proceed) -> Any:
        self.calls.append(Recorded(context.rpc, context.metadata))
        return await proceed()


class InjectFaults:
    """The delay is on the emulator's clock."""

    def __init__(self, faults: Faults, engine: Engine) -> None:
        self._faults = faults
        self._engine = engine

    async def __call__(self, context: RpcContext, proceed: Proceed) -> Any:
        fault = self._faults.match(context.rpc)
        if fault is not None:
            if fault.delay and not await self._engine.sleep(fault.delay):
                raise stopping()
            if fault.code is not None:
                raise RpcError(fault.code, fault.message or f"A fault makes this {fault.rpc} fail with {fault.code}.")
        return await proceed()


async def log(context: RpcContext, proceed: Proceed) -> Any:
    """Write a line for each call when it ends, and one for a stream when it begins."""
    if not _log.isEnabledFor(logging.INFO):
        return await proceed()
    began, response, failure = time.perf_counter(), b"", None
    if context.rpc == "StreamingPull":
        _log.info("StreamingPull from %s begins", context.peer)
    try:
        response = await proceed()
        return response
    except BaseException as error:
        failure = error
        raise
    finally:
        ended = call_log.ended(context, response or b"", failure, time.perf_counter() - began)
        _log.info("%s", ended.sentence, extra={"fields": ended.fields})

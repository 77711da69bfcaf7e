"""The latest calls, with their duration and status, shown on the page. It costs a microsecond per call."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc.call_log import code_of
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.interceptors import Proceed
from pubsub_spark.emulator.state import wire_format

_MAX_CALLS = 500
_MAX_NAME_BYTES = 1000


@dataclass(slots=True)
class RecentCall:
    rpc: str
    peer: str
    began: float  # on the emulator's clock
    status: str = ""  # empty while it is in progress
    seconds: float = 0.0
    sentence: str = ""  # of its error
    resource: str = ""  # if the request begins with its name


class RecentCalls:
    """The newest is last."""

    def __init__(self, now: Callable[[], float], most: int = _MAX_CALLS) -> None:
        self.calls: deque[RecentCall] = deque(maxlen=most)
        self.changes = 0  # calls that have begun or ended
        self._now = now

    async def __call__(self, context: RpcContext, proceed: Proceed) -> Any:
        call = RecentCall(context.rpc, context.peer, self._now())
        self.calls.append(call)
        self.changes += 1
        begun = time.perf_counter()
        status, sentence = "OK", ""
        try:
            return await proceed()
        except BaseException as error:
            status, sentence = code_of(error), error.message if isinstance(error, RpcError) else ""
            raise
        finally:
            call.seconds = time.perf_counter() - begun
            call.status, call.sentence = status, sentence
            call.resource, _ = wire_format.subscription_and_rest(context.request[:_MAX_NAME_BYTES])
            self.changes += 1

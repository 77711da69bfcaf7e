"""The log of the latest calls, with how long each took and how it ended, for the page.

An interceptor. It keeps a fixed number of calls, the newest push out the oldest, and costs a microsecond a call.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.interceptors import Proceed

_MAX_CALLS = 500


@dataclass(slots=True)
class LoggedCall:
    """One call: what it was, since when, and, when it has ended, how."""

    rpc: str
    peer: str
    began: float  # on the emulator's clock
    status: str = ""  # empty while it is under way
    seconds: float = 0.0
    sentence: str = ""  # of its error


class CallLog:
    """The latest calls, the newest last."""

    def __init__(self, now: Callable[[], float], most: int = _MAX_CALLS) -> None:
        self.calls: deque[LoggedCall] = deque(maxlen=most)
        self.changes = 0  # calls that have begun or ended
        self._now = now

    async def __call__(self, context: RpcContext, proceed: Proceed) -> Any:
        call = LoggedCall(context.rpc, context.peer, self._now())
        self.calls.append(call)
        self.changes += 1
        begun = time.perf_counter()
        status, sentence = "INTERNAL", ""
        try:
            response = await proceed()
            status = "OK"
            return response
        except RpcError as error:
            status, sentence = error.code, error.message
            raise
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        finally:
            call.seconds = time.perf_counter() - begun
            call.status, call.sentence = status, sentence
            self.changes += 1

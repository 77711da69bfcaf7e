"""The dispatcher: from a method's name and a request's bytes to the bytes of its response, for every transport.

Everything runs on one event loop, except slow handlers (`Rpc.is_slow`): they run on a small pool of threads. A bug in
the emulator is INTERNAL and in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from pubsub_spark.emulator.api.errors import RpcError, invalid, unimplemented
from pubsub_spark.emulator.handlers.streaming_pull import Stream, StreamCall
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.interceptors import Interceptor, Proceed, stopping
from pubsub_spark.emulator.rpc.registry import STREAMING_PULL, Registry
from pubsub_spark.emulator.runtime.engine import Engine

_log = logging.getLogger("pubsub_spark.emulator")

_POOL_THREADS = 4

T = TypeVar("T")


class Dispatcher:
    """Use it on the event loop, except `close_streams` and `streams`."""

    def __init__(self, engine: Engine, registry: Registry, interceptors: Sequence[Interceptor]) -> None:
        self.rpcs = registry.table()
        self._engine = engine
        self._subscriber = registry.subscriber
        self._interceptors = interceptors
        self._streams: set[Stream] = set()
        self._stopping = False
        self._pool = ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="pubsub-emulator")

    async def unary(self, raw: bytes, context: RpcContext) -> bytes:
        rpc = self.rpcs.get(context.method)
        if rpc is None:
            raise unimplemented(f"Method not found: `{context.method}`.")
        context.request = raw

        async def proceed() -> Any:
            try:
                if rpc.waits:
                    return await rpc.handler(raw, context)
                if (thread := rpc.thread(raw)) is not None:
                    return await asyncio.get_running_loop().run_in_executor(thread, rpc.handler, raw, context)
                if rpc.is_slow(raw):
                    return await self.run(lambda: rpc.handler(raw, context))
                return rpc.handler(raw, context)
            finally:  # an error may also have results: the ack ids that did not fail
                await self._engine.written()

        response: bytes = await self._intercepted(context, proceed)
        return response

    def answered(self, context: RpcContext) -> None:
        """Release a Publish's messages to consumers, because its response was written or its client has left."""
        if context.answer is not None:
            self._engine.unanswered.written(context.answer)

    async def stream(self, call: StreamCall, context: RpcContext) -> None:
        stream = Stream(self._engine, self._subscriber, call, self._streams, context.peer)

        async def proceed() -> None:
            try:
                await stream.run()
            finally:
                context.request, context.messages = stream.first_request, stream.messages

        await self._intercepted(context, proceed)

    async def _intercepted(self, context: RpcContext, proceed: Proceed) -> Any:
        for interceptor in reversed(self._interceptors):
            proceed = partial(interceptor, context, proceed)
        try:
            if self._stopping:
                raise stopping()
            return await proceed()
        except RpcError:
            raise
        except DecodeError:
            raise invalid("The request could not be parsed.") from None
        except asyncio.CancelledError:
            context.cancelled = True
            raise
        except Exception:
            _log.exception("%s from %s failed", context.method, context.peer)
            raise RpcError("INTERNAL", "The emulator failed. Its log has the cause.") from None
        finally:
            context.request = b""  # transports keep a failed call's context until the garbage collector runs

    async def run(self, work: Callable[[], T]) -> T:
        """Run work that takes more than a few milliseconds on the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def stop(self) -> None:
        """Refuse new calls, and end the waiting ones."""
        self._stopping = True
        self.close_streams(stopping())
        self._engine.cancel_all()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close_streams(self, error: RpcError) -> int:
        """Return the number of streams that end."""
        with self._engine.open():
            streams = list(self._streams)
        for stream in streams:
            stream.refuse(error)
        return len(streams)

    def streams(self) -> int:
        with self._engine.open():
            return len(self._streams)

    @property
    def has_streams(self) -> bool:
        return bool(self._streams)

    def streams_by_subscription(self) -> Counter[str]:
        with self._engine.open():
            return Counter(stream.subscription_name for stream in self._streams)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(method.rpartition("/")[2] for method in (*self.rpcs, STREAMING_PULL))

"""The gRPC server: grpc.aio's, with requests and responses as bytes. It listens on the loopback alone.

The amount that a client can make it hold is bounded: the number of streams on a connection, the size of a request, and
the bytes of responses that a connection has not taken. Above that budget, the next requests of the connection wait.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from pubsub_spark.emulator.api.errors import RpcError, invalid
from pubsub_spark.emulator.handlers.streaming_pull import StreamOverError
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.dispatcher import Dispatcher
from pubsub_spark.emulator.rpc.registry import PUBLISH, STREAMING_PULL
from pubsub_spark.emulator.rpc.status import details, sentence
from pubsub_spark.emulator.runtime import unanswered
from pubsub_spark.emulator.runtime.unanswered import Answer
from pubsub_spark.emulator.transport.listener import LOOPBACK, MARK_BYTES, GrpcConnection

_MAX_STREAMS = 256  # on one connection
_MAX_REQUEST_BYTES = 11 * 1024 * 1024  # a little more than Publish accepts: its handler has the service's error message
_MAX_UNSENT_BYTES = 16 * 1024 * 1024  # of responses on one connection. The one that reaches it is still sent
_GRACE_SECONDS = 1.0  # for calls to end, which is fast because waiting calls are notified
_OPTIONS = [
    ("grpc.max_concurrent_streams", _MAX_STREAMS),
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
    # Clients ping idle streams. With grpc's defaults the third ping would be answered with GOAWAY.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
]
_DETAILS = "grpc-status-details-bin"
_MARK = "pubsub-emulator-response"  # a trailer that the client ignores

T = TypeVar("T")


class GrpcServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """`connections` are the clients' connections, by their addresses on the loopback."""

    def __init__(
        self, dispatcher: Dispatcher, now: Callable[[], float], connections: Mapping[str, GrpcConnection]
    ) -> None:
        self._dispatcher = dispatcher
        self._now = now
        self._connections = connections
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers([self])

    async def start(self) -> int:
        """Listen and return the port."""
        port = self._server.add_insecure_port(f"{LOOPBACK}:0")
        await self._server.start()
        self._serving = asyncio.create_task(self._server.wait_for_termination())
        self._serving.add_done_callback(lambda task: task.result())  # the event loop receives its exceptions
        return int(port)

    async def stop(self) -> None:
        await self._server.stop(_GRACE_SECONDS)

    def service(self, details: Any) -> Any:
        """The dispatcher refuses an unknown method."""
        if details.method == STREAMING_PULL:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        # As a stream of requests, because grpc.aio never answers a unary call whose request does not arrive.
        return grpc.stream_unary_rpc_method_handler(partial(self._unary, details.method))

    async def _unary(self, method: str, _: Any, call: Any) -> bytes:
        connection, context = self._context(method, call)
        if method == PUBLISH:
            context.answer = Answer()
        await connection.room(_MAX_UNSENT_BYTES)
        try:
            response = await _answered(call, self._ask(call, context))
        except BaseException:
            self._dispatcher.answered(context)
            raise
        if method == PUBLISH:
            self._release_when_read(call, connection, context)
        if response:
            connection.hold(len(response))
            call.add_done_callback(lambda _: connection.release(len(response)))
        return response

    def _release_when_read(self, call: Any, connection: GrpcConnection, context: RpcContext) -> None:
        """Release a Publish's messages when the client has read the response, or when grpc.aio has written it if there
        is no stream: then no other call could be faster."""
        answered = partial(self._dispatcher.answered, context)
        if not self._dispatcher.has_streams:
            task = asyncio.current_task()  # grpc.aio's own, which ends when it has written the response
            assert task is not None
            task.add_done_callback(lambda _: answered())
            return
        mark = secrets.token_hex(MARK_BYTES // 2)
        call.set_trailing_metadata(((_MARK, mark),))
        connection.when_read(mark.encode(), answered)
        # If the client resets the call before grpcio has written the response, the mark is not sent.
        asyncio.get_running_loop().call_later(unanswered.MAX_SECONDS, connection.give_up, mark.encode())

    async def _ask(self, call: Any, context: RpcContext) -> bytes:
        request: Any = await call.read()
        if request is grpc.aio.EOF:
            raise invalid("The RPC takes one request, got none.")
        if await call.read() is not grpc.aio.EOF:  # waits for the client to half-close, as it does with its request
            raise RpcError("INTERNAL", "The RPC takes one request, got several.")
        return await self._dispatcher.unary(request, context)

    async def _stream(self, _: Any, call: Any) -> None:
        connection, context = self._context(STREAMING_PULL, call)
        await _answered(call, self._dispatcher.stream(_Stream(call, connection), context))

    def _context(self, method: str, call: Any) -> tuple[GrpcConnection, RpcContext]:
        connection = self._connections.get(call.peer()) or GrpcConnection("unknown")
        remaining = call.time_remaining()
        deadline = None if remaining is None else self._now() + remaining
        return connection, RpcContext(method, call.invocation_metadata(), connection.peer, deadline)


class _Stream:
    def __init__(self, call: Any, connection: GrpcConnection) -> None:
        self._call = call
        self._connection = connection

    async def receive(self) -> bytes | None:
        request: Any = await self._call.read()
        return None if request is grpc.aio.EOF else request

    async def begin(self) -> None:
        await self._call.send_initial_metadata(())

    async def room(self) -> None:
        await self._connection.room(_MAX_UNSENT_BYTES)

    async def send(self, response: bytes) -> None:
        self._connection.hold(len(response))
        # Shielded: if the call has ended meanwhile, only the outcome of the write shows whether it was done.
        writing = asyncio.ensure_future(self._call.write(response))
        try:
            await asyncio.shield(writing)
        except BaseException:
            await asyncio.wait((writing,))
            raise StreamOverError(accepted=writing.exception() is None) from None
        finally:
            self._connection.release(len(response))


async def _answered(call: Any, answer: Awaitable[T]) -> T:
    try:
        return await answer
    except RpcError as error:
        metadata = ((_DETAILS, raw),) if (raw := details(error)) else ()
        status = grpc.StatusCode[error.code], sentence(error), metadata
    # Not inside the block: `abort` raises, and the call keeps that with the exception before it. The frames of that one
    # hold the request until the garbage collector runs.
    await call.abort(*status)
    raise AssertionError("abort always raises")

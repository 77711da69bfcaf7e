"""The servers of one emulator, started and stopped together."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from pubsub_spark.emulator.rpc.dispatcher import Dispatcher
from pubsub_spark.emulator.transport.grpc_server import GrpcServer
from pubsub_spark.emulator.transport.http_app import HttpContent, HttpServer
from pubsub_spark.emulator.transport.listener import Listener


class Servers:
    """Use it on the event loop. Without content for HTTP, the port serves gRPC alone."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        now: Callable[[], float],
        listening: socket.socket,
        content: HttpContent | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._now = now
        self._http = HttpServer(dispatcher, content) if content is not None else None
        self._listener = Listener(listening, self._http.connection if self._http else None, tls)
        self._grpc: GrpcServer | None = None

    async def start(self) -> None:
        self._grpc = GrpcServer(self._dispatcher, self._now, self._listener.connections)
        await self._listener.start(await self._grpc.start())

    async def stop(self) -> None:
        """Accept no more, end every waiting call, and end the connections a moment later."""
        self._listener.close()
        self._dispatcher.stop()
        async with asyncio.TaskGroup() as stopping:
            if self._grpc is not None:
                stopping.create_task(self._grpc.stop())
            if self._http is not None:
                stopping.create_task(self._http.stop())
        self._listener.abort()

    def abort(self) -> None:
        self._listener.close()
        self._listener.abort()

"""The servers of one emulator, started and stopped together.

The HTTP server is imported when the first client connects to it. Its libraries take a third of an emulator's start, and
most tests use gRPC alone.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from pubsub_spark.emulator.rpc.dispatcher import Dispatcher
from pubsub_spark.emulator.transport.grpc_server import GrpcServer
from pubsub_spark.emulator.transport.http_content import HttpContent
from pubsub_spark.emulator.transport.listener import Listener

if TYPE_CHECKING:
    from pubsub_spark.emulator.transport.http_app import HttpServer


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
        self._content = content
        self._http: HttpServer | None = None
        self._listener = Listener(listening, None if content is None else self._http_connection, tls)
        self._grpc: GrpcServer | None = None

    async def start(self) -> None:
        self._grpc = GrpcServer(self._dispatcher, self._now, self._listener.connections)
        await self._listener.start(await self._grpc.start())

    async def _http_connection(self) -> asyncio.Protocol:
        if self._http is None:
            module = await asyncio.to_thread(import_module, "pubsub_spark.emulator.transport.http_app")
            if self._http is None:  # another connection may have waited for the same import
                assert self._content is not None
                self._http = module.HttpServer(self._dispatcher, self._content)
        return self._http.connection()

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

"""The v1 JSON API over HTTP/1.1: a Starlette application, served by uvicorn's protocol on the shared event loop.

An RPC is answered by the same dispatcher as gRPC's, so limits, errors, faults and records are the same. The verbs at
`/_emulator/...`, `/metrics` and the page are behind the guard.

A Pull whose client has left or half-closed its connection is cancelled, so that no message is leased to it. Any other
RPC is carried out and answered in either case. A request that breaks off is not carried out.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pubsub_spark.emulator.api import routes
from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc.context import Metadata, RpcContext
from pubsub_spark.emulator.rpc.dispatcher import Dispatcher
from pubsub_spark.emulator.rpc.registry import PUBLISH
from pubsub_spark.emulator.rpc.status import details, sentence
from pubsub_spark.emulator.runtime.unanswered import Answer
from pubsub_spark.emulator.transport import transcoding, verbs
from pubsub_spark.emulator.transport.guard import Guard
from pubsub_spark.emulator.transport.http_content import Document, HttpContent, Page
from pubsub_spark.emulator.transport.verbs import Verb

_MAX_REQUEST_BYTES = 10_485_760  # the service's own limit
_LARGE_BYTES = 50_000  # of JSON or of a message: more takes longer than other calls should wait
_CONTEXT = "pubsub_spark.context"  # in the scope of a Publish: its RpcContext
_PULL = "/google.pubsub.v1.Subscriber/Pull"  # the one RPC that waits
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_IDLE_SECONDS = 600
_GRACE_SECONDS = 1.0
_SERVER = re.compile(r"^https?://[^/?]*", re.IGNORECASE)  # in a request that treats this server as a proxy
_NAME = re.compile(r"x-goog-[a-z0-9_.-]+(?<!-bin)")  # gRPC keeps `-bin` for bytes
_PRINTABLE = re.compile(r"[ -~]*")
_GZIP = zlib.MAX_WBITS | 16


class HttpServer:
    def __init__(self, dispatcher: Dispatcher, content: HttpContent) -> None:

        def route(path: str, document: Document) -> Route:
            async def answer(_: Request) -> Response:
                content = await dispatcher.run(document)
                return PlainTextResponse(content) if isinstance(content, str) else _json(json.dumps(content).encode())

            return Route(path, answer)

        async def metrics(_: Request) -> Response:
            return Response(await dispatcher.run(content.metrics), media_type=_METRICS)

        self._page = PageOnDemand(content.page, content.documents["/"], dispatcher)
        guard = Middleware(Guard, allowed_hosts=content.allowed_hosts)
        origins = content.allowed_origins
        cors = [Middleware(CORSMiddleware, allow_origins=origins, allow_methods=_METHODS, allow_headers=["*"])]
        api = [*(cors if origins else ()), Middleware(Guard, allowed_hosts=None, allowed_origins=origins)]
        verbs = [
            *(cors if origins else ()),
            Middleware(Guard, allowed_hosts=content.allowed_hosts, allowed_origins=origins),
        ]
        routes = [
            Route("/", self._page, methods=["GET"]),
            Route("/page/{path:path}", self._page),
            *(route(path, document) for path, document in content.documents.items()),
            Route("/metrics", metrics, middleware=[guard]),
            Mount("/_emulator", app=VerbApi(dispatcher, content.verbs), middleware=verbs),
            Mount("", app=JsonApi(dispatcher), middleware=api),
        ]
        app = Starlette(routes=routes)
        self._config = uvicorn.Config(
            _by_path(app),
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_IDLE_SECONDS,
        )
        self._config.load()
        self._state = ServerState()

    def connection(self) -> asyncio.Protocol:
        return _Connection(self._config, self._state, {})

    async def stop(self) -> None:
        """A connection with a request in progress ends after its answer."""
        self._page.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=_GRACE_SECONDS)
        for connection in list(self._state.connections):
            connection.transport.abort()


class _Connection(H11Protocol):
    """uvicorn's protocol, with an answer also for a client that closes its half of the connection.

    An offer to upgrade is answered over HTTP/1.1, as RFC 9110 allows: Java's HttpClient offers `h2c` with each request.
    """

    def _should_upgrade(self) -> bool:
        return False

    def eof_received(self) -> bool:  # type: ignore[override]
        cycle: Any = self.cycle  # None before the first request
        if cycle is None or cycle.response_complete or self.scheme == "https":  # TLS cannot close one half alone
            return False
        if cycle.more_body:  # it breaks off: h11 handles that
            self.conn.receive_data(b"")
            self.handle_events()
            return False
        cycle.keep_alive = False
        cycle.message_event.set()  # ends the wait for the client to leave
        return True


class _Api(ABC):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    @abstractmethod
    async def _answer(self, request: Request) -> Response: ...


class JsonApi(_Api):
    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if (context := scope.get(_CONTEXT)) is not None:
                self._dispatcher.answered(context)

    async def _answer(self, request: Request) -> Response:
        if request.method not in _METHODS:
            return PlainTextResponse(f"Unsupported method ('{request.method}')\n", 501)
        path, query = request.scope["raw_path"].decode("ascii"), request.scope["query_string"].decode("ascii")
        try:
            body = await _body(request)
        except _UnreadableError as error:
            return _failure(RpcError("INVALID_ARGUMENT", str(error)), {"Connection": "close"})
        route = routes.find(request.method, path)
        if route is None:
            return PlainTextResponse("Not Found\n", 404)
        kind = request.headers.get("Content-Type", "")
        try:
            call = await self._run(len(body), lambda: transcoding.read(route, path, query, body, kind))
            context = RpcContext(route.rpc, _metadata(request.headers.items()), _peer(request))
            if route.rpc == PUBLISH:
                context.answer, request.scope[_CONTEXT] = Answer(), context
            raw = await self._asked(request, call.request.SerializeToString(), context)
            content = await self._run(len(raw), lambda: transcoding.answer(call, call.route.response.FromString(raw)))
        except RpcError as error:
            return _failure(error)
        return Response(content, media_type=transcoding.media_type(call))

    async def _run(self, size: int, work: Callable[[], Any]) -> Any:
        return await self._dispatcher.run(work) if size > _LARGE_BYTES else work()

    async def _asked(self, request: Request, raw: bytes, context: RpcContext) -> bytes:
        asking = asyncio.ensure_future(self._dispatcher.unary(raw, context))
        if context.method == _PULL:
            leaving = asyncio.ensure_future(request.receive())
            await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not asking.done():
                asking.cancel()
                raise RpcError("CANCELLED", "The client has left.")
        return await asking


class PageOnDemand:
    """The page, imported and made when a browser first requests it. Other clients get a document at `/`."""

    def __init__(self, make: Callable[[], Page], document: Document, dispatcher: Dispatcher) -> None:
        self._make = make
        self._document = document
        self._dispatcher = dispatcher
        self._making = asyncio.Lock()
        self._page: Page | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp
        if scope["path"] == "/" and "text/html" not in Request(scope).headers.get("Accept", ""):
            app = PlainTextResponse(self._document(), headers={"Vary": "Accept"})
        else:
            app = await self._found()
        await app(scope, receive, send)

    async def _found(self) -> ASGIApp:
        async with self._making:
            if self._page is None:
                try:
                    self._page = await self._dispatcher.run(self._make)
                except ModuleNotFoundError as missing:
                    why = f"The page needs `{missing.name}`. Install pubsub-spark with its extra `emulator`.\n"
                    return PlainTextResponse(why, 501)
            return self._page

    def close(self) -> None:
        if self._page is not None:
            self._page.close()


class VerbApi(_Api):
    def __init__(self, dispatcher: Dispatcher, table: Mapping[str, Verb]) -> None:
        self._dispatcher = dispatcher
        self._table = table

    async def _answer(self, request: Request) -> Response:
        name, query = request.url.path.rpartition("/")[2], request.scope["query_string"].decode("latin-1")
        try:
            verb = verbs.find(self._table, request.method, name)
            body = await _body(request)
            return _json(await self._dispatcher.run(lambda: verb.run(query, body)))
        except _UnreadableError as error:
            return _failure(RpcError("INVALID_ARGUMENT", str(error)), {"Connection": "close"})
        except RpcError as error:
            return _failure(error)


class _UnreadableError(ValueError):
    """The message is the one of the service."""


async def _body(request: Request) -> bytes:
    """Return the unpacked body, or refuse it as soon as it is known to be too large."""
    _check_size(int(request.headers.get("Content-Length", 0)))  # h11 has checked that it is a number
    body = bytearray()
    async for piece in request.stream():
        body += piece
        _check_size(len(body))
    if request.headers.get("Content-Encoding", "identity").lower() == "gzip":
        return _inflated(body)
    return bytes(body)


def _inflated(body: bytes | bytearray) -> bytes:
    inflater = zlib.decompressobj(_GZIP)
    try:
        text = inflater.decompress(body, _MAX_REQUEST_BYTES + 1)
    except zlib.error as error:
        raise _UnreadableError(f"Invalid gzip encoding of the request: {error}.") from None
    _check_size(len(text))
    if not inflater.eof:
        raise _UnreadableError("Invalid gzip encoding of the request: it breaks off.")
    return text


def _check_size(size: int) -> None:
    if size > _MAX_REQUEST_BYTES:
        raise _UnreadableError(f"Request payload size exceeds the limit: {_MAX_REQUEST_BYTES} bytes.")


def _by_path(app: Starlette) -> Callable[[Scope, Receive, Send], Any]:
    """Some requests name the server in their path."""

    async def ask(scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = _SERVER.sub("", scope["path"]) or "/"
        scope["raw_path"] = _SERVER.sub("", scope["raw_path"].decode("ascii")).encode("ascii")
        await app(scope, receive, send)

    return ask


def _peer(request: Request) -> str:
    return f"{request.client.host}:{request.client.port}" if request.client else "unknown"


def _metadata(headers: Iterable[tuple[str, str]]) -> Metadata:
    """Return Google's headers, as far as gRPC accepts them as text."""
    return tuple((name, value) for name, value in headers if _NAME.fullmatch(name) and _PRINTABLE.fullmatch(value))


def _failure(error: RpcError, headers: Mapping[str, str] | None = None) -> Response:
    status, body = transcoding.failure(error.code, sentence(error), details(error))
    return _json(body, status, headers)


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type=transcoding.JSON)

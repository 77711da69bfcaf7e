"""The rules of `origin` as a layer of a Starlette application."""

from __future__ import annotations

from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pubsub_spark.emulator.transport.origin import refusal


class Guard:
    """It refuses requests by the rules with 403 and one sentence."""

    def __init__(
        self, app: ASGIApp, allowed_hosts: Collection[str] | None, allowed_origins: Collection[str] = ()
    ) -> None:
        self._app = app
        self._allowed_origins = frozenset(allowed_origins)
        self._allowed_hosts = None if allowed_hosts is None else frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        host, origin = request.headers.get("Host", ""), request.headers.get("Origin")
        why = refusal(host, origin, scope["scheme"], self._allowed_hosts, self._allowed_origins)
        app = self._app if why is None else PlainTextResponse(f"{why}\n", 403)
        await app(scope, receive, send)

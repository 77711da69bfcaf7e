"""The ASGI application of the page: views, forms, events and the two files, behind the guard of hosts and origins.

A view is gathered and rendered on the dispatcher's pool, so no call waits for it. A refused form shows its view again,
with the error message and its input. A successful form ends in a redirect, so that a reload repeats nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from importlib import metadata
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pubsub_spark.emulator.api import routes
from pubsub_spark.emulator.api.errors import RpcError, invalid
from pubsub_spark.emulator.page import rows
from pubsub_spark.emulator.page.actions import ACTIONS, Action, Call, Form, VerbCall
from pubsub_spark.emulator.page.live import METRICS, Live
from pubsub_spark.emulator.page.views import Parts, Query, find_view
from pubsub_spark.emulator.rpc.context import RpcContext
from pubsub_spark.emulator.rpc.dispatcher import Dispatcher
from pubsub_spark.emulator.rpc.recent_calls import RecentCalls
from pubsub_spark.emulator.runtime.engine import Engine
from pubsub_spark.emulator.runtime.faults import Faults
from pubsub_spark.emulator.state.history import History
from pubsub_spark.emulator.transport import transcoding
from pubsub_spark.emulator.transport.guard import Guard
from pubsub_spark.emulator.transport.verbs import Verb

_MAX_FORM_BYTES = 30_000_000  # a message of 10 MB, each byte of it percent-encoded
_MAX_FORM_FIELDS = 10_000
_PEER = "this page"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Vary": "Accept",
}
_FILES = {"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8"}
_RPCS = {route.rpc.rpartition("/")[2]: route.rpc for route in routes.routes()}


class PageApp:
    def __init__(self, parts: Parts, verbs: Mapping[str, Verb], allowed_hosts: Collection[str]) -> None:
        self._parts = parts
        self._verbs = verbs
        self._templates = Environment(
            loader=PackageLoader("pubsub_spark.emulator.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals |= {
            "rows": rows,
            "metrics": METRICS,
            "clock": parts.engine.clock,
            "version": metadata.version("pubsub-spark"),
            "documentation": documentation_url(),
        }
        table = [
            Route("/page/static/{name}", _static),
            Route("/page/live", self._events),
            Route("/page/actions/{action}", self._act, methods=["POST"]),
            Route("/{path:path}", self._show),
        ]
        self._app = Guard(Starlette(routes=table), allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def close(self) -> None:
        self._parts.live.close()

    async def _show(self, request: Request) -> Response:
        query = dict(request.query_params)
        host = request.headers.get("host", "")
        return await self._rendered(request.scope["path"], query, done=_done(query), host=host)

    async def _events(self, request: Request) -> Response:
        events = self._parts.live.watch(request.query_params.getlist("name"))
        return StreamingResponse(events, headers=_HEADERS, media_type="text/event-stream")

    async def _act(self, request: Request) -> Response:
        name = request.path_params["action"]
        action = ACTIONS.get(name)
        if action is None:
            return PlainTextResponse("Not Found\n", 404)
        form = Form([])
        try:
            form = await _form(request)
            numbers = await self._carry_out(action, form)
        except ClientDisconnect:
            return Response()
        except RpcError as error:
            return await self._refused(action.page(form), name, form, error, request.headers.get("host", ""))
        done = ":".join(map(str, (name, *numbers)))
        return RedirectResponse(action.leads_to(form) + rows.query([("done", done)]), HTTPStatus.SEE_OTHER)

    async def _carry_out(self, action: Action, form: Form) -> Sequence[int]:
        run = self._parts.dispatcher.run
        call = await run(lambda: self._call(action, form))
        if isinstance(call, VerbCall):
            body = json.dumps(call.fields).encode()
            await run(lambda: self._verbs[call.verb].run("", body))
            return ()
        context = RpcContext(_RPCS[call.rpc], (), _PEER)
        response = await self._parts.dispatcher.unary(call.request.SerializeToString(), context)
        with self._parts.engine.open():
            return action.numbers(form, response, self._parts.engine.state)

    def _call(self, action: Action, form: Form) -> Call | VerbCall:
        with self._parts.engine.open():
            return action.call(form, self._parts.engine.state)

    async def _refused(self, path: str, action: str, form: Form, error: RpcError, host: str) -> Response:
        status = transcoding.http_status(error.code)
        return await self._rendered(path, {}, status, error=error, refused=action, form=form, host=host)

    async def _rendered(self, path: str, query: Query, status: int = 200, **values: Any) -> Response:
        try:
            text = await self._parts.dispatcher.run(partial(self._text, path, query, **values))
        except RpcError as error:
            status = HTTPStatus.NOT_FOUND
            known = {"error": values.get("error") or error, "live": "", "path": path, "view": "/"}
            text = self._templates.get_template("missing.html").render(_DEFAULTS | known)
        return HTMLResponse(text, status, _HEADERS)

    def _text(self, path: str, query: Query, **values: Any) -> str:
        view = find_view(self._parts, path, query)
        live = "/page/live" + rows.query([("name", name) for name in view.live])
        address = path + rows.query((name, value) for name, value in query.items() if name != "done")
        known = _DEFAULTS | {"live": live, "path": address, "view": path} | view.values | values
        return self._templates.get_template(view.template).render(known)


def parts(engine: Engine, dispatcher: Dispatcher, faults: Faults, recent_calls: RecentCalls, history: History) -> Parts:
    return Parts(engine, dispatcher, faults, recent_calls, history, Live(engine, recent_calls))


_DEFAULTS: dict[str, Any] = {"error": None, "done": "", "refused": "", "form": Form([])}


def _done(query: Query) -> str:
    """The numbers come from the address, and must be digits."""
    name, *numbers = query.get("done", "").split(":")
    action = ACTIONS.get(name)
    if action is None or not all(number.isascii() and number.isdigit() for number in numbers):
        return ""
    try:
        values = map(int, numbers)
        return action.done.format(*values) if isinstance(action.done, str) else action.done(*values)
    except (IndexError, TypeError, ValueError):
        return ""


def documentation_url() -> str:
    known: list[str] = metadata.metadata("pubsub-spark").get_all("Project-URL", [])
    return next((entry.partition(", ")[2] for entry in known if entry.startswith("Documentation, ")), "")


async def _form(request: Request) -> Form:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_FORM_BYTES:
            raise invalid(f"The form exceeds the limit: {_MAX_FORM_BYTES} bytes.")
    try:
        pairs = parse_qsl(body.decode("ascii"), True, True, errors="strict", max_num_fields=_MAX_FORM_FIELDS)
    except ValueError:
        raise invalid("The form cannot be read: it must be application/x-www-form-urlencoded, of UTF-8.") from None
    return Form(pairs)


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _FILES:
        return PlainTextResponse("Not Found\n", 404)
    content = files("pubsub_spark.emulator.page").joinpath("static", name).read_bytes()
    return Response(content, headers={**_HEADERS, "Cache-Control": "no-cache"}, media_type=_FILES[name])

"""An object store whose answers a test decides: a proxy in front of a server, and a Google's, which looks at tokens."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TOKEN = "a-token-of-google"
LOST: int = 0  # a status: the server takes the request, and its answer is lost with the connection
RESET: int = -1  # the same, and the connection is reset. obstore then repeats no create and no delete
UNTAKEN: int = -2  # the connection is reset before the server takes the request


class Request(NamedTuple):
    """A request as it is sent to a server."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Faults:
    """The answers of a server. statuses: of its next requests, each in place of an answer. asked: its requests.

    authorizations: headers of all requests.
    fault_each, status: each request of this number has this status, if the number is not 0. delay: seconds of each.
    """

    endpoint: str = ""
    statuses: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    fault_each: int = 0
    status: int = 503
    delay: float = 0.0

    def next(self, asked: str) -> int | None:
        """Return the status of a request in place of an answer, or None."""
        self.asked.append(asked)
        if self.statuses:
            return self.statuses.pop(0)
        return self.status if self.fault_each and len(self.asked) % self.fault_each == 0 else None


class _Handler(BaseHTTPRequestHandler):
    """Reads bodies and writes answers."""

    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"content-length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


def _served(handler: type[_Handler], faults: Faults) -> Iterator[Faults]:
    """Serve in a thread while the caller uses the yielded value."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    faults.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield faults
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def with_faults(
    endpoint: str, translate: Callable[[Request], Request] = lambda request: request, puts_at_once: int = 64
) -> Iterator[Faults]:
    """Yield a proxy in front of an HTTP server. translate: a request, as this server understands it.

    puts_at_once: how many of them are forwarded. 1 for a server that looks for a file and writes it in two steps.
    """
    faults, target, puts = Faults(), urlsplit(endpoint).netloc, threading.Semaphore(puts_at_once)

    class Handler(_Handler):
        def forward(self) -> None:
            body = self.body()
            faults.authorizations.add(self.headers["Authorization"])
            time.sleep(faults.delay)
            fault = faults.next(f"{self.command} {self.path.partition('?')[0]}")
            if fault == UNTAKEN:
                self.reset()
                return
            if fault and fault > 0:
                self.answer(fault)
                return
            request = translate(
                Request(self.command, self.path, {n.lower(): text for n, text in self.headers.items()}, body)
            )
            server = http.client.HTTPConnection(target, timeout=60)
            try:
                with puts if self.command == "PUT" else nullcontext():
                    server.request(request.method, request.path, request.body or None, request.headers)
                    answer = server.getresponse()
                    content = answer.read()
            finally:
                server.close()
            if fault == LOST:
                self.close_connection = True
                return
            if fault == RESET:
                self.reset()
                return
            headers = {"etag": '"0"'} | {name.lower(): value for name, value in answer.getheaders()}
            for name in ("connection", "keep-alive", "transfer-encoding"):
                headers.pop(name, None)
            if self.command != "HEAD":
                headers["content-length"] = str(len(content))
            self.answer(answer.status, content, headers)

        do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = forward  # noqa: N815 (the names that http.server calls)

    yield from _served(Handler, faults)


@contextmanager
def google() -> Iterator[Faults]:
    """Yield a bucket of Google's that accepts only TOKEN, and the servers that issue it. Faults are of these."""
    faults, objects = Faults(), dict[str, bytes]()

    class Handler(_Handler):
        def do_POST(self) -> None:
            self.body()
            fault = faults.next(f"POST {self.path}")
            if fault:
                self.answer(fault)
            elif self.path.endswith(":generateAccessToken"):
                self.answer(200, json.dumps({"accessToken": TOKEN, "expireTime": "2099-01-01T00:00:00Z"}).encode())
            else:
                kind = {"token_type": "Bearer", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
                self.answer(200, json.dumps({"access_token": TOKEN, "expires_in": 3600, **kind}).encode())

        def do_PUT(self) -> None:
            content = self.body()
            if self.is_allowed():
                objects[self.path] = content
                self.answer(200, headers={"etag": '"1"'})

        def do_GET(self) -> None:
            if self.is_allowed():
                headers = {"etag": '"1"', "last-modified": "Wed, 25 Nov 2026 20:00:00 GMT"}
                self.answer(200 if self.path in objects else 404, objects.get(self.path, b""), headers)

        def is_allowed(self) -> bool:
            faults.asked.append(f"{self.command} {self.path}")
            if self.headers["Authorization"] == f"Bearer {TOKEN}":
                return True
            self.answer(401)
            return False

    yield from _served(Handler, faults)

"""An object store whose answers a test decides: moto's S3, which can be out, and Google's, which looks at tokens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

TOKEN = "a-token-of-google"


@dataclass
class Faults:
    """The answers of a server. statuses: of its next requests, each in place of an answer. asked: what it was asked.

    refuse_each: each request of this number is refused with 503, if not 0.
    """

    endpoint: str = ""
    statuses: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    refuse_each: int = 0


def _served(server: HTTPServer, faults: Faults) -> Iterator[Faults]:
    """Serve in a thread while the caller has what is yielded."""
    faults.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield faults
    server.shutdown()
    thread.join()
    server.server_close()


@contextmanager
def s3_with_faults() -> Iterator[Faults]:
    """moto's S3, of the same buckets as any other in this process."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    faults, s3 = Faults(), DomainDispatcherApplication(create_backend_app)

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        faults.asked.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
        if faults.refuse_each and len(faults.asked) % faults.refuse_each == 0:
            faults.statuses.append(503)
        if faults.statuses:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(f"{faults.statuses.pop(0)} Fault", [("Content-Length", "0")])
            return []
        return s3(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    yield from _served(server, faults)


@contextmanager
def google() -> Iterator[Faults]:
    """A bucket of Google's that takes TOKEN alone, with the servers that issue it. Faults are of the token servers."""
    faults, objects = Faults(), dict[str, bytes]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            faults.asked.append(f"POST {self.path}")
            if faults.statuses:
                self.answer(faults.statuses.pop(0))
            elif self.path.endswith(":generateAccessToken"):
                self.answer(200, json.dumps({"accessToken": TOKEN, "expireTime": "2099-01-01T00:00:00Z"}).encode())
            else:
                kind = {"token_type": "Bearer", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
                self.answer(200, json.dumps({"access_token": TOKEN, "expires_in": 3600, **kind}).encode())

        def do_PUT(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.is_allowed():
                objects[self.path] = content
                self.answer(200)

        def do_GET(self) -> None:
            if self.is_allowed():
                self.answer(200 if self.path in objects else 404, objects.get(self.path, b""))

        def is_allowed(self) -> bool:
            faults.asked.append(f"{self.command} {self.path}")
            if self.headers["Authorization"] == f"Bearer {TOKEN}":
                return True
            self.answer(401)
            return False

        def answer(self, status: int, content: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Wed, 25 Nov 2026 20:00:00 GMT")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    yield from _served(server, faults)

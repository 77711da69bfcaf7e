"""The v1 JSON API over HTTP/1.1: reads a request off a connection, asks the RPC that it stands for, writes the answer.

What stands for what is `transcode`'s; the RPC is answered by the same `server` as gRPC's, so that limits, errors,
faults and records are the same whichever way a request came. Beside the API there are a few documents: `/` and
`/healthz` say that the server is up, `/oauth2/...` publish the key that signs pushes.

A Pull that finds nothing answers before HTTP clients give up after a minute; one whose client has left is cancelled, so
that no message is leased to it. A client that only says no more looks the same from here; what does not wait is done
and answered whatever the client does.

A request whose body breaks off, or whose end cannot be told, is not done: the answer says so and ends the connection.
"""

from __future__ import annotations

import json
import logging
import re
import select
import socket
import ssl
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from pubsub_spark.emulator.api.errors import RpcError
from pubsub_spark.emulator.rpc.dispatcher import Answer
from pubsub_spark.emulator.transport import routes, transcoding
from pubsub_spark.emulator.transport.calls import Caller, Metadata, details, inflated, sentence

_log = logging.getLogger("pubsub_spark.emulator")

LARGEST_REQUEST = 10_485_760  # bytes; the service's own limit
_PULL = "/google.pubsub.v1.Subscriber/Pull"  # the one RPC that waits
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json; charset=utf-8"
_IDLE_SECONDS = 600.0
_SERVER = re.compile(r"^https?://[^/?]*", re.IGNORECASE)  # in a request that takes this server for a proxy
_NAME = re.compile(r"x-goog-[a-z0-9_.-]+(?<!-bin)")  # gRPC keeps `-bin` for bytes
_PRINTABLE = re.compile(r"[ -~]*")
_LONGEST_LINE = 65_536  # bytes; the limit of a header
_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]+")  # `int` would take signs, prefixes and underscores too
# What poll() tells of a client that has left; where the platform has no such event, a read tells it.
_HANGUP: int | None = getattr(select, "POLLRDHUP", None)
_GZIP = zlib.MAX_WBITS | 16

Document = Callable[[], Any]


Ask = Callable[[str, bytes, Caller], Answer]
Aside = Callable[[Callable[[], bytes]], "Future[bytes]"]


class Rest:
    """Serves connections.

    `ask` answers an RPC, `aside` has a thread wait for an answer; `documents` are what stands at fixed places, as text
    or as what JSON can say.
    """

    def __init__(self, ask: Ask, aside: Aside, documents: Mapping[str, Document]) -> None:
        self.ask = ask
        self.aside = aside
        self.documents = dict(documents)

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of one connection until it ends."""
        connection.settimeout(_IDLE_SECONDS)
        _Handler(connection, ("", 0), self)  # type: ignore[arg-type]


class _Unreadable(Exception):  # noqa: N818 - not an error to report but an answer to give
    def __init__(self, message: str) -> None:
        self.message = message


class _Handler(BaseHTTPRequestHandler):
    """One connection. The base class reads request lines and headers; its constructor runs the whole conversation."""

    protocol_version = default_request_version = "HTTP/1.1"
    server: Rest  # type: ignore[assignment]

    def _request(self) -> None:
        try:
            body = self._body()
        except _Unreadable as error:
            self.close_connection = True
            self._write(*_failure("INVALID_ARGUMENT", error.message))
            return
        path, _, query = _SERVER.sub("", self.path).partition("?")
        document = self.server.documents.get(path or "/")
        if document is not None and self.command in ("GET", "HEAD"):
            self._document(document())
        else:
            self._api(path, query, body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _request  # noqa: N815 - the base class's names

    def _document(self, content: Any) -> None:
        if isinstance(content, str):
            self._write(200, _TEXT, content.encode())
        else:
            self._write(200, _JSON, json.dumps(content).encode())

    def _api(self, path: str, query: str, body: bytes) -> None:
        route = routes.find(self.command, path)
        if route is None:
            self._write(404, _TEXT, b"Not Found\n")
            return
        try:
            call = transcoding.read(route, path, query, body)
        except transcoding.BadRequestError as error:
            self._write(*_failure(error.code, str(error)))
            return
        caller = Caller(_metadata(self.headers.items()), "REST")
        try:
            raw = self.server.ask(call.route.rpc, call.request.SerializeToString(), caller)
            if not isinstance(raw, bytes):
                outcome = self.server.aside(raw)
                if call.route.rpc == _PULL and not self._waited(outcome):
                    caller.end()
                    self.close_connection = True
                    return
                raw = outcome.result()
        except RpcError as error:
            _log.info("%s refused: %s: %s", call.route.rpc, error.code, sentence(error))
            self._write(*_failure(error.code, sentence(error), details(error)))
        else:
            self._write(200, _JSON, transcoding.answer(call, call.route.response.FromString(raw)))

    def _waited(self, outcome: Future[bytes]) -> bool:
        """Wait for the outcome; False when the client left before it came."""
        ours, theirs = socket.socketpair()
        with ours:
            outcome.add_done_callback(lambda _: theirs.close())
            events = select.poll()
            events.register(ours, select.POLLIN)
            if _HANGUP or not isinstance(self.connection, ssl.SSLSocket):  # which cannot be peeked
                events.register(self.connection, _HANGUP or select.POLLIN)
            while not outcome.done():
                ready = [descriptor for descriptor, _ in events.poll()]
                if ours.fileno() in ready:
                    break
                if _HANGUP or not self.connection.recv(1, socket.MSG_PEEK):
                    return False
                events.unregister(self.connection)  # the client already sends its next request
        return True

    def _body(self) -> bytes:
        coding = self.headers.get("Transfer-Encoding", "identity").lower()
        if coding == "chunked":
            body = self._chunks()
        elif coding != "identity":
            raise _Unreadable(f"Invalid Transfer-Encoding `{coding}`.")
        else:
            length = self.headers.get("Content-Length", "0")
            if not length.isdecimal():
                raise _Unreadable(f"Invalid Content-Length `{length}`.")
            _check_size(int(length))
            body = self._read(int(length))
        if self.headers.get("Content-Encoding", "identity").lower() == "gzip":
            return _inflated(body)
        return body

    def _chunks(self) -> bytes:
        body = bytearray()
        while size := _chunk_size(self._line()):
            _check_size(len(body) + size)
            body += self._read(size)
            if self._line():
                raise _Unreadable("Invalid chunk size in the request.")
        while self._line():
            pass  # trailers end with an empty line
        return bytes(body)

    def _line(self) -> bytes:
        """A line of what stands around chunks."""
        line = self.rfile.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise _Unreadable("The body of the request breaks off, or a line between its chunks is too long.")
        return line.rstrip(b"\r\n")

    def _read(self, size: int) -> bytes:
        """So many bytes of the body: what was not sent whole was not asked for."""
        content = self.rfile.read(size)
        if len(content) < size:
            raise _Unreadable("The body of the request breaks off.")
        return content

    def _write(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse, in a sentence, what the base class cannot read or has no method for; its own answer is a page."""
        self.close_connection = True
        self._write(code, _TEXT, f"{message or HTTPStatus(code).phrase}\n".encode())

    def version_string(self) -> str:
        return "pubsub-spark-emulator"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: the RPC behind the request is what the emulator records."""


def _metadata(headers: Iterable[tuple[str, str]]) -> Metadata:
    """Google's headers, as far as gRPC takes them as text."""
    named = [(name.lower(), value) for name, value in headers]
    return tuple((name, value) for name, value in named if _NAME.fullmatch(name) and _PRINTABLE.fullmatch(value))


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].rstrip()  # after the semicolon come extensions, which nobody uses
    if not _HEXADECIMAL.fullmatch(digits):
        raise _Unreadable("Invalid chunk size in the request.")
    return int(digits, 16)


def _check_size(size: int) -> None:
    if size > LARGEST_REQUEST:
        raise _Unreadable(f"Request payload size exceeds the limit: {LARGEST_REQUEST} bytes.")


def _inflated(body: bytes) -> bytes:
    try:
        text = inflated(body, _GZIP, LARGEST_REQUEST)
    except ValueError as error:
        raise _Unreadable(f"Invalid gzip encoding of the request: {error}.") from None
    _check_size(len(text))
    return text


def _failure(code: str, message: str, details: bytes = b"") -> tuple[int, str, bytes]:
    status, body = transcoding.failure(code, message, details)
    return status, _JSON, body

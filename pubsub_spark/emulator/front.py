"""One port for gRPC and for the JSON API: the first bytes of a connection tell which it speaks.

An HTTP/2 connection opens with `PRI * HTTP/2.0`; grpcio's own listener is behind this one, on the loopback, and gets
such a connection byte for byte. Everything else is HTTP/1.1 and served here. On a TLS port the opening is the client's
hello: who offers `h2` alone is gRPC's and stays encrypted to it; the others are decrypted here.

What that costs is measured in `benchmarks/emulator_front.py`: streams are between as fast and a fourteenth slower,
Publish an eighth, Pull an eighth to a fifth, and a message takes a tenth of a millisecond or two longer.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator

from pubsub_spark.emulator.splice import Splicer

_PREFACE = b"PRI"  # no method of HTTP/1.1 begins like this
_HANDSHAKE = b"\x16"  # the first byte of a TLS connection
_RECORD_HEAD = 5  # bytes before a TLS record: its type, version and length
_HELLO_SECONDS = 10  # for a connection to say something, and as much again to agree on keys
_RETRY_SECONDS = 0.05  # after a connection could not be accepted
_BACKLOG = 1024

Serve = Callable[[socket.socket], None]


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, 0 for any free port; OSError when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=host == "::")
    except OSError as problem:
        why = (problem.strerror or str(problem)).partition(" (")[0]  # Python adds what it tried
        raise OSError(
            f"The emulator cannot listen on `{host}:{port}`: {why}. Give it another host or port."
        ) from problem


def tls_context(key: bytes, certificate: bytes) -> ssl.SSLContext:
    """What serves HTTPS with a PEM key and certificate; `ssl` reads them from files only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        file.write(key + b"\n" + certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context


class Front:
    """Listens on `listener` and hands each connection to gRPC at `grpc_address` or to `serve`, until closed."""

    def __init__(
        self,
        listener: socket.socket,
        grpc_address: tuple[str, int],
        serve: Serve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._grpc_address = grpc_address
        self._serve = serve
        self._tls = tls
        self._splicer = Splicer()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="pubsub-emulator-front", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end every connection."""
        with self._lock:
            self._closed.set()
            connections = list(self._open)
        # A thread in accept() or recv() wakes at a shutdown, not at a close.
        for each in (self._listener, *connections):
            _shut_down(each)
        self._listener.close()
        self._splicer.close()
        if self._thread.is_alive():
            self._thread.join()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                # The client left before we looked, or there are no file descriptors: then some may soon be free.
                self._closed.wait(_RETRY_SECONDS)
                continue
            threading.Thread(
                target=self._handle, args=(connection,), name="pubsub-emulator-connection", daemon=True
            ).start()

    def _handle(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), self._kept(connection):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opening = _opening(connection, encrypted=self._tls is not None)
            if self._is_grpc(opening):
                upstream = socket.create_connection(self._grpc_address)
                upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._splicer.join(connection.dup(), upstream)
            elif opening and self._tls is not None:
                # The descriptor goes over to the new socket, which is kept before it waits for anything.
                decrypted = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                with self._kept(decrypted):
                    decrypted.settimeout(_HELLO_SECONDS)
                    decrypted.do_handshake()
                    decrypted.settimeout(None)
                    self._serve(decrypted)
            elif opening:
                self._serve(connection)

    def _is_grpc(self, opening: bytes) -> bool:
        if self._tls is None:
            return opening == _PREFACE
        return b"\x02h2" in opening and b"\x08http/1.1" not in opening

    @contextlib.contextmanager
    def _kept(self, connection: socket.socket) -> Iterator[socket.socket]:
        """`close` ends the connection as long as the block runs; the block's end closes it."""
        with self._lock:
            self._open.add(connection)
            closed = self._closed.is_set()
        try:
            if closed:
                raise ConnectionAbortedError
            yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


def _opening(connection: socket.socket, *, encrypted: bool) -> bytes:
    """What a connection begins with, left there to be read again: as much as tells what it speaks."""
    # The kernel's timeout and not Python's, which would make the socket one that does not wait for all.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _HELLO_SECONDS, 0))
    look = socket.MSG_PEEK | socket.MSG_WAITALL
    if encrypted:
        opening = connection.recv(_RECORD_HEAD, look)
        if opening.startswith(_HANDSHAKE):
            opening = connection.recv(_RECORD_HEAD + int.from_bytes(opening[3:]), look)
    else:
        opening = connection.recv(len(_PREFACE), look)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    return opening


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not the method of an SSLSocket, which forgets its state under the hands of the thread that reads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)

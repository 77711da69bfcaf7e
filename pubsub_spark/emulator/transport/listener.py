"""One port for gRPC and for the JSON API: how a connection begins tells which it speaks.

An HTTP/2 connection opens with `PRI * HTTP/2.0`, and is gRPC's; everything else is HTTP/1.1. On a TLS port the two
agree on a protocol: who offers `h2` alone speaks gRPC, all others HTTP/1.1.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator

_PREFACE = b"PRI"  # no method of HTTP/1.1 begins like this
_HELLO_SECONDS = 10  # for a connection to say something, or to agree on keys
_RETRY_SECONDS = 0.05  # after a connection could not be accepted
_BACKLOG = 1024

Serve = Callable[[socket.socket], None]


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there, 0 for any free port; OSError when it cannot be had."""
    if not 0 <= port <= 65535:
        raise OSError(f"The emulator cannot listen on port {port}. A port is a number from 0 to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=host == "::")
    except OSError as problem:
        why = (problem.strerror or str(problem)).partition(" (")[0]  # Python adds what it tried
        raise OSError(
            f"The emulator cannot listen on `{host}:{port}`: {why}. Give it another host or port."
        ) from problem


def address(host: str, port: int) -> str:
    """`host:port`, in which an IPv6 address has brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tls_context(key: bytes, certificate: bytes) -> ssl.SSLContext:
    """What serves TLS with a PEM key and certificate; OSError unless they are that."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as key_file, tempfile.NamedTemporaryFile() as certificate_file:
        for file, content in ((key_file, key), (certificate_file, certificate)):
            file.write(content)  # `ssl` reads them from files only
            file.flush()
        try:
            # Without a password Python would ask the terminal for that of an encrypted key.
            context.load_cert_chain(certificate_file.name, key_file.name, password="")
        except ssl.SSLError as problem:
            raise OSError(
                "The emulator cannot serve TLS with this key and certificate. "
                "Give a private key and the certificate that was made for it, both PEM, in this order."
            ) from problem
    return context


class Listener:
    """Listens on `listener` and hands each connection to `grpc`, which takes it over, or to `rest`, until closed."""

    def __init__(
        self, listener: socket.socket, grpc: Serve, rest: Serve | None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._listener = listener
        self._grpc = grpc
        self._rest = rest
        self._tls = tls
        if tls is not None:
            tls.set_alpn_protocols(["http/1.1", "h2"] if rest else ["h2"])  # the first that a client offers too
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="pubsub-emulator-front", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end every connection that was not handed over."""
        with self._lock:
            self._closed.set()
            connections = list(self._open)
        # A thread in accept() or recv() wakes at a shutdown, not at a close.
        for each in (self._listener, *connections):
            _shut_down(each)
        self._listener.close()
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
            handling = threading.Thread(
                target=self._handle, args=(connection,), name="pubsub-emulator-connection", daemon=True
            )
            try:
                handling.start()
            except RuntimeError:  # no more threads can be had: the same holds
                connection.close()
                self._closed.wait(_RETRY_SECONDS)

    def _handle(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), self._kept(connection):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                opening = _opening(connection)
                if opening:
                    self._serve(connection, is_grpc=opening == _PREFACE)
                return
            # The descriptor goes over to the new socket, which is kept before it waits for anything.
            decrypted = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            with self._kept(decrypted):
                decrypted.settimeout(_HELLO_SECONDS)
                decrypted.do_handshake()
                decrypted.settimeout(None)
                self._serve(decrypted, is_grpc=decrypted.selected_alpn_protocol() == "h2")

    def _serve(self, connection: socket.socket, *, is_grpc: bool) -> None:
        if is_grpc:
            with self._lock:
                self._open.discard(connection)
            self._grpc(connection)
        elif self._rest is not None:
            self._rest(connection)

    @contextlib.contextmanager
    def _kept(self, connection: socket.socket) -> Iterator[None]:
        """`close` ends the connection as long as the block runs; its end closes what was not handed over."""
        with self._lock:
            self._open.add(connection)
            closed = self._closed.is_set()
        try:
            if closed:
                raise ConnectionAbortedError
            yield
        finally:
            with self._lock:
                kept = connection in self._open
                self._open.discard(connection)
            if kept:
                connection.close()


def _opening(connection: socket.socket) -> bytes:
    """What a connection begins with, left there to be read again: as much as tells what it speaks."""
    # The kernel's timeout and not Python's, which would make the socket one that does not wait for all.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _HELLO_SECONDS, 0))
    opening = connection.recv(len(_PREFACE), socket.MSG_PEEK | socket.MSG_WAITALL)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    return opening


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not the method of an SSLSocket, which forgets its state under the hands of the thread that reads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)

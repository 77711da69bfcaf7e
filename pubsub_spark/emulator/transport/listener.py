"""One port for gRPC and for the JSON API: the first bytes of a connection show its protocol.

An HTTP/2 connection opens with `PRI * HTTP/2.0`, and is gRPC's. Everything else is HTTP/1.1. On a TLS port, a client
that offers only `h2` speaks gRPC, all others HTTP/1.1.

grpcio cannot serve a connection that another listener accepted. So its server has a port of its own on the loopback,
and for each gRPC client a second connection goes there. Bytes are passed on both ways, as fast as they are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any
from weakref import WeakSet

_log = logging.getLogger("pubsub_spark.emulator")

LOOPBACK = "127.0.0.1"

_PREFACE = b"PRI"  # no method of HTTP/1.1 begins like this
_FRAME_HEADER_BYTES = 9  # of HTTP/2: length (3), type, flags, stream (4)
_PING = b"\x00\x00\x08\x06\x00\x00\x00\x00\x00"
_PING_ACK = b"\x00\x00\x08\x06\x01\x00\x00\x00\x00"
_PING_ACK_BYTES = _FRAME_HEADER_BYTES + 8
MARK_BYTES = 16  # of a text in a response's trailers. grpcio does not compress the values of trailers
HELLO_SECONDS = 10  # for a connection to send its first bytes, or to agree on keys
_BACKLOG = 1024
_BUFFER_BYTES = 1 << 20  # on their way to a connection that is slower than the other


def listen(host: str, port: int) -> socket.socket:
    """Port 0 is any free port. Raise OSError if the address is not available."""
    if not 0 <= port <= 65535:
        raise OSError(f"The emulator cannot listen on port {port}. A port is a number from 0 to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=host == "::")
    except OSError as problem:
        why = (problem.strerror or str(problem)).partition(" (")[0]  # Python adds the address that it tried
        raise OSError(
            f"The emulator cannot listen on `{host}:{port}`: {why}. Choose another host or port."
        ) from problem


def address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tls_context(key: bytes, certificate: bytes) -> ssl.SSLContext:
    """Return the TLS context of a PEM key and certificate. Raise OSError if they are not such a pair."""
    import tempfile

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as key_file, tempfile.NamedTemporaryFile() as certificate_file:
        for file, content in ((key_file, key), (certificate_file, certificate)):
            file.write(content)  # `ssl` reads them from files only
            file.flush()
        try:
            # Without a password Python would ask the terminal for the password of an encrypted key.
            context.load_cert_chain(certificate_file.name, key_file.name, password="")
        except ssl.SSLError as problem:
            raise OSError(
                "The emulator cannot serve TLS with this key and certificate. "
                "Pass a private key and the certificate that was made for it, both PEM, in this order."
            ) from problem
    return context


class _Awaited:
    """Byte strings that one direction of a connection will carry, each with a callback."""

    def __init__(self, size: int) -> None:
        self._size = size  # of each
        self._awaited: dict[bytes, Callable[[], None]] = {}
        self._last = b""  # the last bytes, in case one arrives in two pieces

    def add(self, awaited: bytes, then: Callable[[], None]) -> None:
        self._awaited[awaited] = then

    def take(self, awaited: bytes) -> list[Callable[[], None]]:
        return [self._awaited.pop(awaited)] if awaited in self._awaited else []

    def take_all(self) -> list[Callable[[], None]]:
        callbacks, self._awaited = list(self._awaited.values()), {}
        return callbacks

    def passed(self, data: bytes) -> list[Callable[[], None]]:
        """Take the callbacks of those that end in these bytes."""
        if not self._awaited:
            return []
        text = self._last + data
        callbacks = [self._awaited.pop(awaited) for awaited in list(self._awaited) if awaited in text]
        self._last = text[1 - self._size :] if self._awaited else b""
        return callbacks


def _call(callbacks: Iterable[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


class GrpcConnection:
    """One client's connection: the bytes of responses that it has not taken, and how far it has read them.

    An HTTP/2 client acknowledges a PING after it has read everything sent before it. That is the only sign that a
    response has reached it. grpcio sends no PING on demand, so it is put between two frames on their way to the client.
    grpcio ignores its ack. Where a response ends is shown by a mark in its trailers.
    """

    def __init__(self, peer: str, client: asyncio.Transport | None = None) -> None:
        self.peer = peer
        self._client = client
        self._unsent_bytes = 0
        self._released = asyncio.Event()
        self._frame_bytes = 0  # the missing bytes of a frame that was sent in part
        self._header = b""  # of a frame, as far as it was sent
        self._marks = _Awaited(MARK_BYTES)
        self._unread: list[Callable[[], None]] = []  # wait for the next PING
        self._acks = _Awaited(_PING_ACK_BYTES)

    def when_read(self, mark: bytes, then: Callable[[], None]) -> None:
        """Call `then` when the client has read the frame that has this mark of MARK_BYTES, or is gone."""
        if self._client is None or self._client.is_closing():
            then()
        else:
            self._marks.add(mark, then)

    def give_up(self, mark: bytes) -> None:
        """Call the mark's callback now, unless the mark was sent."""
        _call(self._marks.take(mark))

    def sent(self, data: bytes) -> None:
        at = self._frame_bytes
        while (left := len(data) - at) > 0:
            missing = _FRAME_HEADER_BYTES - len(self._header)
            self._header += data[at : at + missing]
            if left < missing:
                at = len(data)
                break
            at += missing + int.from_bytes(self._header[:3], "big")
            self._header = b""
        self._frame_bytes = at - len(data)
        self._unread += self._marks.passed(data)
        if self._unread and self._client is not None and not (self._frame_bytes or self._header):
            payload = secrets.token_bytes(8)
            self._acks.add(_PING_ACK + payload, partial(_call, self._unread))
            self._unread = []
            self._client.write(_PING + payload)

    def received(self, data: bytes) -> None:
        _call(self._acks.passed(data))

    def ended(self) -> None:
        """Call all callbacks: with one direction ended, a PING or its ack can no longer be sent."""
        self._client = None
        _call([*self._marks.take_all(), *self._unread, *self._acks.take_all()])
        self._unread = []

    async def room(self, most_bytes: int) -> None:
        """Wait until fewer bytes than these are held for the client."""
        while self._unsent_bytes >= most_bytes:
            self._released.clear()
            await self._released.wait()

    def hold(self, size: int) -> None:
        self._unsent_bytes += size

    def release(self, size: int) -> None:
        self._unsent_bytes -= size
        self._released.set()


class Listener:
    """`http` makes the protocol of a connection, None serves gRPC alone."""

    def __init__(
        self,
        listening: socket.socket,
        http: Callable[[], Awaitable[asyncio.Protocol]] | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.connections: dict[str, GrpcConnection] = {}  # by the address that the gRPC server sees
        self._open: WeakSet[asyncio.Transport] = WeakSet()  # and closed ones, which nothing uses
        self._is_aborted = False
        self.http = http
        self.tls = tls
        self.grpc_port = 0
        self._listening = listening
        if tls is not None:
            tls.set_alpn_protocols(["http/1.1", "h2"] if http else ["h2"])  # the first that a client also offers

    async def start(self, grpc_port: int) -> None:
        """gRPC goes to this port of the loopback."""
        self.grpc_port = grpc_port
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Opening(self), sock=self._listening, backlog=_BACKLOG)

    def close(self) -> None:
        """Accept no more. A connection that asyncio has just accepted needs the server for one more round."""
        if self._server.is_serving():
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._listening)
            loop.call_soon(self._server.close)

    def made(self, transport: asyncio.Transport) -> None:
        """Note a transport that the end of the listener ends."""
        self._open.add(transport)
        if self._is_aborted:
            transport.abort()

    def abort(self) -> None:
        self._is_aborted = True
        for transport in list(self._open):
            if transport.get_extra_info("socket").fileno() >= 0:  # a lost transport has no event loop any more
                transport.abort()


class _Opening(asyncio.Protocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._opening = bytearray()
        self._heard = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._listener.made(transport)
        # asyncio does that if a socket has its protocol number, which an accepted one lacks. Without it a message
        # behind a response waits 40 ms for the client's acknowledgement of that response.
        with contextlib.suppress(OSError):  # the client has left
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._listener.tls is not None:
            transport.pause_reading()  # until the handshake begins
        self._task = asyncio.create_task(self._open())

    def data_received(self, data: bytes) -> None:
        self._opening += data
        if self._listener.tls is None and len(self._opening) >= len(_PREFACE):
            self._transport.pause_reading()
            self._heard.set()

    def connection_lost(self, _: Exception | None) -> None:
        self._task.cancel()

    async def _open(self) -> None:
        listener, accepted = self._listener, self._transport
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                is_grpc = await (self._speaks_grpc() if listener.tls is None else self._encrypt(listener.tls))
            if is_grpc:
                await self._pass_on()
            elif listener.http is not None:
                self._hand_over(await listener.http())
            else:
                accepted.abort()
        except OSError:  # TLS errors and timeouts included
            accepted.abort()
        except asyncio.CancelledError:  # the client has left, or the emulator ends
            accepted.abort()
            raise
        except Exception:
            _log.exception("A connection could not be served")
            accepted.abort()

    async def _speaks_grpc(self) -> bool:
        await self._heard.wait()
        return self._opening.startswith(_PREFACE)

    async def _encrypt(self, tls: ssl.SSLContext) -> bool:
        encrypted = await asyncio.get_running_loop().start_tls(
            self._transport, self, tls, server_side=True, ssl_handshake_timeout=HELLO_SECONDS
        )
        if encrypted is None:
            raise ConnectionAbortedError("The client left when the keys were agreed on.")
        encrypted.pause_reading()
        self._transport = encrypted
        return bool(encrypted.get_extra_info("ssl_object").selected_alpn_protocol() == "h2")

    async def _pass_on(self) -> None:
        client = self._transport
        connection = GrpcConnection(_grpc_address(client.get_extra_info("peername")), client)
        server, _ = await asyncio.get_running_loop().create_connection(
            lambda: _Half(self._listener, client, connection, connection.sent), LOOPBACK, self._listener.grpc_port
        )
        address = _grpc_address(server.get_extra_info("sockname"))
        self._listener.connections[address] = connection
        passing = _Half(self._listener, server, connection, connection.received, address)
        passing.connection_made(client)
        self._take_over(passing)

    def _hand_over(self, protocol: asyncio.Protocol) -> None:
        protocol.connection_made(self._transport)
        self._take_over(protocol)

    def _take_over(self, protocol: asyncio.Protocol) -> None:
        self._transport.set_protocol(protocol)
        if self._opening:  # with TLS there may be nothing yet, and h11 treats no bytes as the end
            protocol.data_received(bytes(self._opening))
        self._transport.resume_reading()


class _Half(asyncio.Protocol):
    def __init__(
        self,
        listener: Listener,
        other: asyncio.Transport,
        connection: GrpcConnection,
        passed: Callable[[bytes], None],
        address: str = "",
    ) -> None:
        self._listener = listener
        self._other = other
        self._connection = connection
        self._passed = passed  # called with the bytes
        self._address = address  # of the client's half, among the listener's connections
        self._has_ended = False  # whether the connection has sent its last byte

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._listener.made(transport)
        transport.set_write_buffer_limits(_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        self._other.write(data)
        self._passed(data)

    def eof_received(self) -> bool:
        """Pass on the end of one direction. TLS can only end both."""
        if not self._other.can_write_eof() or not self._transport.can_write_eof():
            return False
        self._has_ended = True
        self._connection.ended()
        self._other.write_eof()
        other = self._other.get_protocol()
        return not (isinstance(other, _Half) and other._has_ended)  # False closes the connection, and then the other

    def pause_writing(self) -> None:
        self._other.pause_reading()

    def resume_writing(self) -> None:
        self._other.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._listener.connections.pop(self._address, None)
        self._connection.ended()
        self._other.close()


def _grpc_address(name: Any) -> str:
    """None is the name of a client that has left."""
    host, port, *ipv6_fields = name or ("unknown", 0)
    return f"ipv6:[{host}]:{port}" if ipv6_fields else f"ipv4:{host}:{port}"

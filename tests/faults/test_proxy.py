"""The proxy: each fault has the effect that its method names, and `heal` ends it."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.proxy import Proxy


@pytest.fixture
def echo() -> Iterator[int]:
    """Yield the port of a server that echoes its input."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while content := connection.recv(65536):
                    connection.sendall(content)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    with Proxy(echo) as running:
        yield running


def client(proxy: Proxy, timeout: float = 10.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout)


def echoed(client: socket.socket, content: bytes) -> bytes:
    """Return the bytes received before the connection ends."""
    got = b""
    with suppress(ConnectionError):
        client.sendall(content)
        while len(got) < len(content) and (piece := client.recv(65536)):
            got += piece
    return got


def test_forwards(proxy: Proxy):
    """Bytes go there and back, and are counted."""
    with client(proxy) as one:
        assert b"hello" == echoed(one, b"hello")
    assert {"up": 5, "down": 5} == proxy.forwarded


def test_refuse_ends_all_connections_and_new_ones(proxy: Proxy):
    """`refuse` ends all connections and new ones, as a server that is down. `heal` restores it."""
    with client(proxy) as one:
        echoed(one, b"a")
        proxy.refuse()
        assert b"" == echoed(one, b"a")
    with client(proxy) as two:
        assert b"" == echoed(two, b"a")
    proxy.heal()
    with client(proxy) as three:
        assert b"a" == echoed(three, b"a")


def test_black_hole_keeps_bytes_until_it_is_healed(proxy: Proxy):
    """`black_hole` forwards nothing and closes nothing. After `heal` all bytes arrive."""
    with client(proxy, 0.2) as one:
        echoed(one, b"a")
        proxy.black_hole()
        one.sendall(b"b")
        with pytest.raises(TimeoutError):
            one.recv(1)
        one.settimeout(10)
        proxy.heal()
        assert b"b" == one.recv(1)


def test_half_close_ends_what_the_client_reads(proxy: Proxy):
    """The client sees the end of the stream."""
    with client(proxy) as one:
        echoed(one, b"a")
        proxy.half_close()
        assert b"" == one.recv(1)


def test_delay_and_throttle(proxy: Proxy):
    """An echo takes twice the delay. A tenth of a second's bytes take a tenth of a second."""
    with client(proxy) as one:
        proxy.delay(0.1)
        began = time.monotonic()
        echoed(one, b"a")
        assert time.monotonic() - began >= 0.2
        proxy.heal()
        proxy.throttle(100_000)
        began = time.monotonic()
        assert 20_000 == len(echoed(one, b"x" * 20_000))
        assert time.monotonic() - began >= 0.15


def test_client_that_leaves_is_gone_for_the_server(proxy: Proxy):
    """A client that ends its connection, or resets it as a killed process does, leaves no connection to the server."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for lingers in (False, True):
        one = client(proxy)
        echoed(one, b"a")
        if not lingers:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()

    end = time.monotonic() + 10
    while len(list(Path("/proc/self/fd").iterdir())) > before:
        assert time.monotonic() < end, "the proxy has sockets left"
        threading.Event().wait(0.01)

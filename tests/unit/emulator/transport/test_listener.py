"""A PING follows the frame with a mark. Its ack, or the end of the connection, calls the mark's callback."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import warnings
from collections.abc import Iterator

import pytest

from pubsub_spark.emulator.transport.listener import LOOPBACK, GrpcConnection, Listener, listen

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MARK = b"0123456789abcdef"


def frame(kind: int, payload: bytes, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


_TRAILERS = frame(1, b"mark" + _MARK + b"grpc-status0", flags=5, stream=1)


class Client(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


@pytest.mark.parametrize("size", [1, 7, 16, 1000])
def test_ping_follows_the_frame_with_the_mark(size):
    """It is written behind that frame, however the bytes arrive, and its ack is found in any pieces."""
    read: list[str] = []
    client = Client()
    connection = GrpcConnection("peer", client)
    connection.when_read(_MARK, lambda: read.append("read"))

    for data in pieces(frame(0, b"response", stream=1) + _TRAILERS, size):
        assert not client.written
        connection.sent(data)
    [ping] = client.written
    assert frame(6, ping[9:]) == ping
    for data in pieces(frame(6, b"8 others", flags=1) + frame(6, ping[9:], flags=1), size):
        assert not read
        connection.received(data)

    assert ["read"] == read


def test_mark_that_is_not_sent_is_given_up():
    """Its callback is called once, and a later frame with it writes nothing."""
    read: list[str] = []
    client = Client()
    connection = GrpcConnection("peer", client)
    connection.when_read(_MARK, lambda: read.append("read"))

    for _ in range(2):
        connection.give_up(_MARK)
    connection.sent(_TRAILERS)

    assert (["read"], []) == (read, client.written)


@pytest.mark.parametrize("first", ["client", "server"])
def test_no_ping_after_the_end_of_a_connection(first):
    """asyncio raises RuntimeError for it, which would end the whole emulator."""
    read: list[str] = []
    failures: list[object] = []

    async def end_before_the_ping() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
        grpc = await asyncio.start_server(lambda _, writer: accepted.put(writer), LOOPBACK, 0)
        listening = listen(LOOPBACK, 0)
        listener = Listener(listening, http=None, tls=None)
        await listener.start(grpc.sockets[0].getsockname()[1])
        _, client = await asyncio.open_connection(*listening.getsockname())
        client.write(_PREFACE)
        server = await accepted.get()
        (connection,) = listener.connections.values()

        (client if first == "client" else server).write_eof()
        while len(read) < 2:  # a PING is due in each round, before the end is seen and after it
            connection.when_read(_MARK, lambda: read.append(first))
            connection.sent(_TRAILERS)
            await asyncio.sleep(0)

        client.close()
        server.close()
        listener.close()
        grpc.close()
        await asyncio.gather(client.wait_closed(), server.wait_closed(), grpc.wait_closed())

    asyncio.run(asyncio.wait_for(end_before_the_ping(), 60))

    assert not failures


@pytest.mark.parametrize("opening", [b"", _PREFACE, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
@pytest.mark.parametrize("rounds", range(9))
def test_connection_that_is_being_opened_ends_with_the_listener(opening, rounds):
    """In whichever round of the loop the listener is closed, no socket is left to the garbage collector."""

    async def abort() -> socket.socket:
        grpc = await asyncio.start_server(lambda _, writer: writer.close(), LOOPBACK, 0)
        listening = listen(LOOPBACK, 0)
        listener = Listener(listening, http=asyncio.Future, tls=None)  # awaited for ever
        await listener.start(grpc.sockets[0].getsockname()[1])
        client = socket.create_connection(listening.getsockname())
        client.sendall(opening)
        for _ in range(rounds):
            await asyncio.sleep(0)
        listener.close()
        listener.abort()
        for _ in range(5):  # the end of the loop takes more
            await asyncio.sleep(0)
        grpc.close()
        return client

    with warnings.catch_warnings(record=True) as leaks:
        warnings.simplefilter("always")
        client = asyncio.run(asyncio.wait_for(abort(), 60))
        gc.collect()
    with client:
        client.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert not client.recv(1)

    assert not [str(leak.message) for leak in leaks]


def test_listener_ends_after_a_connection_that_was_closed_while_it_had_bytes_to_send():
    """Such a transport of asyncio is lost without the mark that makes a later abort do nothing."""

    async def abort() -> None:
        listener = Listener(listen(LOOPBACK, 0), http=None, tls=None)
        await listener.start(0)
        lost = asyncio.Event()
        transports: list[asyncio.Transport] = []

        class Answering(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                transports.append(transport)
                listener.made(transport)
                transport.write(bytes(10_000_000))
                transport.close()

            def connection_lost(self, _: Exception | None) -> None:
                lost.set()

        server = await asyncio.get_running_loop().create_server(Answering, LOOPBACK, 0)
        reader, client = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert 10_000_000 == len(await reader.read())
        await lost.wait()
        listener.close()
        listener.abort()
        client.close()
        server.close()
        assert transports

    asyncio.run(asyncio.wait_for(abort(), 60))


def test_listener_can_be_closed_again():
    """So is that of an emulator which has failed, when it is stopped."""

    async def close_twice() -> None:
        listening = listen(LOOPBACK, 0)
        listener = Listener(listening, http=None, tls=None)
        await listener.start(0)
        for _ in range(2):
            listener.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert -1 == listening.fileno()

    asyncio.run(asyncio.wait_for(close_twice(), 60))

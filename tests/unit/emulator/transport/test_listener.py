"""The end of a connection while a PING is due: all callbacks are called, and nothing is written after the end."""

from __future__ import annotations

import asyncio

import pytest

from pubsub_spark.emulator.transport.listener import LOOPBACK, Listener, listen

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


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
            connection.when_read(lambda: read.append(first))
            await asyncio.sleep(0)

        client.close()
        server.close()
        listener.close()
        grpc.close()
        await asyncio.gather(client.wait_closed(), server.wait_closed(), grpc.wait_closed())

    asyncio.run(asyncio.wait_for(end_before_the_ping(), 60))

    assert not failures

"""A TCP proxy in front of a server, whose link can be cut, black-holed, half-closed, delayed and throttled.

    with Proxy(port) as proxy:
        proxy.refuse()            connections are closed, also new ones, as when the server is down
        proxy.black_hole()        nothing is forwarded and nothing closed. Sent bytes wait in the sockets
        proxy.half_close()        the server's end of each connection is closed for sending
        proxy.delay(0.5)          each read waits 0.5 seconds before it is forwarded
        proxy.throttle(125_000)   bytes a second, in each direction: 125,000 is 1 Mbit/s
        proxy.heal()              all of it is over

One thread runs an event loop. The methods may be called from any other. Listens on a free port of 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 16 * 1024
_THROTTLED_CHUNK_SECONDS = 0.02  # of a throttled link, forwarded at a time


class Proxy:
    """A running proxy. A context manager. forwarded: bytes so far, up (to the server) and down."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.forwarded = {"up": 0, "down": 0}
        self._target_port = target_port
        self._refusing = False
        self._delay = 0.0
        self._bytes_per_second: float | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing: asyncio.Event
        self._started = threading.Event()
        self._stop: asyncio.Event
        self._next_free = {"up": 0.0, "down": 0.0}  # when a throttled direction may forward again
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), name="proxy")

    @property
    def endpoint(self) -> str:
        """`host:port` that clients connect to."""
        return f"127.0.0.1:{self.port}"

    def refuse(self) -> None:
        """Close all connections, and each new one at once."""
        self._call(lambda: setattr(self, "_refusing", True))
        self.drop()

    def drop(self) -> None:
        """Close all connections that there are. New ones work."""

        def close() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._call(close)

    def half_close(self) -> None:
        """Close the sending half of all connections, of both ends."""

        def close() -> None:
            for writer in list(self._writers):
                with suppress(OSError):
                    writer.write_eof()

        self._call(close)

    def black_hole(self) -> None:
        """Forward nothing, and close nothing."""
        self._call(lambda: self._flowing.clear())

    def delay(self, seconds: float) -> None:
        """Forward each read `seconds` after its arrival."""
        self._delay = seconds

    def throttle(self, bytes_per_second: float) -> None:
        """Forward at most `bytes_per_second`, up and down, over all connections."""
        self._bytes_per_second = bytes_per_second

    def heal(self) -> None:
        """Forward everything at once again."""
        self._refusing, self._delay, self._bytes_per_second = False, 0.0, None
        self._call(lambda: self._flowing.set())

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10), "the proxy listens"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(lambda: self._stop.set())
        self._thread.join()
        self._loop.close()

    def _call(self, function: Callable[[], object]) -> None:
        """Run a function in the event loop, and wait for it."""
        done = threading.Event()

        def run() -> None:
            try:
                function()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(10)

    async def _run(self) -> None:
        self._flowing, self._stop = asyncio.Event(), asyncio.Event()
        self._flowing.set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        try:
            await self._flowing.wait()
            there = await asyncio.open_connection("127.0.0.1", self._target_port)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        ends = {writer, there[1]}
        self._writers |= ends
        try:
            async with asyncio.TaskGroup() as directions:  # the failure of one ends the other
                directions.create_task(self._forward(reader, there[1], "up"))
                directions.create_task(self._forward(there[0], writer, "down"))
        except* OSError:
            pass
        except* asyncio.CancelledError:
            pass
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        while content := await reader.read(_CHUNK_BYTES):
            await self._flowing.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            for piece in self._pieces(content):
                await self._take_turn(len(piece), direction)
                self.forwarded[direction] += len(piece)  # before anyone can have them
                with suppress(RuntimeError):  # half-closed meanwhile
                    writer.write(piece)
                await writer.drain()
        with suppress(OSError):  # closed meanwhile
            writer.write_eof()

    def _pieces(self, content: bytes) -> list[bytes]:
        if self._bytes_per_second is None:
            return [content]
        size = max(1, int(self._bytes_per_second * _THROTTLED_CHUNK_SECONDS))
        return [content[start : start + size] for start in range(0, len(content), size)]

    async def _take_turn(self, count: int, direction: str) -> None:
        """Wait until a throttled link is free for `count` bytes."""
        if self._bytes_per_second is not None:
            now = self._loop.time()
            start = max(now, self._next_free[direction])
            self._next_free[direction] = start + count / self._bytes_per_second
            await asyncio.sleep(start - now)

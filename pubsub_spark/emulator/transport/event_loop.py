"""The event loop that all emulators of a process share, and its thread.

One loop instead of one for each emulator, because grpc.aio has one queue of events for the whole process. With two
loops, each reads events that are meant for the other, and logs that.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_log = logging.getLogger("pubsub_spark.emulator")

T = TypeVar("T")


class EventLoop:
    """It runs in a daemon thread for as long as the process."""

    def __init__(self) -> None:
        self.on_error: set[Callable[[BaseException], None]] = set()  # called with exceptions that no call has caught
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._handle)
        self._thread = threading.Thread(target=self._loop.run_forever, name="pubsub-emulator-io", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Call this on any other thread than that of the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, work: Callable[[], object]) -> None:
        """Any thread may call this."""
        self._loop.call_soon_threadsafe(work)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs: a forked process has the object without the thread."""
        return self._thread.is_alive()

    def _handle(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, OSError):  # of one connection, or of the machine: others continue
            _log.warning("%s: %s", context["message"], error)
            return
        if "protocol" in context:  # asyncio has closed the one connection that it happened on
            _log.error("A connection failed: %s", context["message"], exc_info=error)
            return
        for callback in list(self.on_error):
            callback(error)


_lock = threading.Lock()
_shared: EventLoop | None = None


def shared() -> EventLoop:
    global _shared
    with _lock:
        if _shared is None or not _shared.is_alive:
            _shared = EventLoop()
        return _shared

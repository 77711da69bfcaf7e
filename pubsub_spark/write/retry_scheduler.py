"""The retry scheduler of a task: one thread, and a heap of the requests that await their retry.

The thread is started by the first retry and ends with `close`. In an outage it may have a request of every ordering
key.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count

from ..publish.requests import EncodedRequest


class RetryScheduler:
    """`on_due` must not raise."""

    def __init__(self, on_due: Callable[[list[EncodedRequest]], None]) -> None:
        self._on_due = on_due
        self._heap: list[tuple[float, int, EncodedRequest]] = []
        self._sequence = count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def schedule(self, request: EncodedRequest, delay_seconds: float) -> None:
        """Raises RuntimeError when the thread cannot be started."""
        with self._changed:
            heapq.heappush(self._heap, (time.monotonic() + delay_seconds, next(self._sequence), request))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="pubsub-publish-retries", daemon=True)
                thread.start()
                self._thread = thread
            elif self._heap[0][2] is request:
                self._changed.notify()

    def close(self) -> None:
        """Requests that await their retry are forgotten."""
        with self._changed:
            self._closed = True
            self._heap.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (not self._heap or self._heap[0][0] > time.monotonic()):
                    self._changed.wait(self._heap[0][0] - time.monotonic() if self._heap else None)
                if self._closed:
                    return
                now, due = time.monotonic(), []
                while self._heap and self._heap[0][0] <= now:
                    due.append(heapq.heappop(self._heap)[2])
            self._on_due(due)

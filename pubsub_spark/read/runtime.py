"""The clocks, waits and threads of a process, as an object that is passed in.

Everything in `read/` that waits, starts a thread or asks for the time does so through a `Runtime`, and nothing holds a
lock while it waits. So the simulator (tests/simulation) runs the same code on one thread and a virtual clock.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

# Linux's monotonic clock stands still while the machine sleeps. Those of other systems do not.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Runtime:
    """The clocks, waits and threads of the operating system, in seconds."""

    def monotonic(self) -> float:
        """Return the clock for waits: timeouts, pauses, idle time. It may stand still while a machine sleeps."""
        return time.monotonic()

    def boottime(self) -> float:
        """Return the clock for leases. It continues while a machine sleeps. Other machines have another."""
        return time.clock_gettime(_BOOTTIME)

    def wall(self) -> float:
        """Return seconds since the epoch: publish times, and times that a restart or another machine reads."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def start(self, target: Callable[[], None], name: str) -> threading.Thread:
        """Start a daemon thread. It has `join(timeout)` and `is_alive()`."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def lock(self) -> Any:
        """Return a new `threading.Lock`."""
        return threading.Lock()

    def condition(self, lock: Any = None) -> threading.Condition:
        return threading.Condition(lock)

    def event(self) -> threading.Event:
        return threading.Event()

    def queue(self) -> queue.Queue[Any]:
        """Return a new queue.

        It is no SimpleQueue, whose `get` can wait forever before Python 3.13: a timeout that passes while it takes its
        lock leaves a negative rest, which means no timeout.
        """
        return queue.Queue()


SYSTEM = Runtime()

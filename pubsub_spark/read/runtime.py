"""The clocks, waits and threads of a process, as an object that is passed in.

Everything in `read/` that waits, starts a thread or asks for the time does so through a `Runtime`, and nothing holds a
lock while it waits. So the simulator (tests/simulation) runs the same code on one thread and a virtual clock.

    monotonic   how long a wait lasts: timeouts of calls, pauses, idle time. It may stand still while a machine sleeps.
    boottime    how old a lease is: it continues while a machine sleeps. Comparable within one machine only.
    wall        seconds since the epoch: publish times, and times that a restart or another machine reads.
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
    """The clocks, waits and threads of the operating system. Times and durations are seconds."""

    def monotonic(self) -> float:
        """Return the time of the clock for waits."""
        return time.monotonic()

    def boottime(self) -> float:
        """Return the time of the clock for leases."""
        return time.clock_gettime(_BOOTTIME)

    def wall(self) -> float:
        """Return the seconds since the epoch."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
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
        """Return a new `threading.Condition`."""
        return threading.Condition(lock)

    def event(self) -> threading.Event:
        """Return a new `threading.Event`."""
        return threading.Event()

    def queue(self) -> queue.Queue[Any]:
        """Return a new queue.

        It is no SimpleQueue: before Python 3.13 its `get` can wait for ever. If the timeout passes while it takes its
        lock, the remaining time is negative, which means no timeout. A task that was descheduled would hang.
        """
        return queue.Queue()


SYSTEM = Runtime()
